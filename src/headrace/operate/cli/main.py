"""The commands, the output of their errors, and their exit codes.

It imports little, so that ``headrace --help`` answers at once. A command imports the rest when it is called.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.exceptions import TyperException

from headrace.core.deployment import SETTINGS, TRACEBACK_VARIABLE, find
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.log import FORMATS, LEVELS, LogSettings, logging_to
from headrace.operate.cli import checkpoint, savepoint, sql, startpoint, status, stream, table
from headrace.operate.cli.console import Exit, exit_of, print_error, print_note, print_result, print_traceback
from headrace.operate.cli.options import AsJson
from headrace.operate.cli.run import backfill, doctor, new, plan, run

LOG_LEVEL = "--log-level"
LOG_FORMAT = "--log-format"

Choice = TypeVar("Choice", bound=str)


def log_settings(words: Sequence[str]) -> tuple[LogSettings, list[str]]:
    """The log settings of a command line, wherever they are, and its other words. Those after ``--`` are the app's.

    By default they are the deployment's, which may stand beside the program that the command names.

    >>> from headrace.operate.cli.main import log_settings
    >>> log_settings(["run", "pipeline.py", "--log-level", "debug", "--local"])
    (LogSettings(level='debug', format='text'), ['run', 'pipeline.py', '--local'])
    """
    end = words.index("--") if "--" in words else len(words)
    own, rest = list(words[:end]), list(words[end:])
    level, kind = _take(own, LOG_LEVEL, LEVELS), _take(own, LOG_FORMAT, FORMATS)
    program = next((Path(file) for word in own if (file := word.rpartition(":")[0] or word).endswith(".py")), None)
    try:
        said = LogSettings(find("log_level", level, "", program).value, find("log_format", kind, "", program).value)
    except UsageError:
        if not {"doctor", "--help", "--version"} & set(own):  # which work with any settings, or say what is wrong
            raise
        said = LogSettings("warning")
    return said, own + rest


def _take(words: list[str], option: str, choices: Sequence[Choice]) -> Choice | None:
    """Remove the option with its value from ``words``; return the last value."""
    chosen = None
    while (at := next((n for n, word in enumerate(words) if word.partition("=")[0] == option), None)) is not None:
        _, equals, value = words[at].partition("=")
        if not equals:
            value = words[at + 1] if at + 1 < len(words) else ""
        del words[at : at + (1 if equals else 2)]
        found = next((choice for choice in choices if choice == value.lower()), None)
        if found is None:
            raise UsageError(
                f"{option} {value}: expected one of {', '.join(choices)}", hint=f"write {option} {choices[0]}"
            )
        chosen = found
    return chosen


TRACEBACK = "--traceback"

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Exit codes: 0 success, 1 the app or the command failed, 2 wrong usage, 130 interrupted.",
)


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    from headrace import __version__

    print_result(as_json, {"version": __version__}, f"headrace {__version__}")


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
            TRACEBACK, help="Print the traceback of an error (so does HEADRACE_TRACEBACK=1); may be given anywhere."
        ),
    ] = False,
    log_level: Annotated[
        str,
        typer.Option(
            LOG_LEVEL,
            metavar="|".join(LEVELS),
            help=f"{SETTINGS['log_level'].help} May be given anywhere.",
        ),
    ] = "warning",
    log_format: Annotated[
        str,
        typer.Option(
            LOG_FORMAT,
            metavar="|".join(FORMATS),
            help=f"{SETTINGS['log_format'].help} May be given anywhere.",
        ),
    ] = "text",
) -> None:
    """Headrace, a stream processor on Spark."""


_Commands = dict[str, Callable[..., None]]
_COMMANDS: _Commands = {
    "new": new, "plan": plan, "offsets": status.offsets, "run": run, "backfill": backfill, "sql": sql.sql,
    "status": status.status, "dashboard": status.dashboard, "peek": status.peek, "check": status.check,
    "metrics": status.metrics, "doctor": doctor, "drain": status.drain, "version": version,
}  # fmt: skip
_GROUPS: dict[str, tuple[str, _Commands]] = {
    "stream": ("Create, write, read, check and end streams.", {
        "create": stream.create, "add-column": stream.add_column, "list": stream.list_, "describe": stream.describe,
        "write": stream.write, "read": stream.read, "seal": stream.seal, "trim": stream.trim, "verify": stream.verify,
        "repair": stream.repair,
    }),
    "checkpoint": ("Show what tasks have committed.", {
        "list": checkpoint.list_checkpoints, "show": checkpoint.show,
    }),
    "savepoint": ("Take, restore and move copies of an app and its state.", {
        "create": savepoint.create, "list": savepoint.list_, "show": savepoint.show, "delete": savepoint.delete,
        "restore": savepoint.restore, "undo": savepoint.undo, "timelines": savepoint.timelines,
        "export": savepoint.export, "import": savepoint.import_,
    }),
    "startpoint": ("Change where an app reads its inputs from.", {
        "set": startpoint.set_, "list": startpoint.list_startpoints, "address": startpoint.address,
        "delete": startpoint.delete,
    }),
    "table": ("Read the tables of a running app.", {"list": table.list_tables, "get": table.get, "scan": table.scan}),
}  # fmt: skip


def _add(group: typer.Typer, commands: _Commands) -> typer.Typer:
    for name, command in commands.items():
        group.command(name)(command)
    return group


_add(app, _COMMANDS)
for _name, (_help, _commands_of_group) in _GROUPS.items():
    app.add_typer(_add(typer.Typer(no_args_is_help=True, help=_help), _commands_of_group), name=_name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code. Errors are printed, not raised."""
    if arguments is None and sys.stderr is not None and not faulthandler.is_enabled():
        faulthandler.enable()  # so that a crash in a library's C code prints a traceback, too
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = [word for word in given if word != TRACEBACK]
    verbose = len(command) < len(given) or os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0")
    try:
        settings, command = log_settings(command)
        with logging_to(settings):
            named = next((word for word in command if not word.startswith("-")), "")
            code = _commands(named)(args=command, prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _output_closed()
    except SystemExit as ending:  # which Typer makes of a broken pipe
        if isinstance(ending.__context__, BrokenPipeError):
            return _output_closed()
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


@lru_cache(16)
def _commands(named: str) -> Callable[..., Any]:
    """Typer's form of the commands: of those with this name if there are any, as each takes milliseconds."""
    part = copy(app)
    part.registered_commands = [command for command in app.registered_commands if command.name == named]
    part.registered_groups = [group for group in app.registered_groups if group.name == named]
    found = part.registered_commands or part.registered_groups
    return typer.main.get_command(part if found else app)


def _output_closed() -> int:
    """Discard buffered output, because its reader has closed the pipe. That isn't a failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return Exit.OK


def _wrong_usage(error: TyperException) -> int:
    """Print typer's message about the arguments; for a group without a command, that is its help."""
    text = error.format_message()
    context = getattr(error, "ctx", None)
    if text.startswith("Usage: "):
        print_note(text)
    else:
        print_error(text.rstrip("."), hint=f"see {context.command_path} --help" if context else None)
    return Exit.USAGE


if __name__ == "__main__":
    sys.exit(main())
