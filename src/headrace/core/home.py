"""Where Headrace keeps its data. Apps, commands and Python readers share this one rule."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.plug_ins import all_points, own_points, plug_in
from headrace.core.url import SecretUrl

HOME_VARIABLE = "HEADRACE_HOME"
METADATA_VARIABLE = "HEADRACE_METADATA"
DEFAULT_HOME = ".headrace"
METADATA_GROUP = "headrace.metadata"
"""The group of entry points of metadata stores that plug-ins bring. Each is named by the scheme of its URLs."""


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
    scheme = text.partition("://")[0].lower() if isinstance(text, str) and "://" in text else ""
    if plug_in(METADATA_GROUP, scheme) is None:
        known = all_points(METADATA_GROUP).keys() - own_points(METADATA_GROUP).keys()
        others = f"; installed plug-ins: {', '.join(sorted(known))}" if known else ""
        raise UsageError(  # the value isn't shown: it may have a password in it
            f"{'metadata' if given else METADATA_VARIABLE} isn't the URL of a PostgreSQL database, nor of a store that "
            "a plug-in brings",
            hint="write postgresql://user:password@host/database, or leave it out for an SQLite file in the home"
            + others,
        )
    return SecretUrl(text)
