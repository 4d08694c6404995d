"""``headrace backfill``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.console import print_json
from headrace.cli.options import (
    AppName,
    FileArguments,
    FromTables,
    FunctionArguments,
    Pipeline,
    tables_of,
)
from headrace.cli.run import parse_conf


def backfill(
    pipeline: Pipeline,
    arguments: FileArguments = None,
    *,
    until: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Where the history of inputs ends: now, a time (2026-01-31T12:00Z), or views/0=1200,views/1=980.",
        ),
    ],
    app: AppName = None,
    arg: FunctionArguments = None,
    from_tables: FromTables = None,
    savepoint: Annotated[str, typer.Option(metavar="NAME", help="The name of the savepoint.")] = "backfill",
    publish: Annotated[
        bool,
        typer.Option(help="Whether to publish the results of the history. Without them, the app may be running."),
    ] = True,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Run even if results of a batch job are published already; they then appear twice."
        ),
    ] = False,
    master: Annotated[
        str | None, typer.Option(metavar="MASTER", help="The Spark master to run on, as for run.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be given several times.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compute an app's history in a Spark job.

    The job ends with a savepoint from which a live run continues. It publishes the windows that have ended at --until;
    the others stay open in the savepoint. Restore it with headrace savepoint restore, then run the app. headrace run
    --backfill does all of that. An interrupted command can be repeated: nothing is published twice.
    """
    from headrace.cli.loader import load_runnable_app

    application = load_runnable_app(pipeline, app, arguments or (), arg or ())
    application.backfill(
        until,
        tables=tables_of(from_tables or ()),
        savepoint=savepoint,
        publish=publish,
        master=master,
        conf=parse_conf(conf or ()) or None,
        again=again,
        progress=not quiet,
    )
    if as_json:
        print_json({"app": application.name, "savepoint": savepoint, "published": publish})
