"""A past range is read again: exactly up to its end, and then on from where the partition was, whatever happens.

The messages come in batches of any size, commits happen at any time, and the reader dies and goes on from the last one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.specs import Role
from headrace.core.frame import Header, Kind, decode_header, encode
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.protocol.record import Detour, SourceEntry
from headrace.systems.base import Edge, Ended, Polled, Records, Rows
from headrace.task.host.task_host import Detours, Doings
from headrace.task.inputs.chooser import Chooser, Frames, SingleFrame
from headrace.task.inputs.consumers import InputConsumers
from headrace.task.inputs.frame_receiver import FrameReceiver
from simulator.sources import ForeignApp

VIEWS = SSP(StreamId("s", "views"), 0)
ENTRY = SourceEntry(stream="s.views", partition=0, offset=40, whole=True, since_ms=5, landmark="x")


class Partition:
    """Its messages by offset, with gaps; ``end`` may be behind another gap. Frames, or else rows."""

    def __init__(self, frames: Sequence[bytes] | None, offsets: Sequence[int], end: int, *, sealed: bool) -> None:
        self.frames = None if frames is None else dict(zip(offsets, frames, strict=True))
        self.offsets, self.end, self.sealed = list(offsets), end, sealed

    def counting(self, start: int) -> tuple[list[int], list[int]]:
        """Where messages are that count for whoever begins there, and those that nobody has decided about."""
        found: list[int] = []
        held: list[int] = []
        for offset in self.offsets:
            if offset < start:
                continue
            header = Header(Kind.USER) if self.frames is None else decode_header(self.frames[offset])
            if header.kind is Kind.CHECKPOINT:
                found += held
            if header.kind is not Kind.USER:
                held.clear()
            elif header.producer:
                held.append(offset)
            else:
                found.append(offset)
        return found, held

    def wanted(self, start: int, until: int, back: int, known: int) -> list[int]:
        """The range, and then everything from ``back`` on but the first ``known``, unless the range isn't decided."""
        found, held = self.counting(start)
        again = [offset for offset in found if offset < until]
        over = self.sealed or not any(offset < until for offset in held)
        return again + (self.counting(back)[0][known:] if over else [])


class Batches:
    """A consumer of one partition, in batches of random sizes."""

    def __init__(self, partition: Partition, chance: random.Random) -> None:
        self._partition, self._chance, self._at = partition, chance, 0

    def register(self, ssp: SSP, position: int | Edge) -> None:
        self._at = 0 if isinstance(position, Edge) else position

    def position(self, ssp: SSP) -> int:
        return self._at

    def poll(self, ssps: Sequence[SSP], max_bytes: int) -> list[Polled]:
        there = self._partition
        if not ssps or self._chance.random() < 0.1:
            return []
        offsets = [offset for offset in there.offsets if offset >= self._at][: self._chance.choice((1, 1, 2, 5, 100))]
        if not offsets:
            self._at = there.end  # a gap at the end
            return [Ended(VIEWS, there.end)] if there.sealed else []
        start, self._at = self._at, offsets[-1] + 1
        if there.frames is not None:
            return [Records(VIEWS, offsets, [there.frames[offset] for offset in offsets], self._at)]
        return [Rows(VIEWS, pl.DataFrame({"n": offsets}), start, self._at, offsets=np.array(offsets, dtype=np.int64))]

    def more(self) -> bool:
        return True

    def has_landmark(self, ssp: SSP, landmark: str) -> bool:
        return True


class Reader:
    """Reads a partition as a task does, and remembers the offsets of what is handed on."""

    def __init__(self, partition: Partition, chance: random.Random) -> None:
        self._partition, self._chance = partition, chance
        self.read: list[int] = []
        self.ended = False

    def begin(self, saved: SourceEntry | None, start: int = 0) -> None:
        """Start, or start again."""
        self.ended = False
        spec = SimpleNamespace(role=Role.SOURCE, schema=None, on_error="fail", system=SimpleNamespace(name="s"))
        consumer = Batches(self._partition, self._chance)
        connections: Any = SimpleNamespace(woken_consumer=lambda *_, **__: consumer)
        self.inputs = InputConsumers({VIEWS: spec}, connections)  # type: ignore[dict-item]
        self.chooser = Chooser([VIEWS])
        task: Any = SimpleNamespace(specs={VIEWS: spec}, end=self._end)
        nobody: Any = None
        self.receiver = FrameReceiver(nobody, task, self, self.chooser, nobody, nobody)  # type: ignore[arg-type]
        positions = self.inputs.begin({VIEWS: start if saved is None or saved.offset is None else saved.offset})
        ends = {VIEWS: saved.detour.until} if saved is not None and saved.detour is not msgspec.UNSET else {}
        self.inputs.stop_at({}, ends)
        self.receiver.resume(positions, {} if saved is None else {VIEWS: saved})
        self._attempt: Any = SimpleNamespace(
            receiver=self.receiver, chooser=self.chooser, bootstrap=SimpleNamespace(note=lambda *_: None)
        )
        self._detours = Detours(TaskName("s", 0), self.inputs, Doings())

    def turn(self) -> None:
        """Poll, and process some of what waits."""
        self.inputs.poll(self.chooser)
        self._detours.look(self._attempt)
        while self._chance.random() < 0.8 and (envelope := self.chooser.choose()) is not None:
            match envelope:
                case Frames():
                    self.receiver.frames(envelope)
                case SingleFrame():
                    self.receiver.control(envelope)
                case Rows():
                    self.receiver.table(envelope)
                case Ended():
                    self.receiver.end(envelope)
            self._detours.look(self._attempt)

    def entry(self) -> SourceEntry:
        """What a commit says now."""
        (entry,) = self.receiver.source_entries()
        return entry

    # -- in place of the task and its intakes

    def _end(self, ssp: SSP) -> None:
        assert not self.receiver.detours
        self.ended = True

    def begin_at(self, ssp: SSP, since_ms: int) -> None:
        raise AssertionError

    def frames(self, ssp: SSP, offsets: list[int], payloads: list[bytes], after: int) -> None:
        self.read += offsets

    def table(self, table: Rows) -> None:
        self.read += table.frame["n"].to_list()


def partition_of(chance: random.Random, count: int, *, framed: bool) -> Partition:
    """A partition with gaps; its frames are of another app and of plain writers."""
    frames = None
    if framed:
        app = ForeignApp(chance, 7)
        for number in range(count):
            app.write(number, b"x")
        if chance.random() < 0.5:
            app.end()
        frames, count = app.frames, len(app.frames)
    gap = chance.choice((0.0, 0.3))
    offsets = []
    for _ in range(count):
        offsets.append((offsets[-1] + 1 if offsets else 0) + (chance.random() < gap) * chance.randint(1, 3))
    end = (offsets[-1] + 1 if offsets else 0) + chance.choice((0, 0, 2))
    return Partition(frames, offsets, end, sealed=chance.random() < 0.5)


@pytest.mark.parametrize("framed", [False, True])
@given(st.integers(0, 1 << 32))
def test_each_message_of_the_range_once_and_then_the_rest_once(framed: bool, seed: int) -> None:
    chance = random.Random(seed)
    partition = partition_of(chance, chance.randint(0, 12), framed=framed)
    reader = Reader(partition, chance)
    reader.begin(None)
    for _ in range(chance.randint(0, 8)):
        reader.turn()
    if reader.ended:
        return
    before = reader.entry()
    known = len(reader.read)
    start = chance.randint(0, partition.end)
    until = chance.randint(start, partition.end)
    saved = SourceEntry.at(VIEWS, start, detour=Detour.of(until, before, 0))
    reader.read, read = [], 0
    reader.begin(saved)
    for _ in range(chance.randint(0, 100)):
        reader.turn()
        if chance.random() < 0.2:
            saved, read = reader.entry(), len(reader.read)
        elif chance.random() < 0.1:
            del reader.read[read:]
            reader.begin(saved)
    for _ in range(100):
        reader.turn()
    assert reader.read == partition.wanted(start, until, 0, known)
    assert reader.ended == partition.sealed


def test_a_plain_reader_at_the_end_of_a_range_that_is_the_end_of_what_exists() -> None:
    partition = Partition([encode(Header(Kind.USER), b"")] * 3, [0, 1, 2], 3, sealed=False)
    reader = Reader(partition, random.Random(1))
    reader.begin(SourceEntry.at(VIEWS, 3, detour=Detour(until=3, offset=2)))
    for _ in range(20):
        reader.turn()
    assert reader.read == [2]
    assert reader.entry() == SourceEntry(stream="s.views", partition=0, offset=3)


def test_where_a_detour_leads_back_to() -> None:
    assert Detour.of(9, None, 4) == Detour(until=9, offset=4)
    back = Detour.of(9, ENTRY, 4)
    assert back == Detour(until=9, offset=40, whole=True, since_ms=5, landmark="x")
    on_it = SourceEntry.at(VIEWS, 2, detour=back)
    assert (on_it.offset, on_it.covered, on_it.since_ms, on_it.landmark) == (2, (), msgspec.UNSET, msgspec.UNSET)
    assert Detour.of(30, on_it, 4) == msgspec.structs.replace(back, until=30)
