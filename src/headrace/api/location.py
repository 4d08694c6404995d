"""Where in the user's code something was declared. Errors, plans and the plan page point there."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True, slots=True)
class Location:
    """A file and line of the user's code, and the text of that line."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def here() -> Location:
    """The innermost frame that isn't Headrace's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Location(file, line, linecache.getline(file, line).strip())
