"""Cutting at intermediate streams: what ties nodes together, how stages are named, what is refused."""

from __future__ import annotations

import pytest
from graph_builder import AppBuilder

from headrace.core.errors import PlanError
from headrace.plan.stages import cut_stages


def names_of(app: AppBuilder) -> list[str]:
    return [stage.name for stage in cut_stages(app.graph())]


def test_each_intermediate_stream_is_a_cut():
    app = AppBuilder()
    by_k = app.partition_by("by-k", app.filter("f", app.input("s", 4)))
    app.output("out", app.window("w", by_k))
    first, second = cut_stages(app.graph())
    assert (first.name, first.inputs, first.outputs) == ("s", ("s",), ("by-k",))
    assert first.nodes == ("in-s", "f", "write-by-k")
    assert (second.name, second.inputs, second.outputs) == ("by-k", ("by-k",), ("out",))
    assert second.nodes == ("in-by-k", "w", "w-to-out")


def test_a_stage_is_called_after_its_smallest_intermediate_stream_before_any_input():
    app = AppBuilder()
    s, r = app.input("a-source", 4), app.input("r", 4)
    app.output("out", app.merge("m", app.partition_by("z", r), app.partition_by("y", r), s))
    assert names_of(app) == ["r", "y"]


def test_flows_that_share_nothing_are_stages_of_their_own():
    app = AppBuilder()
    app.output("out1", app.input("b", 4))
    app.output("out2", app.input("a", 4))
    assert names_of(app) == ["a", "b"]


def test_a_table_ties_the_flow_that_fills_it_to_the_one_that_joins_it():
    app = AppBuilder()
    t = app.table("t")
    app.fill(t, app.input("b", 4))
    app.output("out", app.table_join("j", app.input("a", 4), t))
    (stage,) = cut_stages(app.graph())
    assert (stage.name, stage.inputs, stage.tables) == ("a", ("a", "b"), ("t",))


def test_a_table_kept_by_side_inputs_ties_nothing():
    app = AppBuilder()
    t = app.table("t", app.side_input("side", 4))
    joined = app.table_join("j1", app.input("s", 4), t)
    app.output("out", app.table_join("j2", app.partition_by("by-k", joined), t))
    first, second = cut_stages(app.graph())
    assert (first.tables, first.side_inputs) == (("t",), ("side",)) == (second.tables, second.side_inputs)


def test_a_table_joined_and_then_written_is_one_stage():
    app = AppBuilder()
    t = app.table("t")
    app.fill(t, app.table_join("j", app.input("s", 4), t))
    (stage,) = cut_stages(app.graph())
    assert stage.nodes == ("in-s", "j", "j-fills-t")


def test_dead_letters_are_outputs_of_the_stage_that_reads():
    app = AppBuilder()
    app.output("out", app.input("s", 4, dead_letter="bad"))
    (stage,) = cut_stages(app.graph())
    assert stage.outputs == ("bad", "out")


def test_stages_are_ordered_upstream_first_then_by_name():
    app = AppBuilder()
    s = app.input("s", 4)
    far = app.partition_by("a-far", app.filter("f", app.partition_by("near", s)))
    app.output("out", far)
    app.output("out", app.partition_by("b", s))
    assert names_of(app) == ["s", "b", "near", "a-far"]


# -- a source that is read twice -------------------------------------------------------------------------


def test_a_source_joined_with_its_own_repartitioned_messages_is_read_by_two_stages():
    app = AppBuilder()
    s = app.input("s", 4)
    app.output("out", app.join("j", s, app.partition_by("by-k", s)))
    app.output("copy", app.filter("f", s))
    plan = app.plan()
    first, second = plan.stages
    assert (first.name, first.inputs, first.nodes) == ("s", ("s",), ("in-s", "f", "f-to-copy", "write-by-k"))
    assert (second.name, second.inputs) == ("by-k", ("by-k", "s"))
    assert plan.streams["s"].readers == ("s", "by-k")
    assert plan.successors(first)["in-s"] == ("write-by-k", "f")
    assert plan.successors(second) == {"in-by-k": ("j",), "in-s": ("j",), "j": ("j-to-out",), "j-to-out": ()}


def test_a_source_joined_with_a_table_of_its_own_counts():
    app = AppBuilder()
    t, s = app.table("t"), app.input("s", 4)
    app.fill(t, app.window("w", app.partition_by("by-k", s)))
    app.output("out", app.table_join("j", s, t))
    assert names_of(app) == ["s", "by-k"]
    assert app.counts()["by-k"] == 4


def test_another_source_of_a_stage_that_is_taken_apart_stays_with_its_reader():
    app = AppBuilder()
    s = app.input("s", 4)
    merged = app.merge("m", app.partition_by("by-k", s), app.input("r", 4))
    app.output("out", app.join("j", s, merged))
    assert [(stage.name, stage.inputs) for stage in cut_stages(app.graph())] == [
        ("s", ("s",)),
        ("by-k", ("by-k", "r", "s")),
    ]


def test_an_intermediate_stream_met_again_is_refused():
    app = AppBuilder()
    x = app.partition_by("x", app.input("s", 4))
    app.output("out", app.join("j", x, app.partition_by("y", app.window("w", x))))
    with pytest.raises(PlanError) as caught:
        app.plan()
    assert "stage 'x' writes 'y' (/app/pipeline.py:7: w.partition_by(\"k\", id=\"y\")), which stage 'x' reads" in str(
        caught.value
    )


def test_stages_that_feed_each_other_through_a_table_are_refused():
    app = AppBuilder()
    t = app.table("t")
    x = app.partition_by("x", app.table_join("j", app.input("s", 4), t))
    app.fill(t, app.partition_by("y", app.filter("f", x)))
    with pytest.raises(PlanError) as caught:
        app.plan()
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("  stage 'x' writes 'y'") and lines[1].endswith("which stage 'y' reads")
    assert lines[2].startswith("  stage 'y' writes 'x'") and lines[2].endswith("which stage 'x' reads")


def test_one_stage_cannot_read_a_stream_under_two_ids():
    app = AppBuilder()
    app.output("out", app.merge("m", app.input("a", 4), app.input("b", 4, physical="a")))
    with pytest.raises(PlanError, match=r"would read stream 'log\.a' twice: as source 'a' .* and as source 'b'"):
        app.plan()
