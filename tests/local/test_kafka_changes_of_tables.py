"""Apps whose tables follow topics: tombstones, and Debezium's changes with schemas in a registry."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
from in_thread import running

import headrace as hr
from chaos.kafka_server import KfakeServer
from servers.kafka_topics import Topic
from servers.schema_registry import Refusal, schema_registry


def keep(rows: list[Any], count: int) -> Callable[[pl.DataFrame], None]:
    """Keep rows, and end the app when there are enough."""

    def take(frame: pl.DataFrame) -> None:
        rows.extend(frame.rows())
        if len(rows) == count:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does

    return take


def ask(home: Path, column: str, keys: list[Any]) -> None:
    dtype = pl.Int64 if isinstance(keys[0], int) else pl.String
    hr.streams.create_stream("asked", partitions=1, schema={column: dtype}, home=home)
    with hr.streams.StreamWriter("asked", home=home) as writer:
        writer.write([{column: key} for key in keys])


def test_tombstones_delete_rows_of_a_table(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = Topic(kfake)
    for key, value in (("ann", "AT"), ("bob", "DE"), ("eve", "CH"), ("bob", None), ("ann", "FR"), ("eve", None)):
        data = None if value is None else json.dumps({"country": value}).encode()
        topic.put([data], key=key.encode())
    topic.put([b'{"country": "IT"}'], key=b"eve")
    ask(tmp_path, "member", ["ann", "bob", "eve", "joe"])
    app = hr.App("located", home=tmp_path)
    countries = app.input(
        "countries",
        {"member": pl.String, "country": pl.String, "deleted": pl.Boolean},
        system=hr.io.kafka(
            topic.name,
            brokers=topic.brokers,
            format=hr.io.changelog("json"),
            key_format="text",
            record_columns={"member": "key"},
        ),
    )
    table = app.table("countries-now", key="member", side_inputs=countries, deleted="deleted")
    rows: list[Any] = []
    app.input("asked", {"member": pl.String}).join(table, how="left").sink(keep(rows, 4))
    app.run(local=True, progress=False)
    assert sorted(rows, key=str) == [("ann", "FR"), ("bob", None), ("eve", "IT"), ("joe", None)]


def test_a_tombstone_that_no_format_knows_goes_to_the_dead_letters(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = Topic(kfake)
    topic.put([b'{"n": 1}', None, b'{"n": 2}'])
    app = hr.App("plain", home=tmp_path)
    rows: list[Any] = []
    app.input(
        "numbers",
        {"n": pl.Int64},
        system=hr.io.kafka(topic.name, brokers=topic.brokers),
        on_error="dead_letter",
        dead_letter=app.output("unreadable"),
    ).sink(keep(rows, 2))
    app.run(local=True, progress=False)
    assert rows == [(1,), (2,)]
    [reason] = hr.streams.read_stream("unreadable", home=tmp_path)["reason"].to_list()
    assert "no value, which deletes its key" in reason


NUMBERS = {"type": "record", "name": "Number", "fields": [{"name": "n", "type": "long"}]}
ROW = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": ["null", "string"], "default": None}],
}


def envelope(row: dict[str, Any]) -> dict[str, Any]:
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    before, after = ["null", row], ["null", "Value"]
    fields = {"before": before, "after": after, "source": source, "op": "string"}
    return {"type": "record", "name": "Envelope", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def test_a_table_follows_a_database_whose_schema_changes(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = Topic(kfake)
    older, newer = envelope(ROW), envelope({**ROW, "fields": [*ROW["fields"], {"name": "vip", "type": "boolean"}]})
    ask(tmp_path, "id", [1, 2, 3])
    with schema_registry() as registry:

        def change(schema: dict[str, Any], op: str, **row: Any) -> bytes:
            id = registry.put("members-value" if schema is older else "members-2-value", schema)
            value = {"before": row if op == "d" else None, "after": None if op == "d" else row, "op": op}
            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {**value, "source": {"ts_ms": 5}})
            return b"\0" + id.to_bytes(4, "big") + out.getvalue()

        topic.put([change(older, "r", id=1, country="AT"), change(older, "c", id=2, country="DE")])
        topic.put([change(older, "d", id=2, country="DE"), None])
        topic.put([change(newer, "u", id=1, country="CH", vip=True), change(newer, "c", id=3, country=None, vip=False)])
        app = hr.App("members", home=tmp_path)
        members = app.input(
            "members",
            {"id": pl.Int64, "country": pl.String, "vip": pl.Boolean, "gone": pl.Boolean, "at": pl.Int64},
            system=hr.io.kafka(
                topic.name,
                brokers=topic.brokers,
                format=hr.io.debezium(
                    hr.io.avro(registry=hr.io.registry(registry.url)), deleted="gone", about={"at": "source_ts_ms"}
                ),
            ),
        )
        table = app.table("members-now", key="id", side_inputs=members, deleted="gone")
        rows: list[Any] = []
        app.input("asked", {"id": pl.Int64}).join(table, how="left").sink(keep(rows, 3))
        app.run(local=True, progress=False)
    assert sorted(rows) == [(1, "CH", True, 5), (2, None, None, None), (3, None, False, 5)]


def test_records_wait_for_a_registry_and_are_read_once(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = Topic(kfake, 2)
    with schema_registry() as registry:
        id = registry.put("numbers-value", NUMBERS)

        def numbers(first: int, count: int) -> list[bytes | None]:
            found: list[bytes | None] = []
            for n in range(first, first + count):
                out = io.BytesIO()
                fastavro.schemaless_writer(out, fastavro.parse_schema(NUMBERS), {"n": n})
                found.append(b"\0" + id.to_bytes(4, "big") + out.getvalue())
            return found

        def app() -> hr.App:
            made = hr.App("waiting", home=tmp_path, checkpoint_interval="50ms")
            system = hr.io.kafka(
                topic.name, brokers=topic.brokers, format=hr.io.avro(registry=hr.io.registry(registry.url))
            )
            rows = made.input("numbers", {"n": pl.Int64}, system=system)
            rows.send_to(made.output("copies", partitions=2))
            return made

        topic.put(numbers(0, 5))
        with running(app(), tmp_path) as run:
            run.until(lambda: run.numbers() == list(range(5)))
        # The next run knows no schema yet, and nobody answers.
        registry.refuse = Refusal(503, 50301, "starting")
        asked = len(registry.requests)
        topic.put(numbers(5, 5), partition=1)
        topic.put(numbers(10, 5))
        with running(app(), tmp_path) as run:
            run.until(lambda: len(registry.requests) > asked + 1)
            assert run.numbers() == list(range(5))
            registry.refuse = None
            run.until(lambda: run.numbers() == list(range(15)))
            assert run.errors == []


TOTAL = {"type": "record", "name": "Total", "fields": [{"name": "euros", "type": ["null", "double"]}]}


def test_a_table_goes_from_app_to_app_through_a_topic(tmp_path: Path, kfake: KfakeServer) -> None:
    topic = Topic(kfake)
    columns = {"member": pl.String, "euros": pl.Float64, "gone": pl.Boolean}
    with schema_registry() as registry:
        format = hr.io.changelog(
            hr.io.avro(TOTAL, registry=hr.io.registry(registry.url), register=True), deleted="gone"
        )
        writing = hr.App("writing", home=tmp_path, checkpoint_interval="50ms")
        totals = writing.output(
            "totals", system=hr.io.kafka(topic.name, brokers=topic.brokers, format=format, key="member")
        )
        writing.input("given", columns).send_to(totals)
        hr.streams.create_stream("given", partitions=1, schema=columns, home=tmp_path)
        with hr.streams.StreamWriter("given", home=tmp_path) as writer:
            writer.write(
                [{"member": m, "euros": e, "gone": False} for m, e in (("ann", 5.0), ("bob", 7.0), ("eve", None))]
            )
            writer.write([{"member": "bob", "euros": 1.0, "gone": True}, {"member": "ann", "euros": 6.0, "gone": None}])
            writer.seal()
        writing.run(local=True, progress=False)
        assert registry.subjects == {f"{topic.name}-value": [1]}

        ask(tmp_path, "member", ["ann", "bob", "eve"])
        reading = hr.App("reading", home=tmp_path)
        changes = reading.input(
            "totals",
            system=hr.io.kafka(
                topic.name, brokers=topic.brokers, format=format, key_format="text", record_columns={"member": "key"}
            ),
        )
        table = reading.table("totals-now", key="member", side_inputs=changes, deleted="gone")
        rows: list[Any] = []
        reading.input("asked", {"member": pl.String}).join(table, how="left", suffix="_now").sink(keep(rows, 3))
        reading.run(local=True, progress=False)
    assert sorted(rows, key=str) == [("ann", 6.0), ("bob", None), ("eve", None)]
