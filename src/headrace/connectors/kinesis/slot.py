"""The shards of one slot, and a dealer's orders to it, as texts. Pure.

- ``READ <position>``: read the shard, from there unless the slot reads it already
- ``EXPECT``: the shard will come here: hold event time back for it
- ``RELEASE <slot>``: stop reading it, and say where: this other slot goes on
- ``FORGET``: it is done, or others have it, or it isn't coming: drop it
- ``SKIP <position>``, ``END``: another application has read it up to there, or to its end

The dealer repeats orders until a commit shows that they were followed. So an order may be known already, or overtaken:
it is followed only where it fits what the slot does with the shard, as the table in ``dealing`` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import msgspec
from typing_extensions import override

from headrace.connectors.kinesis import api
from headrace.connectors.kinesis.api import DONE, EXPECTED, OLDEST, Phase, Position, ShardState
from headrace.core.errors import ProtocolError
from headrace.systems.slot_reports import Shards, SlotOrders


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
    return ShardOrder(Do.READ, position)


def release_to(slot: int) -> ShardOrder:
    return ShardOrder(Do.RELEASE, to=slot)


def skip_to(position: Position) -> ShardOrder:
    return ShardOrder(Do.SKIP, position)


def parse_order(text: str) -> ShardOrder:
    word, _, rest = text.partition(" ")
    if word in (Do.READ.value, Do.SKIP.value):
        return ShardOrder(Do(word), api.parse_position(rest))
    if word == Do.RELEASE.value and rest.isdecimal():
        return release_to(int(rest))
    if text in (str(EXPECT), str(FORGET), str(END)):
        return ShardOrder(Do(text))
    raise ProtocolError(f"{text!r} isn't an order for a shard", hint="another version of Headrace sent it")


class Slot:
    """One slot. ``changed``: there is something to say even if no row follows."""

    def __init__(self, shards: Shards, moment: Position | None = None) -> None:
        """Go on with these shards; with a ``moment`` from there, and with what comes that no slot has read."""
        self._start = None if shards else moment
        self._moved = moment is not None
        self._states = {shard: api.parse_state(text) for shard, text in shards.items()}
        self._turns: list[str] = []
        self.directed = False  # the dealer has said what there is for the slot
        self.changed = moment is not None
        if moment is not None:
            self._states = {shard: _moved(state, moment) for shard, state in self._states.items()}
        self._texts = {shard: str(state) for shard, state in self._states.items()}
        self.holding = self._held()  # what waits to be taken over, to come here, or for its children

    def follow(self, orders: SlotOrders) -> set[str]:
        """Do what the dealer says, and return the shards that are to be read from elsewhere now."""
        skipped: set[str] = set()
        for shard, text in orders.items():
            before = self._states.get(shard)
            order = parse_order(text)
            if self._start is not None and order.do is Do.READ and order.position.sequence is None:
                order = read_from(self._start)
            if order.do in (Do.SKIP, Do.END):
                if self._moved:
                    continue  # the user who has moved the slot wants what is there
                skipped.add(shard)
            after = _followed(before, order)
            if after == before:
                skipped.discard(shard)
            else:
                self._set(shard, after)
        self.changed |= not self.directed
        self.directed = True
        return skipped

    def came_to(self, shard: str, position: Position) -> None:
        self._set(shard, api.reading(position))

    def finished(self, shard: str) -> None:
        self._set(shard, DONE)

    def said(self) -> Shards:
        self.changed = False
        return dict(self._texts)

    def read(self) -> Iterator[tuple[str, Position]]:
        return ((shard, state.position) for shard, state in self._states.items() if state.phase is Phase.READING)

    def _set(self, shard: str, state: ShardState | None) -> None:
        before = self._states.get(shard)
        self.changed = True
        if state is None:
            del self._states[shard], self._texts[shard]
        else:
            self._states[shard] = state
            self._texts[shard] = str(state)
        if before is None or state is None or before.phase is not state.phase:
            self.holding = self._held()

    def _held(self) -> frozenset[str]:
        return frozenset(shard for shard, state in self._states.items() if state.phase is not Phase.READING)


def _followed(state: ShardState | None, order: ShardOrder) -> ShardState | None:
    phase = None if state is None else state.phase
    match order.do:
        case Do.READ if phase in (None, Phase.EXPECTED):
            return api.reading(order.position)
        case Do.EXPECT if phase is None:
            return EXPECTED
        case Do.RELEASE if state is not None and phase is Phase.READING:
            return msgspec.structs.replace(state, phase=Phase.RELEASED, to=order.to)
        case Do.FORGET if phase is not Phase.READING:
            return None
        case Do.SKIP if state is not None and phase in (Phase.READING, Phase.RELEASED):
            return state.at(order.position) if state.position.order < order.position.order else state
        case Do.END if phase in (Phase.READING, Phase.RELEASED):
            return DONE
    return state


def _moved(state: ShardState, moment: Position) -> ShardState:
    match state.phase:
        case Phase.READING | Phase.DONE:
            return api.reading(moment)
        case Phase.RELEASED:
            return state.at(moment)
        case Phase.EXPECTED:
            return state
