"""The traversal: visits each vertex once, depth first, and ends on any graph."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.model import a_cycle, reachable, topological_order

GRAPHS = st.integers(1, 8).flatmap(
    lambda n: st.dictionaries(
        st.sampled_from("abcdefgh"[:n]), st.lists(st.sampled_from("abcdefgh"[:n]), unique=True, max_size=n)
    ).map(lambda edges, n=n: {v: edges.get(v, []) for v in "abcdefgh"[:n]})
)


def test_it_visits_depth_first_in_the_order_of_the_next_vertexes():
    edges = {"a": ["b", "c"], "b": ["d"], "c": ["d", "e"], "d": [], "e": []}
    assert reachable("a", edges.__getitem__) == ["a", "b", "d", "c", "e"]


def test_it_ends_on_a_cycle():
    assert reachable("a", {"a": ["b"], "b": ["c"], "c": ["a", "b", "c"]}.__getitem__) == ["a", "b", "c"]


def test_a_long_chain_needs_no_deep_stack():
    assert len(reachable(0, lambda n: [n + 1] if n < 50_000 else [])) == 50_001


def test_a_connection_that_is_not_in_the_graph_can_be_walked():
    edges = {"send-to-table": [], "table-join": ["output"], "output": []}
    virtual = {"send-to-table": ["table-join"]}
    found = reachable("send-to-table", lambda v: [*edges[v], *virtual.get(v, [])])
    assert found == ["send-to-table", "table-join", "output"]


@given(GRAPHS)
def test_it_visits_exactly_what_can_be_reached_each_once(edges: dict[str, list[str]]):
    visited = reachable("a", edges.__getitem__)
    expected, before = {"a"}, set()
    while expected != before:
        before = set(expected)
        expected |= {following for vertex in before for following in edges[vertex]}
    assert set(visited) == expected
    assert len(visited) == len(expected)


@given(GRAPHS)
def test_a_topological_order_or_a_cycle_never_both(edges: dict[str, list[str]]):
    order, unplaced = topological_order(edges)
    cycle = a_cycle(edges)
    assert bool(unplaced) == bool(cycle)
    assert sorted(order + unplaced) == sorted(edges)
    place = {vertex: n for n, vertex in enumerate(order)}
    assert all(place[a] < place[b] for a in order for b in edges[a] if b in place)
    assert all(after in edges[before] for before, after in zip(cycle, cycle[1:] + cycle[:1], strict=True))
    if cycle:
        assert cycle[0] == min(cycle)
        assert len(set(cycle)) == len(cycle)


def test_equals_are_ordered_by_name():
    assert topological_order({"c": [], "a": [], "b": ["a"]}) == (["b", "a", "c"], [])
