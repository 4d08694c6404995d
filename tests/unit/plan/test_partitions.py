"""Partition counts: the seed's rules, its figures and all its table cases."""

from __future__ import annotations

import pytest
from graph_builder import AppBuilder

from headrace.core.errors import PlanError
from headrace.systems.base import StreamInfo

# -- rules --------------------------------------------------------------------------------------------


def test_rule_1_an_intermediate_stream_takes_the_count_of_the_input_it_is_joined_with():
    # The seed's figure 4.
    app = AppBuilder(intermediate_partitions=3)
    s1, s2 = app.input("s1", 16), app.input("s2", 32)
    app.output("out", app.join("j", s1, app.partition_by("s2-by-k", s2)))
    assert app.counts()["s2-by-k"] == 16


def test_rule_2_an_intermediate_stream_that_is_joined_with_no_input_takes_the_setting():
    app = AppBuilder(intermediate_partitions=5)
    app.output("out", app.window("w", app.partition_by("by-k", app.input("s1", 16))))
    assert app.counts()["by-k"] == 5


@pytest.mark.parametrize(("inputs", "output", "expected"), [((4, 16), None, 16), ((4, 16), 32, 32), ((300, 4), 8, 256)])
def test_rule_3_without_a_setting_the_largest_input_or_output_counts_up_to_256(inputs, output, expected):
    app = AppBuilder()
    left, right = (app.input(f"s{n}", count) for n, count in enumerate(inputs))
    by_k = app.partition_by("by-k", app.merge("m", left, right))
    app.output("out", by_k, **({"partitions": output} if output else {}))
    assert app.counts()["by-k"] == expected


def test_joins_and_settings_may_exceed_the_cap():
    app = AppBuilder(intermediate_partitions=400)
    app.output("out", app.join("j", app.input("s1", 300), app.partition_by("a", app.input("s2", 1))))
    app.output("out", app.partition_by("b", "in-s2"))
    counts = app.counts()
    assert (counts["a"], counts["b"]) == (300, 400)


def test_a_count_travels_from_join_to_join():
    # s1 is joined with a, a with b, b with c: groups of unknown counts become known one after the other.
    app = AppBuilder(intermediate_partitions=3)
    parts = {name: app.partition_by(name, app.input(f"from-{name}", 2)) for name in "dcba"}
    app.output("out", app.join("j3", parts["b"], parts["c"]))
    app.output("out", app.join("j2", parts["a"], parts["b"]))
    app.output("out", app.join("j1", app.input("s1", 7), parts["a"]))
    app.output("out", parts["d"])
    counts = app.counts()
    assert {name: counts[name] for name in "abcd"} == {"a": 7, "b": 7, "c": 7, "d": 3}


def test_a_fixed_count_of_an_intermediate_stream_is_kept_and_spreads():
    app = AppBuilder()
    a, b = (
        app.partition_by("a", app.input("s1", 4), partitions=6),
        app.partition_by("b", app.input("s2", 4)),
    )
    app.output("out", app.join("j", a, b))
    counts = app.counts()
    assert (counts["a"], counts["b"]) == (6, 6)


def test_merging_needs_no_equal_counts():
    app = AppBuilder()
    app.output("out", app.merge("m", app.input("s1", 4), app.input("s2", 6)))
    assert app.counts() == {"s1": 4, "s2": 6, "out": 6}


def test_an_intermediate_stream_merged_with_an_input_before_a_keyed_window_takes_its_count():
    app = AppBuilder(intermediate_partitions=3)
    merged = app.merge("m", app.input("s1", 4), app.partition_by("a", app.input("s2", 6)))
    app.output("out", app.window("w", merged))
    assert app.counts()["a"] == 4


def test_a_broadcast_stream_follows_the_rules_for_unjoined_streams():
    app = AppBuilder(intermediate_partitions=3)
    app.output("out", app.join("j", app.input("s1", 8), app.broadcast("rules", app.input("s2", 2))))
    assert app.counts()["rules"] == 3


# -- outputs ------------------------------------------------------------------------------------------


def test_an_output_takes_its_own_count_or_what_exists_or_that_of_the_largest_input_above_256_too():
    app = AppBuilder()
    s1 = app.input("s1", 300)
    app.output("fixed", s1, partitions=3)
    app.output("existing", s1)
    app.output("new", s1)
    app.facts["existing"] = StreamInfo("existing", 5)
    assert app.counts() == {"s1": 300, "fixed": 3, "existing": 5, "new": 300}


# -- the seed's table cases: s1 fills the table, s2 is joined with it ------------------------------------


def table_app(s1: str, s2: str, **settings: object) -> AppBuilder:
    app = AppBuilder(**settings)
    start1, start2 = app.input("s1", 8), app.input("s2", 16)
    t = app.table("t")
    app.fill(t, app.partition_by("p1", start1) if s1 == "intermediate" else start1)
    joined = app.table_join("j", app.partition_by("p2", start2) if s2 == "intermediate" else start2, t)
    app.output("out", joined)
    return app


def test_table_case_1_two_inputs_have_to_be_equal():
    with pytest.raises(PlanError, match="'j' need equal partition counts"):
        table_app("input", "input").plan()


def test_table_case_2_the_stream_joined_takes_the_count_of_the_input_that_fills():
    assert table_app("input", "intermediate").counts()["p2"] == 8


def test_table_case_3_the_stream_that_fills_takes_the_count_of_the_input_joined():
    assert table_app("intermediate", "input").counts()["p1"] == 16


def test_table_case_4_two_intermediate_streams_take_the_count_of_an_input_joined_later():
    app = table_app("intermediate", "intermediate", intermediate_partitions=3)
    counts = app.counts()
    assert (counts["p1"], counts["p2"]) == (3, 3)
    app.output("out", app.join("later", "j", app.input("s3", 5)))
    counts = app.counts()
    assert (counts["p1"], counts["p2"]) == (5, 5)


def side_input_app(s2: str) -> AppBuilder:
    app = AppBuilder()
    t = app.table("t", app.side_input("side", 8))
    start = app.input("s2", 16)
    app.output("out", app.table_join("j", app.partition_by("p2", start) if s2 == "intermediate" else start, t))
    return app


def test_table_case_1_with_a_side_input():
    with pytest.raises(PlanError, match="side-input 'side' has 8 partitions"):
        side_input_app("input").plan()


def test_table_case_2_with_a_side_input():
    assert side_input_app("intermediate").counts()["p2"] == 8


def test_a_side_input_reaches_what_is_joined_with_the_joined_stream_elsewhere():
    app = side_input_app("intermediate")
    app.output("out", app.join("other", "in-p2", app.partition_by("p3", app.input("s3", 2))))
    assert app.counts()["p3"] == 8


def test_side_inputs_of_a_global_table_may_have_any_count():
    app = AppBuilder()
    t = app.table("t", app.side_input("side", 3), kind="global")
    app.output("out", app.table_join("j", app.input("s", 16), t))
    assert app.counts() == {"side": 3, "s": 16, "out": 16}


def test_a_table_joined_and_then_written_takes_part_like_any_other():
    app = AppBuilder()
    t = app.table("t")
    app.fill(t, app.table_join("j", app.partition_by("p", app.input("s1", 2)), t))
    app.fill(t, app.input("s2", 6))
    assert app.counts()["p"] == 6


# -- what exists already --------------------------------------------------------------------------------


def test_an_intermediate_stream_that_exists_keeps_its_count_when_rule_3_would_change_it():
    app = AppBuilder()
    app.output("out", app.join("j", app.partition_by("a", app.input("s1", 4)), app.partition_by("b", "in-s1")))
    app.facts["a"] = StreamInfo("a", 2)
    counts = app.counts()
    assert (counts["a"], counts["b"]) == (2, 2)


@pytest.mark.parametrize("settings", [{"intermediate_partitions": 5}, {}])
def test_an_intermediate_stream_that_exists_with_another_count_than_it_must_have_is_refused(settings):
    app = AppBuilder(**settings)
    a = app.partition_by("a", app.input("s1", 5))
    if not settings:
        app.output("out", app.join("j", "in-s1", a))
    app.output("out", a)
    app.facts["a"] = StreamInfo("a", 2)
    with pytest.raises(PlanError, match=r"'log\.a' exists with 2 partitions, and this app needs 5"):
        app.plan()


@pytest.mark.parametrize("role", ["input", "output", "partition_by"])
def test_a_stream_has_as_many_partitions_as_the_log_allows_at_most(role):
    app = AppBuilder()
    views = app.input("in", 65_537 if role == "input" else 1)
    by_k = app.partition_by("by-k", views, **({"partitions": 65_537} if role == "partition_by" else {}))
    app.output("out", by_k, **({"partitions": 65_537} if role == "output" else {}))
    with pytest.raises(PlanError, match=r"would have 65,537 partitions, and a stream may have at most 65,536"):
        app.counts()
