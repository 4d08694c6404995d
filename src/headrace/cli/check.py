"""``headrace check``: report to monitoring tools whether an app is healthy."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.console import print_json, print_line
from headrace.cli.options import HOME, AsJson, Home, Metadata
from headrace.cli.startpoint import WhichApp
from headrace.core.clock import WallClock


def check(
    app: WhichApp,
    max_lag: Annotated[
        str | None,
        typer.Option(
            "--max-lag", metavar="TIME", help="How far an input with unread messages may be behind the clock."
        ),
    ] = None,
    max_checkpoint_age: Annotated[
        str | None,
        typer.Option("--max-checkpoint-age", metavar="TIME", help="How old a task's last commit may be."),
    ] = None,
    max_restarts: Annotated[
        str | None,
        typer.Option("--max-restarts", metavar="N/TIME", help="How often containers may restart, such as 3/10m."),
    ] = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Report in one line whether an app is healthy.

    The exit codes are those of monitoring plugins: 0 healthy, 1 warning, 2 critical, 3 unknown. Lag is in event time,
    so inputs without event time have none.
    """
    from headrace.cli.status import ask
    from headrace.core.errors import HeadraceError, UsageError
    from headrace.metadata.opening import existing_metadata
    from headrace.runners.coordination.check import Limits, Verdict
    from headrace.runners.coordination.check import check as judge

    try:
        limits = Limits.of(max_lag, max_checkpoint_age, max_restarts)
        with existing_metadata(home, metadata) as store:
            found = ask(store, app)
        verdict, text = judge(found, limits, WallClock().now_ms())
    except HeadraceError as error:
        hint = f"; {error.hint}" if isinstance(error, UsageError) and error.hint else ""
        verdict, text = Verdict.UNKNOWN, f"UNKNOWN: {app} {error.message.splitlines()[0]}{hint}"
    if as_json:
        print_json({"verdict": verdict.name.lower(), "text": text})
    else:
        print_line(text)
    raise typer.Exit(int(verdict))
