"""``headrace run``."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from typing import Annotated

import typer

from headrace.cli.console import print_json
from headrace.cli.options import (
    AppName,
    DropState,
    FileArguments,
    FromTables,
    FunctionArguments,
    Pipeline,
    Rename,
    renames,
    tables_of,
)

_JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
_QUICKLY = "-XX:TieredStopAtLevel=1"


def run(
    pipeline: Pipeline,
    arguments: FileArguments = None,
    app: AppName = None,
    arg: FunctionArguments = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="MASTER",
            help="The Spark master to run on: local[2], local-cluster[2,1,1024], spark://host:7077, yarn, k8s://...",
        ),
    ] = None,
    containers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many containers share the work; by default one per free slot, but no more than tasks.",
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE", help="Run only this stage; may be given several times. The other stages run elsewhere."
        ),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run in this process, without Spark.")] = False,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be given several times.")
    ] = None,
    drop_state: DropState = None,
    rename: Rename = None,
    savepoint: Annotated[
        str, typer.Option("--savepoint", metavar="NAME", help="Take a savepoint when the app ends, before it drains.")
    ] = "",
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST[:PORT]",
            help="The address on which the driver listens for containers and commands. By default only this machine "
            "can reach it; on a cluster, it listens where Spark's driver does. Also HEADRACE_LISTEN.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST[:PORT]",
            help="The address at which containers and commands reach the driver, if it differs from --listen: in a "
            "pod, or behind NAT. Also HEADRACE_ADVERTISE.",
        ),
    ] = None,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch", help="Run the app as one Spark job over the present contents of its inputs, without containers."
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Where --batch or --backfill stops reading inputs: now, a time (2026-01-31T12:00Z), or offsets "
            "(views/0=1200,views/1=980).",
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Run a batch job even if its results are published already; they then appear twice."
        ),
    ] = False,
    backfill: Annotated[
        bool,
        typer.Option("--backfill", help="First compute the history up to --until in a Spark job, then continue live."),
    ] = False,
    from_tables: FromTables = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="When the app ends, print how as JSON.")] = False,
) -> None:
    """Run an app until it ends.

    Ctrl-C drains the app: it finishes what it has read, then ends with exit code 0. A second Ctrl-C ends it at once.
    If the app has changed since its last run, headrace plan shows what the change means for its state.
    Log lines go to stderr; --log-level and --log-format (see headrace --help) select them.
    """
    from headrace.cli.loader import load_runnable_app
    from headrace.core.errors import UsageError

    settings = parse_conf(conf or ())
    if local and (master or containers or settings):
        raise UsageError("--local runs without Spark, so --master, --containers and --conf have no effect")
    if batch and (local or containers or stage or savepoint or listen or advertise):
        raise UsageError(
            "--batch runs one Spark job without containers, so --local, --containers, --stage, --savepoint, --listen "
            "and --advertise have no effect"
        )
    if not batch and (again or (until and not backfill)):
        raise UsageError("--until and --again apply only to batch jobs", hint="add --batch or --backfill")
    if from_tables and not backfill:
        raise UsageError("--from-tables applies only to a backfill", hint="add --backfill and --until TIME")
    application = load_runnable_app(pipeline, app, arguments or (), arg or ())
    if not (local or batch or backfill):
        hurry_jvm(os.environ)
    application.run(
        master=master,
        containers=containers,
        stages=stage or None,
        local=local,
        conf=settings or None,
        progress=not quiet,
        drop_state=drop_state or (),
        rename=renames(rename or ()),
        savepoint=savepoint,
        listen=listen,
        advertise=advertise,
        batch=batch,
        until=until,
        again=again,
        backfill=backfill,
        tables=tables_of(from_tables or ()),
    )
    if as_json:
        print_json({"app": application.name, "ended": True})


def hurry_jvm(environ: MutableMapping[str, str]) -> None:
    """Make the JVM that starts next compile quickly rather than well, because it only hosts Python containers.

    The second compiler takes half of the processor time of a start. The user's SPARK_SUBMIT_OPTS take precedence.
    """
    given = environ.get(_JVM_OPTIONS, "")
    if _QUICKLY not in given.split():
        environ[_JVM_OPTIONS] = f"{_QUICKLY} {given}".rstrip()


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` pairs as a dict. A key given twice is an error, because one value would be lost."""
    from headrace.core.errors import UsageError

    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"--conf {pair}: expected KEY=VALUE", hint="write --conf spark.executor.memory=4g")
        if key in settings:
            raise UsageError(f"--conf {key} is given twice: {settings[key]!r} and {value!r}")
        settings[key.strip()] = value
    return settings
