"""``headrace plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.console import print_json, print_line, print_note
from headrace.cli.options import AppName, AsJson, FileArguments, FunctionArguments, Pipeline


def plan(
    pipeline: Pipeline,
    arguments: FileArguments = None,
    app: AppName = None,
    arg: FunctionArguments = None,
    containers: Annotated[
        int,
        typer.Option("--containers", metavar="N", help="Plan for N containers (matters for grouping by container)."),
    ] = 1,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan as a self-contained HTML page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the stages, tasks and streams of an app.

    Looks at existing streams, checks that partition counts agree, and runs nothing.
    """
    from headrace.cli.loader import load_app
    from headrace.plan.document import to_json
    from headrace.plan.planner import plan as plan_graph
    from headrace.plan.render import render
    from headrace.plan.text import to_text
    from headrace.runners.facts import gather_facts
    from headrace.web.plan_page import plan_html

    graph = load_app(pipeline, app, arguments or (), arg or ()).graph()
    rendered = render(plan_graph(graph, gather_facts(graph), containers))
    if html is not None:
        _write(html, plan_html(rendered))
    if as_json:
        print_json(to_json(rendered))
    elif html is None:
        print_line(to_text(rendered).rstrip("\n"))


def _write(path: Path, text: str) -> None:
    from headrace.core.errors import UsageError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path} can't be written: {error.strerror}") from error
    print_note(f"wrote {path}")
