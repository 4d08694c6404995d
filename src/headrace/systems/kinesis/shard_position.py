"""The position of a shard in its slot, and its text form in commits. Pure.

==================================  ============================================================================
text                                meaning
==================================  ============================================================================
``TRIM_HORIZON``                    to be read from the oldest record; none was processed yet
``AT_TIMESTAMP 1700000000000``      to be read from this moment (ms since the epoch); none was processed yet
``4959033...``                      every record up to this sequence number was processed
``4959033... 2``                    and of the aggregate with this number, the first user records up to 2
``SHARD_END``                       all was processed, and the shard is closed
``EXPECTED``                        the shard will come here: its event time is waited for
``RELEASED <slot> <position>``      the slot has stopped reading it there, for this other slot to go on
``<position> @1700000000000/24h``   at this moment, when the stream kept records for so long, nothing followed it
==================================  ============================================================================

The words and the numbers are those of the Kinesis Client Library's checkpoints.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

import msgspec
from typing_extensions import override

from headrace.core.errors import ProtocolError

DAY_H = 24
"""How many hours every stream keeps its records for, at least."""

_MARKS = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2}


class Phase(Enum):
    """What a slot does with a shard."""

    EXPECTED = "EXPECTED"
    READING = "READING"
    RELEASED = "RELEASED"
    DONE = "SHARD_END"


_RANKS = {Phase.EXPECTED: -1, Phase.RELEASED: 0, Phase.READING: 1, Phase.DONE: 2}


class Position(msgspec.Struct, frozen=True):
    """Where to go on in a shard: after ``sequence``, or if that is None from a moment, or else from the oldest record.

    ``sub`` is the last processed user record of the aggregate at ``sequence``; None: all of it was processed.
    ``tip_ms``: at this moment (ms since the epoch) no record followed, and the stream kept records for ``kept_h``
    hours. So until those have passed, what follows is all there.
    """

    sequence: int | None = None
    sub: int | None = None
    time_ms: int | None = None
    tip_ms: int | None = None
    kept_h: int = DAY_H

    @override
    def __str__(self) -> str:
        return self.place if self.tip_ms is None else f"{self.place} @{self.tip_ms}/{self.kept_h}h"

    @property
    def place(self) -> str:
        """The position without what is known of what follows."""
        if self.sequence is not None:
            return str(self.sequence) if self.sub is None else f"{self.sequence} {self.sub}"
        return "TRIM_HORIZON" if self.time_ms is None else f"AT_TIMESTAMP {self.time_ms}"

    def at_tip(self, tip_ms: int, kept_h: int) -> Position:
        """The same place, which no record followed at that moment."""
        return msgspec.structs.replace(self, tip_ms=tip_ms, kept_h=kept_h)

    @property
    def order(self) -> tuple[int, int, float]:
        """A key that sorts positions of one shard: those without a sequence number first, as in KCL."""
        if self.sequence is None:
            return (_MARKS["TRIM_HORIZON" if self.time_ms is None else "AT_TIMESTAMP"], self.time_ms or 0, 0)
        return (0, self.sequence, float("inf") if self.sub is None else self.sub)


OLDEST = Position()


class ShardState(msgspec.Struct, frozen=True):
    """One shard in a slot. ``position`` counts while it is read, and after it was released ``to`` another slot."""

    phase: Phase
    position: Position = OLDEST
    to: int | None = None

    @override
    def __str__(self) -> str:
        match self.phase:
            case Phase.READING:
                return str(self.position)
            case Phase.RELEASED:
                return f"RELEASED {self.to} {self.position}"
            case _:
                return str(self.phase.value)

    @property
    def rank(self) -> tuple[int, tuple[int, int, float]]:
        """A key that sorts states of one shard in several slots.

        Whoever goes on with it is further than who gave it up, at the same position too.
        """
        return _RANKS[self.phase], self.position.order

    def at(self, position: Position) -> ShardState:
        """The same phase at another position."""
        return msgspec.structs.replace(self, position=position)


EXPECTED = ShardState(Phase.EXPECTED)
DONE = ShardState(Phase.DONE)


def reading(position: Position) -> ShardState:
    """A shard that is being read, at this position."""
    return ShardState(Phase.READING, position)


def released(position: Position, to: int) -> ShardState:
    """A shard that was released at this position, for another slot."""
    return ShardState(Phase.RELEASED, position, to)


def parse_position(text: str) -> Position:
    """Read what ``str`` of a position wrote. Raises ``ProtocolError``."""
    place, at, tip = text.partition(" @")
    tip_ms, _, kept = tip.partition("/")
    found = _place(place)
    if found is not None and not at:
        return found
    if found is not None and tip_ms.isdecimal() and kept[-1:] == "h" and kept[:-1].isdecimal():
        return found.at_tip(int(tip_ms), int(kept[:-1]))
    raise ProtocolError(f"{text!r} isn't a position in a shard", hint="another version of Headrace wrote it")


def _place(text: str) -> Position | None:
    head, _, rest = text.partition(" ")
    if text == "TRIM_HORIZON":
        return OLDEST
    if head == "AT_TIMESTAMP" and rest.isdecimal():
        return Position(time_ms=int(rest))
    if head.isdecimal() and (not rest or rest.isdecimal()) and text == text.rstrip():
        return Position(int(head), int(rest) if rest else None)
    return None


@lru_cache(maxsize=1 << 12)  # reports are repeated until something changes
def parse_state(text: str) -> ShardState:
    """Read what ``str`` of a state wrote. Raises ``ProtocolError``."""
    if text == Phase.EXPECTED.value:
        return EXPECTED
    if text == Phase.DONE.value:
        return DONE
    word, _, rest = text.partition(" ")
    slot, _, position = rest.partition(" ")
    if word == Phase.RELEASED.value and slot.isdecimal():
        return released(parse_position(position), int(slot))
    return reading(parse_position(text))
