"""The bookkeeping of control messages is saved with checkpoints: at any moment, without changing what follows."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.core.ids import SSP, StreamId
from headrace.task.event_time import (
    NEVER,
    InputTimes,
    PartitionCheckpoint,
    PartitionTime,
    Progress,
    TimesCheckpoint,
    decode_times,
)

STAGES = {"count": 2, "enrich": 1}
TASKS = ["count/0", "count/1", "enrich/0"]
SHUFFLED = [SSP(StreamId("log", "by-member"), p) for p in (0, 1)]
SOURCE = SSP(StreamId("log", "views"), 0)

Event = Callable[[InputTimes], None]


def name(ssp: SSP) -> str:
    return str(ssp.stream)


def times() -> InputTimes:
    return InputTimes(
        [*(("by-member", PartitionTime(ssp, STAGES)) for ssp in SHUFFLED), ("views", PartitionTime(SOURCE))]
    )


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
            to[SOURCE].fall_idle()
        elif self.timestamp is None:
            to[SOURCE].end()
        else:
            to[SOURCE].advance(self.timestamp)


@dataclass(frozen=True)
class Data:
    """Messages came in a partition of an intermediate stream: it isn't idle, whatever its writers said."""

    ssp: SSP

    def __call__(self, to: InputTimes) -> None:
        to[self.ssp].wake()


times_of_day = st.integers(0, 20)
says = st.builds(Says, st.sampled_from(SHUFFLED), st.sampled_from(TASKS), times_of_day, st.booleans())
ends = st.builds(Says, st.sampled_from(SHUFFLED), st.sampled_from(TASKS), st.none())
tells = st.one_of(st.builds(Source, times_of_day), st.builds(Source, times_of_day, st.just(True)))
events: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(says, says, ends, tells, st.just(Source(None)), st.builds(Data, st.sampled_from(SHUFFLED))), max_size=20
)


def after(saved: list[PartitionCheckpoint]) -> InputTimes:
    """What a restart makes of a checkpoint, through bytes."""
    restored = times()
    restored.load(msgspec.json.decode(msgspec.json.encode(saved), type=list[PartitionCheckpoint]), name)
    return restored


@settings(deadline=None)
@given(events)
def test_a_restart_at_any_moment_changes_nothing_but_that_no_source_is_taken_for_idle(sequence: list[Event]) -> None:
    living = times()
    restarted: list[InputTimes] = []
    for event in sequence:
        for one in (living, *restarted):
            one[SOURCE].wake()
        restarted.append(after(living.save(name)))
        for one in (living, *restarted):
            event(one)
        for one in restarted:
            assert (one.streams(), one.ended) == (living.streams(), living.ended)
            assert one.save(name) == living.save(name)


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
        if (task, None) in {(t, at) for t, at, _ in self.heard}:
            return  # whoever has ended says no more: a late repetition counts for nothing
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


AFTER_AN_END = [Says(SHUFFLED[0], *said) for said in (
    (TASKS[0], None), (TASKS[0], 1), *((task, 0, True) for task in TASKS[1:])
)]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.one_of(says, says, ends), max_size=40))
@example(AFTER_AN_END)
def test_reconciliation_is_the_naive_rule(sequence: list[Says]) -> None:
    task = times()
    naive = {ssp: Naive(STAGES) for ssp in SHUFFLED}
    for event in sequence:
        event(task)
        naive[event.ssp].hear(event.task, event.timestamp, event.idle)
        for ssp, model in naive.items():
            assert task[ssp].progress.ended is model.closed
            assert model.closed or task[ssp].progress.watermark == model.highest


# -- the durable form


def example() -> TimesCheckpoint:
    task = times()
    first, source = task[SHUFFLED[0]], task[SOURCE]
    first.on_watermark("count/1", 2, 1500)
    first.on_watermark("enrich/0", 1, 900, idle=True, heard={"clicks": 900, "taps": None}, own={"views": 700})
    first.on_end_of_stream("count/0", 2)
    source.advance(700)
    source.fall_idle()
    return TimesCheckpoint(
        watermark=700,
        partitions=task.save(name),
        streams={"log.by-member": 1500, "log.views": 700},
        operators={"per-second": 1500, "per-view": 700},
        ended_operators=["per-view"],
        ended_streams=["log.by-region"],
    )


GOLDEN = (
    b'{"format":4,"watermark":700,"partitions":['
    b'{"streamId":"log.by-member","partition":0,'
    b'"progress":[1500,false,false,{"clicks":900,"taps":null,"views":700},{}],"totalTasks":{"count":2,"enrich":1},'
    b'"tasks":{"count/1":[1500,false,false,{},{}],"count/0":[-9223372036854775808,false,true,{},{}],'
    b'"enrich/0":[900,true,false,{"clicks":900,"taps":null},{"views":700}]},"shards":{}},'
    b'{"streamId":"log.by-member","partition":1,"progress":[-9223372036854775808,false,false,{},{}],'
    b'"totalTasks":{"count":2,"enrich":1},"tasks":{},"shards":{}},'
    b'{"streamId":"log.views","partition":0,"progress":[700,true,false,{},{}],"totalTasks":{},"tasks":{},"shards":{}}],'
    b'"streams":{"log.by-member":1500,"log.views":700},"operators":{"per-second":1500,"per-view":700},'
    b'"endedOperators":["per-view"],"endedStreams":["log.by-region"]}'
)


def test_the_durable_form_stays_what_it_is() -> None:
    assert msgspec.json.encode(example()) == GOLDEN


def test_the_durable_form_is_read_back() -> None:
    read = decode_times(GOLDEN)
    assert read == example()
    restored = times()
    restored.load(read.partitions, name)
    *shuffled, source = example().partitions
    awake = msgspec.structs.replace(source, progress=Progress(700))
    assert restored.save(name) == [*shuffled, awake]


@pytest.mark.parametrize("old", [GOLDEN.replace(b'"format":4', b'"format":2'), b'{"watermark":3,"ends":[]}'])
def test_another_format_is_refused(old: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"have format [12]; this version of Headrace reads 4"):
        decode_times(old)


def test_a_partition_that_is_new_since_the_checkpoint_begins_afresh() -> None:
    old = InputTimes([("views", PartitionTime(SOURCE))])
    old[SOURCE].advance(40)
    more = SSP(SOURCE.stream, 1)
    grown = InputTimes([("views", PartitionTime(SOURCE)), ("views", PartitionTime(more))])
    grown.load(old.save(name), name)
    assert (grown[SOURCE].progress, grown[more].progress) == (Progress(40), Progress(NEVER))


def test_a_partition_that_is_gone_since_the_checkpoint_is_forgotten() -> None:
    old = times()
    old[SOURCE].advance(40)
    left = InputTimes([("views", PartitionTime(SOURCE))])
    left.load(old.save(name), name)
    assert left.streams() == {"views": Progress(40)}


# -- the plan has changed since


def changed(after: dict[str, int], *said: tuple[str, int | None], before: dict[str, int]) -> PartitionTime:
    """A partition that heard this (None: an end), and then was restored with other writers."""
    old = PartitionTime(SHUFFLED[0], before)
    for task, time in said:
        count = before[task.split("/")[0]]
        if time is None:
            old.on_end_of_stream(task, count)
        else:
            old.on_watermark(task, count, time)
    new = PartitionTime(SHUFFLED[0], after)
    new.load(old.save("log.by-member"))
    return new


def test_a_stage_that_no_longer_writes_is_not_waited_for() -> None:
    part = changed({"count": 1}, ("count/0", 50), ("gone/0", 30), before={"count": 1, "gone": 1})
    assert (part.progress, part.missing()) == (Progress(50), "")


def test_a_stage_that_no_longer_writes_and_never_spoke_is_not_waited_for() -> None:
    assert changed({"count": 1}, ("count/0", 50), before={"count": 1, "gone": 2}).progress == Progress(50)


def test_a_stage_that_ended_but_for_one_that_is_gone_has_ended() -> None:
    assert changed({"count": 1}, ("count/0", None), before={"count": 1, "gone": 1}).progress.ended


def test_new_stages_and_tasks_are_waited_for_and_turn_no_time_back() -> None:
    part = changed({"count": 2, "new": 1}, ("count/0", 50), before={"count": 1})
    assert (part.progress, part.missing()) == (Progress(50), "any task of stage new, 1 of 2 tasks of stage count")
    part.on_watermark("count/0", 2, 90)
    part.on_watermark("count/1", 2, 80)
    assert part.progress == Progress(50)
    part.on_watermark("new/0", 1, 70)
    assert part.progress == Progress(70)


def test_an_ended_partition_that_more_tasks_write_has_not_ended() -> None:
    part = changed({"count": 2}, ("count/0", None), before={"count": 1})
    assert not part.progress.ended
    part.on_end_of_stream("count/1", 2)
    assert part.progress.ended


def test_a_count_of_the_plan_replaces_a_restored_one() -> None:
    part = changed({"count": 1}, ("count/0", 50), ("count/1", 30), before={"count": 2})
    assert (part.progress, part.missing()) == (Progress(50), "")
