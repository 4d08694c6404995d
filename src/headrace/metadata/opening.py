"""Open the metadata store of a home: an SQLite file in it, or the one that a URL names.

An entry point of the group ``headrace.metadata`` opens it: its name is the URL's scheme, and its function takes the URL
and ``create``. Headrace brings one for PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from headrace.core.errors import UsageError
from headrace.core.home import METADATA_GROUP
from headrace.core.plug_ins import loaded, plug_in
from headrace.core.url import SecretUrl
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.sqlite import FILE, SqliteMetadata
from headrace.metadata.store import MetadataStore


def open_metadata(home: Path, url: SecretUrl | None = None) -> MetadataStore:
    """Open the store, and create it if it doesn't exist. The caller closes it."""
    if url is None:
        return SqliteMetadata(home / FILE)
    return _at(url, create=True)


@contextmanager
def existing_metadata(home: Path, url: SecretUrl | None = None) -> Iterator[MetadataStore]:
    """Open the store for reading. Creates nothing: where nothing has run, it is an empty one in memory."""
    if url is not None:
        metadata = _at(url, create=False)
    elif (path := home / FILE).exists():
        metadata = SqliteMetadata(path)
    else:
        metadata = MemoryMetadata(place=str(home))
    try:
        yield metadata
    finally:
        metadata.close()


def _at(url: SecretUrl, *, create: bool) -> MetadataStore:
    opener = plug_in(METADATA_GROUP, url.scheme)
    if opener is None:
        raise UsageError(
            f"no metadata store for {url.scheme}:// is installed here",
            hint="install the package that brings it, where drivers and commands run",
        )
    return cast("MetadataStore", loaded(opener)(url, create=create))
