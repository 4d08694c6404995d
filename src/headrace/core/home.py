"""Where Headrace keeps its data. Apps, commands and Python readers share this one rule."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.url import SecretUrl

HOME_VARIABLE = "HEADRACE_HOME"
METADATA_VARIABLE = "HEADRACE_METADATA"
DEFAULT_HOME = ".headrace"
_DATABASES = ("postgresql://", "postgres://")


def home_of(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the home folder: ``given``, else ``HEADRACE_HOME``, else ``.headrace`` in the current folder.

    >>> from headrace.core.home import home_of
    >>> home_of("/data/shop").as_posix()
    '/data/shop'
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise UsageError(f"home={given!r} is not a folder", hint='give a path: home="/data/shop"')
    return Path(given or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)


def metadata_url_of(given: str | None = None) -> SecretUrl | None:
    """Return the URL of the metadata store: ``given``, else ``HEADRACE_METADATA``. None: an SQLite file in the home.

    >>> from headrace.core.home import metadata_url_of
    >>> metadata_url_of("postgresql://ann:secret@db/headrace")
    SecretUrl('postgresql://ann:***@db/headrace')
    """
    text = given or os.environ.get(METADATA_VARIABLE)
    if not text:
        return None
    if not isinstance(text, str) or not text.startswith(_DATABASES):
        raise UsageError(  # the value isn't shown: it may have a password in it
            f"{'metadata' if given else METADATA_VARIABLE} isn't the URL of a PostgreSQL database",
            hint="write postgresql://user:password@host/database, or leave it out for an SQLite file in the home",
        )
    return SecretUrl(text)
