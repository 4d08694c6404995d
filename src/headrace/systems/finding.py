"""A stream that has to be there, and what to say if it isn't."""

from __future__ import annotations

import difflib
from pathlib import Path

from headrace.core.errors import StreamNotFoundError
from headrace.core.ids import StreamId
from headrace.systems.base import StreamInfo, System
from headrace.systems.home_log import LOG


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
