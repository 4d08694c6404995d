"""The version buffer: frames that arrived before their version's turn, by label, in order of arrival.

Its memory is bounded: of frames beyond a limit it keeps only the places, and reads them again from their stream when
their turn comes. They are still there, because the resume offset of every commit is before the first buffered frame.
So nothing goes to the local disk. A partition is read on beyond the limit, never paused: behind one writer's early
frames there may be the checkpoint of another writer that the version in progress waits for. The buffer doesn't survive
the process: a restart reads its frames again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from headrace.core.errors import ProtocolError
from headrace.core.frame import Header
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Records

MEMORY_BYTES_MAX = 32 << 20

Reread = Callable[[SSP, Offset, Offset], Iterable[Records]]
"""Reads a partition again, from an offset up to another."""


@dataclass(frozen=True, slots=True)
class BufferedFrame:
    """A whole frame with its offset and that of the next one."""

    ssp: SSP
    offset: Offset
    after: Offset
    payload: bytes


@dataclass(slots=True)
class _Early:
    """A frame's place. ``payload`` is None if the frame has to be read again."""

    ssp: SSP
    offset: Offset
    after: Offset
    producer: int
    seq: int
    size: int
    payload: bytes | None


def _nothing(ssp: SSP, start: Offset, end: Offset) -> Iterable[Records]:
    return ()


class VersionBuffer:
    """The early frames of one attempt."""

    def __init__(self, reread: Reread = _nothing, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._reread = reread
        self._limit = memory_bytes_max
        self._labels: dict[int, list[_Early]] = {}
        self.memory_bytes = 0
        self.stream_bytes = 0
        """The bytes of the frames that will be read again."""

    @property
    def empty(self) -> bool:
        """Nothing waits."""
        return not (self.memory_bytes or self.stream_bytes)

    def put(self, header: Header, frame: BufferedFrame) -> None:
        """Append a frame to the buffer of its label."""
        size = len(frame.payload)
        fits = self.memory_bytes + size <= self._limit
        payload = frame.payload if fits else None
        early = _Early(frame.ssp, frame.offset, frame.after, header.producer, header.seq, size, payload)
        self._labels.setdefault(header.version, []).append(early)
        self._count(early, size)

    def take(self, label: int, held: Collection[tuple[SSP, int]] = ()) -> Iterator[BufferedFrame]:
        """Yield the frames of a label, in order of arrival in each partition, and drop them.

        Keep those of the (partition, producer) pairs in ``held``.
        """
        due = self._labels.pop(label, [])
        if held:
            self._labels[label] = [early for early in due if (early.ssp, early.producer) in held]
            due = [early for early in due if (early.ssp, early.producer) not in held]
        for early in due:
            self._count(early, -early.size)
        if any(early.payload is None for early in due):  # then a partition is read again in one go
            due.sort(key=lambda early: early.ssp)
        for absent, group in groupby(due, key=lambda early: early.ssp if early.payload is None else None):
            frames = list(group)
            yield from _present(frames) if absent is None else self._read(absent, frames)

    def forget(self, ssp: SSP, producer: int, seq: int) -> None:
        """Drop the producer's frames of this partition above ``seq``. Frames put later belong to a new generation."""
        for label, entries in self._labels.items():
            void = [e for e in entries if e.ssp == ssp and e.producer == producer and e.seq > seq]
            for early in void:
                self._count(early, -early.size)
            if void:
                gone = set(map(id, void))
                self._labels[label] = [early for early in entries if id(early) not in gone]

    def clear(self) -> None:
        """Drop everything."""
        self._labels.clear()
        self.memory_bytes = self.stream_bytes = 0

    def _count(self, early: _Early, size: int) -> None:
        if early.payload is None:
            self.stream_bytes += size
        else:
            self.memory_bytes += size

    def _read(self, ssp: SSP, absent: Collection[_Early]) -> Iterator[BufferedFrame]:
        afters = {early.offset: early.after for early in absent}
        for records in self._reread(ssp, min(afters), max(afters.values())):
            for offset, payload in zip(records.offsets, records.payloads, strict=True):
                if (after := afters.pop(offset, None)) is not None:
                    yield BufferedFrame(ssp, offset, after, payload)
        if afters:
            raise ProtocolError(
                f"{ssp}: the early frame at offset {min(afters)} isn't there any more",
                hint="the stream lost frames, or its retention is shorter than its readers' lag",
            )


def _present(frames: Iterable[_Early]) -> Iterator[BufferedFrame]:
    for early in frames:
        if early.payload is not None:
            yield BufferedFrame(early.ssp, early.offset, early.after, early.payload)
