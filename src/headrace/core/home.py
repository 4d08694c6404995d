"""Where Headrace keeps its data. Apps, commands and Python readers share this one rule."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.errors import UsageError

HOME_VARIABLE = "HEADRACE_HOME"
DEFAULT_HOME = ".headrace"


def home_of(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the home folder: ``given``, else ``HEADRACE_HOME``, else ``.headrace`` in the current folder.

    >>> from headrace.core.home import home_of
    >>> home_of("/data/shop").as_posix()
    '/data/shop'
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise UsageError(f"home={given!r} is not a folder", hint='give a path: home="/data/shop"')
    return Path(given or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)
