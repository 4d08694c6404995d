"""The checks of ``check_system`` of the positions that reading may start from: times, offsets, and the system's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.core.clock import WallClock
from headrace.core.errors import StreamNotFoundError, TrimmedOffsetError, UnsupportedPositionError, UsageError
from headrace.testing.system_scene import Scene, expect, expect_raises, ssp

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


POSITION_CHECKS: tuple[Callable[[Scene], None], ...] = (
    positions_by_time, times_of_a_trimmed_partition, offsets_checked, offsets_checked_after_a_trim,
    custom_positions_unknown,
)  # fmt: skip
