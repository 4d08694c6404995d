"""Output of the command line, its exit codes, and options that several commands share.

Results go to stdout and everything else to stderr, so that a pipe receives only results. Every command imports this
module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.core.errors import HeadraceError, UsageError, UserFunctionError
from headrace.core.files import DEFAULT_HOME, HOME_VARIABLE, METADATA_VARIABLE, metadata_url_of
from headrace.core.secrets import SecretUrl
from headrace.stores.snapshots import ObjectPlace, snapshots_of

_RED, _DIM, _PLAIN = "\x1b[31m", "\x1b[2m", "\x1b[0m"


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    FAILED = 1
    """The app or the command failed: data that doesn't fit, a full disk, an exception in the user's code."""
    USAGE = 2
    """The command, or the app as declared, can't work; running it again changes nothing."""
    INTERRUPTED = 130
    """Ctrl-C interrupted the command before it was done."""


def exit_of(error: HeadraceError) -> Exit:
    """Return the exit code for an error."""
    usage = error.fault == "user" and not isinstance(error, UserFunctionError)
    return Exit.USAGE if usage else Exit.FAILED


def print_error(message: str, hint: str | None = None) -> None:
    """Print ``error: ...`` and the hint to stderr, in colour on a terminal."""
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    red, dim, plain = (_RED, _DIM, _PLAIN) if coloured else ("", "", "")
    print_note(f"{red}error:{plain} {message}")
    if hint:
        print_note(f"  {dim}hint:{plain} {hint}")


def print_note(text: str) -> None:
    """Print a line to stderr that is not part of the result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error to stderr."""
    print_note("".join(traceback.format_exception(error)).rstrip("\n"))


def print_line(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(text + "\n")


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print the result as a JSON document; without ``indent`` on one line."""
    print_line(json.dumps(value, indent=indent, ensure_ascii=False))


def print_result(as_json: bool, data: Any, text: str) -> None:
    """Print the result, as JSON or as text."""
    if as_json:
        print_json(data)
    else:
        print_line(text)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with columns as wide as needed and numbers aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [list(titles), *cells]
    widths = [max(len(line[n]) for line in lines) for n in range(len(titles))]
    right = [bool(rows) and all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(titles))]
    for line in lines:
        placed = zip(line, widths, right, strict=True)
        print_line("  ".join(text.rjust(n) if to_right else text.ljust(n) for text, n, to_right in placed).rstrip())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(size: int) -> str:
    """Return a size in a readable unit: ``812 B``, ``4.2 MB``."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar=HOME_VARIABLE,
        metavar="FOLDER",
        help="Where Headrace keeps its data; the embedded log is in FOLDER/streams.",
        show_default=True,
        file_okay=False,
    ),
]
HOME = Path(DEFAULT_HOME)

Metadata = Annotated[
    SecretUrl | None,
    typer.Option(
        "--metadata",
        envvar=METADATA_VARIABLE,
        metavar="URL",
        parser=metadata_url_of,
        help="The PostgreSQL database that keeps the metadata; by default it is in the home folder. Pass a "
        "password in the environment variable instead.",
        show_default=False,
    ),
]

Snapshots = Annotated[
    ObjectPlace | None,
    typer.Option(
        "--snapshots",
        metavar="URL",
        parser=snapshots_of,
        help="The object store with the snapshots, if it isn't the one the app was started with.",
        show_default=False,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

AppOrAll = Annotated[str | None, typer.Argument(metavar="APP", help="The app; by default all apps of the home folder.")]

StreamName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The stream, as NAME or SYSTEM.NAME. NAME alone means a stream of the embedded log, or with --app "
        "one of the app's own system.",
    ),
]

OfApp = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP", help="Resolve names as this app does, and look for its own streams where it keeps them."
    ),
]

Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="COLUMNS", help='The columns and their types: "member:str,url:str,ts:datetime[ms]".'
    ),
]


Partition = Annotated[int | None, typer.Option("--partition", metavar="P", help="Only this partition.")]

Pipeline = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="The Python file that declares the app (pipeline.py); or an app, or a function that returns one, in a "
        "file or module (pipeline.py:make_app, package.module:app).",
    ),
]

FunctionArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        metavar="NAME=VALUE",
        help="An argument of the function that creates the app; may be given several times.",
    ),
]

FileArguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments for the file (its sys.argv), after --.")
]

AppName = Annotated[str | None, typer.Option("--app", metavar="NAME", help="The app to use, if the file has several.")]

DropState = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-state",
        metavar="ID",
        help="Let this step, table, stream, input or output start over if its kept state or stream doesn't fit any "
        "more; may be given several times.",
    ),
]

Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="NEW is the new id of OLD and continues with its state; may be given several times.",
    ),
]

FromTables = Annotated[
    list[str] | None,
    typer.Option(
        "--from-tables",
        metavar="INPUT=TABLE",
        help="Read the input's history from a Spark table (views=db.views, or views=parquet:/path); "
        "may be given several times.",
    ),
]


def column_names(text: str | None) -> tuple[str, ...]:
    """Return the columns of an option such as ``--key a,b``."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def tables_of(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return ``INPUT=TABLE`` pairs as a dict."""
    found: dict[str, str] = {}
    for input_, table in _split("--from-tables", "INPUT=TABLE", "views=db.views", pairs):
        if input_ in found:
            raise UsageError(f"--from-tables gives {input_!r} two tables: {found[input_]!r} and {table!r}")
        found[input_] = table
    return found


def renames(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return ``OLD=NEW`` pairs as a dict from new to old ids."""
    found: dict[str, str] = {}
    for old, new in _split("--rename", "OLD=NEW", "per-10s=per-window", pairs):
        if new in found:
            raise UsageError(f"--rename gives {new!r} two former ids: {found[new]!r} and {old!r}")
        found[new] = old
    return found


def _split(option: str, form: str, example: str, pairs: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for pair in pairs or ():
        left, equals, right = (part.strip() for part in pair.partition("="))
        if not left or not equals or not right:
            raise UsageError(f"{option} {pair}: expected {form}", hint=f"write {option} {example}")
        yield left, right
