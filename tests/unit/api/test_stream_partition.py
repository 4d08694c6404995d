"""partition_by and broadcast: through an intermediate stream into a new stage."""

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.steps import Broadcast, Input, PartitionBy, Project
from headrace.api.specs import Role
from headrace.core.ids import StreamId


def test_partition_by_writes_an_intermediate_stream_and_reads_it(app: hr.App, views: hr.Stream) -> None:
    by_member = views.partition_by("member", id="by-member", partitions=4)
    by_member.send_to(app.output("out"))
    graph = app.graph()
    written, read = graph.nodes["by-member"], graph.nodes["input-by-member"]
    assert (written.operator, written.schema) == (PartitionBy("by-member", ("member",)), None)
    assert (read.operator, read.inputs, read.schema) == (Input("by-member"), (), views.schema)
    stream = graph.streams["by-member"]
    assert (stream.role, stream.partitions, stream.broadcast) == (Role.INTERMEDIATE, 4, False)
    assert stream.stream == StreamId("log", "page-views-by-member")
    assert by_member.event_time == stream.event_time == views.event_time


def test_a_key_by_expression_becomes_a_column(app: hr.App, views: hr.Stream) -> None:
    day = (pl.col("ts") // 86_400_000).alias("day")
    by_day = views.partition_by([pl.col("member"), day], id="by-day")
    by_day.send_to(app.output("out"))
    nodes = app.graph().nodes
    assert isinstance(nodes["with_columns-1"].operator, Project)
    assert nodes["by-day"].operator == PartitionBy("by-day", ("member", "day"))
    assert list(by_day.schema.columns)[-1] == "day"


def test_keys_may_be_columns_and_expressions(app: hr.App, views: hr.Stream) -> None:
    keyed = views.partition_by(["member", (pl.col("ts") // 86_400_000).alias("day")], id="by-day", partitions=3)
    keyed.send_to(app.output("out"))
    nodes = app.graph().nodes
    assert isinstance(nodes["with_columns-1"].operator, Project)
    assert nodes["by-day"].operator == PartitionBy("by-day", ("member", "day"))
    assert list(keyed.schema.columns) == [*views.schema.columns, "day"]
    assert keyed.event_time == views.event_time


def test_broadcast_goes_to_every_task(app: hr.App, views: hr.Stream) -> None:
    views.broadcast(id="to-all").send_to(app.output("out"))
    graph = app.graph()
    assert graph.nodes["to-all"].operator == Broadcast("to-all")
    assert graph.streams["to-all"].broadcast


WRONG: list[tuple[Callable[[hr.Stream], object], str]] = [
    (lambda s: s.partition_by("member", id="a b"), "id 'a b' is not a usable id"),
    (lambda s: s.partition_by("member", id="../x"), "id '../x' is not a usable id"),
    (lambda s: s.partition_by("member", id="views"), "already has the id 'views'"),
    (lambda s: s.partition_by([], id="x"), "partition_by needs a key"),
    (lambda s: s.partition_by([pl.col("nope").alias("day")], id="x"), "there is no column 'nope'"),
    (lambda s: s.partition_by("nope", id="x"), "there is no column 'nope'"),
    (lambda s: s.partition_by(["url", "url"], id="x"), "the key names 'url' twice"),
    (lambda s: s.partition_by([3], id="x"), "a key is a column name or an expression, not int"),  # type: ignore[arg-type]
    (lambda s: s.partition_by(pl.col("url").str.head(1), id="x"), "would replace the column 'url'"),
    (lambda s: s.with_columns(t=pl.concat_list("url")).partition_by("t", id="x"), "can't be a key"),
    (lambda s: s.partition_by("url", id="x", partitions=0), "partitions=0 is not a number of partitions"),
    (lambda s: s.partition_by("url", id="x", partitions=10**9), "partitions=1000000000 is not a number of partitions"),
    (lambda s: s.partition_by("url", id="x", partitions=True), "partitions=True is not a number"),
]


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_errors(views: hr.Stream, step: Callable[[hr.Stream], object], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        step(views)
    assert "\n  at " in caught.value.message
    assert caught.value.hint


def test_an_id_used_twice_names_both_lines(views: hr.Stream) -> None:
    views.partition_by("member", id="same")
    with pytest.raises(hr.errors.DeclarationError) as caught:
        views.partition_by("url", id="same")
    assert caught.value.message.count("test_stream_partition.py:") == 2
    assert caught.value.message.endswith('views.partition_by("url", id="same")')
