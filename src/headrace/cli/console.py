"""Output of the command line, and its exit codes.

Results go to stdout and everything else to stderr, so that a pipe receives only results. Every command imports this
module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from headrace.core.errors import HeadraceError, UserFunctionError

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
    """Return the exit code for an error: ``USAGE`` if the user's command or declaration is wrong, else ``FAILED``."""
    usage = error.fault == "user" and not isinstance(error, UserFunctionError)
    return Exit.USAGE if usage else Exit.FAILED


def print_error(message: str, hint: str | None = None) -> None:
    """Print ``error: ...`` and the hint to stderr, in colour on a terminal."""
    red, dim, plain = (_RED, _DIM, _PLAIN) if _coloured() else ("", "", "")
    _to_stderr(f"{red}error:{plain} {message}")
    if hint:
        _to_stderr(f"  {dim}hint:{plain} {hint}")


def print_note(text: str) -> None:
    """Print a line to stderr that is not part of the result."""
    _to_stderr(text)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error to stderr."""
    _to_stderr("".join(traceback.format_exception(error)).rstrip("\n"))


def print_line(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(text + "\n")


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print the result as a JSON document; without ``indent`` on one line."""
    print_line(json.dumps(value, indent=indent, ensure_ascii=False))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with columns as wide as needed and numbers aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [list(titles), *cells]
    widths = [max(len(line[n]) for line in lines) for n in range(len(titles))]
    right = [bool(rows) and all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(titles))]
    for line in lines:
        parts = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        print_line("  ".join(parts).rstrip())


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


def _coloured() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
