"""The checks that ``check_system`` and ``check_target`` run: one function for each promise of the contracts."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import polars as pl

from headrace.core.clock import WallClock
from headrace.core.errors import (
    HeadraceError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSealedError,
    TrimmedOffsetError,
    UnsupportedPositionError,
    UsageError,
)
from headrace.core.files import readable
from headrace.core.ids import SSP, Offset, StreamId
from headrace.systems.base import Consumer, Edge, Ended, Polled, Position, Producer, Records, System, Target

S = TypeVar("S")


class ContractError(AssertionError):
    """An implementation breaks its contract."""


def expect(holds: bool, said: str) -> None:
    """Raise ``ContractError`` unless ``holds``."""
    if not holds:
        raise ContractError(said)


def run_checks(
    checks: Iterable[Callable[[S], None]], only: str | None, scene_of: Callable[[str], AbstractContextManager[S]]
) -> None:
    """Run every check, or the one named ``only``, each with a scene of its own; an error names the check."""
    for check in checks:
        name = check.__name__.lstrip("_")
        if only not in (None, name):
            continue
        with scene_of(name) as scene:
            try:
                check(scene)
            except ContractError as error:
                raise ContractError(f"{name}: {error}") from error


def at_once(callers: int, act: Callable[[int], None]) -> None:
    """Call ``act`` on several threads, each with its number. Raises what it raises."""
    with ThreadPoolExecutor(callers) as pool:
        for called in [pool.submit(act, number) for number in range(callers)]:
            called.result()


def expect_raises(error: type[HeadraceError], call: Callable[[], Any], said: str) -> None:
    """Raise ``ContractError`` unless ``call`` raises ``error``."""
    try:
        result = call()
    except error:
        return
    except Exception as other:
        raise ContractError(f"{said}: {error.__name__} expected, {type(other).__name__} came: {other}") from other
    raise ContractError(f"{said}: {error.__name__} expected, nothing was raised (the call gave {result!r})")


class Scene:
    """A system, and what a check opened on it: closed at the end."""

    def __init__(self, make_system: Callable[[], System], check: str, wait_s: float) -> None:
        self.system = make_system()
        self.other = make_system()
        self.admin = self.system.admin()
        self.wait_s = wait_s
        self._name = f"{check.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
        self._made = 0
        self._open: list[Consumer | Producer] = []

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for opened in self._open:
            try:
                opened.close()
            except HeadraceError:
                # The check has reported its own failure already.
                if kind is None:
                    raise

    def close(self, opened: Consumer | Producer) -> None:
        """Close something before the end of the check."""
        self._open.remove(opened)
        opened.close()

    def stream(self, partitions: int = 1) -> str:
        """A new stream."""
        self._made += 1
        name = f"{self._name}-{self._made}"
        self.admin.create(name, partitions)
        return name

    def consumer(self, ssp: SSP | None = None, position: Position = Edge.OLDEST) -> Consumer:
        """A new consumer, perhaps registered."""
        consumer = self.system.consumer()
        self._open.append(consumer)
        if ssp is not None:
            consumer.register(ssp, position)
        return consumer

    def producer(self, system: System | None = None) -> Producer:
        """A new producer."""
        producer = (system or self.system).producer()
        self._open.append(producer)
        return producer

    def write(self, stream: str, payloads: list[bytes], partition: int = 0, system: System | None = None) -> Offset:
        """Append and flush. Returns the offset after the last record."""
        producer = self.producer(system)
        for payload in payloads:
            producer.send(stream, partition, payload)
        return producer.flush()[stream, partition]

    def polls(self, consumer: Consumer, enough: Callable[[list[Polled]], bool], **options: Any) -> list[Polled]:
        """Poll until there are enough records. Raises ``ContractError`` after the waiting time."""
        got: list[Polled] = []
        deadline = time.monotonic() + self.wait_s
        while not enough(got):
            if time.monotonic() > deadline:
                brief = ", ".join(f"{type(item).__name__} of {item.ssp} to {item.next}" for item in got)
                raise ContractError(f"not readable after {self.wait_s} s; so far: {brief or 'nothing'}")
            polled = consumer.poll(**options)
            got.extend(polled)
            if not polled:
                self.wait(consumer, 0.01)
        return got

    def read(self, consumer: Consumer, count: int, **options: Any) -> list[tuple[Offset, bytes]]:
        """The next ``count`` records, with their offsets, and no more."""
        got = self.polls(consumer, lambda polled: len(records_in(polled)) >= count, **options)
        got.extend(consumer.poll(**options))
        records = records_in(got)
        expect(len(records) == count, f"{count} records expected, {len(records)} came")
        return records

    def wait(self, consumer: Consumer, seconds: float) -> bool:
        """Wait until the consumer's descriptor is readable, or the time is over."""
        fd = consumer.fileno()
        if fd is None:
            time.sleep(min(seconds, 0.01))
            return True
        return bool(readable(fd, seconds * 1000))


def ssp(stream: str, partition: int = 0) -> SSP:
    """A partition of a stream under test."""
    return SSP(StreamId("checked", stream), partition)


def records_in(polled: list[Polled]) -> list[tuple[Offset, bytes]]:
    """The records of some polls, in order."""
    pairs: list[tuple[Offset, bytes]] = []
    for item in polled:
        if isinstance(item, Records):
            expect(len(item.offsets) == len(item.payloads), "as many offsets as payloads expected")
            expect(bool(item.payloads), "a Records without a record was handed out")
            expect(all(type(payload) is bytes for payload in item.payloads), "payloads are bytes")
            pairs.extend(zip(item.offsets, item.payloads, strict=True))
    return pairs


# -- position checks ---------------------------------------------------------------------------------
_CLOCKS_DIFFER_MS = 60_000


def positions_by_time(scene: Scene) -> None:
    """A time means the first record that was appended then or later. A system without times says so."""
    name = scene.stream(2)
    (empty, _) = scene.admin.extents(name)
    before_ms = WallClock().now_ms() - _CLOCKS_DIFFER_MS
    try:
        found = scene.admin.offset_at(ssp(name), before_ms)
    except UnsupportedPositionError:
        expect(scene.admin.time_of(ssp(name), empty.oldest) is None, "a system without times knows one")
        return
    expect(found == empty.upcoming, "in an empty partition a time isn't the upcoming offset")
    expect(scene.admin.time_of(ssp(name), empty.upcoming) is None, "an empty partition has a time")
    ends = [scene.write(name, [b"%d" % n] * (n + 1), system=scene.other if n % 2 else None) for n in range(4)]
    records = scene.read(scene.consumer(ssp(name)), 10)
    times = [scene.admin.time_of(ssp(name), offset) for offset, _ in records]
    known = [time_ms for time_ms in times if time_ms is not None]
    expect(len(known) == len(records), f"records without a time: {times}")
    latest_ms = WallClock().now_ms() + _CLOCKS_DIFFER_MS
    expect(all(before_ms <= time_ms <= latest_ms for time_ms in known), f"these times are not of now: {known}")
    for time_ms in (0, before_ms, *known, *(time_ms + 1 for time_ms in known), latest_ms + 1):
        first = next((offset for (offset, _), at in zip(records, known, strict=True) if at >= time_ms), ends[-1])
        expect(scene.other.admin().offset_at(ssp(name), time_ms) == first, f"the time {time_ms} is not at {first}")
    expect(scene.admin.time_of(ssp(name), ends[-1]) is None, "the upcoming record has a time")
    expect(scene.admin.offset_at(ssp(name, 1), 0) == empty.oldest, "another partition has times")
    expect_raises(StreamNotFoundError, lambda: scene.admin.offset_at(ssp(name, 2), 0), "offset_at, partition 2")
    expect_raises(StreamNotFoundError, lambda: scene.admin.time_of(ssp(name, 2), 0), "time_of, partition 2")
    scene.admin.seal(name)
    expect(scene.admin.offset_at(ssp(name), latest_ms + 1) == ends[-1], "after a seal, a later time isn't the end")
    expect(scene.admin.offset_at(ssp(name), known[-1]) <= records[-1][0], "a seal has moved a time")


def times_of_a_trimmed_partition(scene: Scene) -> None:
    """A time before the oldest record that is kept means that record. The time of a trim is none too early."""
    name = scene.stream()
    end = scene.write(name, [b"x"] * 10)
    records = scene.read(scene.consumer(ssp(name)), 10)
    oldest, last_ms = records[6][0], scene.admin.time_of(ssp(name), records[-1][0])
    scene.admin.trim(ssp(name), oldest)
    try:
        found = scene.admin.offset_at(ssp(name), 0)
    except UnsupportedPositionError:
        return
    expect(found == oldest, "the beginning of time isn't the oldest offset")
    expect(scene.admin.time_of(ssp(name), oldest) is not None, "the oldest record has no time")
    scene.admin.trim(ssp(name), end)
    expect(scene.admin.offset_at(ssp(name), 0) == end, "with nothing left, a time isn't the end")
    expect(scene.admin.time_of(ssp(name), end) is None, "with nothing left, there is a time")
    gone_ms = scene.admin.trimmed_ms(ssp(name))
    expect(gone_ms is None or last_ms is None or gone_ms >= last_ms, "a record arrived after the time of its trim")


def offsets_checked(scene: Scene) -> None:
    """An offset is accepted if a consumer can be registered there and reads on."""
    name = scene.stream()
    end = scene.write(name, [b"a", b"bc", b"def"])
    for offset, _ in scene.read(scene.consumer(ssp(name)), 3):
        scene.admin.check_offset(ssp(name), offset)
    scene.admin.check_offset(ssp(name), end)
    expect_raises(UsageError, lambda: scene.admin.check_offset(ssp(name), end + 10_000), "an offset after the end")
    missing = ssp(name, 1)
    expect_raises(StreamNotFoundError, lambda: scene.admin.check_offset(missing, end), "an offset of no partition")


def offsets_checked_after_a_trim(scene: Scene) -> None:
    """An offset below the oldest one is refused; the oldest one isn't."""
    name = scene.stream()
    scene.write(name, [b"x" * 50] * 10)
    records = scene.read(scene.consumer(ssp(name)), 10)
    scene.admin.trim(ssp(name), records[5][0])
    for offset, _ in records[:5]:
        below = partial(scene.admin.check_offset, ssp(name), offset)
        expect_raises(TrimmedOffsetError, below, "a trimmed offset")
    for offset, _ in records[5:]:
        scene.admin.check_offset(ssp(name), offset)


def custom_positions_unknown(scene: Scene) -> None:
    """A kind of position that the system doesn't know is refused."""
    name = scene.stream()
    kind = "no system has this kind of position"
    expect_raises(UnsupportedPositionError, lambda: scene.admin.custom_offset(ssp(name), kind, {}), "an unknown kind")


# -- metadata ------------------------------------------------------------------------------------------
def create_describe_list(scene: Scene) -> None:
    """A created stream is described and listed as it was created; creating it again changes nothing."""
    name = scene.stream() + "-typed"
    expect(scene.admin.describe(name) is None, "a stream that isn't there was described")
    columns: dict[str, pl.DataType] = {"key": pl.String(), "at": pl.Datetime("us", "UTC"), "n": pl.List(pl.Int64())}
    made = scene.admin.create(name, 3, columns, ("at", "key"))
    expect((made.name, made.partitions, made.columns) == (name, 3, columns), f"created as {made}")
    expect(made.key == ("at", "key"), f"created with the key {made.key}")
    expect(scene.other.admin().describe(name) == made, "described differently than created")
    expect(scene.admin.create(name, 3, columns, ("at", "key")) == made, "creating it again gave something else")
    expect(scene.admin.create(name, 3, columns) == made, "a caller that names no key accepts a stream with one")
    expect(scene.admin.create(name, 3) == made, "a caller that names no columns accepts a stream with some")
    names = scene.admin.list()
    expect(name in names and names == sorted(names), "the stream isn't listed, or the list isn't sorted")


def create_with_another_shape(scene: Scene) -> None:
    """An existing stream with another partition count or schema isn't accepted."""
    name = scene.stream(2)
    expect_raises(StreamExistsError, lambda: scene.admin.create(name, 3), "another partition count")
    other: dict[str, pl.DataType] = {"a": pl.Int64()}
    expect_raises(StreamExistsError, lambda: scene.admin.create(name, 2, other), "other columns")
    expect_raises(StreamExistsError, lambda: scene.admin.create(name, 2, key=("key",)), "a key, where it has none")
    expect_raises(HeadraceError, lambda: scene.admin.create(name + "-zero", 0), "no partition at all")
    expect_raises(HeadraceError, lambda: scene.admin.create("../escape", 1), "a name with path characters")


def columns_added(scene: Scene) -> None:
    """Columns are added after the present ones; adding them again changes nothing, and no record is touched."""
    name = scene.stream() + "-grows"
    columns: dict[str, pl.DataType] = {"key": pl.String(), "n": pl.Int64()}
    more: dict[str, pl.DataType] = {"note": pl.String(), "at": pl.Datetime("us", "UTC")}
    scene.admin.create(name, 2, columns)
    end = scene.write(name, [b"before"])
    grown = scene.admin.add_columns(name, more)
    expect(list((grown.columns or {}).items()) == [*columns.items(), *more.items()], f"grown to {grown}")
    expect(grown.added == set(more), f"these columns count as added: {sorted(grown.added)}")
    other = scene.other.admin()
    expect(other.describe(name) == grown, "described differently than returned")
    expect(other.add_columns(name, {**columns, **more}) == grown, "adding them again changed something")
    expect(scene.admin.create(name, 2, columns) == grown, "a caller that knows only the first columns isn't accepted")
    expect(scene.admin.create(name, 2, {**columns, **more}) == grown, "a caller that knows all columns isn't accepted")
    retyped: dict[str, pl.DataType] = {"note": pl.Int64()}
    expect_raises(StreamExistsError, lambda: scene.admin.add_columns(name, retyped), "a column of another type")
    expect_raises(StreamExistsError, lambda: scene.admin.create(name, 2, {"key": pl.String()}), "a column less")
    expect(other.describe(name) == grown, "a refused call changed something")
    scene.write(name, [b"after"])
    records = scene.read(scene.consumer(ssp(name)), 2)
    expect([payload for _, payload in records] == [b"before", b"after"], "the records are others now")
    expect(records[1][0] == end, "the offsets are others now")
    expect_raises(StreamNotFoundError, lambda: other.add_columns(name + "-missing", more), "columns of no stream")
    expect_raises(UsageError, lambda: other.add_columns(scene.stream(), more), "columns of a stream that takes any")


def partitions_added(scene: Scene) -> None:
    """Partitions are added after the present ones, also by several callers at once; no record is touched."""
    name = scene.stream(2)
    scene.write(name, [b"before"], 1)

    def add(number: int) -> None:
        scene.other.admin().add_partitions(name, 3 + number % 3)

    _race(add, 6)
    info = scene.admin.describe(name)
    expect(info is not None and info.partitions == 5, f"grown to {info}")
    expect(scene.admin.add_partitions(name, 1) == info, "a stream never has fewer partitions than before")
    expect(len(scene.admin.extents(name)) == 5, "an added partition has no extent")
    scene.write(name, [b"after"], 4)
    expect(len(scene.read(scene.consumer(ssp(name, 1)), 1)) == 1, "a record is missing")
    expect(len(scene.read(scene.consumer(ssp(name, 4)), 1)) == 1, "an added partition takes no record")
    expect_raises(StreamNotFoundError, lambda: scene.admin.add_partitions(name + "-missing", 2), "no stream")
    scene.admin.seal(name)
    expect_raises(StreamSealedError, lambda: scene.admin.add_partitions(name, 6), "a sealed stream")


def columns_added_racing(scene: Scene) -> None:
    """Callers that add columns at the same time all succeed, and agree on the columns and their order."""
    name = scene.stream() + "-grows-raced"
    scene.admin.create(name, 1, {"key": pl.String()})
    adding = [{"both": pl.Int64(), f"only-{n}": pl.Int64()} for n in range(4)]

    def add(number: int) -> None:
        system = scene.system if number % 2 else scene.other
        system.admin().add_columns(name, dict[str, pl.DataType](adding[number]))

    _race(add, len(adding))
    info = scene.admin.describe(name)
    columns = [] if info is None or info.columns is None else list(info.columns)
    expect(columns[0] == "key" and sorted(columns) == sorted({"key"}.union(*adding)), f"the columns are {columns}")
    expect(scene.other.admin().describe(name) == info, "two handles describe it differently")


def create_racing(scene: Scene) -> None:
    """Callers that create a stream at the same time get the same one, and no record is lost."""
    name = scene.stream() + "-raced"

    def create(number: int) -> None:
        system = scene.other if number else scene.system
        system.admin().create(name, 2)
        scene.write(name, [b"here"], 1, system)

    _race(create, 4)
    expect(len(scene.read(scene.consumer(ssp(name, 1)), 4)) == 4, "a racing creator's record is missing")


def _race(act: Callable[[int], None], callers: int) -> None:
    barrier = threading.Barrier(callers)

    def run(number: int) -> None:
        barrier.wait()
        act(number)

    try:
        at_once(callers, run)
    except Exception as error:
        raise ContractError(f"a racing caller failed: {error!r}") from error


def missing_streams(scene: Scene) -> None:
    """Every method reports a missing stream or partition."""
    missing, there = scene.stream() + "-missing", scene.stream(2)
    consumer, producer = scene.consumer(), scene.producer()
    expect_raises(StreamNotFoundError, lambda: consumer.register(ssp(missing), Edge.OLDEST), "register")
    expect_raises(StreamNotFoundError, lambda: consumer.register(ssp(there, 2), Edge.OLDEST), "register partition 2")
    expect_raises(StreamNotFoundError, lambda: producer.send(missing, 0, b""), "send")
    expect_raises(StreamNotFoundError, lambda: producer.send(there, 2, b""), "send to partition 2")
    expect_raises(StreamNotFoundError, lambda: scene.admin.extents(missing), "extents")
    expect_raises(StreamNotFoundError, lambda: scene.admin.seal(missing), "seal")
    expect(consumer.poll() == [], "a consumer with nothing registered polled something")


# -- reading what was written ----------------------------------------------------------------------------
def order_within_a_partition(scene: Scene) -> None:
    """Records of each partition are read in the order in which they were sent, whichever handle sent them."""
    name = scene.stream(3)
    sent = {n: [f"{n}:{i}".encode() for i in range(200)] for n in range(3)}
    producer = scene.producer(scene.other)
    for i in range(200):
        for n in range(3):
            producer.send(name, n, sent[n][i])
        if i % 70 == 0:
            producer.flush()
    ends = producer.flush()
    consumer = scene.consumer()
    for n in range(3):
        consumer.register(ssp(name, n), Edge.OLDEST)
    polled = scene.polls(consumer, lambda got: len(records_in(got)) >= 600)
    for n in range(3):
        mine = [item for item in polled if item.ssp == ssp(name, n)]
        records = records_in(mine)
        expect([payload for _, payload in records] == sent[n], f"partition {n} is out of order")
        offsets = [offset for offset, _ in records]
        expect(offsets == sorted(set(offsets)), "offsets don't grow")
        expect(mine[-1].next == ends[name, n] == consumer.position(ssp(name, n)), "next, flush and position differ")


def offsets_read_again(scene: Scene) -> None:
    """Resuming at a record's offset reads that record; at ``next``, the one after the last."""
    name = scene.stream()
    payloads = [bytes([i]) * (i % 7) for i in range(50)]
    end = scene.write(name, payloads)
    consumer = scene.consumer(ssp(name))
    records = scene.read(consumer, 50)
    for index in (0, 1, 17, 49):
        consumer.register(ssp(name), records[index][0])
        expect(scene.read(consumer, 50 - index) == records[index:], f"seeking to record {index} read others")
    consumer.register(ssp(name), end)
    expect(consumer.poll() == [], "something after the end")
    scene.write(name, [b"more"])
    again = scene.consumer(ssp(name), end)
    expect(scene.read(again, 1) == [(end, b"more")], "the record at the flushed offset isn't the next one written")


def edges(scene: Scene) -> None:
    """``oldest`` reads everything, ``upcoming`` what is appended later; ``extents`` says where both are."""
    name = scene.stream()
    (empty,) = scene.admin.extents(name)
    expect(empty.oldest == empty.upcoming and not empty.sealed, f"an empty stream has the extent {empty}")
    end = scene.write(name, [b"before"])
    (extent,) = scene.admin.extents(name)
    expect((extent.oldest, extent.upcoming) == (empty.oldest, end), f"extent {extent}, flushed to {end}")
    late = scene.consumer(ssp(name), Edge.UPCOMING)
    expect(late.position(ssp(name)) == end, "upcoming isn't the end")
    scene.write(name, [b"after"])
    expect(scene.read(late, 1)[0][1] == b"after", "upcoming read something old")
    expect(len(scene.read(scene.consumer(ssp(name)), 2)) == 2, "oldest misses something")
    consumer = scene.consumer()
    expect_raises(UsageError, lambda: consumer.register(ssp(name), end + 10_000), "an offset after the end")
    expect(consumer.poll() == [], "a register that failed left something registered")


def poll_bounds(scene: Scene) -> None:
    """``max_bytes`` limits what is read of one partition, ``ssps`` says which are read; neither skips anything."""
    name = scene.stream(2)
    payloads = [bytes([i]) * 1000 for i in range(40)]
    scene.write(name, payloads, 0)
    scene.write(name, payloads, 1)
    consumer = scene.consumer()
    consumer.register(ssp(name, 0), Edge.OLDEST)
    consumer.register(ssp(name, 1), Edge.OLDEST)
    only = scene.polls(consumer, lambda got: len(records_in(got)) >= 40, ssps=[ssp(name, 1)], max_bytes=5000)
    expect({item.ssp for item in only} == {ssp(name, 1)}, "a partition that wasn't asked for was polled")
    for item in only:
        taken = sum(len(payload) for payload in item.payloads) if isinstance(item, Records) else 0
        expect(taken <= 5000, f"{taken} bytes taken where max_bytes was 5000")
    expect([payload for _, payload in records_in(only)] == payloads, "bounded polls lost or doubled something")
    rest = scene.read(consumer, 40)
    expect([payload for _, payload in rest] == payloads, "the paused partition lost something")
    unregistered = scene.consumer(ssp(name))
    unregistered.unregister(ssp(name))
    expect(unregistered.poll() == [], "an unregistered partition was polled")


def large_and_empty_records(scene: Scene) -> None:
    """Records of any size are read, also very large and empty ones."""
    name = scene.stream()
    payloads = [b"", os.urandom(3_000_000), b"", b"small", os.urandom(1_500_000)]
    scene.write(name, payloads)
    consumer = scene.consumer(ssp(name))
    records = scene.read(consumer, len(payloads), max_bytes=10)
    expect([payload for _, payload in records] == payloads, "large or empty records came out changed")


def many_partitions(scene: Scene) -> None:
    """A stream can have 64 partitions."""
    name = scene.stream(64)
    producer = scene.producer()
    for n in range(64):
        producer.send(name, n, b"%d" % n)
    ends = producer.flush()
    expect(set(ends) == {(name, n) for n in range(64)}, "flush doesn't name all touched partitions")
    expect(producer.flush() == {}, "flush names partitions that weren't touched")
    consumer = scene.consumer()
    for n in range(64):
        consumer.register(ssp(name, n), Edge.OLDEST)
    got = scene.polls(consumer, lambda polled: len(records_in(polled)) >= 64)
    expect(sorted(int(payload) for _, payload in records_in(got)) == list(range(64)), "a partition is missing")


def nothing_before_flush_is_missing_after(scene: Scene) -> None:
    """What flush acknowledged can be read at once, by anyone; ``close`` flushes."""
    name = scene.stream()
    producer = scene.producer(scene.other)
    producer.send(name, 0, b"flushed")
    producer.flush()
    consumer = scene.consumer(ssp(name))
    expect(scene.read(consumer, 1)[0][1] == b"flushed", "a flushed record is missing")
    closing = scene.producer()
    closing.send(name, 0, b"closed")
    scene.close(closing)
    expect(scene.read(consumer, 1)[0][1] == b"closed", "close didn't flush")


def readiness(scene: Scene) -> None:
    """The descriptor becomes readable after an append, also through another handle, and ``poll`` clears it."""
    name = scene.stream(2)
    consumer = scene.consumer(ssp(name, 1))
    if consumer.fileno() is None:
        return
    for turn, system in enumerate((scene.system, scene.other)):
        while consumer.poll():
            pass
        expect(not scene.wait(consumer, 0.02), "the descriptor is readable right after an empty poll")
        scene.write(name, [b"%d" % turn], 1, system)
        expect(scene.wait(consumer, scene.wait_s), "the descriptor didn't become readable after an append")
        expect(scene.read(consumer, 1)[0][1] == b"%d" % turn, "readable, but the record isn't there")
    scene.admin.seal(name)
    expect(scene.wait(consumer, scene.wait_s), "the descriptor didn't become readable after a seal")


# -- the end, the beginning, positions ---------------------------------------------------------------------
def seal_ends(scene: Scene) -> None:
    """After a seal readers get ``Ended`` once, after everything else; writers are refused."""
    name = scene.stream(2)
    end = scene.write(name, [b"a", b"b"])
    writer = scene.producer()
    writer.send(name, 0, b"c")
    end = writer.flush()[name, 0]
    live = scene.consumer(ssp(name))
    scene.read(live, 3)
    scene.admin.seal(name)
    scene.admin.seal(name)
    writer_failed = _refused(writer, name)
    expect(writer_failed, "a writer from before the seal may still write")
    expect(_refused(scene.producer(scene.other), name), "a new writer may write after the seal")
    expect(all(extent.sealed for extent in scene.admin.extents(name)), "extents don't say sealed")
    expect(scene.admin.extents(name)[0].upcoming == end, "the end isn't where the last record ended")
    polled = scene.polls(live, lambda got: any(isinstance(item, Ended) for item in got))
    expect(polled == [Ended(ssp(name), end)], f"Ended at {end} expected, {polled} came")
    expect(live.poll() == [], "something after Ended")
    expect(live.lag(ssp(name)) in (0, None), "an ended partition lags")
    for position, count in ((Edge.OLDEST, 3), (Edge.UPCOMING, 0), (end, 0)):
        live.register(ssp(name), position)
        again = scene.polls(live, lambda got: any(isinstance(item, Ended) for item in got))
        expect(len(records_in(again)) == count, f"{count} records expected from {position}")
        expect(again[-1] == Ended(ssp(name), end), "Ended isn't last")
    other = scene.polls(scene.consumer(ssp(name, 1)), bool)
    expect(isinstance(other[0], Ended), "an empty partition doesn't end")


def _refused(producer: Producer, stream: str) -> bool:
    try:
        producer.send(stream, 0, b"too late")
        producer.flush()
    except StreamSealedError:
        return True
    return False


def trim_gives_up_what_is_below(scene: Scene) -> None:
    """Reading below the trim point raises, and never returns other records; above it nothing changes."""
    name = scene.stream()
    payloads = [bytes([i]) * 3000 for i in range(30)]
    end = scene.write(name, payloads)
    consumer = scene.consumer(ssp(name))
    records = scene.read(consumer, 30)
    below = scene.consumer(ssp(name), records[3][0])
    point = records[10][0]
    scene.admin.trim(ssp(name), point)
    scene.admin.trim(ssp(name), records[5][0])
    expect(scene.admin.extents(name)[0].oldest == point, "the trim point isn't the oldest offset")
    expect_raises(TrimmedOffsetError, lambda: scene.consumer(ssp(name), records[9][0]), "a register below it")
    expect_raises(TrimmedOffsetError, lambda: scene.polls(below, bool), "a poll below it")
    for position in (point, Edge.OLDEST):
        expect(scene.read(scene.consumer(ssp(name), position), 20) == records[10:], f"reading from {position}")
    expect_raises(UsageError, lambda: scene.admin.trim(ssp(name), end + 10_000), "a trim after the end")
    scene.admin.trim(ssp(name), end)
    expect(scene.admin.extents(name)[0].oldest == end, "trimmed to its end, a partition is empty")
    scene.write(name, [b"new"])
    expect(scene.read(scene.consumer(ssp(name)), 1) == [(end, b"new")], "a trimmed partition can be written")


def positions(scene: Scene) -> None:
    """Every handle soon sees the reported positions, by group and partition, and no others."""
    name = scene.stream(3)
    expect(scene.admin.reported_positions(name, "readers") == {}, "positions that were not reported")
    scene.admin.report_position(ssp(name, 2), "readers", 77)
    scene.admin.report_position(ssp(name, 0), "readers", 0)
    scene.admin.report_position(ssp(name, 2), "readers", 1 << 40)
    scene.admin.report_position(ssp(name, 1), "others", 5)
    deadline, reported = time.monotonic() + scene.wait_s, {0: 0, 2: 1 << 40}
    while (found := scene.other.admin().reported_positions(name, "readers")) != reported:
        expect(time.monotonic() < deadline, f"{reported} was reported, {found} is known elsewhere")
        time.sleep(0.01)
    expect(scene.other.admin().reported_positions(name, "others") == {1: 5}, "positions of another group")


def lag_falls_to_zero(scene: Scene) -> None:
    """The lag is positive while something is unread, and 0 at the end."""
    name = scene.stream()
    scene.write(name, [b"x" * 100] * 10)
    consumer = scene.consumer(ssp(name))
    before = consumer.lag(ssp(name))
    expect(before is None or before > 0, "no lag before reading")
    scene.read(consumer, 10)
    expect(consumer.lag(ssp(name)) in (0, None), "a lag at the end")


CHECKS: tuple[Callable[[Scene], None], ...] = (
    create_describe_list, create_with_another_shape, create_racing, columns_added, columns_added_racing,
    partitions_added,
    missing_streams,
    order_within_a_partition, offsets_read_again, edges, poll_bounds,
    large_and_empty_records, many_partitions,
    nothing_before_flush_is_missing_after, readiness,
    positions_by_time, times_of_a_trimmed_partition, offsets_checked, offsets_checked_after_a_trim,
    custom_positions_unknown,
    seal_ends, trim_gives_up_what_is_below, positions, lag_falls_to_zero,
)  # fmt: skip


# -- target checks -----------------------------------------------------------------------------------
_PUBLISHED_S, _AGAIN_MS = 30.0, 50.0
TARGET_COLUMNS: dict[str, pl.DataType] = {"writer": pl.String(), "version": pl.Int64(), "n": pl.Int64()}


class TargetScene:
    """Handles on one target, the name of the check's writer, and what is visible of its versions."""

    def __init__(self, make_target: Callable[[], Target], read: Callable[[], pl.DataFrame], check: str) -> None:
        self.make_target = make_target
        self._read = read
        self._open: list[Target] = []
        self.writer = f"{check.replace('_', '-')}-{uuid.uuid4().hex[:8]}/stage/0/out"

    def __enter__(self) -> TargetScene:
        return self

    def __exit__(self, *_: object) -> None:
        for target in self._open:
            target.close()

    def target(self) -> Target:
        """A new handle."""
        target = self.make_target()
        self._open.append(target)
        return target

    def publish(
        self, target: Target, version: int, rows: int = 3, writer: str | None = None, at_once: int | None = None
    ) -> None:
        """Publish the rows of this version, in pieces of ``at_once``; as a task does, retry errors that may pass."""
        name = writer or self.writer
        pieces = [target.accept(piece) for piece in table(name, version, rows).iter_slices(at_once or rows)]
        end_s = time.monotonic() + _PUBLISHED_S
        while True:
            try:
                again_ms = target.publish(name, version, pieces)
            except HeadraceError as error:
                if not error.retry or time.monotonic() > end_s:
                    raise
                again_ms = _AGAIN_MS
            if again_ms is None:
                return
            expect(time.monotonic() < end_s, f"version {version} is published within {_PUBLISHED_S:g} s")
            time.sleep(again_ms / 1000)

    def expect_versions(self, versions: Sequence[int], rows: int = 3, writer: str | None = None) -> None:
        """Raise ``ContractError`` unless exactly these versions are visible, each complete and once."""
        who = writer or self.writer
        seen = self._read().filter(pl.col("writer") == who).select(*TARGET_COLUMNS).sort("version", "n").rows()
        wanted = [row for version in sorted(versions) for row in table(who, version, rows).rows()]
        counts = Counter(version for _, version, _ in seen)
        brief = ", ".join(f"version {version}: {count} rows" for version, count in counts.items()) or "none"
        expect(seen == wanted, f"versions {list(versions)} expected with {rows} rows each; visible are {brief}")


def table(writer: str, version: int, rows: int) -> pl.DataFrame:
    """The rows of a version."""
    return pl.DataFrame(
        {"writer": [writer] * rows, "version": [version] * rows, "n": range(rows)}, schema=TARGET_COLUMNS
    )


def a_new_writer(scene: TargetScene) -> None:
    """A writer has no position before it publishes."""
    expect(scene.target().position(scene.writer) == -1, "the position of an unknown writer is -1")


def versions_in_order(scene: TargetScene) -> None:
    """Versions rise, not always by one."""
    target = scene.target()
    for version in (0, 1, 5, 1_758_000_000_000):
        scene.publish(target, version)
        expect(target.position(scene.writer) == version, f"the position after publishing {version} is {version}")
    scene.expect_versions([0, 1, 5, 1_758_000_000_000])


def pieces_of_one_version(scene: TargetScene) -> None:
    """A version may be published in several pieces."""
    scene.publish(scene.target(), 4, rows=1000, at_once=300)
    scene.expect_versions([4], rows=1000)


def the_same_again(scene: TargetScene) -> None:
    """A writer that doesn't know whether a version arrived publishes it again."""
    target = scene.target()
    for _ in range(3):
        scene.publish(target, 7)
    scene.publish(scene.target(), 7)
    scene.expect_versions([7])
    expect(target.position(scene.writer) == 7, "publishing again doesn't move the position")


def a_replacement_goes_on(scene: TargetScene) -> None:
    """Another handle sees what the first one published."""
    scene.publish(scene.target(), 3)
    after = scene.target()
    expect(after.position(scene.writer) == 3, "another handle sees the position")
    scene.publish(after, 3)
    scene.publish(after, 4)
    scene.expect_versions([3, 4])


def a_stale_copy_wakes(scene: TargetScene) -> None:
    """A stale copy that looked up the position long ago changes nothing when it continues."""
    stale, replacement = scene.target(), scene.target()
    scene.publish(stale, 1)
    expect(stale.position(scene.writer) == 1, "the position after publishing 1 is 1")
    for version in (2, 3, 4):
        scene.publish(replacement, version)
    for version in (2, 3):
        scene.publish(stale, version)
    expect(replacement.position(scene.writer) == 4, "a stale copy doesn't take the position back")
    expect(scene.target().position(scene.writer) == 4, "a stale copy doesn't take the position back")
    scene.expect_versions([1, 2, 3, 4])


def writers_apart(scene: TargetScene) -> None:
    """Publishing as one writer doesn't affect another, however similar their names are."""
    target = scene.target()
    writers = [f"{scene.writer}{end}" for end in ("", "-2", ".2", "/2", "_2")]
    for number, writer in enumerate(writers):
        scene.publish(target, 10 * number, writer=writer)
    for number, writer in enumerate(writers):
        expect(target.position(writer) == 10 * number, f"the position of {writer} is its own")
        scene.expect_versions([10 * number], writer=writer)


def two_at_once(scene: TargetScene) -> None:
    """A task and its stale copy publish the same versions at the same time: each is visible once."""
    versions = range(1, 11)
    start = threading.Barrier(2)

    def run(_: int) -> None:
        with closing(scene.make_target()) as target:
            start.wait(10)
            for version in versions:
                scene.publish(target, version)

    at_once(2, run)
    scene.expect_versions(versions)


TARGET_CHECKS: tuple[Callable[[TargetScene], None], ...] = (
    a_new_writer, versions_in_order, pieces_of_one_version, the_same_again, a_replacement_goes_on, a_stale_copy_wakes,
    writers_apart, two_at_once,
)  # fmt: skip

WITHOUT_POSITIONS = (a_new_writer, pieces_of_one_version)
