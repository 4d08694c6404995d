"""Output of the command line: results to stdout and everything else to stderr, so that a pipe receives only results."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec

from headrace.core.errors import HeadraceError, UserFunctionError

_RED, _DIM, _PLAIN = "\x1b[31m", "\x1b[2m", "\x1b[0m"


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    FAILED = 1  # data that doesn't fit, a full disk, an exception in the user's code
    USAGE = 2  # the command, or the app as declared, can't work; running it again changes nothing
    INTERRUPTED = 130  # by Ctrl-C, before the command was done


def exit_of(error: HeadraceError) -> Exit:
    usage = error.fault == "user" and not isinstance(error, UserFunctionError)
    return Exit.USAGE if usage else Exit.FAILED


def print_error(message: str, hint: str | None = None) -> None:
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    red, dim, plain = (_RED, _DIM, _PLAIN) if coloured else ("", "", "")
    print_note(f"{red}error:{plain} {message}")
    if hint:
        print_note(f"  {dim}hint:{plain} {hint}")


def print_note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_traceback(error: BaseException) -> None:
    print_note("".join(traceback.format_exception(error)).rstrip("\n"))


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")


def print_json(value: Any, indent: int | None = 2) -> None:
    print_line(json.dumps(value, indent=indent, ensure_ascii=False, default=msgspec.to_builtins))


def print_result(as_json: bool, data: Any, text: str) -> None:
    if as_json:
        print_json(data)
    else:
        print_line(text)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [list(titles), *cells]
    widths = [max(len(line[n]) for line in lines) for n in range(len(titles))]
    right = [bool(rows) and all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(titles))]
    for line in lines:
        placed = zip(line, widths, right, strict=True)
        print_line("  ".join(text.rjust(n) if to_right else text.ljust(n) for text, n, to_right in placed).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
