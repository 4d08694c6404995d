from __future__ import annotations

import datetime as dt
import io
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import fastavro
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.connectors.formats.registered_avro import RegisteredAvroFormat, avro_to_register
from headrace.connectors.formats.registry import (
    UNKNOWN_TRIES,
    RegistryClient,
    RegistrySettings,
    SchemaSource,
    SubjectWriter,
)
from headrace.core.clock import ManualClock
from headrace.core.errors import DataError, DeclarationError, InfrastructureError, UnavailableError
from headrace.rows.formats import Decoded, FormatSpec, open_format
from servers.schema_registry import Refusal, SchemaRegistry, schema_registry


def record(**fields: Any) -> dict[str, Any]:
    """A schema: the type of each field, or a type and its default."""
    listed = []
    for name, type_ in fields.items():
        one, *default = type_ if isinstance(type_, tuple) else (type_,)
        listed.append({"name": name, "type": one} | ({"default": default[0]} if default else {}))
    return {"type": "record", "name": "Order", "fields": listed}


def framed(id: int, schema: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema)), value)
    return b"\0" + id.to_bytes(4, "big") + out.getvalue()


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as registry:
        yield registry


def spec(server: SchemaRegistry, schema: object = None, **more: Any) -> FormatSpec:
    return FormatSpec("avro", schema, {"registry": {"url": server.url, "timeout_ms": 30_000}, **more})  # type: ignore[arg-type]


def decode(
    server: SchemaRegistry, payloads: list[bytes | None], columns: Mapping[str, pl.DataType], schema: object = None
) -> Decoded:
    """Decode by a clock of its own: an id that isn't there is asked for again after pauses."""
    clock = ManualClock()
    source = SchemaSource(RegistryClient(RegistrySettings(server.url)), clock, wait_ms=30_000)
    decoder = RegisteredAvroFormat(schema, source, None).decoder(columns)
    for _ in range(UNKNOWN_TRIES - 1):
        try:
            return decoder.decode(payloads)
        except UnavailableError:
            clock.advance(1000)
    return decoder.decode(payloads)


N = {"n": pl.Int64()}
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


def test_each_record_is_read_by_the_schema_that_it_names(server: SchemaRegistry) -> None:
    first, second, third = record(n="int"), record(note="string", n="long"), record(n=["null", "int"], more="double")
    ids = [server.put(f"orders-{i}", one) for i, one in enumerate((first, second, third))]
    payloads: list[bytes | None] = [
        framed(ids[0], first, {"n": 1}),
        framed(ids[1], second, {"note": "x" * 100, "n": 2}),
        framed(ids[0], first, {"n": 3}),
        framed(ids[2], third, {"n": None, "more": 0.5}),
        framed(ids[1], second, {"note": "", "n": 5}),
    ]
    decoded = decode(server, payloads, {"n": pl.Int64(), "note": pl.String()})
    assert decoded.frame.rows() == [(1, None), (2, "x" * 100), (3, None), (None, None), (5, "")]
    assert decoded.frame.schema == {"n": pl.Int64(), "note": pl.String()}
    assert not decoded.bad
    assert server.requests == [f"GET /schemas/ids/{id}" for id in ids]


def test_schemas_are_fetched_once(server: SchemaRegistry) -> None:
    schema = record(n="long")
    id = server.put("orders", schema)
    decoder = open_format(spec(server)).decoder(N)
    for n in range(5):
        assert decoder.decode([framed(id, schema, {"n": n})]).frame.rows() == [(n,)]
    assert len(server.requests) == 1


PLACE = record(street="string", zip="int") | {"name": "Place"}
EVOLVED = [
    # what was written, the reader's schema, what is read
    (record(a="int"), {"a": 1}, record(a="long", b=("string", "none")), (1, "none")),
    (record(a="int"), {"a": 1}, record(a="double"), (1.0,)),
    (record(a="long"), {"a": 1}, record(a="float"), (1.0,)),
    (record(a="float"), {"a": 0.5}, record(a="double"), (0.5,)),
    (record(a="string"), {"a": "ü"}, record(a="bytes"), ("ü".encode(),)),
    (record(a="bytes"), {"a": "ü".encode()}, record(a="string"), ("ü",)),
    (record(a="int", gone="string"), {"a": 1, "gone": "x"}, record(a="int"), (1,)),
    (record(a="int"), {"a": 1}, record(b=("bytes", "\xff")), (b"\xff",)),
    (record(a="int"), {"a": 1}, record(b=(["null", "int"], None)), (None,)),
    (record(a="int"), {"a": 1}, record(b=({"type": "array", "items": "int"}, [1, 2])), ([1, 2],)),
    (record(a="int"), {"a": 1}, record(b=(PLACE, {"street": "x", "zip": 3})), ({"street": "x", "zip": 3},)),
    (record(a=PLACE), {"a": {"street": "x", "zip": 3}}, record(a=record(zip="long", no=("int", 7)) | {"name": "Place"}),
     ({"zip": 3, "no": 7},)),
    (record(a={"type": "array", "items": PLACE}), {"a": [{"street": "x", "zip": 3}]},
     record(a={"type": "array", "items": record(zip="long") | {"name": "Place"}}), ([{"zip": 3}],)),
    (record(a=["null", PLACE]), {"a": None}, record(a=["null", record(zip="long") | {"name": "Place"}]), (None,)),
    (record(old="int"), {"old": 1},
     {"type": "record", "name": "Order", "fields": [{"name": "new", "type": "long", "aliases": ["old"]}]}, (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "value", "reader", "row"), EVOLVED)
def test_a_schema_may_change_as_avro_allows_it(
    server: SchemaRegistry, writer: dict[str, Any], value: dict[str, Any], reader: dict[str, Any], row: tuple[Any, ...]
) -> None:
    id = server.put("orders", writer)
    columns = open_format(spec(server, reader)).columns()
    assert columns is not None
    decoded = decode(server, [framed(id, writer, value)] * 2, columns, reader)
    assert decoded.bad == []
    assert decoded.frame.schema == columns
    assert decoded.frame.rows() == [row, row]
    # fastavro resolves schemas, too, except that it leaves a default of bytes as the text that stands for them.
    data = io.BytesIO(framed(id, writer, value)[5:])
    resolved = fastavro.schemaless_reader(data, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    assert tuple(resolved.values()) == (("\xff",) if row == (b"\xff",) else row)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("writer", "value", "reason"),
    [
        (record(n="string"), {"n": "1"}, "schema 1 .* columns of the input: the field 'n' is of type str .* as i64"),
        (
            record(m="int"),
            {"m": 1},
            "schema 1 .*: the field 'n' is missing, and the reader's schema has no default for it",
        ),
        (record(n=["int", "string"]), {"n": 5}, "schema 1 can't be read: .*field n"),
        (record(m="int", n=["int", "string"]), {"m": 1, "n": 5}, "schema 1 can't be read: .*field n"),
    ],
)
def test_a_schema_that_disagrees_makes_its_records_bad(
    server: SchemaRegistry, writer: dict[str, Any], value: dict[str, Any], reason: str
) -> None:
    id = server.put("orders", writer)
    good = record(n="long")
    other = server.put("others", good)
    payloads: list[bytes | None] = [framed(other, good, {"n": 1}), framed(id, writer, value)]
    decoded = decode(server, payloads, N, record(n="long"))
    assert decoded.frame.rows() == [(1,)]
    [(index, found)] = decoded.bad
    assert index == 1
    if "n" in value:  # what a record has is never taken for null
        assert [number for number, _ in decode(server, payloads, N).bad] == [1]
    assert re.search(reason, found), found


def test_records_that_cannot_be_read_are_bad_and_the_others_are_not(server: SchemaRegistry) -> None:
    schema = record(n="long")
    id = server.put("orders", schema)
    json_schema = server.put("json", {"type": "object"}, "JSON")
    good = framed(id, schema, {"n": 1})
    payloads = [
        good,
        b"",
        b'{"n": 1}',
        good[:4],
        framed(77, schema, {"n": 1}),
        framed(json_schema, schema, {"n": 1}),
        good + b"x",
        good[:5],
        None,
        good,
    ]
    decoded = decode(server, payloads, N)
    assert decoded.frame.rows() == [(1,), (1,)]
    reasons = dict(decoded.bad)
    assert list(reasons) == list(range(1, 9))
    assert reasons[1] == reasons[3] == "too short for the header of a schema registry"
    assert reasons[2] == "no header of a schema registry: it begins with 0x7b instead of 0x00"
    assert reasons[4] == "the registry has no schema 77"
    assert reasons[5] == f"its schema {json_schema} is of type JSON, not AVRO"
    assert reasons[6].startswith("not a datum of the Avro schema")
    assert reasons[7].endswith(f"(schema {id})")
    assert reasons[8].startswith("no value")


UNIONS = {"type": "record", "name": "Other", "fields": [{"name": "any", "type": ["null", "int", "string"]}]}


def test_fields_that_cannot_be_columns_are_passed_over(server: SchemaRegistry) -> None:
    schema = record(
        before=["null", "long", "string"],
        n="long",
        at={"type": "long", "logicalType": "timestamp-millis"},
        counts={"type": "map", "values": ["null", PLACE]},
        places={"type": "array", "items": ["null", "Place"]},
        price={"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        other=["null", UNIONS],
        size={"type": "enum", "name": "Size", "symbols": ["s", "m"]},
    )
    id = server.put("orders", schema)
    place = {"street": "x", "zip": 1}
    value = {"n": 7, "at": NOON, "counts": {"a": place, "b": None}, "places": [place, None], "price": Decimal("1.23")}
    values = [{**value, "before": before, "other": {"any": "x"}, "size": "m"} for before in (None, 5, "five")]
    payloads: list[bytes | None] = [framed(id, schema, one) for one in values]
    columns = {
        "n": pl.Float64(),
        "at": pl.Datetime("us"),
        "counts": pl.List(pl.Struct({"key": pl.String(), "value": pl.Struct({"zip": pl.Int64()})})),
        "places": pl.List(pl.Struct({"zip": pl.Int32()})),
        "price": pl.Decimal(5, 2),
        "size": pl.String(),
        "missing": pl.Int8(),
    }
    decoded = decode(server, [*payloads, (payloads[0] or b"")[:-1], (payloads[0] or b"") + b"x"], columns)
    counts = [{"key": "a", "value": {"zip": 1}}, {"key": "b", "value": None}]
    row = (7.0, NOON.replace(tzinfo=None), counts, [{"zip": 1}, None], Decimal("1.23"), "m", None)
    assert decoded.frame.schema == columns
    assert decoded.frame.rows() == [row] * 3
    assert [index for index, _ in decoded.bad] == [3, 4]


def test_types_of_other_subjects_are_found_by_reference(server: SchemaRegistry) -> None:
    server.put("place", PLACE)
    schema = json.dumps(record(at="Place"))
    id = server.put("orders", schema, references=[{"name": "Place", "subject": "place", "version": 1}])
    payload = framed(id, record(at=PLACE), {"at": {"street": "x", "zip": 1}})
    decoded = decode(server, [payload], {"at": pl.Struct({"zip": pl.Int32()})})
    assert decoded.frame.rows() == [({"zip": 1},)]


def test_a_registry_that_is_away_loses_nothing(server: SchemaRegistry) -> None:
    schema = record(n="long")
    id = server.put("orders", schema)
    server.refuse = Refusal(503, 50301, "starting")
    decoder = open_format(spec(server)).decoder(N)
    payloads = [framed(id, schema, {"n": n}) for n in range(3)]
    with pytest.raises(UnavailableError, match="can't answer now: starting"):
        decoder.decode(payloads)
    server.refuse = None
    decoded = decode(server, list(payloads), N)
    assert decoded.frame.rows() == [(0,), (1,), (2,)]


def test_a_writer_looks_its_schema_up(server: SchemaRegistry) -> None:
    schema = record(n="long")
    server.put("others", record(m="int"))
    id = server.put("orders-value", schema)
    format = open_format(spec(server, schema).under("orders-value"))
    assert format.encode(pl.DataFrame({"n": [1, 2]})) == [framed(id, schema, {"n": n}) for n in (1, 2)]
    format.encode(pl.DataFrame({"n": [1, 2]}))
    assert server.requests == ["POST /subjects/orders-value"]


def test_a_writer_registers_its_schema_only_if_told_to(server: SchemaRegistry) -> None:
    schema = record(n="long")
    rows = pl.DataFrame({"n": [1]})
    with pytest.raises(InfrastructureError, match="isn't registered under subject 'orders'") as caught:
        open_format(spec(server, schema, subject="orders")).encode(rows)
    assert "register=True" in (caught.value.hint or "")
    assert server.subjects == {}
    [payload] = open_format(spec(server, schema, subject="orders", register=True).under("other")).encode(rows)
    assert payload == framed(1, schema, {"n": 1})
    assert server.subjects == {"orders": [1]}
    with pytest.raises(DataError, match="breaks the subject's compatibility rule"):
        open_format(spec(server, record(n="string"), subject="orders", register=True)).encode(rows)


def test_a_writer_waits_a_while_for_a_registry(server: SchemaRegistry) -> None:
    schema = record(n="long")
    server.put("orders", schema)
    server.refuse = Refusal(503, 50301, "starting")
    waited = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            server.refuse = None

    client = RegistryClient(RegistrySettings(server.url))
    assert SubjectWriter(client, avro_to_register(schema), "orders", wait=wait).header() == b"\0\0\0\0\1"
    assert len(waited) == 3
    server.refuse = Refusal(503, 50301, "starting")
    with pytest.raises(UnavailableError):
        SubjectWriter(client, avro_to_register(schema), "orders", wait=lambda _: None).header()


def test_what_a_writer_needs_is_named(server: SchemaRegistry) -> None:
    with pytest.raises(DeclarationError, match="needs a subject of the registry, but none is given"):
        open_format(spec(server, record(n="long"))).encode(pl.DataFrame({"n": [1]}))
    with pytest.raises(DeclarationError, match="writing Avro needs a schema"):
        open_format(spec(server)).encode(pl.DataFrame({"n": [1]}))


def test_columns_are_checked_against_the_readers_schema(server: SchemaRegistry) -> None:
    with pytest.raises(DeclarationError, match="the Avro schema has no field 'm'"):
        open_format(spec(server, record(n="long"))).decoder({"m": pl.Int64()})
    assert open_format(spec(server)).columns() is None


ROW = st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1), "note": st.none() | st.text()})
PAYLOAD = st.one_of(
    st.tuples(st.just(1), ROW),
    st.tuples(st.just(2), ROW),
    st.tuples(st.none(), st.binary(max_size=12).filter(lambda data: data[:1] != b"\0")),
    st.tuples(st.none(), st.none()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(st.lists(PAYLOAD, max_size=12))
def test_rows_are_in_the_order_of_their_records(server: SchemaRegistry, drawn: list[tuple[int | None, Any]]) -> None:
    schemas = {1: record(n="long", note=["null", "string"]), 2: record(note=["string", "null"], n="long")}
    for number, schema in schemas.items():
        assert server.put(f"orders-{number}", schema) == number
    payloads = [value if id is None else framed(id, schemas[id], value) for id, value in drawn]
    decoded = decode(server, payloads, {"n": pl.Int64(), "note": pl.String()})
    assert decoded.frame.rows(named=True) == [value for id, value in drawn if id is not None]
    assert [index for index, _ in decoded.bad] == [index for index, (id, _) in enumerate(drawn) if id is None]
