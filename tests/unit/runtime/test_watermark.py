"""Control messages are reconciled: who has reported, how far event time has come, what has ended."""

import pytest

from headrace.core.errors import ProtocolError
from headrace.core.ids import SSP, StreamId
from headrace.runtime.event_time.watermark import FOREVER, NEVER, InputTimes, PartitionTime

BY_MEMBER = SSP(StreamId("log", "by-member"), 3)
CLICKS = SSP(StreamId("log", "clicks"), 0)
VIEWS = SSP(StreamId("log", "views"), 0)


def written_by(*stages: str) -> PartitionTime:
    """A partition of an intermediate stream."""
    return PartitionTime(BY_MEMBER, stages)


def sources() -> tuple[PartitionTime, PartitionTime, InputTimes]:
    """A task with two source partitions."""
    clicks, views = PartitionTime(CLICKS), PartitionTime(VIEWS)
    return clicks, views, InputTimes([clicks, views])


# -- watermarks of upstream tasks


def test_a_watermark_stands_once_every_task_has_reported() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 2, 50)
    assert partition.watermark == NEVER
    partition.on_watermark("count/1", 2, 70)
    assert partition.watermark == 50


def test_the_same_message_again_changes_nothing() -> None:
    partition = written_by("count")
    for _ in range(3):
        partition.on_watermark("count/0", 2, 50)
    assert (partition.watermark, partition.missing()) == (NEVER, "1 of 2 tasks of stage count")


def test_a_producer_that_never_reports_holds_the_watermark_and_is_named() -> None:
    partition = written_by("count", "enrich")
    assert partition.missing() == "any task of stage count, any task of stage enrich"
    partition.on_watermark("count/0", 3, 50)
    partition.on_watermark("count/2", 3, 50)
    assert partition.missing() == "any task of stage enrich, 1 of 3 tasks of stage count"
    partition.on_watermark("enrich/0", 1, 50)
    assert (partition.watermark, partition.missing()) == (NEVER, "1 of 3 tasks of stage count")
    partition.on_watermark("count/1", 3, 40)
    assert (partition.watermark, partition.missing()) == (40, "")


def test_a_watermark_never_goes_back() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 1, 50)
    partition.on_watermark("count/0", 1, 20)
    assert partition.watermark == 50


def test_a_restarted_task_that_begins_lower_does_not_hold_back_what_it_has_said() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 2, 50)
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 80)
    assert partition.watermark == 50


def test_more_producers_than_the_count_are_an_error_not_a_hang() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 2, 1)
    partition.on_end_of_stream("count/1", 2)
    with pytest.raises(
        ProtocolError, match=r"log.by-member\[3\]: 3 tasks of stage 'count' .*it says to have 2"
    ) as info:
        partition.on_watermark("count/2", 2, 1)
    assert "stop one of them" in str(info.value)


def test_producers_that_disagree_about_their_count_are_an_error() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 2, 1)
    with pytest.raises(ProtocolError, match="'count/1' says that its stage has 3 tasks; others said 2"):
        partition.on_end_of_stream("count/1", 3)


def test_a_stage_that_should_not_write_here_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="of task 'other/0', but this stream is written by count, enrich"):
        written_by("enrich", "count").on_watermark("other/0", 1, 1)


# -- end-of-stream


def test_a_partition_ends_when_the_set_of_ended_tasks_is_whole() -> None:
    partition = written_by("count")
    for _ in range(3):
        partition.on_end_of_stream("count/1", 2)
    assert not partition.closed
    partition.on_end_of_stream("count/0", 2)
    assert (partition.closed, partition.watermark) == (True, FOREVER)


def test_an_ended_task_holds_nobody_back() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 90)
    partition.on_end_of_stream("count/0", 2)
    assert (partition.watermark, partition.closed) == (90, False)


def test_a_task_may_end_without_ever_having_had_a_watermark() -> None:
    partition = written_by("count")
    partition.on_end_of_stream("count/0", 2)
    partition.on_watermark("count/1", 2, 30)
    assert partition.watermark == 30


def test_several_writing_stages_end_together() -> None:
    partition = written_by("count", "enrich")
    partition.on_end_of_stream("count/0", 1)
    assert not partition.closed  # one task of one has ended, and nothing is known of the other stage
    partition.on_end_of_stream("enrich/1", 2)
    partition.on_end_of_stream("enrich/0", 2)
    assert partition.closed


def test_what_comes_after_the_end_changes_nothing() -> None:
    partition = written_by("count")
    partition.on_end_of_stream("count/0", 1)
    partition.on_watermark("count/0", 1, 10, idle=True)
    assert (partition.closed, partition.watermark, partition.idle) == (True, FOREVER, False)


# -- idle


def test_an_idle_task_holds_nobody_back_until_it_speaks() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 90)
    partition.on_watermark("count/0", 2, 10, idle=True)
    assert partition.watermark == 90
    partition.on_watermark("count/0", 2, 60)
    partition.on_watermark("count/1", 2, 99)
    assert partition.watermark == 90  # it was passed on already; it doesn't go back
    partition.on_watermark("count/0", 2, 95)
    assert partition.watermark == 95


def test_a_partition_is_idle_while_all_its_living_tasks_are() -> None:
    partition = written_by("count")
    partition.on_end_of_stream("count/0", 2)
    partition.on_watermark("count/1", 2, 10, idle=True)
    assert (partition.idle, partition.watermark) == (True, 10)
    partition.on_watermark("count/1", 2, 20)
    assert (partition.idle, partition.watermark) == (False, 20)


# -- a task's minimum over its partitions


def test_a_tasks_watermark_is_the_lowest_of_its_partitions_and_told_when_it_rises() -> None:
    clicks, views, times = sources()
    clicks.advance(50)
    assert times.rise() is None
    views.advance(70)
    assert times.rise() == 50
    views.advance(90)
    assert times.rise() is None
    clicks.advance(60)
    assert (times.rise(), times.watermark) == (60, 60)


def test_an_ended_partition_holds_nobody_back() -> None:
    clicks, views, times = sources()
    clicks.advance(50)
    views.advance(70)
    clicks.end()
    assert (times.rise(), times.ended) == (70, False)
    views.end()
    assert (times.rise(), times.ended) == (None, True)


def test_an_idle_partition_comes_back_without_turning_time_back() -> None:
    clicks, views, times = sources()
    clicks.advance(50)
    views.advance(70)
    clicks.idle = True
    assert (times.rise(), times.idle) == (70, False)
    clicks.advance(55)
    assert (times.rise(), times.watermark) == (None, 70)
    clicks.advance(99)
    views.advance(99)
    assert times.rise() == 99


def test_a_task_is_idle_when_all_that_lives_is() -> None:
    clicks, views, times = sources()
    clicks.idle = True
    assert not times.idle
    views.end()
    assert (times.idle, times.rise()) == (True, None)
    clicks.end()
    assert not times.idle  # it has ended, which says more


def test_only_what_has_ended_counts_as_ended() -> None:
    clicks, _, times = sources()
    clicks.end()
    assert not times.ended


def test_when_all_are_idle_time_comes_as_far_as_the_foremost_saw_it() -> None:
    partition = written_by("count")
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 90)
    assert partition.watermark == 10
    partition.on_watermark("count/1", 2, 90, idle=True)
    partition.on_watermark("count/0", 2, 10, idle=True)
    assert (partition.idle, partition.watermark) == (True, 90)
    partition.on_watermark("count/0", 2, 20)
    assert partition.watermark == 90  # never back


def test_a_silent_task_holds_nothing_back_that_an_ended_one_has_seen():
    for ends_first in (True, False):
        partition = PartitionTime(SSP(StreamId("log", "between"), 0), ("a",))
        partition.on_watermark("a/0", 2, 5000)
        if ends_first:
            partition.on_end_of_stream("a/0", 2)
        partition.on_watermark("a/1", 2, NEVER, idle=True)
        partition.on_end_of_stream("a/0", 2)
        assert (partition.watermark, partition.idle) == (5000, True)


def test_a_silent_source_holds_nothing_back_that_an_ended_one_has_seen_also_after_a_restart():
    ssps = [SSP(StreamId("log", "source"), n) for n in range(2)]
    times = InputTimes([PartitionTime(ssp) for ssp in ssps])
    times[ssps[0]].advance(5000)
    times[ssps[0]].end()
    assert times.rise() is None
    again = InputTimes([PartitionTime(ssp) for ssp in ssps])
    again.load(times.save())
    for either in (times, again):
        either[ssps[1]].idle = True
        assert either.rise() == 5000
        either[ssps[1]].advance(NEVER)
        assert either.rise() is None
        either[ssps[1]].end()
        assert (either.rise(), either.ended) == (None, True)
