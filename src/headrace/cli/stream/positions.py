"""Positions on the command line: ``oldest``, ``upcoming``, ``OFFSET`` or ``PARTITION:OFFSET``."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli.place import Place
from headrace.core.errors import UsageError
from headrace.core.ids import SSP
from headrace.systems.base import Edge, Position

FORMS = "write oldest, upcoming, OFFSET or PARTITION:OFFSET; headrace stream describe shows the offsets"


def positions(place: Place, option: str, texts: Sequence[str], partition: int | None) -> dict[SSP, Position | None]:
    """The partitions that a command is about, each with the position that ``option`` gives it, if any.

    A text without a partition is for all partitions that no other text names. ``partition`` limits the command to one.
    """
    if partition is not None:
        place.require_partition(partition)
        wanted = [partition]
    else:
        wanted = list(range(place.require().partitions))
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


def _position(option: str, text: str, after: str) -> Position:
    if after in {edge.value for edge in Edge}:
        return Edge(after)
    if after.isascii() and after.isdigit():
        return int(after)
    raise UsageError(f"{option} {text}: {after!r} is not a position", hint=FORMS)


def _partition(place: Place, option: str, text: str, before: str, wanted: Sequence[int]) -> int:
    if not (before.isascii() and before.isdigit()):
        raise UsageError(f"{option} {text}: {before!r} is not the number of a partition", hint=FORMS)
    number = int(before)
    if number not in wanted:
        place.require_partition(number)
        raise UsageError(f"{option} {text}: --partition {wanted[0]} leaves partition {number} out")
    return number
