"""What waits to be processed: envelopes, the choice of the next one, and frames of later versions. Pure.

User frames stay undecoded until their turn comes, as the protocol may drop or hold them then. Within a partition the
order is always kept. Between partitions, a side input that is still being read up to its end comes first, then control
messages (they cost nothing and may release others), then the rest in turn.

Of early frames beyond a limit the version buffer keeps only the places, and reads them again when their turn comes:
they are still there, because the resume offset of every commit is before the first buffered frame. A partition is read
on beyond the limit, never paused: behind one writer's early frames there may be the checkpoint of another writer that
the version in progress waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import msgspec

from headrace.core.errors import ProtocolError
from headrace.core.frame import Header, Kind
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Ended, Polled, Records, Rows

_USER = int(Kind.USER)


class Frames(msgspec.Struct):
    """Consecutive user frames of one partition; ``next`` is the offset after the last. ``arrived_ms`` is monotonic."""

    ssp: SSP
    offsets: list[Offset]
    payloads: list[bytes]
    next: Offset
    bytes: int
    arrived_ms: float = 0.0


class SingleFrame(msgspec.Struct):
    """One frame that isn't a user frame, or whose first byte isn't a known kind, which decoding reports."""

    ssp: SSP
    offset: Offset
    payload: bytes
    next: Offset
    bytes: int


Envelope = Frames | SingleFrame | Rows | Ended


def envelopes(polled: Polled) -> list[Envelope]:
    if isinstance(polled, Records):
        return _cut(polled)
    if isinstance(polled, Rows) and not polled.bytes:
        polled.bytes = int(polled.frame.estimated_size())
    return [polled]


def shard_of(envelope: Envelope) -> str:
    return envelope.shard if isinstance(envelope, Rows) else ""


def _cut(records: Records) -> list[Envelope]:
    cut: list[Envelope] = []
    ssp, payloads, offsets = records.ssp, records.payloads, records.offsets
    afters = [*offsets[1:], records.next]
    start, total = 0, len(payloads)
    for i, payload in enumerate(payloads):
        if payload and payload[0] == _USER:
            continue
        if i > start:
            cut.append(_frames(ssp, offsets[start:i], payloads[start:i], afters[i - 1]))
        cut.append(SingleFrame(ssp, offsets[i], payload, afters[i], len(payload)))
        start = i + 1
    if start < total:
        cut.append(_frames(ssp, offsets[start:], payloads[start:], afters[-1]))
    return cut


def _frames(ssp: SSP, offsets: list[Offset], payloads: list[bytes], after: Offset) -> Frames:
    return Frames(ssp, offsets, payloads, after, sum(map(len, payloads)))


class Chooser:
    """The waiting envelopes of one task: one queue per partition."""

    def __init__(self, ssps: Iterable[SSP], bootstrap: Iterable[SSP] = ()) -> None:
        self._queues: dict[SSP, deque[Envelope]] = {ssp: deque() for ssp in ssps}
        self._turns: deque[SSP] = deque(self._queues)
        self._bootstrap = dict.fromkeys(bootstrap)  # a dict, as a set has no order to rely on
        self._bytes: dict[SSP, int] = dict.fromkeys(self._queues, 0)
        self.now_ms = 0.0  # when (monotonic) what is offered next has arrived

    def offer(self, envelope: Envelope) -> None:
        if isinstance(envelope, Frames | Rows):
            envelope.arrived_ms = self.now_ms
        self._queues[envelope.ssp].append(envelope)
        self._bytes[envelope.ssp] += envelope.bytes

    def put_back(self, envelope: Envelope) -> None:
        self._queues[envelope.ssp].appendleft(envelope)
        self._bytes[envelope.ssp] += envelope.bytes

    def choose(self) -> Envelope | None:
        for ssp in self._bootstrap:
            if self._queues[ssp]:
                return self._take(ssp)
        if self._bootstrap:
            return None
        for ssp, queue in self._queues.items():
            if queue and isinstance(queue[0], SingleFrame | Ended):
                return self._take(ssp)
        for _ in range(len(self._turns)):
            ssp = self._turns[0]
            self._turns.rotate(-1)
            if self._queues[ssp]:
                return self._take(ssp)
        return None

    def bootstrapped(self, ssp: SSP) -> None:
        self._bootstrap.pop(ssp, None)

    @property
    def ready(self) -> bool:
        queues = (self._queues[ssp] for ssp in self._bootstrap) if self._bootstrap else self._queues.values()
        return any(queues)

    def waiting_bytes(self, ssp: SSP) -> int:
        return self._bytes[ssp]

    def waits(self, ssp: SSP) -> bool:
        return bool(self._queues[ssp])

    def clear(self) -> None:
        for ssp in self._queues:
            self.drop(ssp)

    def drop(self, ssp: SSP) -> None:
        self._queues[ssp].clear()
        self._bytes[ssp] = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def _take(self, ssp: SSP) -> Envelope:
        envelope = self._queues[ssp].popleft()
        self._bytes[ssp] -= envelope.bytes
        return envelope


MEMORY_BYTES_MAX = 32 << 20
Reread = Callable[[SSP, Offset, Offset], Iterable[Records]]  # reads a partition again, from an offset up to another


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


class VersionBuffer:
    """The early frames of one attempt."""

    def __init__(self, reread: Reread = lambda ssp, start, end: (), memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._reread = reread
        self._limit = memory_bytes_max
        self._labels: dict[int, list[_Early]] = {}
        self.memory_bytes = 0
        self.stream_bytes = 0  # the bytes of the frames that will be read again

    @property
    def empty(self) -> bool:
        return not (self.memory_bytes or self.stream_bytes)

    def put(self, header: Header, frame: BufferedFrame) -> None:
        size = len(frame.payload)
        payload = frame.payload if (self.memory_bytes + size <= self._limit) else None
        early = _Early(frame.ssp, frame.offset, frame.after, header.producer, header.seq, size, payload)
        self._labels.setdefault(header.version, []).append(early)
        self._count(early, size)

    def take(self, label: int, held: Collection[tuple[SSP, int]] = ()) -> Iterator[BufferedFrame]:
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
