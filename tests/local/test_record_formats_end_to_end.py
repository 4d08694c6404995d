"""Apps whose inputs need a schema registry, or are changes of a table: over a Kinesis stream in this process."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pytest

import headrace as hr
from headrace.connectors.kinesis.memory import KinesisStream
from servers.schema_registry import Refusal, SchemaRegistry, schema_registry


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as registry:
        yield registry


def stop_when(rows: list[Any], done: Callable[[], bool]) -> Callable[[pl.DataFrame], None]:
    def keep(frame: pl.DataFrame) -> None:
        rows.extend(frame.rows())
        if done():
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does

    return keep


def schema(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": type_} for name, type_ in fields]}


def framed(id: int, writer: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), value)
    return b"\0" + id.to_bytes(4, "big") + out.getvalue()


def test_records_wait_for_a_registry_that_is_away(tmp_path: Path, server: SchemaRegistry) -> None:
    old, new = schema(("n", "int")), schema(("n", "long"), ("note", "string"))
    ids = [server.put("a", old), server.put("b", new)]
    server.refuse = Refusal(503, 50301, "starting")
    app = hr.App("shop", home=tmp_path)
    orders = app.input(
        "orders",
        {"n": pl.Int64, "note": pl.String},
        system=hr.io.kinesis(
            "orders-away", endpoint_url="memory://", format=hr.io.avro(registry=hr.io.registry(server.url))
        ),
        on_error="dead_letter",
        dead_letter=app.output("unreadable"),
    )
    rows: list[Any] = []
    orders.sink(stop_when(rows, lambda: len(rows) == 3))
    asked = threading.Event()

    def come_back() -> None:
        while not server.requests:
            asked.wait(0.01)
        server.refuse = None

    waiting = threading.Thread(target=come_back)
    waiting.start()
    with KinesisStream("orders-away") as stream:
        stream.put("k", framed(ids[0], old, {"n": 1}), b"nothing", framed(ids[1], new, {"n": 2, "note": "x"}))
        stream.put("k", framed(ids[0], old, {"n": 3}))
        app.run(local=True, progress=False)
    waiting.join()
    assert rows == [(1, None), (2, "x"), (3, None)]
    letters = hr.streams.read_stream("unreadable", home=tmp_path)
    assert letters["raw"].to_list() == [b"nothing"]
    assert "no header of a schema registry" in letters["reason"].item()


def test_changes_of_a_database_keep_a_table(tmp_path: Path) -> None:
    def change(op: str, id: int, country: str | None = None) -> str:
        row = {"id": id, "country": country}
        before, after = (row, None) if op == "d" else (None, row)
        return json.dumps({"payload": {"op": op, "before": before, "after": after, "source": {"ts_ms": 1}}})

    app = hr.App("members", home=tmp_path)
    columns = {"id": pl.Int64, "country": pl.String, "gone": pl.Boolean}
    system = hr.io.kinesis("members-changed", endpoint_url="memory://", format=hr.io.debezium(deleted="gone"))
    changes = app.input("changes", columns, system=system)
    countries = app.table("countries", key="id", deleted="gone")
    changes.partition_by("id", id="by-id").send_to(countries)
    asked = app.input("asked", {"id": pl.Int64})
    found = asked.partition_by("id", id="asked-by-id").join(countries, how="left")
    found.send_to(app.output("found"))
    with app.test() as t:
        t.feed("changes", [{"id": 1, "country": "AT", "gone": False}, {"id": 2, "country": "DE", "gone": False}])
        t.feed("changes", [{"id": 1, "country": "CH", "gone": False}, {"id": 2, "country": "DE", "gone": True}])
        t.feed("asked", [{"id": 1}, {"id": 2}])
        assert sorted(t.read("found").rows()) == [(1, "CH"), (2, None)]

    changed: list[Any] = []
    found_rows: list[Any] = []

    def live() -> hr.App:
        live = hr.App("live", home=tmp_path)
        table = live.table("countries", key="id", deleted="gone")
        by_id = live.input("changes", columns, system=system).partition_by("id", id="by-id")
        by_id.send_to(table)
        by_id.sink(stop_when(changed, lambda: len(changed) == 5))
        asked = live.input("asked", {"id": pl.Int64}).partition_by("id", id="asked-by-id")
        asked.join(table, how="left").sink(stop_when(found_rows, lambda: len(found_rows) == 3))
        return live

    with KinesisStream("members-changed") as stream:
        stream.put("1", change("r", 1, "AT"), change("u", 1, "CH"), change("c", 2, "DE"))
        stream.put("1", change("d", 2, "DE"), change("c", 3, None))
        hr.streams.create_stream("asked", partitions=1, schema={"id": pl.Int64}, home=tmp_path)
        live().run(local=True, progress=False)
        with hr.streams.StreamWriter("asked", home=tmp_path) as writer:
            writer.write([{"id": 1}, {"id": 2}, {"id": 3}])
        live().run(local=True, progress=False)
    each = [(1, "AT", False), (1, "CH", False), (2, "DE", False), (2, "DE", True), (3, None, False)]
    assert sorted(changed, key=str) == sorted(each, key=str)
    assert sorted(found_rows) == [(1, "CH"), (2, None), (3, None)]
