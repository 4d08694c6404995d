"""The embedded log of a home, and what to say about a stream that isn't in it."""

from __future__ import annotations

import difflib
from pathlib import Path

from headrace.api.system_descriptor import SystemDescriptor, internal_system
from headrace.core.errors import StreamNotFoundError
from headrace.core.ids import StreamId
from headrace.systems import home_log
from headrace.systems.base import StreamInfo, System
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import SystemSpec, open_system

LOG = home_log.LOG


def open_log(home: str | Path) -> LogSystem:
    """The embedded log of a home."""
    return LogSystem(Path(home) / "streams")


def opened(system: SystemDescriptor | SystemSpec | None, home: str | Path) -> tuple[str, System]:
    """The name of a record system and the system; None: the embedded log of a home."""
    if system is None:
        return LOG, open_log(home)
    spec = internal_system(system, "streams")
    return spec.name, open_system(spec)


def require_stream(system: System, stream: StreamId, home: str | Path) -> StreamInfo:
    """What is known of a stream; raises ``StreamNotFoundError`` with the name that may have been meant."""
    admin = system.admin()
    info = admin.describe(stream.name)
    if info is None:
        names = admin.list()
        where = f" in {home}" if stream.system == LOG else ""
        raise StreamNotFoundError(f"there is no stream {stream}{where}", hint=_meant(stream, names, home))
    return info


def _meant(stream: StreamId, names: list[str], home: str | Path) -> str:
    close = difflib.get_close_matches(stream.name, names, n=1)
    if close:
        return f"did you mean {close[0] if stream.system == LOG else f'{stream.system}.{close[0]}'}?"
    if names or stream.system != LOG:
        return "see what there is: headrace stream list"
    return (
        f"{home} holds no streams at all: give another folder as home, "
        f"or create the stream: headrace stream create {stream.name} --partitions 4, or hr.streams.create_stream(...)"
    )
