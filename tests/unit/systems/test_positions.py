"""Startpoints become offsets: each kind, in the log and in memory, and what is wrong with those that don't."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace.core.clock import WallClock
from headrace.core.errors import (
    HeadraceError,
    StreamNotFoundError,
    TrimmedOffsetError,
    UnsupportedPositionError,
    UsageError,
    UserFunctionError,
)
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Extent
from headrace.systems.log.system import LogSystem
from headrace.systems.memory import MemorySystem
from headrace.systems.positions import CustomStartpoint, newest_time, resolve, resolve_end
from headrace.systems.startpoints import (
    MOMENTS,
    EndOffset,
    EndTime,
    StartpointCustom,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)

VIEWS = SSP(StreamId("s", "views"), 0)


@dataclass(frozen=True)
class Half(CustomStartpoint):
    """Halfway; other answers for tests of wrong ones."""

    kind = "half"
    answer: str = ""

    def offset(self, partition):
        if self.answer == "raise":
            raise KeyError("x")
        if self.answer == "usage":
            raise UsageError("not today")
        wrong = {"text": "7", "none": None, "truth": True, "far": partition.upcoming + 1}
        if self.answer:
            return wrong[self.answer]
        assert (partition.stream, partition.partition) == ("views", 0)
        return partition.offset_at(0)


@pytest.fixture(params=["log", "memory"])
def place(request, tmp_path):
    """An admin, and the offsets of five records in its stream."""
    system = LogSystem(tmp_path) if request.param == "log" else MemorySystem()
    admin = system.admin()
    admin.create("views", 2)
    producer = system.producer()
    offsets = [admin.extents("views")[0].oldest]
    for n in range(5):
        producer.send("views", 0, b"record %d" % n)
        offsets.append(producer.flush()["views", 0])
    producer.close()
    return admin, offsets


def at(kind, admin, ssp=VIEWS, customs=()):
    return resolve(kind, ssp, admin, customs)


def test_each_kind(place):
    admin, offsets = place
    times = [admin.time_of(VIEWS, offset) for offset in offsets[:5]]
    assert at(StartpointOldest(), admin) == offsets[0]
    assert at(StartpointUpcoming(), admin) == offsets[5]
    assert [at(StartpointSpecific(offset=offset), admin) for offset in offsets] == offsets
    assert at(StartpointTimestamp(time_ms=times[0]), admin) == offsets[0]
    assert at(StartpointTimestamp(time_ms=times[4] + 1), admin) == offsets[5]
    assert at(StartpointTimestamp(time_ms=times[0] - 1), admin) == offsets[0]  # nothing is gone
    assert at(StartpointCustom(name="half", value={}), admin, customs=[Half]) == offsets[0]


def test_an_empty_partition(place):
    admin, _ = place
    empty = SSP(VIEWS.stream, 1)
    begin = admin.extents("views")[1].oldest
    for kind in (StartpointOldest(), StartpointUpcoming(), StartpointTimestamp(time_ms=5)):
        assert at(kind, admin, empty) == begin
    assert newest_time(empty, admin, 10**13) is None


def test_a_time_from_which_messages_are_gone(place):
    admin, offsets = place
    first = admin.time_of(VIEWS, offsets[0])
    admin.trim(VIEWS, offsets[2])
    oldest = admin.time_of(VIEWS, offsets[2])
    assert at(StartpointTimestamp(time_ms=oldest), admin) == offsets[2]
    with pytest.raises(
        TrimmedOffsetError, match=r"s\.views\[0\] has deleted the messages from .*Z: its oldest one arrived"
    ):
        at(StartpointTimestamp(time_ms=first - 1), admin)
    with pytest.raises(TrimmedOffsetError, match="before the oldest"):
        at(StartpointSpecific(offset=offsets[0]), admin)


def test_a_time_in_a_partition_that_was_emptied_means_its_end_only_if_nothing_from_then_on_was_deleted(place):
    admin, offsets = place
    last = admin.time_of(VIEWS, offsets[4])
    admin.trim(VIEWS, offsets[5])
    gone = admin.trimmed_ms(VIEWS)
    assert last <= gone <= WallClock().now_ms() + 1
    for time_ms in (0, last, gone):
        with pytest.raises(TrimmedOffsetError, match=r"may have deleted messages from .*: it is empty") as caught:
            at(StartpointTimestamp(time_ms=time_ms), admin)
        assert "--or-oldest" in caught.value.hint
        assert at(StartpointTimestamp(time_ms=time_ms, or_oldest=True), admin) == offsets[5]
    assert at(StartpointTimestamp(time_ms=gone + 1), admin) == offsets[5]


def test_or_oldest_means_the_oldest_message_that_is_left_only_where_others_are_gone(place):
    admin, offsets = place
    first, fourth = (admin.time_of(VIEWS, offsets[number]) for number in (0, 3))
    admin.trim(VIEWS, offsets[2])
    assert at(StartpointTimestamp(time_ms=first - 1, or_oldest=True), admin) == offsets[2]
    by_time = StartpointTimestamp(time_ms=fourth, or_oldest=True)
    assert at(by_time, admin) == at(StartpointTimestamp(time_ms=fourth), admin)


def test_the_end_of_a_range(place):
    admin, offsets = place
    times = [admin.time_of(VIEWS, offset) for offset in offsets[:5]]
    assert resolve_end(EndOffset(offset=offsets[3]), offsets[1], VIEWS, admin) == offsets[3]
    assert resolve_end(EndOffset(offset=offsets[5]), offsets[1], VIEWS, admin) == offsets[5]
    assert resolve_end(EndTime(time_ms=times[4] + 1), offsets[1], VIEWS, admin) == offsets[5]
    assert resolve_end(EndTime(time_ms=times[0]), offsets[0], VIEWS, admin) == offsets[0]  # nothing arrived before
    for end in (EndOffset(offset=offsets[2]), EndOffset(offset=offsets[1]), EndTime(time_ms=times[0])):
        with pytest.raises(UsageError, match=r"s\.views\[0\]: the end, offset \d+, isn't after the start, offset \d+"):
            resolve_end(end, offsets[2], VIEWS, admin)
    with pytest.raises(UsageError, match="after the end"):
        resolve_end(EndOffset(offset=offsets[5] + 1000), offsets[2], VIEWS, admin)


def test_slots_have_no_end():
    class Slots(MemorySystem):
        def extents(self, stream):
            return [Extent(MOMENTS, MOMENTS + 5)]

    with pytest.raises(UnsupportedPositionError, match="its partitions are slots"):
        resolve_end(EndTime(time_ms=5), MOMENTS, VIEWS, Slots())


class Forgetful(MemorySystem):
    """It doesn't know when records were deleted, as a broker."""

    def trimmed_ms(self, ssp):
        return None


def test_where_nobody_knows_when_messages_were_deleted_every_time_is_refused():
    admin = Forgetful()
    admin.create("views", 1)
    producer = admin.producer()
    producer.send("views", 0, b"x")
    producer.flush()
    admin.trim(VIEWS, 1)
    with pytest.raises(TrimmedOffsetError, match="it isn't known when"):
        at(StartpointTimestamp(time_ms=WallClock().now_ms()), admin)


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (StartpointSpecific(offset=10**9), UsageError, "after the end"),
        (StartpointCustom(name="file", value={"path": "x"}), UnsupportedPositionError, "of the kind 'file'"),
        (StartpointCustom(name="half", value={"answer": 1}), UsageError, "the startpoint 'half' doesn't take"),
        (StartpointCustom(name="half", value={"answer": "raise"}), UserFunctionError, "raised KeyError for s.views"),
        (StartpointCustom(name="half", value={"answer": "usage"}), UsageError, "not today"),
        (StartpointCustom(name="half", value={"answer": "text"}), UserFunctionError, "returned '7'"),
        (StartpointCustom(name="half", value={"answer": "none"}), UserFunctionError, "returned None"),
        (StartpointCustom(name="half", value={"answer": "truth"}), UserFunctionError, "returned True"),
        (StartpointCustom(name="half", value={"answer": "far"}), UsageError, "after the end"),
    ],
)
def test_what_cant_be_resolved(place, kind, error, text):
    with pytest.raises(error, match=text) as caught:
        at(kind, place[0], customs=[Half])
    assert isinstance(caught.value, HeadraceError)


def test_no_such_partition_or_stream(place):
    admin, _ = place
    with pytest.raises(StreamNotFoundError, match=r"s\.views has no partition 2; its partitions are 0 to 1"):
        at(StartpointOldest(), admin, SSP(VIEWS.stream, 2))
    with pytest.raises(StreamNotFoundError):
        at(StartpointOldest(), admin, SSP(StreamId("s", "clicks"), 0))


def test_when_the_newest_message_arrived(place):
    admin, offsets = place
    assert newest_time(VIEWS, admin, 10**13) == admin.time_of(VIEWS, offsets[4])
