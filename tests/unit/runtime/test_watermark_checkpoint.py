"""The bookkeeping of control messages is saved with checkpoints: at any moment, without changing what follows."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.ids import SSP, StreamId
from headrace.runtime.event_time.watermark import FOREVER, NEVER, InputTimes, PartitionTime, TimesCheckpoint

STAGES = {"count": 2, "enrich": 1}
TASKS = ["count/0", "count/1", "enrich/0"]
SHUFFLED = [SSP(StreamId("log", "by-member"), p) for p in (0, 1)]
SOURCE = SSP(StreamId("log", "views"), 0)

Event = Callable[[InputTimes], None]


def times() -> InputTimes:
    return InputTimes([*(PartitionTime(ssp, STAGES) for ssp in SHUFFLED), PartitionTime(SOURCE)])


@dataclass(frozen=True)
class Says:
    """An upstream task's watermark or end-of-stream."""

    ssp: SSP
    task: str
    timestamp: int | None
    idle: bool = False

    def __call__(self, to: InputTimes) -> None:
        count = STAGES[self.task.split("/")[0]]
        if self.timestamp is None:
            to[self.ssp].on_end_of_stream(self.task, count)
        else:
            to[self.ssp].on_watermark(self.task, count, self.timestamp, idle=self.idle)


@dataclass(frozen=True)
class Source:
    """What a host tells of a source: its time, its end (None), or that it is silent."""

    timestamp: int | None
    idle: bool = False

    def __call__(self, to: InputTimes) -> None:
        if self.idle:
            to[SOURCE].idle = True
        elif self.timestamp is None:
            to[SOURCE].end()
        else:
            to[SOURCE].advance(self.timestamp)


@dataclass(frozen=True)
class Data:
    """Messages came in a partition of an intermediate stream: it isn't idle, whatever its writers said."""

    ssp: SSP

    def __call__(self, to: InputTimes) -> None:
        to[self.ssp].advance(NEVER)


times_of_day = st.integers(0, 20)
says = st.builds(Says, st.sampled_from(SHUFFLED), st.sampled_from(TASKS), times_of_day, st.booleans())
ends = st.builds(Says, st.sampled_from(SHUFFLED), st.sampled_from(TASKS), st.none())
tells = st.one_of(st.builds(Source, times_of_day), st.builds(Source, times_of_day, st.just(True)))
events: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(says, says, ends, tells, st.just(Source(None)), st.builds(Data, st.sampled_from(SHUFFLED))), max_size=20
)


def after(saved: TimesCheckpoint) -> InputTimes:
    """What a restart makes of a checkpoint, through bytes."""
    restored = times()
    restored.load(msgspec.json.decode(msgspec.json.encode(saved), type=TimesCheckpoint))
    return restored


@settings(deadline=None)
@given(events)
def test_a_restart_at_any_moment_changes_nothing(sequence: list[Event]) -> None:
    living = times()
    restarted: list[InputTimes] = []
    for event in sequence:
        restarted.append(after(living.save()))
        for one in (living, *restarted):
            event(one)
        risen = living.rise()
        for one in restarted:
            assert one.rise() == risen
            assert one.save() == living.save()
            assert (one.idle, one.ended) == (living.idle, living.ended)


@dataclass
class Naive:
    """The rules of a partition said again, as simply as they can be: keep all that was heard, look at all of it."""

    stages: dict[str, int]
    heard: list[tuple[str, int | None, bool]] = field(default_factory=list)
    highest: int = NEVER

    @property
    def closed(self) -> bool:
        return {task for task, time, _ in self.heard if time is None} == set(TASKS)

    def hear(self, task: str, time: int | None, idle: bool) -> None:
        self.heard.append((task, time, idle))
        ended = {t for t, at, _ in self.heard if at is None}
        if {t for t, _, _ in self.heard} != set(TASKS):
            return
        awake = []
        for living in set(TASKS) - ended:
            said = [(at, silent) for t, at, silent in self.heard if t == living and at is not None]
            if not said[-1][1]:
                awake.append(max(at for at, _ in said))
        if ended != set(TASKS):
            seen_by_any = max(at for _, at, _ in self.heard if at is not None)
            self.highest = max(self.highest, min(awake) if awake else seen_by_any)
        if self.closed:
            self.highest = FOREVER


@settings(deadline=None)
@given(st.lists(st.one_of(says, says, ends), max_size=40))
def test_reconciliation_is_the_naive_rule(sequence: list[Says]) -> None:
    task = times()
    naive = {ssp: Naive(STAGES) for ssp in SHUFFLED}
    for event in sequence:
        event(task)
        naive[event.ssp].hear(event.task, event.timestamp, event.idle)
        for ssp, model in naive.items():
            assert (task[ssp].watermark, task[ssp].closed) == (model.highest, model.closed)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), times_of_day)), max_size=40))
def test_a_tasks_watermark_is_the_naive_minimum(sequence: list[tuple[int, int | None]]) -> None:
    partitions = [PartitionTime(SSP(StreamId("log", "views"), n)) for n in range(4)]
    task = InputTimes(partitions)
    told: dict[int, int] = dict.fromkeys(range(4), NEVER)
    risen = [NEVER]
    for number, time in sequence:
        if time is None:
            partitions[number].end()
            told.pop(number, None)
        elif number in told:
            partitions[number].advance(time)
            told[number] = max(told[number], time)
        rise = task.rise()
        if rise is not None:
            risen.append(rise)
        assert task.watermark == max([*risen, min(told.values(), default=NEVER)])
    assert risen == sorted(set(risen))


# -- the durable form


def example() -> InputTimes:
    task = times()
    first, source = task[SHUFFLED[0]], task[SOURCE]
    first.on_watermark("count/1", 2, 1500)
    first.on_watermark("enrich/0", 1, 900, idle=True)
    first.on_end_of_stream("count/0", 2)
    source.advance(700)
    source.idle = True
    return task


GOLDEN = (
    b'{"watermark":-9223372036854775808,"watermarks":['
    b'{"streamId":"log.by-member","partition":0,"totalTasks":{"count":2,"enrich":1},'
    b'"tasksToEventTime":{"count/1":1500,"enrich/0":900},"idleTasks":["enrich/0"],'
    b'"timestampOfLastEmission":1500,"idle":false},'
    b'{"streamId":"log.by-member","partition":1,"totalTasks":{},"tasksToEventTime":{},"idleTasks":[],'
    b'"timestampOfLastEmission":-9223372036854775808,"idle":false},'
    b'{"streamId":"log.views","partition":0,"totalTasks":{},"tasksToEventTime":{},"idleTasks":[],'
    b'"timestampOfLastEmission":700,"idle":true}],'
    b'"ends":[{"streamId":"log.by-member","partition":0,"totalTasks":{"count":2,"enrich":1},"tasks":["count/0"],'
    b'"ended":false},{"streamId":"log.by-member","partition":1,"totalTasks":{},"tasks":[],"ended":false},'
    b'{"streamId":"log.views","partition":0,"totalTasks":{},"tasks":[],"ended":false}]}'
)


def test_the_durable_form_stays_what_it_is() -> None:
    assert msgspec.json.encode(example().save()) == GOLDEN


def test_the_durable_form_is_read_back() -> None:
    restored = times()
    restored.load(msgspec.json.decode(GOLDEN, type=TimesCheckpoint))
    assert restored.save() == example().save()


def test_a_partition_that_is_new_since_the_checkpoint_begins_afresh() -> None:
    old = InputTimes([PartitionTime(SOURCE)])
    old[SOURCE].advance(40)
    assert old.rise() == 40
    more = SSP(SOURCE.stream, 1)
    grown = InputTimes([PartitionTime(SOURCE), PartitionTime(more)])
    grown.load(old.save())
    assert (grown[more].watermark, grown.watermark, grown.rise()) == (NEVER, 40, None)


def test_a_partition_that_is_gone_since_the_checkpoint_is_forgotten() -> None:
    old = times()
    old[SOURCE].advance(40)
    left = InputTimes([PartitionTime(SOURCE)])
    left.load(old.save())
    assert left.rise() == 40
