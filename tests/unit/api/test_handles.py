"""send_to and sink: where flows end."""

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.join import SendToTable
from headrace.api.operators.steps import SendTo, Sink
from headrace.api.specs import Role


def test_the_first_flow_sets_the_schema_of_an_output(app: hr.App, views: hr.Stream) -> None:
    out = app.output("out", partitions=3)
    assert out.schema is None
    views.send_to(out, key="member")
    assert out.schema == views.schema
    graph = app.graph()
    node, stream = graph.nodes["send_to-1"], graph.streams["out"]
    assert (node.operator, node.inputs, node.schema) == (SendTo("out", ("member",)), ("input-views",), None)
    assert (stream.role, stream.partitions, stream.schema) == (Role.SINK, 3, views.schema)


def test_several_flows_may_go_to_one_output(app: hr.App, views: hr.Stream) -> None:
    out = app.output("out", schema={"url": pl.String, "ms": pl.Int64})
    views.select("url", "ms").send_to(out)
    views.select("ms", "url").send_to(out)
    nodes = app.graph().nodes
    last = nodes[nodes["send_to-2"].inputs[0]]
    assert last.schema == out.schema, "the columns are brought to the output's order"


def test_a_table_is_put_into_by_its_key(app: hr.App, views: hr.Stream) -> None:
    table = app.table("latest", key=("member", "url"))
    views.send_to(table)
    graph = app.graph()
    assert graph.nodes["send_to-1"].operator == SendToTable("latest")
    assert (table.schema, graph.tables["latest"].key) == (views.schema, ("member", "url"))


def test_a_sink_takes_batches(app: hr.App, views: hr.Stream) -> None:
    seen: list[pl.DataFrame] = []
    views.sink(seen.append)
    operator = app.graph().nodes["sink-1"].operator
    assert isinstance(operator, Sink)
    assert operator.function == seen.append


def test_a_name_declares_an_output_once(app: hr.App, views: hr.Stream) -> None:
    views.select("url").send_to("urls")
    views.filter("ms > 5").select("url").send_to("urls")
    app.output("members", partitions=3)
    views.select("member").send_to("members", key="member")
    graph = app.graph()
    assert [node.operator for node in graph.nodes.values() if isinstance(node.operator, SendTo)] == [
        SendTo("urls"),
        SendTo("urls"),
        SendTo("members", ("member",)),
    ]
    urls, members = graph.streams["urls"], graph.streams["members"]
    assert (urls.role, str(urls.stream), urls.partitions) == (Role.SINK, "log.urls", None)
    assert urls.location.file == __file__
    assert members.partitions == 3


Step = Callable[[hr.App, hr.Stream], object]
WRONG: list[tuple[Step, str]] = [
    (lambda a, s: s.send_to(s), r"a flow can't be sent to Stream Stream\('input-views'"),  # type: ignore[arg-type]
    (lambda a, s: s.send_to(5), "a flow can't be sent to int 5"),  # type: ignore[arg-type]
    (lambda a, s: s.send_to("views"), r"'views' is the name of an input \(at .*\), not of an output"),
    (lambda a, s: (a.table("t", key="url"), s.send_to("t")), "'t' is the name of a table"),
    (lambda a, s: s.partition_by("url").send_to("by-url"), "'by-url' is the name of partition_by"),
    (lambda a, s: s.send_to("no name"), "'no name' is not a valid id"),
    (lambda a, s: s.send_to(a.output("o"), key="nope"), "there is no column 'nope'"),
    (lambda a, s: s.send_to(a.output("o", schema={"url": pl.Int64})), "doesn't fit 'o'"),
    (lambda a, s: s.send_to(a.table("t", key="nope")), "there is no column 'nope'"),
    (lambda a, s: s.send_to(a.table("t", key="url"), key="url"), "key= is for outputs"),
    (lambda a, s: s.send_to(hr.App("b").output("o")), "'o' belongs to the app 'b'"),
    (
        lambda a, s: s.send_to(a.table("t", key="key", side_inputs=[a.input("raw")])),
        r"the table 't' \(at .*\) is filled by side inputs",
    ),
]


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_errors(app: hr.App, views: hr.Stream, step: Step, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        step(app, views)
    assert caught.value.message.startswith("send_to: ")
    assert caught.value.hint


def test_the_second_flow_must_fit_the_first(app: hr.App, views: hr.Stream) -> None:
    out = app.output("out")
    views.select("url").send_to(out)
    with pytest.raises(hr.errors.DeclarationError, match="'url' is missing; 'ms' is not expected") as caught:
        views.select("ms").send_to(out)
    assert caught.value.hint == "its columns are url String; select or cast before send_to"
