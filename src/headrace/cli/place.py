"""Resolve the name of a stream on the command line to a system and a stream in it.

``NAME`` and ``log.NAME`` are streams of the embedded log. Apps record their other systems in the metadata store when
they start; ``--app`` names the app whose systems to use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.console import counted, format_bytes
from headrace.core.errors import UsageError
from headrace.core.ids import SSP, StreamId, check_id
from headrace.core.url import SecretUrl
from headrace.systems.base import Admin, StreamInfo, System
from headrace.systems.finding import require_stream
from headrace.systems.home_log import LOG, home_log
from headrace.systems.registry import SystemSpec, offsets_are_bytes, open_system

_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """A stream that the command line names, and its system. The stream need not exist."""

    stream: StreamId
    spec: SystemSpec
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
            raise UsageError(
                f"{self.stream} has no partition {partition}; its partitions are 0 to {info.partitions - 1}"
            )
        return info

    def log_folder(self) -> Path:
        """Return the folder of the stream's log. Raises ``UsageError`` if the stream isn't in a log of files."""
        if self.spec.kind != LOG:
            raise UsageError(
                f"{self.stream} is a stream of {self.spec.kind}, not of a file log", hint="use the tools of that system"
            )
        return Path(self.spec.options["root"])

    def size(self, offsets: int) -> int | None:
        """Return how many bytes so many offsets span; None where offsets count frames."""
        return offsets if offsets_are_bytes(self.spec) else None

    def amount(self, offsets: int) -> str:
        """Return the same as text."""
        return format_bytes(offsets) if offsets_are_bytes(self.spec) else counted(offsets, "frame")


def locate(text: str, home: Path, metadata: SecretUrl | None = None, app: str | None = None) -> Place:
    """Return the stream that ``NAME`` or ``SYSTEM.NAME`` refers to.

    With ``app``, ``NAME`` is a stream of the system that has the app's own streams.
    """
    system, dot, name = text.partition(".")
    if not dot or not _SYSTEM.fullmatch(system):
        system, name = "", text
    if app is None and system in ("", LOG):
        return place_in(home_log(home), name, home)
    from headrace.metadata.opening import existing_metadata
    from headrace.runners.app_systems import system_called

    with existing_metadata(home, metadata) as store:
        try:
            spec = system_called(store, home, system, app)
        except UsageError as error:
            if app is None:
                error.hint = f"{error.hint}; if {text!r} is the name of a stream of the log, write {LOG}.{text}"
            raise
    return place_in(spec, name, home)


def place_in(spec: SystemSpec, name: str, home: Path) -> Place:
    """A stream of a system."""
    return Place(StreamId(spec.name, check_id("stream", name)), spec, open_system(spec), home)
