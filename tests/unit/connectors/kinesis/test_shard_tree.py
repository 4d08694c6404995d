"""The tree of a stream's shards, from lists that may lack some of them."""

from __future__ import annotations

from dealing_world import World, shard_id
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kinesis.api import HASH_END, Shard, ShardTree, age, ended_before, home

A, B, C, D, E, F = (shard_id(number) for number in range(6))
HALF = HASH_END // 2
GROWN = [
    Shard(B, HALF, HASH_END - 1, closed=True),
    Shard(C, 0, HALF // 2 - 1, (A,), closed=True),
    Shard(D, HALF // 2, HALF - 1, (A,)),
    Shard(E, 0, HALF // 2 - 1, (C,)),
]
"""A has expired; B was closed, but its child isn't listed yet."""


def test_families() -> None:
    tree = ShardTree(GROWN)
    assert tree.ids == (B, C, D, E)
    assert A not in tree and D in tree
    assert (tree.children(A), tree.children(C), tree.children(E)) == ([C, D], [E], [])
    assert (tree.parents(C), tree.parents(B), tree.parents(A)) == ([A], [], [])
    assert tree.ancestors({E}) == {C, A}
    assert tree.ancestors({B, D}) == {A}
    assert ShardTree([Shard(F, 0, 1, (E, D))]).parents(F) == [D, E]


def test_a_shard_with_children_is_closed_whatever_the_list_says() -> None:
    """A list of several pages isn't made at one moment."""
    tree = ShardTree([Shard(A, 0, HASH_END - 1), Shard(B, 0, HASH_END - 1, (A,))])
    assert (tree.is_open(A), tree.is_open(B), tree.is_open(C)) == (False, True, False)


def test_holes() -> None:
    assert ShardTree(GROWN).holes == ((HALF, HASH_END - 1),)
    assert ShardTree([Shard(A, 5, 6), Shard(B, 9, HASH_END - 1)]).holes == ((0, 4), (7, 8))
    assert ShardTree([]).holes == ((0, HASH_END - 1),)


@given(st.lists(st.tuples(st.sampled_from(["split", "merge", "trim"]), st.integers(0, 99)), max_size=20))
def test_there_is_no_hole_in_what_splits_and_merges_make(steps: list[tuple[str, int]]) -> None:
    world = World(1, 3)
    for name, number in steps:
        world.trim() if name == "trim" else getattr(world, name)(number)
    for listed in world.lists:
        assert ShardTree(listed).holes == ()


def test_a_list_is_older_than_what_it_cannot_know() -> None:
    tree = ShardTree(GROWN)
    assert not tree.is_older_than([])
    assert not tree.is_older_than([A, E])
    assert tree.is_older_than([A, F])
    assert ShardTree([]).is_older_than([A])
    assert age("shardId-9") < age("shardId-10")


def test_shards_that_were_created_together_have_homes_of_their_own() -> None:
    assert [home(shard_id(number), 4) for number in range(6, 10)] == [2, 3, 0, 1]
    assert home("shardId-00000001414576573621-f55eea83", 3) in range(3)
    assert home("no-number", 1000) == 740


def test_what_ended_before_an_app_began() -> None:
    assert ended_before(GROWN, latest=False) == {A}
    assert ended_before(GROWN, latest=True) == {A, B, C}
