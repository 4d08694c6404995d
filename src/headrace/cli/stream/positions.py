"""Positions on the command line: ``oldest``, ``upcoming``, ``OFFSET`` or ``PARTITION:OFFSET``, or a time."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli.console import print_note
from headrace.cli.place import Place
from headrace.core.clock import WallClock
from headrace.core.duration import to_ms
from headrace.core.errors import UsageError
from headrace.core.ids import SSP
from headrace.core.moment import check_past, parse_moment, utc_text
from headrace.systems.base import Edge, Position

FORMS = "write oldest, upcoming, OFFSET or PARTITION:OFFSET; headrace stream describe shows the offsets"


def positions(place: Place, option: str, texts: Sequence[str], partition: int | None) -> dict[SSP, Position | None]:
    """Return the partitions that a command selects, each with its position from ``option``, if any.

    A text without a partition applies to all partitions that no other text names. ``partition`` selects only one.
    """
    wanted = _wanted(place, partition)
    general: Position | None = None
    named: dict[int, Position] = {}
    for text in texts:
        before, colon, after = text.rpartition(":")
        position = _position(option, text, after)
        if colon:
            named[_partition(place, option, text, before, wanted)] = position
        elif not isinstance(position, Edge) and len(wanted) > 1:
            raise UsageError(
                f"{option} {text}: {place.stream} has {len(wanted)} partitions, each with its own offsets",
                hint=f"name the partition, as in {option} 0:{text}, or add --partition",
            )
        else:
            general = position
    return {place.ssp(number): named.get(number, general) for number in wanted}


def positions_at(place: Place, time: str | None, ago: str | None, partition: int | None) -> dict[SSP, Position]:
    """Return the first record that was appended then or later, in each partition that a command selects.

    One of ``time`` and ``ago`` must be given. Raises ``UsageError`` for a time in the future.
    """
    if time is not None and ago is not None:
        raise UsageError("--time and --ago both give a position", hint="leave one of them out")
    now = WallClock().now_ms()
    if ago is not None:
        time_ms = now - to_ms(ago, "--ago", error=UsageError)
    else:
        time_ms, has_zone = parse_moment(time or "")
        if not has_zone:
            print_note(f"note: {time} names no zone, so it is read as UTC: {utc_text(time_ms)}")
    check_past(time_ms, now)
    admin = place.admin()
    return {ssp: admin.offset_at(ssp, time_ms) for ssp in map(place.ssp, _wanted(place, partition))}


def _wanted(place: Place, partition: int | None) -> list[int]:
    if partition is None:
        return list(range(place.require().partitions))
    place.require_partition(partition)
    return [partition]


def _position(option: str, text: str, after: str) -> Position:
    if after in {edge.value for edge in Edge}:
        return Edge(after)
    if after.isascii() and after.isdigit():
        return int(after)
    raise UsageError(f"{option} {text}: {after!r} isn't a position", hint=FORMS)


def _partition(place: Place, option: str, text: str, before: str, wanted: Sequence[int]) -> int:
    if not (before.isascii() and before.isdigit()):
        raise UsageError(f"{option} {text}: {before!r} isn't the number of a partition", hint=FORMS)
    number = int(before)
    if number not in wanted:
        place.require_partition(number)
        raise UsageError(f"{option} {text}: --partition {wanted[0]} excludes partition {number}")
    return number
