"""Resolve ``--home`` and the name of a stream on the command line to a system and a stream in it.

Only streams of the embedded log can be named. Other systems need settings, which an app declares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.ids import SSP, StreamId, check_id
from headrace.streams.place import open_log, require_stream
from headrace.systems.base import Admin, StreamInfo, System
from headrace.systems.home_log import LOG

_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """A stream that the command line names, and its system. The stream need not exist."""

    stream: StreamId
    system: System
    home: Path

    def admin(self) -> Admin:
        """The system's admin."""
        return self.system.admin()

    def ssp(self, partition: int) -> SSP:
        """Return the SSP of a partition."""
        return SSP(self.stream, partition)

    def find(self) -> StreamInfo | None:
        """Return the stream's info; None if it doesn't exist."""
        return self.admin().describe(self.stream.name)

    def require(self) -> StreamInfo:
        """Return the stream's info. Raises ``StreamNotFoundError``, which suggests a similar name."""
        return require_stream(self.system, self.stream, self.home)

    def require_partition(self, partition: int) -> StreamInfo:
        """Return the stream's info. Raises ``UsageError`` if it has no such partition."""
        info = self.require()
        if not 0 <= partition < info.partitions:
            raise UsageError(f"{self.stream} has no partition {partition}, only 0 to {info.partitions - 1}")
        return info


def locate(text: str, home: Path) -> Place:
    """Return the stream that ``NAME`` or ``SYSTEM.NAME`` refers to."""
    system, dot, name = text.partition(".")
    if dot and system != LOG and _SYSTEM.fullmatch(system):
        raise UsageError(
            f"commands know no system {system!r}, only {LOG!r}",
            hint=f"if {text!r} is the name of a stream of the log, write {LOG}.{text}",
        )
    stream = StreamId(LOG, check_id("stream", name if dot and system == LOG else text))
    return Place(stream, open_log(home), home)
