"""Descriptors of systems: ``files(...)``, ``log(...)``, ``memory(...)``, ``sql(...)``.

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
    """Streams in this process's memory; see ``memory``."""

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


def files(path: str | os.PathLike[str], format: str | None = None, partitions: int | None = None) -> Files:
    """Parquet, JSON lines or CSV files: a bounded input, or an output.

    Parameters
    ----------
    path
        A file, a folder or a pattern.
    format
        ``"parquet"``, ``"jsonl"`` or ``"csv"``. By default the files' endings say it.
    partitions
        How many partitions the files are spread over.

    Returns
    -------
    Files
        For ``system=``.

    Examples
    --------
    >>> hr.io.files("data/views-*.parquet")
    Files(path='data/views-*.parquet', format=None, partitions=None)
    """
    with Declaring("files"):
        if format is not None and format not in FORMATS:
            raise DeclarationError(f"unknown format {format!r}", hint=f"write one of {', '.join(FORMATS)}")
        check_partitions(partitions)
        return Files(os.fspath(path), format, partitions)


def log(root: str | os.PathLike[str], name: str | None = None) -> Log:
    """The embedded log in another folder: for streams that other apps write or read.

    Parameters
    ----------
    root
        The folder.
    name
        The log's name in names of streams. By default ``log-`` and the folder's name.

    Returns
    -------
    Log
        For ``system=``.

    Examples
    --------
    >>> hr.io.log("/data/shared")
    Log(root='/data/shared', name='log-shared')
    """
    with Declaring("log"):
        root = os.fspath(root)
        return Log(root, _system_name(name or f"log-{Path(root).name}".replace(".", "-")))


def memory(name: str = "memory") -> Memory:
    """Streams in the memory of this process, for tests. They end with the process.

    Parameters
    ----------
    name
        Its name, if you need several.

    Returns
    -------
    Memory
        For ``system=``.

    Examples
    --------
    >>> hr.io.memory()
    Memory(name='memory')
    """
    with Declaring("memory"):
        return Memory(_system_name(name))


def sql(url: str, table: str, *, key: str | Sequence[str] | None = None, create_table: bool = True) -> Sql:
    """A table of a SQLite or PostgreSQL database: an output, exactly once.

    The results of each checkpoint become one transaction, which also stores how far the writer is, in the table
    ``headrace_positions`` of the same database.

    Parameters
    ----------
    url
        ``sqlite:///file.db`` (four slashes for an absolute path) or ``postgresql://user:password@host/database``, which
        needs ``pip install "headrace[postgres]"``. The password is never shown.
    table
        The table's name, or ``schema.name``.
    key
        One column or several: a row replaces the one with the same key. A row with a null in it stops the app, because
        a database takes no null for equal to another; filter such rows out first. By default rows are added.
    create_table
        Create the table, with the output's columns, if it doesn't exist.

    Returns
    -------
    Sql
        For ``system=`` of an output.

    Examples
    --------
    >>> hr.io.sql("sqlite:///results.db", "views", key="member")
    Sql(url=SecretUrl('sqlite:///results.db'), table='views', key=('member',), create_table=True)
    """
    with Declaring("sql"):
        secret = SecretUrl(url)
        if secret.scheme not in DATABASES:
            raise DeclarationError(
                f"{secret} doesn't name a known kind of database",
                hint="write sqlite:///path/to/file.db or postgresql://user@host/database",
            )
        if not table or not all(table.split(".")):
            raise DeclarationError(f"{table!r} is not the name of a table", hint='write "views" or "reports.views"')
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        return Sql(secret, table, keys, bool(create_table))


def check_partitions(partitions: int | None, name: str = "partitions") -> int | None:
    """Return ``partitions`` if it is None or a whole number from 1 on; raise otherwise."""
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise DeclarationError(
            f"{name}={partitions!r} is not a number of partitions",
            hint="write a whole number from 1 on, or leave it out for the planner to decide",
        )
    return partitions


def _system_name(name: str) -> str:
    check_id("system name", name)
    if "." in name:
        raise DeclarationError(
            f"system name {name!r} has a dot in it", hint="stream names read system.stream; use '-' or '_'"
        )
    return name
