"""Open the metadata store of a home: an SQLite file in it, or the one that a URL names.

That is a PostgreSQL database, or a store that a plug-in opens: an entry point of the group ``headrace.metadata`` whose
name is the URL's scheme, with a function that takes the URL and ``create``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import cast

from headrace.core.extras import needing
from headrace.core.home import DATABASES, metadata_plug_ins
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
    if url.scheme not in DATABASES:
        module, _, function = metadata_plug_ins()[url.scheme].partition(":")
        return cast("MetadataStore", getattr(import_module(module), function)(url, create=create))
    with needing("psycopg", "a metadata store in PostgreSQL", "postgres", "where drivers and commands run"):
        from headrace.metadata.postgres import PostgresMetadata
    return PostgresMetadata(url, create=create)
