"""App, input, output, table: what they declare, and which declarations are refused."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.spec import EventTime
from headrace.api.specs import Role, Settings
from headrace.core.ids import StreamId
from headrace.systems.registry import SystemSpec


@dataclass
class Click:
    member: str
    ts: int


def test_settings_default_to_settings() -> None:
    assert hr.App("a").settings == Settings()
    app = hr.App("a", home="/h", intermediate_partitions=8, checkpoint_interval="5s", grouping="container")
    assert app.settings == Settings(
        home="/h", intermediate_partitions=8, checkpoint_interval_ms=5000, grouping="container"
    )


def test_an_input_says_all_of_itself() -> None:
    app = hr.App("a", home="/h")
    clicks = app.input(
        "clicks", Click, event_time="ts", lateness="5s", idle_timeout="1m", start="upcoming", broadcast=True
    )
    clicks.sink(print)
    spec = app.graph().streams["clicks"]
    assert (spec.role, spec.stream) == (Role.SOURCE, StreamId("log", "clicks"))
    assert spec.system == SystemSpec("log", "log", {"root": "/h/streams"})
    assert (spec.event_time, spec.lateness_ms, spec.idle_timeout_ms) == (EventTime("ts"), 5000, 60_000)
    assert (spec.start, spec.broadcast, spec.on_error) == ("upcoming", True, "fail")
    assert spec.schema is not None
    assert spec.schema.record is Click
    assert spec.location.file == __file__


def test_without_a_schema_a_message_is_bytes(app: hr.App) -> None:
    assert app.input("raw").schema == hr.Schema.of({"key": pl.Binary, "value": pl.Binary})


def test_streams_live_where_they_are_said_to(app: hr.App) -> None:
    app.input("raw", system=hr.io.files("data/*.csv")).send_to(app.output("o", system=hr.io.memory(), physical="p"))
    app.input("far", system=hr.io.log("/data/shared")).sink(print)
    app.input("own", system=SystemSpec("mine", "kafka", {"servers": "x"})).sink(print)
    streams = app.graph().streams
    assert streams["raw"].system == SystemSpec(
        "files-raw", "files", {"path": "data/*.csv", "list_file": ".headrace/files/page-views/raw.jsonl"}
    )
    assert streams["o"].stream == StreamId("memory", "p")
    assert streams["far"].system == SystemSpec("log-shared", "log", {"root": "/data/shared"})
    assert streams["own"].stream == StreamId("mine", "own")


def test_side_inputs_keep_a_table(app: hr.App, views: hr.Stream) -> None:
    members = app.input("members", {"member": pl.String, "age": pl.Int64})
    table = app.table("ages", key="member", side_inputs=members, kind="global")
    assert table.schema == members.schema
    views.join(table).sink(print)
    graph = app.graph()
    assert graph.streams["members"].role is Role.SIDE_INPUT
    assert (graph.tables["ages"].side_inputs, graph.tables["ages"].kind) == (("members",), "global")
    assert "input-members" not in graph.nodes
    with pytest.raises(hr.errors.DeclarationError, match="is the side input of a table only"):
        members.filter(pl.col("age") > 1)


Step = Callable[[hr.App, hr.Stream], object]
TIMED = {"t": pl.Int64}
WRONG: list[tuple[Step, str]] = [
    (lambda a, v: hr.App("page views"), "App: app name 'page views' is not a usable id"),
    (lambda a, v: hr.App("a", intermediate_partitions=0), "partitions=0 is not a number of partitions"),
    (lambda a, v: hr.App("a", checkpoint_interval="0s"), "checkpoint_interval: 0 is below 1 ms"),
    (lambda a, v: hr.App("a", ahead_bytes_max=0), "ahead_bytes_max=0 is not a number of bytes"),
    (lambda a, v: hr.App("a", standby=4), "standby=4 is not a number of standbys from 0 to 3"),
    (lambda a, v: hr.App("a", standby=True), "standby=True is not a number of standbys"),
    (lambda a, v: hr.App("a", guarantee="never"), "guarantee='never' is not one of the choices"),  # type: ignore[arg-type]
    (lambda a, v: a.input("views"), "already has the id 'views'"),
    (lambda a, v: a.input("v", physical="views"), "the stream log.views is already declared as 'views'"),
    (lambda a, v: a.input("a/b"), "id 'a/b' is not a usable id"),
    (lambda a, v: a.input("i", {"x": complex}), "column 'x'"),
    (lambda a, v: a.input("i", TIMED, event_time="ts"), "there is no column 'ts'"),
    (lambda a, v: a.input("i", {"t": pl.Int32}, event_time="t"), "the event time column 't' is Int32"),
    (lambda a, v: a.input("i", TIMED, event_time="t", lateness="-5s"), "lateness: '-5s' is below 0 ms"),
    (lambda a, v: a.input("i", TIMED, event_time="t", idle_timeout="0s"), "idle_timeout: 0 is below 1 ms"),
    (lambda a, v: a.input("i", TIMED, lateness="5s"), "lateness= needs an event time"),
    (lambda a, v: a.input("i", on_error="ignore"), "on_error='ignore' is not one of the choices"),  # type: ignore[arg-type]
    (lambda a, v: a.input("i", on_error="dead_letter"), "needs the output that unreadable messages go to"),
    (lambda a, v: a.input("i", dead_letter=a.output("x")), 'dead_letter= is given, but on_error is "fail"'),
    (lambda a, v: a.input("i", start="newest"), "start='newest' is not one of the choices"),  # type: ignore[arg-type]
    (lambda a, v: a.input("i", system="files"), "system='files' isn't the URL of a system"),
    (lambda a, v: a.input("i", system=hr.io.log("/x", name="log")), "two systems are named 'log'"),
    (lambda a, v: a.output("o", partitions=-1), "partitions=-1 is not a number of partitions"),
    (lambda a, v: a.output("o", partitions=65_537), "partitions=65537 is not a number of partitions"),
    (lambda a, v: hr.App("a", intermediate_partitions=10**9), "partitions=1000000000 is not a number of partitions"),
    (lambda a, v: a.table("t", key=()), "a table needs a key"),
    (lambda a, v: a.table("t", key=None), "a table needs a key"),
    (lambda a, v: a.table("t", key="x", schema={"y": pl.Int64}), "there is no column 'x'"),
    (lambda a, v: a.table("views", key="x"), "already has the id 'views'"),
    (lambda a, v: a.table("t", key="x", kind="remote"), 'kind="remote" needs remote='),  # type: ignore[arg-type]
    (lambda a, v: a.table("t", key="x", ttl="0s"), "ttl: '0s' is below 1 ms"),
    (lambda a, v: a.table("t", key="url", side_inputs=["v"]), "must be a stream, not str v"),  # type: ignore[list-item]
    (lambda a, v: a.table("t", key="url", side_inputs=[v.select("url")]), "'select-1' is computed"),
    (lambda a, v: a.table("t", "url", side_inputs=[v, v.filter("ms")]), "is Int64, not Boolean"),
    (lambda a, v: a.table("t", "url", {"url": pl.String}, side_inputs=v), "doesn't fit the table: 'member'"),
    (lambda a, v: a.table("t", "url", side_inputs=hr.App("b").input("v")), "belongs to another app, 'b'"),
    (lambda a, v: (v.sink(print), a.table("t", "url", side_inputs=v)), "is read by a flow"),  # type: ignore[func-returns-value]
]


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_errors(app: hr.App, views: hr.Stream, step: Step, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        step(app, views)
    assert "\n  at " in caught.value.message
    assert "test_app.py" in caught.value.message


def test_reprs_say_what_is_there(app: hr.App, views: hr.Stream) -> None:
    assert repr(app) == "App('page-views': 1 steps, 1 streams)"
    assert repr(views.select("ts")) == "Stream('select-1': ts Int64; event time ts)"
    assert repr(app.output("o")) == "Output('o', schema not known yet)"
    assert repr(app.table("t", key="url")) == "Table('t', key=url, schema not known yet)"


def test_dead_letters_go_to_outputs_of_the_same_app(app: hr.App) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="'bad' belongs to the app 'other'"):
        app.input("raw", on_error="dead_letter", dead_letter=hr.App("other").output("bad"))
    with pytest.raises(hr.errors.DeclarationError, match="dead_letter= takes an output, not int 7"):
        app.input("raw", on_error="dead_letter", dead_letter=7)  # type: ignore[arg-type]
    app.input("raw", on_error="dead_letter", dead_letter="bad").send_to("good")
    assert app.graph().streams["raw"].dead_letter == "bad"
    assert app.graph().streams["bad"].role is Role.SINK
