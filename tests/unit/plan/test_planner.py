"""The whole plan: what it contains, and that the order of declaration doesn't matter."""

from __future__ import annotations

import pickle

from graph_builder import AppBuilder, shuffled
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.core.errors import PlanError
from headrace.core.ids import SSP, StreamId
from headrace.plan.partitions import join_groups
from headrace.plan.planner import plan


def test_a_plan_says_who_writes_and_reads_each_stream():
    app = AppBuilder()
    by_k = app.partition_by("by-k", app.input("s", 2))
    app.output("out", app.window("w", by_k))
    result = app.plan()
    assert {id_: (s.writers, s.readers) for id_, s in result.streams.items()} == {
        "by-k": (("s",), ("by-k",)),
        "out": (("by-k",), ()),
        "s": ((), ("s",)),
    }
    assert list(result.streams) == ["by-k", "out", "s"]
    assert result.streams["by-k"].ssps() == (SSP(StreamId("log", "by-k"), 0), SSP(StreamId("log", "by-k"), 1))
    assert result.stage("by-k") is result.stages[1]


def test_a_plan_without_expressions_is_equal_after_pickling():
    app = AppBuilder()
    app.output("out", app.partition_by("by-k", app.input("s", 2)))
    result = app.plan()
    assert pickle.loads(pickle.dumps(result)) == result


# -- the order of declaration -------------------------------------------------------------------------------------


@st.composite
def apps(draw: st.DrawFn) -> AppBuilder:
    """Apps of any shape; many of them can't be planned."""
    app = AppBuilder(intermediate_partitions=draw(st.sampled_from([None, 3])))
    some_count = st.sampled_from([2, 2, 2, 4])
    flows = [app.input(f"s{n}", draw(some_count)) for n in range(draw(st.integers(1, 4)))]
    tables = []
    for n in range(draw(st.integers(0, 2))):
        sides = [app.side_input(f"side{n}", draw(some_count))] if draw(st.booleans()) else []
        tables.append(app.table(f"t{n}", *sides))
    pick = st.sampled_from
    for n in range(draw(st.integers(1, 10))):
        start, kind = (
            draw(pick(flows)),
            draw(pick(["part", "part", "join", "merge", "window", "table", "fill"])),
        )
        match kind:
            case "part":
                count = draw(pick([None, None, None, 2]))
                flows.append(app.partition_by(f"x{n}", start, **({"partitions": count} if count else {})))
            case "join":
                flows.append(app.join(f"j{n}", start, draw(pick(flows))))
            case "merge":
                flows.append(app.merge(f"m{n}", start, draw(pick(flows))))
            case "window":
                flows.append(app.window(f"w{n}", start))
            case "table" if tables:
                flows.append(app.table_join(f"l{n}", start, draw(pick(tables))))
            case "fill" if tables and f"{start}-fills-{tables[0]}" not in app.nodes:
                app.fill(tables[0], start)
            case _:
                pass
    app.output("out", flows[-1])
    return app


def figure_5() -> AppBuilder:
    app = AppBuilder()
    s1, s2, s4 = app.input("s1", 16), app.input("s2", 64), app.input("s4", 32)
    by_k = app.partition_by("s2-by-k", s2)
    app.output("s3", app.join("first", s1, by_k))
    app.output("s5", app.join("second", by_k, s4))
    return app


@given(apps(), st.integers())
@example(figure_5(), 7)
@settings(max_examples=examples(300), deadline=None)
def test_an_app_declared_in_another_order_gives_the_same_plan_or_the_same_error(app: AppBuilder, seed: int):
    def outcome(graph):
        try:
            result = plan(graph, app.facts)
        except PlanError as error:
            return str(error)
        return result.stages, list(result.streams.items())

    graph = app.graph()
    assert outcome(graph) == outcome(shuffled(graph, seed))


@given(apps())
@settings(max_examples=examples(300), deadline=None)
def test_every_plan_keeps_what_plans_promise(app: AppBuilder):
    try:
        result = app.plan()
    except PlanError:
        return
    for group in join_groups(result.graph):
        assert len({result.streams[stream].partitions for stream in group.streams}) == 1
    names = [stage.name for stage in result.stages]
    assert len(set(names)) == len(names)
    assert {node for stage in result.stages for node in stage.nodes} == set(result.graph.nodes)
    for number, stage in enumerate(result.stages):
        for stream in stage.inputs:
            assert set(result.streams[stream].writers) <= set(names[:number])
        place = {node: n for n, node in enumerate(stage.nodes)}
        for node in stage.nodes:
            assert all(place[before] < place[node] for before in result.graph.nodes[node].inputs)
        read = {ssp for task in stage.tasks for ssp in task.inputs}
        wanted = {ssp for stream in (*stage.inputs, *stage.side_inputs) for ssp in result.streams[stream].ssps()}
        assert read == wanted
    producers = [task.producer for stage in result.stages for task in stage.tasks]
    assert len(set(producers)) == len(producers)


def test_many_apps_of_the_generator_can_be_planned():
    """Otherwise the test above would check little."""
    outcomes = []

    @given(apps())
    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    def count(app: AppBuilder) -> None:
        try:
            outcomes.append(len(app.plan().stages))
        except PlanError:
            outcomes.append(0)

    count()
    assert sum(stages > 1 for stages in outcomes) > 20
    assert outcomes.count(0) > 10


def test_planning_a_long_app_takes_no_deep_stack():
    app = AppBuilder()
    flow = app.input("s", 2)
    for n in range(3000):
        flow = app.filter(f"f{n:04}", flow)
    app.output("out", flow)
    assert len(app.plan().stages[0].nodes) == 3002
