"""``headrace plan``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.console import print_json, print_line, print_note
from headrace.cli.options import (
    AppName,
    AsJson,
    DropState,
    FileArguments,
    FunctionArguments,
    Pipeline,
    Rename,
    renames,
)
from headrace.core.errors import UsageError

if TYPE_CHECKING:
    from headrace.metadata.startpoints import StartpointState


def plan(
    pipeline: Pipeline,
    arguments: FileArguments = None,
    app: AppName = None,
    arg: FunctionArguments = None,
    containers: Annotated[
        int,
        typer.Option(
            "--containers", metavar="N", help="Plan for N containers; only grouping by container depends on it."
        ),
    ] = 1,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan as a self-contained HTML page.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="APP",
            help="Show only what would change in the app's kept state, streams and outputs; ask databases and brokers "
            "about outputs. Fails if a change is refused.",
        ),
    ] = None,
    drop_state: DropState = None,
    rename: Rename = None,
    as_json: AsJson = False,
) -> None:
    """Show the stages, tasks and streams of an app.

    Looks at existing streams and at the app's kept state, shows what has changed since the last run, and runs nothing.
    """
    import msgspec

    from headrace.cli.loader import load_app
    from headrace.metadata.opening import existing_metadata
    from headrace.metadata.startpoints import StartpointBook
    from headrace.plan import changes
    from headrace.plan.document import to_json
    from headrace.plan.heritage import consent_of
    from headrace.plan.render import render
    from headrace.plan.text import to_text
    from headrace.runners.checkpoints import apps_with_checkpoints
    from headrace.runners.planning import Deployment, check_not_ended
    from headrace.runners.prepare import ask_targets
    from headrace.web.plan_page import plan_html

    graph = load_app(pipeline, app, arguments or (), arg or ()).graph()
    consent = consent_of(drop_state or (), renames(rename or ()))
    with existing_metadata(Path(graph.settings.home), graph.settings.metadata) as metadata:
        deployment = Deployment(graph, metadata, consent, against or "")
        found = deployment.planned(containers)
        if against is not None:
            if not deployment.inventory:
                raise _never_ran(against, apps_with_checkpoints(Path(graph.settings.home), metadata), metadata.place)
            due = changes.with_answers(found.changes, ask_targets(found.plan))
            waiting = StartpointBook(metadata, against).states()
            if as_json:
                print_json(
                    {"app": against, "changes": changes.to_json(due), "startpoints": msgspec.to_builtins(waiting)}
                )
            else:
                print_line(changes.to_text(due) + _in_lines(waiting))
            due.check()
            check_not_ended(found, metadata, against)
            return
        waiting = StartpointBook(metadata, graph.app).states()
    rendered = render(found.plan)
    if html is not None:
        _write(html, plan_html(rendered))
    if as_json:
        print_json(to_json(rendered))
    elif html is None:
        print_line(to_text(rendered).rstrip("\n") + _in_lines(waiting))
        if deployment.inventory and found.changes.notable:
            print_line(f"\nchanged since the last run\n{indent(changes.to_text(found.changes), '  ')}")


def _in_lines(waiting: Sequence[StartpointState]) -> str:
    """Return lines about the startpoints that aren't done with; they begin with an empty one."""
    if not waiting:
        return ""
    lines = "".join(f"\n  {state.in_words}" for state in waiting)
    return f"\n\nstartpoints, for the next live start; a batch job applies none{lines}"


def _never_ran(app: str, known: Sequence[str], place: str) -> UsageError:
    return UsageError(
        f"app {app!r} has never run in {place}",
        hint=f"apps that have: {', '.join(known)}"
        if known
        else "name its home folder (HEADRACE_HOME or home= of the app) or its metadata store (HEADRACE_METADATA or "
        "metadata= of the app)",
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path} can't be written: {error.strerror}") from error
    print_note(f"wrote {path}")
