"""The tree of commands, and how each ends: what is printed on an error, and the exit code.

Imports here are light on purpose: ``headrace --help`` answers at once. A verb imports what it works with
when it is called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from headrace.cli.checkpoint import list_checkpoints, show
from headrace.cli.console import Exit, exit_of, print_error, print_note, print_traceback
from headrace.cli.logs import LOG_FORMAT, LOG_LEVEL, log_settings
from headrace.cli.plan import plan
from headrace.cli.run import run
from headrace.cli.status import status
from headrace.cli.stream.create import create
from headrace.cli.stream.describe import describe
from headrace.cli.stream.list import list_
from headrace.cli.stream.read import read
from headrace.cli.stream.seal import seal
from headrace.cli.stream.trim import trim
from headrace.cli.stream.write import write
from headrace.cli.table.get import get
from headrace.cli.table.list import list_tables
from headrace.cli.table.scan import scan
from headrace.cli.version import version
from headrace.core.errors import HeadraceError
from headrace.core.log import FORMATS, LEVELS, logging_to

TRACEBACK = "--traceback"

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 well, 1 the app or the command failed, 2 wrong usage, 130 interrupted.",
)
checkpoints = typer.Typer(no_args_is_help=True, help="Look at what tasks have committed.")
tables = typer.Typer(no_args_is_help=True, help="Look at what the tables of a running app hold.")
streams = typer.Typer(no_args_is_help=True, help="Make, fill, read and end streams of the embedded log.")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _headrace(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            TRACEBACK, help="Print the traceback of an error (so does HEADRACE_TRACEBACK=1); any place will do."
        ),
    ] = False,
    log_level: Annotated[
        str,
        typer.Option(
            LOG_LEVEL,
            metavar="|".join(LEVELS),
            help="Which log lines are written to stderr, here and by containers; any place will do.",
        ),
    ] = "warning",
    log_format: Annotated[
        str,
        typer.Option(
            LOG_FORMAT, metavar="|".join(FORMATS), help="Write log lines as text or as JSON; any place will do."
        ),
    ] = "text",
) -> None:
    """Headrace, a stream processor on Spark."""


app.command("plan")(plan)
app.command("run")(run)
app.command("status")(status)
app.command("version")(version)
for verb, name in (
    (create, "create"),
    (list_, "list"),
    (describe, "describe"),
    (write, "write"),
    (read, "read"),
    (seal, "seal"),
    (trim, "trim"),
):
    streams.command(name)(verb)
app.add_typer(streams, name="stream")
checkpoints.command("list")(list_checkpoints)
checkpoints.command("show")(show)
app.add_typer(checkpoints, name="checkpoint")
tables.command("list")(list_tables)
tables.command("get")(get)
tables.command("scan")(scan)
app.add_typer(tables, name="table")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code. Errors are printed, not raised."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = [word for word in given if word != TRACEBACK]
    verbose = len(command) < len(given) or os.environ.get("HEADRACE_TRACEBACK", "") not in ("", "0")
    try:
        settings, command = log_settings(command)
        with logging_to(settings):
            code = app(args=command, prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _nobody_reads()
    except SystemExit as ending:
        # This is what typer makes of a broken pipe.
        if isinstance(ending.__context__, BrokenPipeError):
            return _nobody_reads()
        raise
    except TyperException as error:
        return _wrong_usage(error)
    except HeadraceError as error:
        print_error(error.message, error.hint)
        if verbose:
            print_traceback(error)
        return exit_of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return int(code or Exit.OK)


def _nobody_reads() -> int:
    """Whoever read our output has had enough, which is well; what is still buffered for it has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return Exit.OK


def _wrong_usage(error: TyperException) -> int:
    """What typer has to say about the arguments; for the bare name of a group that is its help."""
    text = error.format_message()
    context = getattr(error, "ctx", None)
    if text.startswith("Usage: "):
        print_note(text)
    else:
        print_error(text.rstrip("."), hint=f"{context.command_path} --help says how" if context else None)
    return Exit.USAGE


if __name__ == "__main__":
    sys.exit(main())
