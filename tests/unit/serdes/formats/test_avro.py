from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.formats import FormatSpec, open_format


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def datum(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


PLACE = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "long"}]}
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)

TYPES: list[tuple[Any, Any, pl.DataType, Any]] = [
    ("int", 1, pl.Int32(), 1),
    ("long", -(2**62), pl.Int64(), -(2**62)),
    ("float", 1.5, pl.Float32(), 1.5),
    ("double", 2.5, pl.Float64(), 2.5),
    ("boolean", True, pl.Boolean(), True),
    ("string", "ü", pl.String(), "ü"),
    ("bytes", b"\x00\xff", pl.Binary(), b"\x00\xff"),
    (["null", "string"], None, pl.String(), None),
    (["long", "null"], 5, pl.Int64(), 5),
    (logical("int", "date"), dt.date(2026, 1, 2), pl.Date(), dt.date(2026, 1, 2)),
    (logical("long", "timestamp-millis"), NOON, pl.Datetime("ms", "UTC"), NOON),
    (logical("long", "timestamp-micros"), NOON, pl.Datetime("us", "UTC"), NOON),
    (logical("long", "time-micros"), dt.time(1, 2), pl.Time(), dt.time(1, 2)),
    (logical("bytes", "decimal", precision=10, scale=2), Decimal("1.23"), pl.Decimal(10, 2), Decimal("1.23")),
    ({"type": "fixed", "name": "Four", "size": 4}, b"abcd", pl.Binary(), b"abcd"),
    ({"type": "enum", "name": "Size", "symbols": ["s", "l"]}, "l", pl.String(), "l"),
    ({"type": "array", "items": ["null", "long"]}, [1, None], pl.List(pl.Int64()), [1, None]),
    (["null", PLACE], {"x": 1}, pl.Struct({"x": pl.Int64()}), {"x": 1}),
    ({"type": "array", "items": PLACE}, [{"x": 1}], pl.List(pl.Struct({"x": pl.Int64()})), [{"x": 1}]),
]


@pytest.mark.parametrize(("type_", "value", "dtype", "read"), TYPES)
def test_each_type_is_a_column(type_: Any, value: Any, dtype: pl.DataType, read: Any) -> None:
    schema = record(first="long", it=type_, last="string")
    format = open_format(FormatSpec("avro", schema))
    assert format.columns() == {"first": pl.Int64(), "it": dtype, "last": pl.String()}
    payload = datum(schema, {"first": 7, "it": value, "last": "end"})
    decoded = format.decoder(format.columns() or {}).decode([payload] * 3)
    assert decoded.frame.schema == format.columns()
    assert decoded.frame.rows() == [(7, read, "end")] * 3


def test_a_named_type_may_be_used_again() -> None:
    schema = record(one=PLACE, two="Place", three=["null", "Place"]) | {"namespace": "shop"}
    format = open_format(FormatSpec("avro", json.dumps(schema)))
    payload = datum(schema, {"one": {"x": 1}, "two": {"x": 2}, "three": {"x": 3}})
    assert format.decoder(format.columns() or {}).decode([payload]).frame.rows() == [({"x": 1}, {"x": 2}, {"x": 3})]


def test_columns_are_those_that_the_app_declares() -> None:
    schema = record(at=logical("long", "timestamp-millis"), n="int", rest="string")
    decoder = open_format(FormatSpec("avro", schema)).decoder({"n": pl.Int64(), "at": pl.Datetime("us")})
    decoded = decoder.decode([datum(schema, {"at": NOON, "n": 1, "rest": "x"})])
    assert decoded.frame.schema == {"n": pl.Int64(), "at": pl.Datetime("us")}
    assert decoded.frame.rows() == [(1, NOON.replace(tzinfo=None))]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"m": pl.Int64()}, "the Avro schema has no field 'm'; it has n"),
        ({"n": pl.Int32()}, "the field 'n' is of type i64 and can't be read as i32"),
    ],
)
def test_columns_that_the_schema_does_not_have(columns: dict[str, pl.DataType], message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        open_format(FormatSpec("avro", record(n="long"))).decoder(columns)
    assert message in caught.value.message


ITSELF = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the Avro schema isn't JSON"),
        (None, "the Avro schema isn't one of a record"),
        ("null", "the Avro schema isn't one of a record"),
        ({"type": "record", "name": "R", "fields": []}, "record 'R' has no fields"),
        ({"type": "record", "fields": [{"name": "a", "type": "int"}]}, "a record has no name"),
        (record(a="Missing"), "the Avro schema, field a: unknown type 'Missing'"),
        (record(a=ITSELF), "the Avro schema, field a.next: 'Node' contains itself"),
        (record(a={"type": "map", "values": "long"}), "field a: .*map.* can't be read as a column"),
        (record(a=["null", "long", "string"]), "can't be read as a column"),
        (record(a="null"), "unknown type 'null'"),
        (record(a={"type": "array", "items": {"type": "null"}}), "can't be read as a column"),
        (record(a={"type": "fixed", "name": "F", "size": 0}), "can't be read as a column"),
    ],
)
def test_schemas_that_have_no_columns(schema: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        open_format(FormatSpec("avro", schema))
    assert caught.value.hint


ROWS = record(member=["null", "string"], n="long", tags={"type": "array", "items": "string"})
LONGS = st.integers(-(2**63), 2**63 - 1)
ROW = st.fixed_dictionaries({"member": st.none() | st.text(), "n": LONGS, "tags": st.lists(st.text(), max_size=3)})


def decode(payloads: list[bytes]) -> tuple[list[Any], list[int]]:
    format = open_format(FormatSpec("avro", ROWS))
    decoded = format.decoder(format.columns() or {}).decode(payloads)
    return decoded.frame.rows(named=True), [index for index, _ in decoded.bad]


@given(st.lists(ROW, max_size=8))
def test_what_is_written_can_be_read(rows: list[dict[str, Any]]) -> None:
    format = open_format(FormatSpec("avro", ROWS))
    payloads = format.encode(pl.DataFrame(rows, schema=format.columns()))
    assert payloads == [datum(ROWS, row) for row in rows]
    assert decode(payloads) == (rows, [])


@given(ROW, ROW, st.data())
def test_a_damaged_payload_is_bad_and_takes_nothing_of_its_neighbours(
    left: dict[str, Any], right: dict[str, Any], data: st.DataObject
) -> None:
    payload = datum(ROWS, left)
    cut = data.draw(st.integers(0, len(payload)))
    rest = data.draw(st.binary(max_size=3))
    # What the first one lacks, the second one has too much: together they would be two datums again.
    damaged = [payload[:cut], payload[cut:] + datum(ROWS, right)] if cut < len(payload) else [payload + b"\x00" + rest]
    rows, bad = decode([datum(ROWS, right), *damaged, datum(ROWS, left)])
    assert rows[0] == right
    assert rows[-1] == left
    assert 1 in bad


def test_a_row_that_the_schema_does_not_take_is_refused() -> None:
    with pytest.raises(DataError, match="a row can't be written as Avro"):
        open_format(FormatSpec("avro", record(n="long"))).encode(pl.DataFrame({"n": [None]}, {"n": pl.Int64}))
