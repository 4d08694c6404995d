"""Control messages are reconciled: who has reported, how far event time has come, what has ended."""

import pytest

from headrace.core.errors import ProtocolError
from headrace.core.ids import SSP, StreamId
from headrace.task.event_time import NEVER, NOTHING, OVER, InputTimes, PartitionTime, Progress, combined

BY_MEMBER = SSP(StreamId("log", "by-member"), 3)
CLICKS = SSP(StreamId("log", "clicks"), 0)
VIEWS = SSP(StreamId("log", "views"), 0)


def written_by(**stages: int) -> PartitionTime:
    """A partition of an intermediate stream."""
    return PartitionTime(BY_MEMBER, stages)


# -- the rule


def awake(watermark: int) -> Progress:
    return Progress(watermark)


def idle(watermark: int) -> Progress:
    return Progress(watermark, idle=True)


def ended(watermark: int) -> Progress:
    return Progress(watermark, ended=True)


def of(part: Progress, **heard: int | None) -> Progress:
    return part._replace(heard=heard)


def owner(part: Progress, **own: int | None) -> Progress:
    return part._replace(own=own)


@pytest.mark.parametrize(
    ("parts", "before", "whole"),
    [
        ([awake(50), awake(70)], NEVER, awake(50)),
        ([awake(50), awake(NEVER)], NEVER, awake(NEVER)),
        ([awake(50), awake(70)], 60, awake(60)),
        ([awake(50), idle(10)], NEVER, awake(50)),
        ([awake(50), ended(10)], NEVER, awake(50)),
        ([awake(50), ended(90), idle(90)], NEVER, awake(50)),
        ([idle(10), idle(90)], NEVER, idle(90)),
        ([idle(10), ended(90)], NEVER, idle(90)),
        ([idle(10), ended(90)], 95, idle(95)),
        ([ended(10), ended(90)], NEVER, ended(90)),
        ([ended(10)], 20, ended(20)),
        ([], NEVER, ended(NEVER)),
        # of sources that idle parts have heard of
        ([of(idle(50), a=50), of(awake(70), b=None)], NEVER, of(awake(70), a=50, b=None)),
        ([of(idle(50), a=50), of(awake(70), a=None)], NEVER, of(awake(50), a=None)),
        ([of(idle(50), a=50), of(idle(70), a=70)], NEVER, of(awake(50), a=None)),
        ([of(idle(50), a=50, b=20), of(idle(70), a=50, c=70)], NEVER, of(idle(70), a=50, b=20, c=70)),
        ([of(idle(50), a=50), of(ended(70), a=OVER)], NEVER, of(awake(50), a=None)),
        ([of(awake(50), a=50), of(awake(70), a=50)], NEVER, of(awake(50), a=50)),
        # of sources that the parts share out
        ([owner(idle(50), a=50), owner(awake(70), a=None)], NEVER, owner(awake(70), a=None)),
        ([owner(idle(50), a=50), owner(idle(70), a=70)], NEVER, owner(idle(70), a=70)),
        ([owner(idle(50), a=50), owner(ended(70), a=OVER)], NEVER, owner(idle(70), a=50)),
        ([owner(ended(50), a=OVER), owner(ended(70), a=OVER)], NEVER, owner(ended(70), a=OVER)),
        ([owner(idle(50), a=50), awake(60), owner(idle(70), b=70)], NEVER, owner(awake(60), a=50, b=70)),
    ],
)
def test_parts_make_a_whole(parts: list[Progress], before: int, whole: Progress) -> None:
    assert combined(parts, before) == combined(reversed(parts), before) == whole


# -- watermarks of upstream tasks


def test_a_watermark_stands_once_every_task_has_reported() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 50)
    assert partition.progress == awake(NEVER)
    partition.on_watermark("count/1", 2, 70)
    assert partition.progress == awake(50)


def test_an_idle_task_is_waited_for_while_others_have_heard_more() -> None:
    partition = written_by(count=2)
    for task in ("count/0", "count/1"):
        partition.on_watermark(task, 2, 50, idle=True, heard={"views": 50})
    assert partition.progress == of(idle(50), views=50)
    partition.on_watermark("count/0", 2, 70, heard={"views": None})
    assert partition.progress == of(awake(50), views=None)
    partition.on_watermark("count/0", 2, 80, idle=True, heard={"views": 80})
    assert partition.progress == of(awake(50), views=None)
    partition.on_watermark("count/1", 2, 80, idle=True, heard={"views": 80})
    assert partition.progress == of(idle(80), views=80)
    partition.on_end_of_stream("count/0", 2)
    assert partition.progress == of(awake(80), views=None)
    partition.on_end_of_stream("count/1", 2)
    assert partition.progress == of(ended(80), views=OVER)


def test_readers_hear_of_a_source_as_a_whole_whichever_stages_read_it() -> None:
    partition = written_by(count=2, enrich=1)
    for task, stood in (("count/0", 50), ("count/1", 70)):
        partition.on_watermark(task, 2, stood, idle=True, own={"views": stood})
    assert partition.progress == of(awake(NEVER), views=70)
    partition.on_watermark("enrich/0", 1, 70, idle=True, own={"views": 70})
    assert partition.progress == of(idle(70), views=70)
    partition.on_watermark("enrich/0", 1, 90, own={"views": None})
    assert partition.progress == of(awake(70), views=None)


def test_messages_of_a_partition_that_was_idle_say_that_its_sources_are_awake() -> None:
    partition = written_by(count=1)
    partition.on_watermark("count/0", 1, 50, idle=True, heard={"views": 50})
    partition.wake()
    assert partition.progress == of(awake(50), views=None)


def test_a_task_that_has_restarted_is_not_idle_until_it_says_so_again() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 50, idle=True, own={"views": 50})
    partition.on_watermark("count/1", 2, 70, own={"views": None})
    assert partition.progress == of(awake(70), views=None)
    partition.on_restart("count/0", 2)
    partition.on_watermark("count/1", 2, 90, own={"views": None})
    assert partition.progress == of(awake(70), views=None)
    partition.on_watermark("count/0", 2, 50, idle=True, own={"views": 50})
    assert partition.progress == of(awake(90), views=None)


def test_the_same_message_again_changes_nothing() -> None:
    partition = written_by(count=2)
    for _ in range(3):
        partition.on_watermark("count/0", 2, 50)
    assert (partition.progress, partition.missing()) == (awake(NEVER), "1 of 2 tasks of stage count")


def test_a_producer_that_never_reports_holds_the_watermark_and_is_named() -> None:
    partition = written_by(count=3, enrich=1)
    assert partition.missing() == "any task of stage count, any task of stage enrich"
    partition.on_watermark("count/0", 3, 50)
    partition.on_watermark("count/2", 3, 50)
    assert partition.missing() == "any task of stage enrich, 1 of 3 tasks of stage count"
    partition.on_watermark("enrich/0", 1, 50)
    assert (partition.progress, partition.missing()) == (awake(NEVER), "1 of 3 tasks of stage count")
    partition.on_watermark("count/1", 3, 40)
    assert (partition.progress, partition.missing()) == (awake(40), "")


def test_a_watermark_never_goes_back() -> None:
    partition = written_by(count=1)
    partition.on_watermark("count/0", 1, 50)
    partition.on_watermark("count/0", 1, 20)
    assert partition.progress == awake(50)


def test_a_restarted_task_that_begins_lower_does_not_hold_back_what_it_has_said() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 50)
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 80)
    assert partition.progress == awake(50)


def test_more_producers_than_the_count_are_an_error_not_a_hang() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 1)
    partition.on_end_of_stream("count/1", 2)
    with pytest.raises(
        ProtocolError, match=r"log.by-member\[3\]: 3 tasks of stage 'count' .*it says to have 2"
    ) as info:
        partition.on_watermark("count/2", 2, 1)
    assert "stop one of them" in str(info.value)


def test_a_stage_that_has_grown_is_believed_and_its_new_tasks_are_waited_for() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 50)
    partition.on_watermark("count/1", 3, 50)
    assert (partition.progress, partition.missing()) == (awake(NEVER), "1 of 3 tasks of stage count")
    partition.on_watermark("count/0", 2, 60)  # from before it has grown
    partition.on_watermark("count/2", 3, 55)
    assert (partition.progress, partition.missing()) == (awake(50), "")


def test_a_stage_that_grows_after_its_end_has_not_ended() -> None:
    partition = written_by(count=1)
    partition.on_end_of_stream("count/0", 1)
    assert partition.progress.ended
    partition.on_watermark("count/1", 2, 50)
    assert partition.progress == awake(50)
    partition.on_end_of_stream("count/1", 2)
    assert partition.progress == ended(50)


def test_a_stage_that_is_not_in_the_plan_is_an_error() -> None:
    with pytest.raises(
        ProtocolError, match="of task 'other/0', but by this app's plan the stream is written by count, enrich"
    ) as info:
        written_by(enrich=1, count=1).on_watermark("other/0", 1, 1)
    assert "deploy the stage that reads it again" in str(info.value)


# -- end-of-stream


def test_a_partition_ends_when_the_set_of_ended_tasks_is_whole() -> None:
    partition = written_by(count=2)
    for _ in range(3):
        partition.on_end_of_stream("count/1", 2)
    assert not partition.progress.ended
    partition.on_end_of_stream("count/0", 2)
    assert partition.progress == ended(NEVER)


def test_an_ended_task_holds_nobody_back() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 90)
    partition.on_end_of_stream("count/0", 2)
    assert partition.progress == awake(90)


def test_a_task_may_end_without_ever_having_had_a_watermark() -> None:
    partition = written_by(count=2)
    partition.on_end_of_stream("count/0", 2)
    partition.on_watermark("count/1", 2, 30)
    assert partition.progress == awake(30)


def test_several_writing_stages_end_together() -> None:
    partition = written_by(count=1, enrich=2)
    partition.on_end_of_stream("count/0", 1)
    assert not partition.progress.ended  # nothing is known of the other stage
    partition.on_end_of_stream("enrich/1", 2)
    partition.on_end_of_stream("enrich/0", 2)
    assert partition.progress.ended


def test_what_comes_after_the_end_changes_nothing() -> None:
    partition = written_by(count=1)
    partition.on_end_of_stream("count/0", 1)
    partition.on_watermark("count/0", 1, 10, idle=True)
    partition.wake()
    partition.fall_idle()
    assert partition.progress == ended(NEVER)


# -- idle


def test_an_idle_task_holds_nobody_back_until_it_speaks() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 90)
    partition.on_watermark("count/0", 2, 10, idle=True)
    assert partition.progress == awake(90)
    partition.on_watermark("count/0", 2, 60)
    partition.on_watermark("count/1", 2, 99)
    assert partition.progress == awake(90)  # it was passed on already; it doesn't go back
    partition.on_watermark("count/0", 2, 95)
    assert partition.progress == awake(95)


def test_a_partition_is_idle_while_all_its_living_tasks_are() -> None:
    partition = written_by(count=2)
    partition.on_end_of_stream("count/0", 2)
    partition.on_watermark("count/1", 2, 10, idle=True)
    assert partition.progress == idle(10)
    partition.on_watermark("count/1", 2, 20)
    assert partition.progress == awake(20)


def test_a_partition_wakes_when_messages_come_and_may_be_idle_again() -> None:
    partition = written_by(count=1)
    partition.on_watermark("count/0", 1, 10, idle=True)
    partition.wake()
    assert partition.progress == awake(10)
    partition.on_watermark("count/0", 1, 10, idle=True)
    assert partition.progress == idle(10)


def test_when_all_are_idle_time_comes_as_far_as_the_foremost_saw_it() -> None:
    partition = written_by(count=2)
    partition.on_watermark("count/0", 2, 10)
    partition.on_watermark("count/1", 2, 90)
    assert partition.progress == awake(10)
    partition.on_watermark("count/1", 2, 90, idle=True)
    partition.on_watermark("count/0", 2, 10, idle=True)
    assert partition.progress == idle(90)
    partition.on_watermark("count/0", 2, 20)
    assert partition.progress == awake(90)  # never back


def test_a_silent_task_holds_nothing_back_that_an_ended_one_has_seen() -> None:
    for ends_first in (True, False):
        partition = PartitionTime(SSP(StreamId("log", "between"), 0), {"a": 2})
        partition.on_watermark("a/0", 2, 5000)
        if ends_first:
            partition.on_end_of_stream("a/0", 2)
        partition.on_watermark("a/1", 2, NEVER, idle=True)
        partition.on_end_of_stream("a/0", 2)
        assert partition.progress == idle(5000)


# -- the streams of a task


def test_each_stream_has_the_progress_of_its_own_partitions() -> None:
    clicks = [PartitionTime(SSP(CLICKS.stream, n)) for n in range(2)]
    views = PartitionTime(VIEWS)
    times = InputTimes([("clicks", clicks[0]), ("clicks", clicks[1]), ("views", views)])
    assert times.news() == {"clicks": awake(NEVER), "views": awake(NEVER)}
    assert times.news() is None
    clicks[0].advance(50)
    views.fall_idle()
    assert times.news() == {"clicks": awake(NEVER), "views": idle(NEVER)}
    clicks[1].advance(40)
    views.end()
    assert (times.news(), times.ended) == ({"clicks": awake(40), "views": ended(NEVER)}, False)
    clicks[1].advance(30)
    assert times.news() is None
    for partition in clicks:
        partition.end()
    assert (times.streams()["clicks"], times.ended) == (ended(50), True)


def test_a_task_without_inputs_has_ended() -> None:
    assert (InputTimes([]).ended, NOTHING) == (True, ended(NEVER))
