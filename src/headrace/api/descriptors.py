"""Where a stream lives, as the user says it: ``files(...)``, ``log(...)``, ``memory(...)``.

A descriptor is small frozen data; ``input`` and ``output`` turn it into a ``SystemSpec`` for their stream.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.api.location import Declaring
from headrace.core.errors import DeclarationError
from headrace.core.ids import check_id
from headrace.systems.registry import SystemSpec

FORMATS = ("parquet", "jsonl", "csv")


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


Descriptor = Files | Log | Memory


def files(path: str | os.PathLike[str], format: str | None = None, partitions: int | None = None) -> Files:
    """Parquet, JSON lines (``jsonl``) or CSV files: a bounded input, or an output.

    ``path`` is a file, a folder or a pattern. The format is known from the files' endings where it
    isn't given. ``partitions`` says over how many partitions the files are spread.

    >>> hr.files("data/views-*.parquet")
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

    >>> hr.log("/data/shared")
    Log(root='/data/shared', name='log-shared')
    """
    with Declaring("log"):
        root = os.fspath(root)
        return Log(root, _system_name(name or f"log-{Path(root).name}".replace(".", "-")))


def memory(name: str = "memory") -> Memory:
    """Streams in this process's memory, for tests; gone with the process.

    >>> hr.memory()
    Memory(name='memory')
    """
    with Declaring("memory"):
        return Memory(_system_name(name))


def check_partitions(partitions: int | None) -> int | None:
    """Return ``partitions`` if that many can be: None, or a whole number from 1 on."""
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise DeclarationError(
            f"partitions={partitions!r} is not a number of partitions",
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
