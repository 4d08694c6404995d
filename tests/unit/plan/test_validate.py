"""Apps that can't be planned, and the errors that say why."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from graph_builder import SCHEMA, AppBuilder

from headrace.api.operators.join import SendToTable, TableJoin
from headrace.api.operators.spec import EventTime
from headrace.api.operators.steps import Filter, Input, PartitionBy, SendTo
from headrace.api.specs import Node
from headrace.core.errors import PlanError
from headrace.plan.planner import plan
from headrace.rows.schema import Schema
from headrace.systems.base import StreamInfo
from headrace.systems.registry import SystemSpec


def error_of(app: AppBuilder) -> str:
    with pytest.raises(PlanError) as caught:
        app.plan()
    return str(caught.value)


def simple_app(**settings: object) -> AppBuilder:
    app = AppBuilder(**settings)
    app.output("out", app.input("s", 4))
    return app


# -- streams and facts ------------------------------------------------------------------------------------


def test_a_missing_input_comes_with_the_command_that_creates_it():
    app = AppBuilder()
    app.output("out", app.input("s", None))
    text = error_of(app)
    assert text.startswith("source 's' doesn't exist\n  at /app/pipeline.py:1: app.input(\"s\")\n")
    assert text.endswith("hint: create it: headrace stream create s --partitions N, or let the start do it: create=N")


def test_a_missing_input_of_another_name_and_a_declared_count_is_created_under_these():
    app = AppBuilder()
    app.output("out", app.input("s", None, partitions=3, physical="raw"))
    text = error_of(app)
    assert "source 's' (log.raw)" in text
    assert text.endswith("headrace stream create raw --partitions 3, or let the start do it: create=N")


def test_missing_files_cannot_be_created():
    app = AppBuilder()
    app.output("out", app.input("s", None))
    app.streams["s"] = replace(app.streams["s"], system=SystemSpec("files-s", "files", {}))
    assert "check the location that the system 'files-s' names" in error_of(app)


def test_a_missing_side_input():
    app = AppBuilder()
    t = app.table("t", app.side_input("side", 4))
    app.output("out", app.table_join("j", app.input("s", 4), t))
    app.facts["side"] = None
    assert "side-input 'side' doesn't exist\n  at /app/pipeline.py:1:" in error_of(app)


def test_a_stream_without_partitions():
    app = simple_app()
    app.facts["s"] = StreamInfo("s", 0)
    assert "source 's' (/app/pipeline.py:1: app.input(\"s\")) has 0 partitions" in error_of(app)


@pytest.mark.parametrize("role", ["source", "intermediate", "sink"])
def test_a_declared_partition_count_of_zero(role: str):
    app = AppBuilder()
    count = {name: {"partitions": 0} if name == role else {} for name in ("source", "intermediate", "sink")}
    by_k = app.partition_by("by-k", app.input("s", 4, **count["source"]), **count["intermediate"])
    app.output("out", by_k, **count["sink"])
    assert "is declared with 0 partitions" in error_of(app)


def test_a_setting_of_zero_intermediate_partitions():
    assert "app 'test-app' sets intermediate_partitions to 0" in error_of(simple_app(intermediate_partitions=0))


@pytest.mark.parametrize("stream", ["s", "out"])
def test_a_declared_count_that_what_exists_contradicts(stream: str):
    app = simple_app()
    app.streams[stream] = replace(app.streams[stream], partitions=7)
    app.facts[stream] = StreamInfo(stream, 4)
    assert "is declared with 7 partitions, and has 4" in error_of(app)


def test_an_input_that_lacks_a_column():
    app = simple_app()
    app.streams["s"] = replace(app.streams["s"], schema=SCHEMA)
    app.facts["s"] = StreamInfo("s", 4, {"key": pl.String(), "ts": pl.Int64()})
    assert (
        "source 's' (/app/pipeline.py:1: app.input(\"s\")) doesn't match what the app declares: column 'k'"
        in error_of(app)
    )


def test_an_input_with_a_column_that_cannot_become_what_is_declared():
    app = simple_app()
    app.streams["s"] = replace(app.streams["s"], schema=SCHEMA)
    app.facts["s"] = StreamInfo("s", 4, {"k": pl.String(), "ts": pl.List(pl.String())})
    assert "doesn't match what the app declares: column 'ts'" in error_of(app)


def test_an_input_with_more_columns_or_narrower_ones_is_read():
    app = simple_app()
    app.streams["s"] = replace(app.streams["s"], schema=SCHEMA)
    app.facts["s"] = StreamInfo("s", 4, {"more": pl.Date(), "k": pl.String(), "ts": pl.Int32()})
    assert app.counts()["s"] == 4


LOOK = {
    "b": pl.String(), "t": pl.String(), "w": pl.Int64(), "zip": pl.Int64(), "f": pl.Float64(),
    "l": pl.List(pl.String()), "s": pl.Struct({"x": pl.String(), "more": pl.Int64()}), "more": pl.String(),
}  # fmt: skip
PARSED = {
    "b": pl.Binary(), "t": pl.Time(), "w": pl.Duration("ms"), "zip": pl.String(), "f": pl.Float32(),
    "l": pl.List(pl.Date()), "s": pl.Struct({"x": pl.Binary(), "missing": pl.Int8()}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARSED)
def test_text_is_parsed_as_the_declared_types_whatever_it_looks_like(name: str):
    app = simple_app()
    app.streams["s"] = replace(app.streams["s"], schema=Schema({"k": pl.String(), name: PARSED[name]}))
    app.facts["s"] = StreamInfo("s", 4, {"k": pl.String(), **LOOK}, parsed=True)
    assert app.counts()["s"] == 4
    app.facts["s"] = replace(app.facts["s"], parsed=False)
    assert f"doesn't match what the app declares: column '{name}'" in error_of(app)


@pytest.mark.parametrize(("name", "dtype"), [("l", pl.Int64()), ("zip", pl.Date()), ("s", pl.List(pl.Int64()))])
def test_text_that_cannot_be_parsed_as_declared(name: str, dtype: pl.DataType):
    app = simple_app()
    app.streams["s"] = replace(app.streams["s"], schema=Schema({"k": pl.String(), name: dtype}))
    app.facts["s"] = StreamInfo("s", 4, {"k": pl.String(), **LOOK}, parsed=True)
    error = error_of(app)
    assert f"doesn't match what the app declares: column '{name}'" in error
    assert error.endswith("in the program that writes it")


def test_an_output_that_holds_something_else():
    app = simple_app()
    app.streams["out"] = replace(app.streams["out"], schema=SCHEMA)
    app.facts["out"] = StreamInfo("out", 4, {"k": pl.String(), "ts": pl.Int32()})
    assert "has different columns from those that the app would write: 'ts' is i32 there and i64 here" in error_of(app)


def test_an_output_that_lacks_a_column_says_how_to_send_null():
    app = simple_app()
    app.streams["out"] = replace(app.streams["out"], schema=SCHEMA)
    app.facts["out"] = StreamInfo("out", 4, {**SCHEMA.columns, "note": pl.String()})
    assert "hint: send null: .with_columns(note=pl.lit(None, pl.String))" in error_of(app)


def test_an_output_may_have_new_columns_or_lack_those_that_were_added():
    app = simple_app()
    app.streams["out"] = replace(app.streams["out"], schema=SCHEMA)
    app.facts["out"] = StreamInfo("out", 4, {"k": pl.String()})
    assert app.counts()["out"] == 4
    app.facts["out"] = StreamInfo("out", 4, {**SCHEMA.columns, "note": pl.String()}, added=frozenset({"note"}))
    assert app.counts()["out"] == 4


def test_an_output_with_a_renamed_column_is_refused():
    app = simple_app()
    app.streams["out"] = replace(app.streams["out"], schema=SCHEMA)
    app.facts["out"] = StreamInfo("out", 4, {"key": pl.String(), "ts": pl.Int64()})
    assert "different columns from those that the app would write: 'key' is only there; 'k' is only here" in error_of(
        app
    )
    assert "hint: select the columns it holds, or send to another stream" in error_of(app)


def test_a_declared_column_that_the_stream_lacks_can_be_added_to_it():
    app = simple_app()
    app.streams["s"] = replace(app.streams["s"], schema=SCHEMA)
    app.facts["s"] = StreamInfo("s", 4, {"k": pl.String()})
    assert "hint: add it to the stream: headrace stream add-column s 'ts:i64'" in error_of(app)


# -- the graph --------------------------------------------------------------------------------------------


def test_an_app_that_reads_nothing():
    assert "app 'test-app' has no input" in error_of(AppBuilder())


def test_a_node_that_no_input_reaches():
    app = simple_app()
    app.output("out", app.filter("orphan", app.node("lonely", Filter(pl.lit(True)))))
    assert "filter 'lonely' (/app/pipeline.py:5: lonely) can't be reached from any input" in error_of(app)


def test_operators_in_a_circle():
    app = simple_app()
    app.node("a", Filter(pl.lit(True)), "b")
    app.node("b", Filter(pl.lit(True)), "a")
    assert "operators feed each other in a cycle: a -> b -> a (/app/pipeline.py:5)" in error_of(app)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (Input("nowhere"), "names the stream 'nowhere', which isn't in the app"),
        (TableJoin("nowhere", ("k",), "inner"), "names the table 'nowhere', which isn't in the app"),
        (SendTo("s"), "can't use source 's'"),
        (Input("out"), "can't use sink 'out'"),
        (PartitionBy("out", ("k",)), "it is declared as sink"),
    ],
)
def test_a_node_that_names_what_is_not_there_or_is_something_else(operator, expected: str):
    app = simple_app()
    app.node("bad", operator, *([] if isinstance(operator, Input) else ["in-s"]))
    assert expected in error_of(app)


def test_a_node_that_takes_the_output_of_none():
    app = simple_app()
    app.filter("f", "nobody")
    assert "takes the output of 'nobody', which isn't in the app" in error_of(app)


def test_an_intermediate_stream_that_nothing_writes():
    app = simple_app()
    app.partition_by("by-k", "in-s")
    node: Node = app.nodes.pop("write-by-k")
    assert node.operator == PartitionBy("by-k", ("k",))
    assert "nothing writes intermediate 'by-k'" in error_of(app)


def test_one_container_at_least():
    with pytest.raises(Exception, match="at least one container, not 0"):
        plan(simple_app().graph(), {"s": StreamInfo("s", 1)}, containers=0)


# -- tables -----------------------------------------------------------------------------------------------


def test_a_table_that_is_joined_but_never_filled():
    app = AppBuilder()
    app.output("out", app.table_join("j", app.input("s", 4), app.table("t")))
    text = error_of(app)
    assert text.startswith("nothing ever fills table 't' (/app/pipeline.py:3), and join 'j' (/app/pipeline.py:4")
    assert "hint: send a stream to it" in text


def test_a_table_that_nobody_uses():
    app = simple_app()
    app.table("t")
    assert "nothing ever fills table 't' (/app/pipeline.py:5)\n" in error_of(app)


def test_a_table_with_two_origins():
    app = AppBuilder()
    app.fill(app.table("t", app.side_input("side", 4)), app.input("s", 4))
    assert "is filled by side inputs, but send_to 'in-s-fills-t'" in error_of(app)


def test_a_side_input_that_is_no_input():
    app = simple_app()
    app.table("t", "out")
    assert "table 't' (/app/pipeline.py:5) has the side input 'out', which isn't an input of the app" in error_of(app)


def test_a_global_table_filled_by_a_stream_that_each_task_reads_in_part():
    app = AppBuilder()
    t = app.table("t", kind="global")
    app.fill(t, app.filter("f", app.input("s", 4)))
    text = error_of(app)
    assert "global table 't' (/app/pipeline.py:1) would hold only some rows in each task" in text
    assert ".broadcast(" in text


def test_a_global_table_filled_by_what_differs_between_tasks():
    app = AppBuilder()
    t, parts = app.table("t", kind="global"), app.table("parts")
    app.fill(parts, app.input("s", 4))
    app.fill(t, app.table_join("j", app.broadcast("all", app.input("r", 4)), parts))
    text = error_of(app)
    assert "global table 't' (/app/pipeline.py:1) would hold different rows in each task" in text
    assert "join 'j'" in text and "the local table 'parts'" in text


def test_a_global_table_filled_by_a_join_with_another_one():
    app = AppBuilder()
    t, all_ = app.table("t", kind="global"), app.table("all", kind="global")
    app.fill(all_, app.input("s", 4, broadcast=True))
    app.fill(t, app.table_join("j", app.broadcast("rules", app.input("r", 4)), all_))
    assert len(app.plan().stages) == 2


def test_a_local_table_written_in_every_task_and_in_one():
    def app(*, broadcast: bool) -> AppBuilder:
        app = AppBuilder()
        t, changes, gone = app.table("t"), app.input("changes", 4), app.input("gone", 4)
        app.fill(t, app.broadcast("all", changes))
        app.fill(t, app.broadcast("all-gone", gone) if broadcast else app.partition_by("gone-by-k", gone))
        return app

    app(broadcast=True).plan()
    text = error_of(app(broadcast=False))
    assert "local table 't' (/app/pipeline.py:1): send_to 'in-all-fills-t'" in text
    assert 'kind="global"' in text


def test_a_table_of_versions_needs_times_on_all_sides():
    def versioned(*, fill: bool, ask: bool, side: bool = False) -> AppBuilder:
        app = AppBuilder()
        sides = [app.side_input("side", 1)] if side else []
        app.table("t", *sides)
        app.tables["t"] = replace(app.tables["t"], versions_ms=0)
        time = EventTime("ts")
        if not side:
            app.node("fill", SendToTable("t", time=time if fill else None), app.input("fills", 1))
        asking = app.node("ask", TableJoin("t", ("k",), "inner", time=time if ask else None), app.input("asks", 1))
        app.output("answers", asking)
        return app

    versioned(fill=True, ask=True).plan()
    assert "table 't' (/app/pipeline.py:1)" in error_of(versioned(fill=False, ask=True))
    assert "has versions, and send_to 'fill'" in error_of(versioned(fill=False, ask=True))
    assert "has versions, and join 'ask'" in error_of(versioned(fill=True, ask=False))
    assert "has versions, and its side-input 'side'" in error_of(versioned(fill=True, ask=True, side=True))
