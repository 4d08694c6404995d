"""From what stands on a command line (``--home``, a stream's name) to a system and a stream in it.

Only the embedded log can be named here; systems that need an address are declared by an app.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.ids import SSP, StreamId, check_id
from headrace.streams.place import LOG, open_log, require_stream
from headrace.systems.base import Admin, StreamInfo, System

_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """A stream that the command line names, and the system it is in. It needn't exist."""

    stream: StreamId
    system: System
    home: Path

    def admin(self) -> Admin:
        """The system's admin."""
        return self.system.admin()

    def ssp(self, partition: int) -> SSP:
        """One partition."""
        return SSP(self.stream, partition)

    def find(self) -> StreamInfo | None:
        """What is known of the stream; None when there is none."""
        return self.admin().describe(self.stream.name)

    def require(self) -> StreamInfo:
        """The same; raises ``StreamNotFoundError`` with the name that may have been meant."""
        return require_stream(self.system, self.stream, self.home)

    def require_partition(self, partition: int) -> StreamInfo:
        """The stream's info; raises ``UsageError`` when it has no such partition."""
        info = self.require()
        if not 0 <= partition < info.partitions:
            raise UsageError(f"{self.stream} has no partition {partition}: they go from 0 to {info.partitions - 1}")
        return info


def locate(text: str, home: Path) -> Place:
    """The stream that ``NAME`` or ``SYSTEM.NAME`` means."""
    system, dot, name = text.partition(".")
    if dot and system != LOG and _SYSTEM.fullmatch(system):
        raise UsageError(
            f"there is no system {system!r} on the command line, only {LOG!r}",
            hint=f"if the stream of the log is called {text!r}, write {LOG}.{text}",
        )
    stream = StreamId(LOG, check_id("stream", name if dot and system == LOG else text))
    return Place(stream, open_log(home), home)
