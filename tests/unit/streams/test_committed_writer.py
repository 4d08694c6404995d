"""Committed writers: whatever dies at whatever step, committed readers see each version exactly once, whole."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from headrace.core.errors import DataError, FencedError, ProtocolError, StorageError, StreamNotFoundError, UsageError
from headrace.core.frame import Kind
from headrace.core.ids import SSP, Offset, StreamId
from headrace.life.metadata import Change, Entry, MemoryMetadata, MetadataStore, SqliteMetadata, Version
from headrace.protocol.record import OutputSeq, ReaderPosition
from headrace.streams.committed_writer import (
    FILE,
    VERSION_MAX,
    CommittedWriter,
    WriterRecord,
    WriterRecords,
    next_generation,
    open_committed_writer,
    open_log,
)
from headrace.streams.reader import CommittedGate, FrameReader
from headrace.systems.base import Admin, Consumer, Producer, System
from headrace.systems.log.system import LogSystem
from headrace.systems.memory import MemorySystem

STREAM = StreamId("log", "orders")
PARTITIONS = 2
GOLDEN_PRODUCER = 843608383
FRAMES = (0, 1, 1)
STEPS = 17
"""What an attempt to publish these frames does to the outside (see ``Steps``)."""


class Killed(BaseException):
    """The process is gone: nobody handles this."""


# -- a world in which every call of a writer to the outside is a step at which things can happen -------


@dataclass
class Steps:
    """Called before and after each call to the outside: ``at[n]`` is what happens at step n."""

    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    count: int = 0

    def step(self) -> None:
        number, self.count = self.count, self.count + 1
        if number in self.at:
            self.at[number]()


class SteppedStore(MetadataStore):
    """A metadata store each of whose calls has a step before it and one after it."""

    def __init__(self, store: MetadataStore, steps: Steps) -> None:
        self._store, self._steps = store, steps

    @property
    @override
    def place(self) -> str:
        return self._store.place

    @override
    def get(self, namespace: str, key: str) -> Entry | None:
        self._steps.step()
        return self._store.get(namespace, key)

    @override
    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        self._steps.step()
        done = self._store.write(namespace, changes)
        self._steps.step()
        return done

    @override
    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        return self._store.scan(namespace, prefix)

    @override
    def close(self) -> None:
        self._store.close()


class SteppedProducer(Producer):
    """Each record reaches the stream only at a flush, in a step of its own: a death leaves the first ones there."""

    def __init__(self, producer: Producer, steps: Steps) -> None:
        self._producer, self._steps = producer, steps
        self._buffer: list[tuple[str, int, bytes]] = []

    @override
    def send(self, stream: str, partition: int, payload: bytes) -> None:
        self._buffer.append((stream, partition, payload))

    @override
    def flush(self) -> dict[tuple[str, int], Offset]:
        ends: dict[tuple[str, int], Offset] = {}
        while self._buffer:
            self._steps.step()
            self._producer.send(*self._buffer[0])
            ends |= self._producer.flush()
            del self._buffer[0]
        self._steps.step()
        return ends

    @override
    def close(self) -> None:
        self._producer.close()


@dataclass(frozen=True)
class SteppedSystem(System):
    system: System
    steps: Steps

    @override
    def admin(self) -> Admin:
        return self.system.admin()

    @override
    def consumer(self) -> Consumer:
        return self.system.consumer()

    @override
    def producer(self) -> Producer:
        return SteppedProducer(self.system.producer(), self.steps)


# -- readers -------------------------------------------------------------------------------------------


class Reader:
    """A committed reader of the whole stream, which resumes from its position each time."""

    def __init__(self, system: System, *, whole: bool = True) -> None:
        extents = system.admin().extents(STREAM.name)
        self._system = system
        self._positions = {
            SSP(STREAM, number): ReaderPosition(offset=extent.oldest if whole else extent.upcoming, whole=whole)
            for number, extent in enumerate(extents)
        }
        self.seen: list[tuple[int, bytes]] = []
        self.held = 0

    def read(self) -> list[tuple[int, bytes]]:
        """Read on to the end; return all that was ever released, with its partition."""
        gate = CommittedGate(self._positions)
        starts = {ssp: position.offset or 0 for ssp, position in self._positions.items()}
        for frames in FrameReader(self._system, STREAM, gate, lambda _: True).read(starts):
            self.seen += [
                (frame.ssp.partition, bytes(frame.body)) for frame in frames if frame.header.kind is Kind.USER
            ]
        self.held = gate.held
        found = {ssp: gate.position(ssp) for ssp in self._positions}
        self._positions |= {ssp: position for ssp, position in found.items() if position is not None}
        return self.seen


# -- the property --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """At this step of an attempt the process dies or, if there are attempts ``meanwhile``, stands still for them."""

    step: int
    meanwhile: tuple[Fault | None, ...] | None = None


_steps = st.integers(0, 30)
_faults = st.recursive(
    st.none() | st.builds(Fault, _steps),
    lambda inner: st.builds(Fault, _steps, st.lists(inner, min_size=1, max_size=2).map(tuple)),
    max_leaves=4,
)


@dataclass(frozen=True)
class Wanted:
    """A version to publish, the partitions of its frames, and what happens to the first attempts at it."""

    writer: str
    gap: int
    frames: tuple[int, ...]
    faults: tuple[Fault | None, ...]


_wanted = st.builds(
    Wanted,
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.lists(st.integers(0, PARTITIONS - 1), max_size=4).map(tuple),
    st.lists(_faults, max_size=3).map(tuple),
)


class World:
    """A stream, the records of its writers, and readers that began at different times."""

    def __init__(self, system: System | None = None, store: MetadataStore | None = None) -> None:
        self.system = system or MemorySystem()
        self.system.admin().create(STREAM.name, PARTITIONS)
        self.store = store or MemoryMetadata()
        self.readers = [Reader(self.system)]
        self.tried: dict[str, dict[str, list[tuple[int, bytes]]]] = {}
        """The frames of each attempt at each version."""
        self._tries = 0

    def publish(self, wanted: Wanted, version: int) -> None:
        """Publish a version: after its faults there is an attempt that nothing happens to."""
        later = Reader(self.system, whole=False)
        self.readers = [self.readers[0], *self.readers[1:][-3:], later]
        for fault in wanted.faults:
            self.attempt(wanted, version, fault)
        assert self.attempt(wanted, version, None)
        self.look()
        tried = self.tried[f"{wanted.writer}/{version}"]
        for reader in (self.readers[0], later):
            assert reader.held == 0
            seen = [frame for frame in reader.seen if frame[1].startswith(f"{wanted.writer}/{version}/".encode())]
            assert any(by_partition(frames) == by_partition(seen) for frames in tried.values())

    def attempt(self, wanted: Wanted, version: int, fault: Fault | None) -> bool:
        """Make an attempt in a process of its own. Return whether it got to its end."""
        self._tries += 1
        id_ = f"{wanted.writer}/{version}/{self._tries}"
        frames = [(partition, f"{id_}/{number}".encode()) for number, partition in enumerate(wanted.frames)]
        self.tried.setdefault(f"{wanted.writer}/{version}", {})[id_] = frames
        steps = Steps()
        if fault is not None:
            steps.at[fault.step] = lambda: self.happen(wanted, version, fault)
        try:
            self.writer(wanted.writer, steps).publish(version, frames)
        except (Killed, FencedError):
            return False
        finally:
            self.look()
        return True

    def happen(self, wanted: Wanted, version: int, fault: Fault) -> None:
        """Let a process die or, while it stands still, others do its work."""
        self.readers.append(Reader(self.system, whole=False))
        if fault.meanwhile is None:
            raise Killed
        for inner in fault.meanwhile:
            self.attempt(wanted, version, inner)
        self.readers.append(Reader(self.system, whole=False))

    def writer(self, name: str, steps: Steps) -> CommittedWriter:
        records = WriterRecords(SteppedStore(self.store, steps), str(STREAM))
        return CommittedWriter(SteppedSystem(self.system, steps), STREAM, name, records)

    def look(self) -> None:
        """Check that nobody sees anything twice, out of order, of two attempts, or before it is published."""
        positions = {name: self.writer(name, Steps()).position() for name in ("a", "b")}
        fresh = Reader(self.system)
        everything = set(fresh.read())
        for reader in (*self.readers, fresh):
            seen = reader.read()
            assert everything.issuperset(seen), "void"
            attempts = {frame.rpartition(b"/")[0].decode() for _, frame in seen}
            versions = [id_.rpartition("/")[0] for id_ in attempts]
            assert len(versions) == len(set(versions)), attempts
            for id_ in attempts:
                name, version, _ = id_.split("/")
                assert int(version) <= positions[name], "seen before it is published"
                of_attempt = by_partition(frame for frame in seen if frame[1].startswith(f"{id_}/".encode()))
                whole = by_partition(self.tried[f"{name}/{version}"][id_])
                for partition, frames in of_attempt.items():
                    assert frames == whole[partition][-len(frames) :], "twice, out of order, or with a gap"


def by_partition(frames: Iterable[tuple[int, bytes]]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for partition, frame in frames:
        found.setdefault(partition, []).append(frame)
    return found


def publish_all(world: World, story: Sequence[Wanted]) -> None:
    positions = {"a": -1, "b": -1}
    for wanted in story:
        positions[wanted.writer] += 1 + wanted.gap
        world.publish(wanted, positions[wanted.writer])
    expected = sum(len(wanted.frames) for wanted in story)
    assert len(Reader(world.system).read()) == len(world.readers[0].seen) == expected


@given(st.lists(_wanted, min_size=1, max_size=4))
def test_every_version_is_seen_once_and_whole_whatever_dies_or_wakes_up_late(story: list[Wanted]) -> None:
    publish_all(World(), story)


def test_an_attempt_may_die_at_any_step_of_a_real_log(tmp_path: Path) -> None:
    system = LogSystem(tmp_path / "streams")
    with closing(SqliteMetadata(tmp_path / FILE)) as store:
        publish_all(World(system, store), [Wanted("a", 0, FRAMES, (Fault(n),)) for n in range(STEPS)])


def test_an_attempt_may_be_replaced_at_any_step_and_wake_up_again() -> None:
    for step in range(STEPS):
        for inner in (None, *map(Fault, range(0, STEPS, 2))):
            publish_all(World(), [Wanted("a", 0, FRAMES, (Fault(step, (inner,)),)), Wanted("a", 0, FRAMES, ())])


def test_the_steps_of_an_attempt_are_those_at_which_it_dies_here() -> None:
    steps = Steps()
    World().writer("a", steps).publish(0, [(partition, b"") for partition in FRAMES])
    assert steps.count == STEPS


KILLED = """
import os, signal, sys
from headrace.streams.committed_writer import open_committed_writer

def frames():
    yield from [(0, b"x" * 5_000_000), (0, b"y"), (1, b"z")]  # more than the log's producer buffers
    os.kill(os.getpid(), signal.SIGKILL)

open_committed_writer(sys.argv[1], "orders", "shop").publish(int(sys.argv[2]), frames())
"""


def test_a_process_that_is_killed_publishes_nothing(tmp_path: Path) -> None:
    open_log(tmp_path).admin().create("orders", PARTITIONS)
    with open_committed_writer(tmp_path, "orders", "shop") as writer:
        writer.publish(0, [(1, b"a")])
        killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path, "1"], check=False, timeout=100)
        assert killed.returncode == -signal.SIGKILL
        reader = Reader(open_log(tmp_path))
        assert reader.read() == [(1, b"a")]
        assert reader.held == 1
        assert writer.publish(1, [(0, b"b")])
        assert sorted(reader.read()) == [(0, b"b"), (1, b"a")]
        assert reader.held == 0


# -- what a caller can rely on -------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    open_log(tmp_path).admin().create("orders", PARTITIONS)
    return tmp_path


def rows_of(home: Path) -> list[tuple[int, bytes]]:
    return Reader(open_log(home)).read()


def test_a_known_version_is_not_looked_at(home: Path) -> None:
    with closing(open_committed_writer(home, "orders", "shop")) as writer:
        assert writer.position() == -1
        assert writer.publish(3, [(0, b"x"), (1, b"y")])
        assert writer.position() == 3
        assert not writer.publish(3, iter_that_fails())
        assert not writer.publish(2, iter_that_fails())
    with closing(open_committed_writer(home, "orders", "shop")) as again:
        assert again.position() == 3
        assert again.publish(4, [])
    assert rows_of(home) == [(0, b"x"), (1, b"y")]


def iter_that_fails() -> Iterator[tuple[int, bytes]]:
    yield 0, b"half"
    raise DataError("the rest is unreadable")


def test_frames_that_fail_half_way_are_void_at_once(home: Path) -> None:
    with closing(open_committed_writer(home, "orders", "shop")) as writer:
        with pytest.raises(DataError, match="the rest is unreadable"):
            writer.publish(0, iter_that_fails())
        reader = Reader(open_log(home))
        assert (reader.read(), reader.held) == ([], 0)
        assert writer.publish(0, [(0, b"whole")])
        assert reader.read() == [(0, b"whole")]


def test_a_version_goes_on_where_partitions_were_added(home: Path) -> None:
    with closing(open_committed_writer(home, "orders", "shop")) as writer:
        writer.publish(0, [(1, b"x")])
        open_log(home).admin().add_partitions("orders", 3)
        writer.publish(1, [(2, b"y")])
    assert rows_of(home) == [(1, b"x"), (2, b"y")]


def test_what_replaced_a_writer_is_named(home: Path) -> None:
    with (
        closing(open_committed_writer(home, "orders", "shop")) as old,
        closing(open_committed_writer(home, "orders", "shop")) as new,
    ):

        def frames() -> Iterator[tuple[int, bytes]]:
            yield 0, b"old"
            new.publish(0, [(0, b"new")])

        with pytest.raises(
            FencedError, match=r"'shop' of log\.orders: generation 1 was replaced by generation 2 before"
        ):
            old.publish(0, frames())
    assert rows_of(home) == [(0, b"new")]


def test_a_full_disk_publishes_nothing_until_there_is_room(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_committed_writer(home, "orders", "shop")) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", no_room)
            patch.setattr(os, "writev", no_room)
            with pytest.raises(StorageError, match="free up space"):
                writer.publish(0, [(0, b"x")])
        assert (writer.position(), rows_of(home)) == (-1, [])
        assert writer.publish(0, [(0, b"x")])
    assert rows_of(home) == [(0, b"x")]


def no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_makes_no_sense_is_refused(home: Path) -> None:
    with pytest.raises(StreamNotFoundError, match="did you mean orders"):
        open_committed_writer(home, "order", "shop")
    with pytest.raises(UsageError, match="needs a name"):
        open_committed_writer(home, "orders", "")
    with closing(open_committed_writer(home, "orders", "shop")) as writer:
        for version in (-1, VERSION_MAX + 1):
            with pytest.raises(UsageError, match=f"not {version}"):
                writer.publish(version, [])
        with pytest.raises(UsageError, match=r"partition 2, but log\.orders has 2"):
            writer.publish(0, [(2, b"x")])


# -- the record ----------------------------------------------------------------------------------------


def test_the_record_has_these_bytes() -> None:
    outputs = (OutputSeq(stream="log.orders", partition=0, seq=7, generation=3),)
    record = WriterRecord(name="shop", producer=5, generation=3, version=9, settled=False, outputs=outputs)
    assert record.encode() == (
        b'{"format":1,"name":"shop","producer":5,"generation":3,"version":9,"settled":false,'
        b'"outputs":[{"stream":"log.orders","partition":0,"seq":7,"generation":3}]}'
    )


def test_the_producer_id_of_a_name_never_changes() -> None:
    records = WriterRecords(MemoryMetadata(), "log.orders")
    assert records.read("shop").record.producer == GOLDEN_PRODUCER


def test_names_of_one_hash_get_numbers_of_their_own() -> None:
    store = MemoryMetadata()
    records = WriterRecords(store, "log.orders")
    known = records.read("shop")
    assert records.replace(known, msgspec.structs.replace(known.record, name="other")) is not None
    found = records.read("shop")
    assert (found.record.producer, found.at) == (GOLDEN_PRODUCER + 1, None)
    assert records.replace(found, found.record) is not None
    assert records.replace(found, found.record) is None, "somebody else has replaced it"
    assert records.read("shop").record == found.record


def test_records_of_later_formats_and_used_up_generations_are_refused() -> None:
    store = MemoryMetadata()
    records = WriterRecords(store, "log.orders")
    known = records.read("shop")
    later = records.replace(known, msgspec.structs.replace(known.record, format=2))
    assert later is not None
    with pytest.raises(DataError, match=r"of log\.orders in memory is of format 2"):
        records.read("shop")
    with pytest.raises(ProtocolError, match="used up all"):
        next_generation(msgspec.structs.replace(known.record, generation=2**31 - 1))
