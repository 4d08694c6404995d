"""The journal: after any crash a task has exactly the state and positions of its last checkpoint."""

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import CorruptLogError, DeclarationError, FencedError, StorageError
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, Offset, StreamId
from headrace.runtime import journal as journal_module
from headrace.runtime.journal import Journal, TaskRecord, encode_change
from headrace.runtime.watermark import InputTimes, TimesCheckpoint
from headrace.stores.runs import Runs
from headrace.systems.base import Producer
from headrace.systems.memory import MemorySystem

CHANGELOG = SSP(StreamId("memory", "app-count-changelog"), 0)
VIEWS = SSP(StreamId("memory", "views"), 0)
NO_TIMES = InputTimes([]).save()


class FailingProducer:
    """A disk that is full after some records: those before are durable, the one that doesn't fit raises."""

    def __init__(self, producer: Producer, room: int) -> None:
        self._producer = producer
        self._room = room

    def send(self, stream: str, partition: int, payload: bytes) -> None:
        if self._room == 0:
            raise StorageError("no room")
        self._room -= 1
        self._producer.send(stream, partition, payload)
        self._producer.flush()

    def flush(self) -> dict[tuple[str, int], Offset]:
        return self._producer.flush()

    def close(self) -> None:
        self._producer.close()


def counts(id_: str = "per-10s") -> Runs:
    return Runs(id_, "time", lambda rows: rows.group_by("time").agg(pl.col("n").sum()))


@dataclass
class Life:
    """One life of a task: a journal, a store, the positions."""

    system: MemorySystem
    generation: int
    room: int = 10**9
    store: Runs = field(default_factory=counts)
    position: Offset = 0
    finished: bool = False

    def __post_init__(self) -> None:
        producer = FailingProducer(self.system.producer(), self.room)
        self.journal = Journal(CHANGELOG, self.system.admin(), producer, producer_id=7, generation=self.generation)

    def restore(self) -> TaskRecord | None:
        consumer = self.system.consumer()
        try:
            record = self.journal.restore(consumer, {self.store.id: self.store})
        finally:
            consumer.close()
        if record is not None:
            self.position, self.finished = record.positions[str(VIEWS)], record.finished
        return record

    def count(self, time: int, n: int = 1) -> None:
        self.store.add(pl.DataFrame({"time": [time], "n": [n]}))
        self.position += 1

    def commit(self, *, finished: bool = False) -> None:
        self.journal.commit({self.store.id: self.store}, {VIEWS: self.position}, NO_TIMES, finished=finished)

    def state(self) -> Counter[int]:
        rows = self.store.scan()
        return Counter(dict(rows.rows())) if rows is not None else Counter()


@pytest.fixture
def system() -> MemorySystem:
    return new_system()


def new_system() -> MemorySystem:
    system = MemorySystem()
    system.admin().create(CHANGELOG.stream.name, 1)
    return system


def next_life(system: MemorySystem, generation: int) -> Life:
    life = Life(system, generation)
    life.restore()
    return life


def test_a_task_that_never_committed_begins_afresh(system: MemorySystem) -> None:
    assert Life(system, 1).restore() is None


def test_a_restart_has_state_and_positions_of_the_last_commit(system: MemorySystem) -> None:
    life = next_life(system, 1)
    life.count(10, 3)
    life.commit()
    life.count(10)
    life.store.take(10)
    life.count(20)
    life.commit(finished=True)
    again = next_life(system, 2)
    assert (again.state(), again.position, again.finished) == ({20: 1}, 3, True)


def test_what_was_not_committed_never_happened(system: MemorySystem) -> None:
    life = next_life(system, 1)
    life.count(10)
    life.commit()
    life.count(10, 100)
    assert next_life(system, 2).state() == {10: 1}


def test_changes_without_a_commit_are_not_taken_for_the_next_lifes(system: MemorySystem) -> None:
    """The crash comes after the change reached the changelog, before the commit record did."""
    dying = Life(system, 1, room=1)
    dying.restore()
    dying.count(10, 100)
    with pytest.raises(StorageError):
        dying.commit()
    second = next_life(system, 2)
    second.count(10, 1)
    second.commit()
    assert next_life(system, 3).state() == {10: 1}


def test_what_an_older_life_writes_after_a_newer_one_is_void(system: MemorySystem) -> None:
    zombie, living = next_life(system, 1), next_life(system, 2)
    living.count(10, 1)
    living.commit()
    zombie.count(10, 100)
    zombie.commit()
    living.count(10, 1)
    living.commit()
    again = next_life(system, 3)
    assert (again.state(), again.position) == ({10: 2}, 2)


def test_an_outdated_life_does_not_start(system: MemorySystem) -> None:
    life = next_life(system, 5)
    life.commit()
    for generation in (4, 5):
        with pytest.raises(
            FencedError, match=f"generation 5 .* has written already, and this is generation {generation}"
        ):
            Life(system, generation).restore()


# -- full checkpoints


def test_full_checkpoints_bound_the_changelog(system: MemorySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_FULL_AFTER_BYTES_MIN", 10_000)
    life = next_life(system, 1)
    for number in range(200):
        life.count(number % 5)
        life.commit()
    (extent,) = system.admin().extents(CHANGELOG.stream.name)
    assert extent.upcoming == 400
    assert 0 < extent.upcoming - extent.oldest < 40
    again = next_life(system, 2)
    assert (again.state(), again.position) == (dict.fromkeys(range(5), 40), 200)
    assert again.journal._since_full == life.journal._since_full


def test_a_crash_within_a_full_checkpoint_leaves_the_one_before(
    system: MemorySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_FULL_AFTER_BYTES_MIN", 0)
    life = Life(system, 1, room=3)
    life.restore()
    life.count(10)
    life.commit()
    life.count(20)
    with pytest.raises(StorageError):
        life.commit()
    assert next_life(system, 2).state() == {10: 1}


# -- a changelog that doesn't fit


def test_state_of_a_step_that_is_gone_is_an_error(system: MemorySystem) -> None:
    life = Life(system, 1, store=counts("old-step"))
    life.count(10)
    life.commit()
    with pytest.raises(
        DeclarationError, match=r"memory.app-count-changelog\[0\] holds state of step 'old-step'"
    ) as info:
        Life(system, 2).restore()
    assert "give the step its id back" in str(info.value)


def record(**fields: object) -> bytes:
    good = TaskRecord(generation=1, positions={}, times=NO_TIMES, full=False, finished=False)
    return msgspec.msgpack.encode(msgspec.structs.replace(good, **fields))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\x11short", "a frame has at least 25 bytes"),
        (encode(Header(Kind.USER, generation=1, seq=1)), "a frame of kind USER has no place"),
        (encode(Header(Kind.CHANGE, generation=1, seq=1), b"\x00"), "an unreadable change"),
        (encode(Header(Kind.COMMIT, generation=1, seq=1), b"{}"), "unreadable commit record"),
        (
            encode(Header(Kind.COMMIT, generation=1, seq=1), record(format=2)),
            "commit record of format 2; this Headrace reads 1",
        ),
    ],
)
def test_anything_else_in_a_changelog_is_refused_with_its_place(
    system: MemorySystem, payload: bytes, says: str
) -> None:
    producer = system.producer()
    producer.send(CHANGELOG.stream.name, 0, payload)
    producer.flush()
    with pytest.raises(CorruptLogError, match=rf"memory.app-count-changelog\[0\] at offset 0: {says}"):
        Life(system, 2).restore()


# -- any history

steps = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.integers(0, 5)),
        st.tuples(st.just("take"), st.integers(0, 5)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("crash in commit"), st.integers(0, 6)),
    ),
    max_size=30,
)


@given(steps, st.sampled_from([0, 3000, 1 << 30]))
def test_any_history_of_commits_and_crashes(history: list[tuple[str, int]], full_after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "_FULL_AFTER_BYTES_MIN", full_after)
        system, generation = new_system(), 1
        life = next_life(system, generation)
        state, committed = Counter[int](), Counter[int]()
        for step, number in history:
            match step:
                case "count":
                    life.count(number)
                    state[number] += 1
                case "take":
                    life.store.take(number)
                    state = Counter({time: n for time, n in state.items() if time > number})
                case "commit":
                    life.commit()
                    committed = state.copy()
                case _:
                    if step == "crash in commit":
                        life.journal._producer = FailingProducer(system.producer(), number)
                        try:
                            life.commit()
                            committed = state.copy()
                        except StorageError:
                            pass
                    generation += 1
                    life = next_life(system, generation)
                    state = committed.copy()
            assert life.state() == state


# -- the durable form


def test_the_commit_record_stays_what_it_is() -> None:
    times = TimesCheckpoint(watermark=5, watermarks=[], ends=[])
    written = TaskRecord(generation=3, positions={str(VIEWS): 42}, times=times, full=True, finished=False)
    golden = (
        b"\x86\xa6format\x01\xaageneration\x03\xa9positions\x81\xafmemory.views[0]*"
        b"\xa5times\x83\xa9watermark\x05\xaawatermarks\x90\xa4ends\x90\xa4full\xc3\xa8finished\xc2"
    )
    assert msgspec.msgpack.encode(written) == golden
    assert msgspec.msgpack.decode(golden, type=TaskRecord) == written


def test_a_change_stays_what_it_is() -> None:
    assert encode_change("per-10s", b"\x01...") == b"\x00\x07per-10s\x01..."
