"""A dealer's orders to a slot about a shard, as text. Pure.

====================  ===========================================================================================
text                  meaning
====================  ===========================================================================================
``READ <position>``   read the shard, from there unless the slot reads it already
``EXPECT``            the shard will come here: hold event time back for it
``RELEASE <slot>``    stop reading it, and say where: this other slot goes on
``FORGET``            it is done, or others have it, or it isn't coming: drop it
``SKIP <position>``   another application has read it up to there: go on behind that
``END``               another application has read it to its end
====================  ===========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from typing_extensions import override

from headrace.core.errors import ProtocolError
from headrace.systems.kinesis.shard_position import OLDEST, Position, parse_position


class Do(Enum):
    """What to do with a shard."""

    READ = "READ"
    EXPECT = "EXPECT"
    RELEASE = "RELEASE"
    FORGET = "FORGET"
    SKIP = "SKIP"
    END = "END"


@dataclass(frozen=True, slots=True)
class ShardOrder:
    """What to do with one shard. ``position`` is where to read from, ``to`` the slot that goes on after another."""

    do: Do
    position: Position = OLDEST
    to: int | None = None

    @override
    def __str__(self) -> str:
        match self.do:
            case Do.READ | Do.SKIP:
                return f"{self.do.value} {self.position}"
            case Do.RELEASE:
                return f"RELEASE {self.to}"
            case _:
                return str(self.do.value)


EXPECT, FORGET, END = ShardOrder(Do.EXPECT), ShardOrder(Do.FORGET), ShardOrder(Do.END)


def read_from(position: Position) -> ShardOrder:
    """Read the shard from there."""
    return ShardOrder(Do.READ, position)


def release_to(slot: int) -> ShardOrder:
    """Stop reading the shard: this slot goes on."""
    return ShardOrder(Do.RELEASE, to=slot)


def skip_to(position: Position) -> ShardOrder:
    """Go on there, behind what another application has read."""
    return ShardOrder(Do.SKIP, position)


def parse_order(text: str) -> ShardOrder:
    """Read what ``str`` of an order wrote. Raises ``ProtocolError``."""
    word, _, rest = text.partition(" ")
    if word in (Do.READ.value, Do.SKIP.value):
        return ShardOrder(Do(word), parse_position(rest))
    if word == Do.RELEASE.value and rest.isdecimal():
        return release_to(int(rest))
    if text in (str(EXPECT), str(FORGET), str(END)):
        return ShardOrder(Do(text))
    raise ProtocolError(f"{text!r} isn't an order for a shard", hint="another version of Headrace sent it")
