"""graph(): the app as frozen data. Unused parts are left out, and unfinished ones are refused."""

import re
from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr
from headrace.api.specs import DEAD_LETTER_COLUMNS, Role


def test_nodes_and_streams_come_in_order_of_declaration(app: hr.App, views: hr.Stream) -> None:
    by_member = views.filter(pl.col("ms") > 1).partition_by("member", id="by-member")
    by_member.window(hr.tumbling("1s"), key="member", id="per-s").agg(n=hr.count()).send_to(app.output("o"))
    graph = app.graph()
    assert list(graph.nodes) == ["input-views", "filter-1", "by-member", "input-by-member", "per-s", "send_to-1"]
    assert list(graph.streams) == ["views", "by-member", "o"]
    assert graph.successors()["input-by-member"] == ("per-s",)
    assert graph.app == "page-views"


def test_a_graph_is_not_touched_by_what_comes_later(app: hr.App, views: hr.Stream) -> None:
    views.sink(print)
    before = app.graph()
    views.send_to(app.output("o"))
    assert list(before.nodes) == ["input-views", "sink-1"]
    assert list(before.streams) == ["views"]


def test_locations_are_the_users_lines(app: hr.App, views: hr.Stream) -> None:
    views.drop("ms").sink(print)  # this line
    node = app.graph().nodes["drop-1"]
    assert node.location.text == 'views.drop("ms").sink(print)  # this line'
    assert node.location.file == __file__


def test_what_no_flow_touches_is_left_out(app: hr.App, views: hr.Stream) -> None:
    app.input("unused")
    app.output("unwritten")
    app.table("empty", key="x", side_inputs=app.input("side", {"x": pl.Int64}))
    views.sink(print)
    graph = app.graph()
    assert (list(graph.streams), list(graph.tables)) == (["views"], [])


@pytest.mark.parametrize("declare", [False, True])
def test_an_app_without_a_flow_is_refused(declare: bool) -> None:
    app = hr.App("nothing")
    if declare:
        app.input("views")
    with pytest.raises(hr.errors.DeclarationError, match=r"the app 'nothing' has no flow\n  at .*test_freeze.py"):
        app.graph()


def test_a_flow_needs_an_end(app: hr.App, views: hr.Stream) -> None:
    views.sink(print)
    views.filter(pl.col("ms") > 1)
    with pytest.raises(hr.errors.DeclarationError, match="nothing uses the results of the step 'filter-1'") as caught:
        app.graph()
    assert caught.value.message.endswith('views.filter(pl.col("ms") > 1)')


def test_so_does_an_intermediate_stream(app: hr.App, views: hr.Stream) -> None:
    views.partition_by("member", id="p")
    with pytest.raises(hr.errors.DeclarationError, match="nothing uses the results of the step 'input-p'"):
        app.graph()


def test_a_joined_table_must_be_filled(app: hr.App, views: hr.Stream) -> None:
    views.join(app.table("t", "member", {"member": pl.String})).sink(print)
    with pytest.raises(hr.errors.DeclarationError, match="the table 't' is joined, but nothing fills it"):
        app.graph()


def test_a_user_s_id_and_a_derived_one_don_t_meet(app: hr.App, views: hr.Stream) -> None:
    views.partition_by("member", id="filter-1").filter(pl.col("ms") > 1).sink(print)
    assert "filter-2" in app.graph().nodes
    views.drop("ms")
    with pytest.raises(hr.errors.DeclarationError, match=r"another step at .* already has the id 'drop-1'"):
        views.partition_by("member", id="drop-1")


@pytest.mark.parametrize(
    ("first", "second", "advice"),
    [
        ("step", "output", 'app.output("sessions-output", physical="sessions")'),
        ("table", "input", 'app.input("sessions-input", physical="sessions")'),
        ("output", "step", 'id="sessions-deduplicate"'),
        ("output", "table", 'app.table("sessions-table")'),
    ],
)
def test_an_id_with_two_owners_is_refused_where_both_are_named_and_the_hint_can_be_followed(
    app: hr.App, views: hr.Stream, first: str, second: str, advice: str
) -> None:
    declare: dict[str, Callable[[str, str | None], object]] = {
        "step": lambda name, _: views.deduplicate("member", within="1h", id=name).sink(print),
        "output": lambda name, physical: app.output(name, physical=physical),
        "input": lambda name, physical: app.input(name, physical=physical),
        "table": lambda name, _: app.table(name, key="member"),
    }
    declare[first]("sessions", None)
    with pytest.raises(
        hr.errors.DeclarationError, match=r"test_freeze\.py:\d+ already has the id 'sessions'"
    ) as caught:
        declare[second]("sessions", None)
    assert advice in str(caught.value.hint)
    names = re.findall('"([^"]+)"', advice)
    declare[second](names[0], names[-1])


def test_the_output_of_dead_letters_has_their_columns(app: hr.App) -> None:
    app.input("raw", on_error="dead_letter", dead_letter=app.output("bad")).sink(print)
    spec = app.graph().streams["bad"]
    assert (spec.role, spec.schema) == (Role.SINK, hr.Schema.of(dict(DEAD_LETTER_COLUMNS)))


def test_several_inputs_may_share_one(app: hr.App) -> None:
    bad = app.output("bad", partitions=2)
    app.input("a", on_error="dead_letter", dead_letter=bad).sink(print)
    app.input("b", on_error="dead_letter", dead_letter=bad).sink(print)
    streams = app.graph().streams
    assert streams["bad"].partitions == 2
    assert {streams["a"].dead_letter, streams["b"].dead_letter} == {"bad"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("written", "its dead_letter 'written' is also written by the flow at "),
        ("shaped", "its dead_letter 'shaped' has a schema of its own"),
    ],
)
def test_but_nothing_else(app: hr.App, views: hr.Stream, name: str, message: str) -> None:
    outputs = {"shaped": app.output("shaped", schema={"x": pl.Int64}), "written": app.output("written")}
    views.send_to(outputs["written"])
    app.input("raw", on_error="dead_letter", dead_letter=outputs[name]).sink(print)
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        app.graph()
    assert caught.value.hint
