"""Where Headrace keeps its data: the one rule that apps, commands and Python readers share."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.errors import UsageError

HOME_VARIABLE = "HEADRACE_HOME"
DEFAULT_HOME = ".headrace"


def home_of(given: str | os.PathLike[str] | None = None) -> Path:
    """The home folder: the given one, else what ``HEADRACE_HOME`` says, else ``.headrace`` in the current folder.

    >>> from headrace.core.home import home_of
    >>> home_of("/data/shop").as_posix()
    '/data/shop'
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise UsageError(f"home={given!r} is not a folder", hint='name one: home="/data/shop"')
    return Path(given or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)
