"""Where a stream lives, as the user says it: ``files(...)``, ``log(...)``, ``memory(...)``, ``sql(...)``.

A descriptor is small frozen data; ``input`` and ``output`` turn it into a ``SystemSpec`` for their stream.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.api.location import Declaring
from headrace.core.errors import DeclarationError
from headrace.core.ids import check_id
from headrace.core.url import SecretUrl
from headrace.systems.registry import SystemSpec

FORMATS = ("parquet", "jsonl", "csv")
DATABASES = ("sqlite", "postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one stream; see ``files``."""

    path: str
    format: str | None
    partitions: int | None

    def system(self, stream_id: str) -> SystemSpec:
        """A system of its own: another stream has other files."""
        options = {"path": self.path, "format": self.format, "partitions": self.partitions}
        given = {name: value for name, value in options.items() if value is not None}
        return SystemSpec(f"files-{stream_id}".replace(".", "-"), "files", given)


@dataclass(frozen=True, slots=True)
class Log:
    """An embedded log; see ``log``."""

    root: str
    name: str

    def system(self, stream_id: str) -> SystemSpec:
        """One system for all streams of this log."""
        del stream_id
        return SystemSpec(self.name, "log", {"root": self.root})


@dataclass(frozen=True, slots=True)
class Memory:
    """A place in this process's memory; see ``memory``."""

    name: str

    def system(self, stream_id: str) -> SystemSpec:
        """One system for all streams of this memory."""
        del stream_id
        return SystemSpec(self.name, "memory", {"name": self.name})


@dataclass(frozen=True, slots=True)
class Sql:
    """A table of a SQL database; see ``sql``."""

    url: SecretUrl
    table: str
    key: tuple[str, ...]
    create_table: bool

    def system(self, stream_id: str) -> SystemSpec:
        """A system of its own: another stream goes into another table."""
        options = {"url": self.url, "table": self.table, "key": self.key, "create": self.create_table}
        return SystemSpec(f"sql-{stream_id}".replace(".", "-"), "sql", options)


Descriptor = Files | Log | Memory | Sql


def files(path: str | os.PathLike[str], format: str | None = None, partitions: int | None = None) -> Files:
    """Parquet, JSON lines (``jsonl``) or CSV files: a bounded input, or an output.

    ``path`` is a file, a folder or a pattern. The format is known from the files' endings where it
    isn't given. ``partitions`` says over how many partitions the files are spread.

    >>> hr.io.files("data/views-*.parquet")
    Files(path='data/views-*.parquet', format=None, partitions=None)
    """
    with Declaring("files"):
        if format is not None and format not in FORMATS:
            raise DeclarationError(f"unknown format {format!r}", hint=f"write one of {', '.join(FORMATS)}")
        check_partitions(partitions)
        return Files(os.fspath(path), format, partitions)


def log(root: str | os.PathLike[str], name: str | None = None) -> Log:
    """The embedded log in the folder ``root``: for streams that other apps write or read.

    ``name`` is what the log is called in stream names; by default ``log-`` and the folder's name.

    >>> hr.io.log("/data/shared")
    Log(root='/data/shared', name='log-shared')
    """
    with Declaring("log"):
        root = os.fspath(root)
        return Log(root, _system_name(name or f"log-{Path(root).name}".replace(".", "-")))


def memory(name: str = "memory") -> Memory:
    """Streams in this process's memory, for tests; gone with the process.

    >>> hr.io.memory()
    Memory(name='memory')
    """
    with Declaring("memory"):
        return Memory(_system_name(name))


def sql(url: str, table: str, *, key: str | Sequence[str] | None = None, create_table: bool = True) -> Sql:
    """A table of a SQLite or PostgreSQL database: an output, and exactly-once.

    Each committed version of the app's results becomes one transaction, which also keeps how far the writer is, in the
    table ``headrace_positions`` beside. Rows are added; with ``key`` a row takes the place of the one with the same
    key. A table that isn't there is created with the output's columns, unless ``create_table`` is false.

    ``url`` is ``sqlite:///file.db`` (four slashes from the root) or ``postgresql://user:password@host/database``,
    which needs ``pip install "headrace[postgres]"``. The password is never shown.

    >>> hr.io.sql("sqlite:///results.db", "views", key="member")
    Sql(url=SecretUrl('sqlite:///results.db'), table='views', key=('member',), create_table=True)
    """
    with Declaring("sql"):
        secret = SecretUrl(url)
        if secret.scheme not in DATABASES:
            raise DeclarationError(
                f"{secret} is of no known database",
                hint="write sqlite:///path/to/file.db or postgresql://user@host/database",
            )
        if not table or not all(table.split(".")):
            raise DeclarationError(f"{table!r} is not the name of a table", hint='write "views" or "reports.views"')
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        return Sql(secret, table, keys, bool(create_table))


def check_partitions(partitions: int | None, name: str = "partitions") -> int | None:
    """Return ``partitions`` if that many can be: None, or a whole number from 1 on."""
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise DeclarationError(
            f"{name}={partitions!r} is not a number of partitions",
            hint="write a whole number from 1 on, or leave it out: the planner decides",
        )
    return partitions


def _system_name(name: str) -> str:
    check_id("system name", name)
    if "." in name:
        raise DeclarationError(
            f"system name {name!r} has a dot in it", hint="stream names read system.stream; use '-' or '_'"
        )
    return name
