"""Dealing in a small world in which everything goes wrong, in any order; and mistakes in it that this must find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from dealing_world import EARLY, STEPS, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from drawn import examples
from headrace.connectors.kinesis import dealing
from headrace.connectors.kinesis.api import Phase, Position, ShardTree
from headrace.connectors.kinesis.dealing import Arrivals, Beginnings, Dealing, Holdings, Moves
from headrace.connectors.kinesis.slot import FORGET, read_from

NEEDED = ("put", "read", "commit", "take orders", "take report", "deal")
UNTIMELY = ("trim", "replace the dealer", "forget reports", "restart the driver")
NUMBERS = st.integers(0, 2**20)


class DealingMachine(RuleBasedStateMachine):
    """Any steps in any order; then all must come to rest."""

    @initialize(
        slots=st.integers(1, 4),
        shards=st.integers(1, 4),
        timed=st.booleans(),
        latest=st.booleans(),
        informed=st.booleans(),
        early=st.lists(st.tuples(st.sampled_from(EARLY), NUMBERS), max_size=12),
    )
    def begin(
        self, slots: int, shards: int, timed: bool, latest: bool, informed: bool, early: list[tuple[str, int]]
    ) -> None:
        self.world = World(slots, shards, timed=timed, latest=latest, informed=informed)
        for name, number in early:
            STEPS[name][1](self.world, lambda below, number=number: number % below)  # type: ignore[misc]
        self.world.begin()

    @rule(
        name=st.sampled_from([name for name, (weight, _) in STEPS.items() for _ in range(weight)]),
        numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    )
    def step(self, name: str, numbers: tuple[int, int, int]) -> None:
        left = iter(numbers)
        STEPS[name][1](self.world, lambda below: next(left) % below)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestDealing = DealingMachine.TestCase
TestDealing.settings = settings(
    max_examples=examples(150),
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def walk(seed: int) -> None:
    """A long way through a world, by the seed. Some kinds of steps are left out, so that others go further."""
    dice = random.Random(seed)
    world = World(
        1 + dice.randrange(4),
        1 + dice.randrange(4),
        timed=dice.random() < 0.4,
        latest=dice.random() < 0.3,
        informed=dice.random() < 0.7,
    )
    for name in dice.choices(EARLY, k=dice.randrange(12)):
        STEPS[name][1](world, dice.randrange)
    world.begin()
    weights = [
        0 if dice.random() < 0.1 and name not in NEEDED else of * dice.choice((1, 1, 4))
        for name, (of, _) in STEPS.items()
    ]
    if dice.random() < 0.7:  # the dealer is busy, so that much moves
        weights = [
            5 * of if name in ("exchange", "deal", "split", "merge") else of
            for name, of in zip(STEPS, weights, strict=True)
        ]
    if world.timed and dice.random() < 0.5:  # afterwards, event time isn't judged
        weights = [0 if name in UNTIMELY else of for name, of in zip(STEPS, weights, strict=True)]
    for name in dice.choices(list(STEPS), weights, k=200):
        STEPS[name][1](world, dice.randrange)
    world.settle()


@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_nothing_is_lost_or_read_twice_on_long_ways(seed: int) -> None:
    for one in range(seed, seed + 50):
        walk(one)


# -- mistakes ------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
MISTAKES: dict[str, Callable[[Patch], None]] = {}
"""Each is made in the real code, and must be found."""


def mistake(make: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MISTAKES[make.__name__] = make
    return make


@mistake
def lists_are_never_out_of_date(patch: Patch) -> None:
    patch.setattr(ShardTree, "is_older_than", lambda self, shards: False)


@mistake
def children_begin_before_their_parents_end(patch: Patch) -> None:
    patch.setattr(Beginnings, "_out_of_the_way", lambda self, parent: True)


@mistake
def merged_shards_go_to_the_slot_with_fewer(patch: Patch) -> None:
    def slot(self: Beginnings, shard: str) -> int:
        found = [self._holdings.ended_in(parent) for parent in self._tree.parents(shard)]
        ended_in = [slot for slot in found if slot is not None]
        return min(ended_in, key=lambda slot: len(self._holdings.reports[slot].shards)) if ended_in else 0

    patch.setattr(Beginnings, "_slot", slot)


@mistake
def what_nobody_holds_is_dealt_by_turns(patch: Patch) -> None:
    before = Beginnings._slot

    def slot(self: Beginnings, shard: str) -> int:
        if any(self._holdings.ended_in(parent) is not None for parent in self._tree.parents(shard)):
            return before(self, shard)
        left = [one for one in self._tree.ids if one not in self._held and not self.over(one)]
        return left.index(shard) % len(self._holdings.reports)

    patch.setattr(Beginnings, "_slot", slot)


@mistake
def what_has_ended_is_dropped_at_once(patch: Patch) -> None:
    patch.setattr(Beginnings, "followed", lambda self, shard: True)


@mistake
def what_was_released_is_dropped_at_once(patch: Patch) -> None:
    def hand_over(self: Arrivals, holdings: Holdings, orders: dealing._Orders, jumping: object) -> None:
        for shard in holdings:
            for slot in holdings.slots(shard, Phase.RELEASED):
                state = holdings.state(shard, slot)
                assert state is not None and state.to is not None
                orders.give(slot, shard, FORGET)
                if not holdings.arrived(shard, state):
                    orders.give(state.to, shard, read_from(state.position))

    patch.setattr(Arrivals, "hand_over", hand_over)


@mistake
def the_next_slot_begins_where_the_input_starts(patch: Patch) -> None:
    patch.setattr(dealing, "read_from", lambda position: read_from(Position()))


@mistake
def shards_never_move(patch: Patch) -> None:
    patch.setattr(Moves, "balance", lambda self, *rest: None)


@mistake
def some_slots_need_not_report(patch: Patch) -> None:
    before = Dealing.deal

    def deal(self: Dealing, shards: object, slots: list[object], now_ms: int) -> list[object]:
        empty = dealing.SlotReport(0, {})
        orders = before(self, shards, [one or empty for one in slots], now_ms)  # type: ignore[arg-type]
        return [None if one is None else order for one, order in zip(slots, orders, strict=True)]

    patch.setattr(Dealing, "deal", deal)


FIRST_SEEDS = {
    "lists_are_never_out_of_date": 120,
    "merged_shards_go_to_the_slot_with_fewer": 300,
    "some_slots_need_not_report": 100,
}
"""Where the search begins, to save time."""


@contextmanager
def made(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MISTAKES[name](patch)
        yield


@pytest.mark.parametrize("name", MISTAKES)
def test_the_world_finds_mistakes(name: str) -> None:
    first = FIRST_SEEDS.get(name, 0)
    with made(name), pytest.raises(AssertionError):
        for seed in range(first, first + 300):
            walk(seed)
