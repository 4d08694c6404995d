"""``headrace peek``."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Annotated

import typer

from headrace.cli.console import print_json, print_note, print_table
from headrace.cli.options import HOME, AsJson, Home, Metadata
from headrace.cli.startpoint import WhichApp

_AGAIN_S = 0.3


def peek(
    app: WhichApp,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step of the app, as headrace plan names it.")],
    stage: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE", help="The stage with the step, if several stages have it or are deployed separately."
        ),
    ] = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show some of the messages that a step receives now.

    Waits at most ten seconds for ten messages from each of up to eight tasks. The app must allow this: hr.App(...,
    peek=True). Messages are shown as they are processed, so some may not be committed yet. Values are shown as text.
    """
    from headrace.metadata.opening import existing_metadata
    from headrace.runners.coordination.runs import find
    from headrace.runners.interrupts import Interrupt
    from headrace.runners.looks.asking import peek as look

    with existing_metadata(home, metadata) as store:
        address = find(store, app, stage)
    id_ = uuid.uuid4().hex
    with closing(address.client(timeout_s=10.0, patience_s=0)) as client, Interrupt() as interrupt:
        status = client.status()
        found = look(client.ask, status, step, id_, stage)
        while not found.over and not interrupt.requested:
            interrupt.wait(_AGAIN_S)
            found = look(client.ask, status, step, id_, stage)
    if as_json:
        print_json([{"@task": task, **dict(zip(found.columns, row, strict=True))} for task, row in found.rows])
    elif found.rows:
        print_table(["@task", *found.columns], [[task, *row] for task, row in found.rows])
    else:
        print_note(f"step {step!r} received no message in ten seconds")
