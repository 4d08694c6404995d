"""Find where the user's code declares something, for errors, plans and the plan page."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from textwrap import dedent
from types import FrameType

from typing_extensions import override

from headrace.core.errors import DeclarationError

_PACKAGE = str(Path(__file__).resolve().parents[1])
_TEXT_MAX = 120
_LINES_MAX = 40


@dataclass(frozen=True, slots=True)
class Location:
    """A file and line of the user's code, and the text of that line. ``code`` is the call if it takes several lines."""

    file: str
    line: int
    text: str = ""
    code: str = ""

    @property
    def whole(self) -> str:
        """All lines of the call."""
        return self.code or self.text

    @override
    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def here() -> Location:
    """Return the innermost frame that isn't Headrace's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Location(file, line, linecache.getline(file, line).strip(), _whole(frame))


def _whole(frame: FrameType) -> str:
    """Return the lines of a frame's current call, from the method's name on; empty if the call is one line."""
    code = frame.f_code
    positions = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    first, (_, last, _, end) = frame.f_lineno, positions
    if last is None or last <= first:
        return ""
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    lines[-1] = lines[-1].encode()[:end].decode()  # positions count bytes, and the line may continue after the call
    return dedent("".join(lines[:_LINES_MAX])).rstrip()


class Declaring:
    """Context manager for the body of a public method: adds the method and the user's line to a ``DeclarationError``.

    So the code inside raises plain errors and needn't know its caller. With ``quoting``, errors show the text of the
    line; methods that take passwords turn it off, because the line may contain one.
    """

    def __init__(self, what: str, *, quoting: bool = True) -> None:
        self._what = what
        self.location = here() if quoting else replace(here(), text="", code="")

    def __enter__(self) -> Location:
        return self.location

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        place = at(self.location)
        if isinstance(error, DeclarationError) and not error.message.endswith(place):
            error.message = f"{self._what}: {error.message}\n  {place}"
            error.args = (error.message,)


def at(location: Location) -> str:
    """Return ``at pipeline.py:12: <text of the line>``, the end of an error's message."""
    text = location.text if len(location.text) <= _TEXT_MAX else f"{location.text[: _TEXT_MAX - 3]}..."
    return f"at {location}: {text}" if text else f"at {location}"
