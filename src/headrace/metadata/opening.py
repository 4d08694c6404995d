"""Open the metadata store of a home: an SQLite file in it, or a PostgreSQL database if there is a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.extras import needing
from headrace.core.url import SecretUrl
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.sqlite import FILE, SqliteMetadata
from headrace.metadata.store import MetadataStore


def open_metadata(home: Path, url: SecretUrl | None = None) -> MetadataStore:
    """Open the store, and create it if it doesn't exist. The caller closes it."""
    if url is None:
        return SqliteMetadata(home / FILE)
    return _postgres(url, create=True)


@contextmanager
def existing_metadata(home: Path, url: SecretUrl | None = None) -> Iterator[MetadataStore]:
    """Open the store for reading. Creates nothing: where nothing has run, it is an empty one in memory."""
    if url is not None:
        metadata = _postgres(url, create=False)
    elif (path := home / FILE).exists():
        metadata = SqliteMetadata(path)
    else:
        metadata = MemoryMetadata(place=str(home))
    try:
        yield metadata
    finally:
        metadata.close()


def _postgres(url: SecretUrl, *, create: bool) -> MetadataStore:
    with needing("psycopg", "a metadata store in PostgreSQL", "postgres", "where drivers and commands run"):
        from headrace.metadata.postgres import PostgresMetadata
    return PostgresMetadata(url, create=create)
