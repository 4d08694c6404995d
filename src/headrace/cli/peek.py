"""``headrace peek``."""

from __future__ import annotations

import select
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
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step of it, as headrace plan names it.")],
    stage: Annotated[
        str | None,
        typer.Option(metavar="STAGE", help="The stage with the step, if several have it or are deployed apart."),
    ] = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show some of the messages that a step takes now.

    Waits ten seconds at most for ten messages of each task, of eight tasks. The app has to allow it: hr.App(...,
    peek=True). Messages are seen while they are processed, so some may not be committed. Values are shown as text.
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
            select.select([interrupt.fd], [], [], _AGAIN_S)
            found = look(client.ask, status, step, id_, stage)
    if as_json:
        print_json([{"@task": task, **dict(zip(found.columns, row, strict=True))} for task, row in found.rows])
    elif found.rows:
        print_table(["@task", *found.columns], [[task, *row] for task, row in found.rows])
    else:
        print_note(f"step {step!r} took no message in ten seconds")
