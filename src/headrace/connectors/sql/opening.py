"""Opens a metadata store in PostgreSQL. psycopg is imported only then: it is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import needing
from headrace.core.secrets import SecretUrl

if TYPE_CHECKING:
    from headrace.connectors.sql.metadata import PostgresMetadata


def open_postgres(url: SecretUrl, *, create: bool) -> PostgresMetadata:
    with needing("psycopg", "a metadata store in PostgreSQL", "postgres", "where drivers and commands run"):
        from headrace.connectors.sql.metadata import PostgresMetadata
    return PostgresMetadata(url, create=create)
