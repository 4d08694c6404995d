"""Streams in the memory of this process, by name: ``endpoint_url="memory://"`` leads here."""

from __future__ import annotations

from headrace.core.clock import WallClock
from headrace.core.errors import StreamExistsError, StreamNotFoundError
from headrace.systems.kinesis.memory import MemoryKinesis

_STREAMS: dict[str, MemoryKinesis] = {}


def add_stream(name: str, shards: int) -> MemoryKinesis:
    """Create a stream. Raises ``StreamExistsError`` if there is one of this name."""
    if name in _STREAMS:
        raise StreamExistsError(f"a Kinesis stream {name!r} exists in memory already", hint="close it first")
    return _STREAMS.setdefault(name, MemoryKinesis(name, shards=shards, clock=WallClock()))


def stream_of(name: str) -> MemoryKinesis:
    """Return the stream of this name. Raises ``StreamNotFoundError``."""
    try:
        return _STREAMS[name]
    except KeyError:
        raise StreamNotFoundError(
            f"there is no Kinesis stream {name!r} in the memory of this process",
            hint=f'create it in the test: headrace.testing.kinesis.KinesisStream("{name}")',
        ) from None


def drop_stream(name: str) -> None:
    """Forget the stream, if there is one."""
    _STREAMS.pop(name, None)
