"""Shards move from slots with many to slots with few, one at a time from each and to each. Pure.

==================================  ================================================================================
the reports say                     what follows
==================================  ================================================================================
the giver reads it                  EXPECT to the taker, whose event time stands still once it expects the shard
and the taker expects it            RELEASE to the giver, as soon as its event time has come as far as the taker's
the giver has released it           READ to the taker (``Dealing``: it needs no decision any more)
the taker has it                    FORGET to the giver (``Dealing``)
==================================  ================================================================================

What is remembered here only sets the pace: a shard that isn't released within half a minute stays where it is, and is
tried again later, later each time. Forgetting it does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.systems.kinesis.holdings import Holdings
from headrace.systems.kinesis.shard_position import Phase
from headrace.systems.kinesis.shard_tree import ShardTree, age
from headrace.systems.kinesis.slot_orders import EXPECT, ShardOrder, release_to

PATIENCE_MS = 30_000
"""How long a giver may take to come as far in event time as the taker."""

FIRST_PAUSE_MS = 60_000
LONGEST_PAUSE_MS = 960_000

Give = Callable[[int, str, ShardOrder], None]
"""Gives a slot an order about a shard."""


@dataclass(slots=True)
class Move:
    """A shard that moves from one slot to another. ``released``: the giver was ordered to release it permanently."""

    giver: int
    taker: int
    since_ms: int
    released: bool = False


@dataclass(frozen=True, slots=True)
class _Pause:
    """A shard that couldn't move stays where it is for a while."""

    until_ms: int
    length_ms: int


class Moves:
    """The moves that are under way."""

    def __init__(self) -> None:
        self._moves: dict[str, Move] = {}
        self._pauses: dict[str, _Pause] = {}

    def go_on(self, holdings: Holdings, give: Give, now_ms: int) -> None:
        """Take the next step of each move, and cancel late ones."""
        self._pauses = {shard: pause for shard, pause in self._pauses.items() if shard in holdings}
        self._moves = {shard: move for shard, move in self._moves.items() if _possible(holdings, shard, move)}
        self._adopt(holdings, now_ms)
        for shard, move in list(self._moves.items()):
            expected = holdings.state(shard, move.taker) is not None
            if expected and (move.released or _caught_up(holdings, move)):
                move.released = True
                give(move.giver, shard, release_to(move.taker))
            elif now_ms - move.since_ms >= PATIENCE_MS:
                self._give_up(shard, now_ms)
            elif not expected:
                give(move.taker, shard, EXPECT)

    def awaited(self, shard: str, slot: int) -> bool:
        """The shard is about to go to this slot."""
        return shard in self._moves and self._moves[shard].taker == slot

    def balance(self, holdings: Holdings, tree: ShardTree, load: list[int], give: Give, now_ms: int) -> None:
        """Begin moves until no slot has two shards more than another one, as far as slots and shards are free to.

        ``load`` is how many shards each slot will have without any move.
        """
        busy = {slot for move in self._moves.values() for slot in (move.giver, move.taker)}
        for shard in holdings:
            for slot, state in holdings.leaving(shard):
                busy |= {slot, state.to if state.to is not None else slot}
        for move in self._moves.values():
            load[move.giver] -= 1
            load[move.taker] += 1
        free = [slot for slot in range(len(load)) if slot not in busy]
        for giver in sorted(free, key=lambda slot: (-load[slot], slot)):
            takers = [slot for slot in free if slot not in busy and load[giver] - load[slot] >= 2]
            moving = self._movable(holdings, tree, giver, now_ms) if takers and giver not in busy else None
            if moving is not None:
                taker = min(takers, key=lambda slot: (load[slot], _time(holdings, slot), slot))
                self._moves[moving] = Move(giver, taker, now_ms)
                busy |= {giver, taker}
                give(taker, moving, EXPECT)

    def _movable(self, holdings: Holdings, tree: ShardTree, giver: int, now_ms: int) -> str | None:
        """Choose a shard that the slot reads and no other slot knows. Open ones come first, as the others end soon."""
        shards = [
            shard
            for shard in holdings.reports[giver].shards
            if holdings.slots(shard, *Phase) == holdings.slots(shard, Phase.READING) == [giver]
            and not self._pausing(shard, now_ms)
        ]
        return max(shards, key=lambda shard: (tree.is_open(shard), age(shard)), default=None)

    def _adopt(self, holdings: Holdings, now_ms: int) -> None:
        """Go on with moves that another dealer began."""
        for shard in holdings:
            givers, takers = holdings.slots(shard, Phase.READING), holdings.slots(shard, Phase.EXPECTED)
            if len(givers) == 1 and takers and shard not in self._moves and not self._pausing(shard, now_ms):
                self._moves[shard] = Move(givers[0], takers[0], now_ms)

    def _give_up(self, shard: str, now_ms: int) -> None:
        before = self._pauses.get(shard)
        length = FIRST_PAUSE_MS if before is None else min(2 * before.length_ms, LONGEST_PAUSE_MS)
        self._pauses[shard] = _Pause(now_ms + length, length)
        del self._moves[shard]

    def _pausing(self, shard: str, now_ms: int) -> bool:
        return shard in self._pauses and now_ms < self._pauses[shard].until_ms


class Arrivals:
    """When the shards that were released have arrived, by the versions of their takers.

    Readers downstream process what tasks send in the order of its versions. The giver holds event time back until it
    has dropped the shard. If it did so in an earlier version than the one in which the taker wakes up for the shard,
    readers would pass the taker's time before they learn that it has one. So the giver has to commit as high a version
    first. What is remembered here only sets the pace, as above.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[str, int], int] = {}

    def look(self, holdings: Holdings) -> None:
        """Note what has arrived, and forget what its giver has dropped."""
        now: dict[tuple[str, int], int] = {}
        for shard in holdings:
            for giver in holdings.slots(shard, Phase.RELEASED):
                state = holdings.state(shard, giver)
                assert state is not None and state.to is not None
                if holdings.arrived(shard, state):
                    version = holdings.reports[state.to].version
                    now[shard, giver] = self._versions.get((shard, giver), version)
        self._versions = now

    def known_after(self, holdings: Holdings, shard: str, giver: int) -> bool:
        """All that the giver sends from now on is processed after readers have learned that the shard has arrived."""
        return holdings.reports[giver].version >= self._versions[shard, giver]


def _possible(holdings: Holdings, shard: str, move: Move) -> bool:
    """The giver still reads the shard, and the taker has nothing of it but perhaps expects it."""
    taken = holdings.state(shard, move.taker)
    return holdings.slots(shard, Phase.READING) == [move.giver] and (taken is None or taken.phase is Phase.EXPECTED)


def _caught_up(holdings: Holdings, move: Move) -> bool:
    """Nothing that the giver has still to read is older than what the taker waits with."""
    giver, taker = holdings.reports[move.giver].watermark, holdings.reports[move.taker].watermark
    return taker is None or (giver is not None and giver >= taker)


def _time(holdings: Holdings, slot: int) -> float:
    watermark = holdings.reports[slot].watermark
    return float("-inf") if watermark is None else watermark
