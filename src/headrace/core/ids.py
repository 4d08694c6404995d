"""Ids of streams, partitions and tasks, and offsets. Ids are immutable, ordered and printable.

They are structs of msgspec: every envelope is looked up by them, and these are hashed and compared without any Python.
"""

from __future__ import annotations

import re

import msgspec
from typing_extensions import override

from headrace.core.errors import DeclarationError

Offset = int
"""A place in one partition; it only grows. The system decides what it counts. A position is the *next* one to read."""
MAX_PARTITIONS = 1 << 16
FIRST_TIMELINE = 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_id(what: str, text: str) -> str:
    """Return ``text`` if it may be an id, else raise ``DeclarationError``. Ids become names of files and topics."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        hint = "use 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or a digit"
        raise DeclarationError(f"{what} {text!r} is not a usable id", hint=hint)
    return text


class StreamId(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """A stream of a system, written ``system.name``."""

    system: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.system}.{self.name}"

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """Parse ``system.name``. A text without a dot is a name in the system ``log``."""
        system, dot, name = text.partition(".")
        return cls(system, name) if dot else cls("log", text)


class SSP(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """System, stream, partition: the unit within which messages have an order and offsets."""

    stream: StreamId
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.stream}[{self.partition}]"

    @classmethod
    def of(cls, stream: str, partition: int) -> SSP:
        return cls(StreamId.parse(stream), partition)


class TaskName(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """A task: one stage on one partition group, written ``<stage>/<n>``."""

    stage: str
    number: int

    @override
    def __str__(self) -> str:
        return f"{self.stage}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> TaskName:
        return cls(stage_of(text), int(text.rpartition("/")[2]))


def stage_of(task: str) -> str:
    return task.rpartition("/")[0]
