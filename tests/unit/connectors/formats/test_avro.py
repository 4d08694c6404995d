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
from headrace.rows.formats import FormatSpec, open_format


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def datum(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def debezium(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": f"io.debezium.time.{name}"}


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
    (
        logical("long", "local-timestamp-micros"),
        NOON.replace(tzinfo=None),
        pl.Datetime("us"),
        NOON.replace(tzinfo=None),
    ),
    (debezium("int", "Date"), 20455, pl.Date(), dt.date(2026, 1, 2)),
    (debezium("int", "Time"), 5, pl.Time(), dt.time(0, 0, 0, 5000)),
    (debezium("long", "MicroTime"), 5, pl.Time(), dt.time(0, 0, 0, 5)),
    (debezium("long", "Timestamp"), 5, pl.Datetime("ms"), dt.datetime(1970, 1, 1, 0, 0, 0, 5000)),
    (debezium("long", "MicroTimestamp"), 5, pl.Datetime("us"), dt.datetime(1970, 1, 1, 0, 0, 0, 5)),
    (debezium("long", "NanoTimestamp"), 5, pl.Int64(), 5),
    (logical("long", "time-micros"), dt.time(1, 2), pl.Time(), dt.time(1, 2)),
    (logical("bytes", "decimal", precision=10, scale=2), Decimal("1.23"), pl.Decimal(10, 2), Decimal("1.23")),
    ({"type": "fixed", "name": "Four", "size": 4}, b"abcd", pl.Binary(), b"abcd"),
    ({"type": "enum", "name": "Size", "symbols": ["s", "l"]}, "l", pl.String(), "l"),
    ({"type": "array", "items": ["null", "long"]}, [1, None], pl.List(pl.Int64()), [1, None]),
    (["null", PLACE], {"x": 1}, pl.Struct({"x": pl.Int64()}), {"x": 1}),
    (
        {"type": "map", "values": ["null", "long"]},
        {"a": 1, "b": None},
        pl.List(pl.Struct({"key": pl.String(), "value": pl.Int64()})),
        [{"key": "a", "value": 1}, {"key": "b", "value": None}],
    ),
    (
        {"type": "map", "values": PLACE},
        {},
        pl.List(pl.Struct({"key": pl.String(), "value": pl.Struct({"x": pl.Int64()})})),
        [],
    ),
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
    assert format.encode(decoded.frame) == [payload] * 3


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
        (None, "the Avro schema doesn't describe a record"),
        ("null", "the Avro schema doesn't describe a record"),
        ({"type": "record", "name": "R", "fields": []}, "record 'R' has no fields"),
        ({"type": "record", "fields": [{"name": "a", "type": "int"}]}, "a record has no name"),
        (record(a="Missing"), "the Avro schema, field a: unknown type 'Missing'"),
        (record(a=ITSELF), "the Avro schema, field a.next: 'Node' contains itself"),
        (record(a={"type": "map", "values": ["long", "string"]}), "field a: .* can't be read as a column"),
        (record(a=["null", "long", "string"]), "can't be read as a column"),
        (record(a=["long"]), "can't be read as a column"),
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


AT_X = pl.Struct({"x": pl.Int64})
NESTED = record(
    place=["null", record(x=["long", "null"], tags={"type": "array", "items": ["null", "string"]}) | {"name": "Place"}],
    places={"type": "array", "items": ["null", "Place"]},
    counts={"type": "map", "values": "int"},
    size={"type": "enum", "name": "Size", "symbols": ["s", "m", "l"]},
    price=logical("bytes", "decimal", precision=38, scale=3),
    day=["null", logical("int", "date")],
    milli=logical("int", "time-millis"),
    ratio=["null", "double"],
    small="float",
    ok=["boolean", "null"],
)
PLACES = st.none() | st.fixed_dictionaries(
    {"x": st.none() | LONGS, "tags": st.lists(st.none() | st.text(max_size=3), max_size=3)}
)


def shortest(n: int) -> bool:
    """Fastavro writes numbers such as -128 with a byte more than they need."""
    return n.bit_length() != (n + 1).bit_length() + 1 or n.bit_length() % 8 != 0


DEEP = st.fixed_dictionaries(
    {
        "place": PLACES,
        "places": st.lists(PLACES, max_size=3),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(-(2**31), 2**31 - 1), max_size=3),
        "size": st.sampled_from("sml"),
        "price": st.integers(-(10**38) + 1, 10**38 - 1)
        .filter(shortest)
        .map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -3))),
        "day": st.none() | st.dates(),
        "milli": st.integers(0, 86_399_999).map(lambda ms: (dt.datetime.min + dt.timedelta(milliseconds=ms)).time()),
        "ratio": st.none() | st.floats(allow_nan=False),
        "small": st.floats(width=32, allow_nan=False),
        "ok": st.none() | st.booleans(),
    }
)


@given(st.lists(DEEP, max_size=6))
def test_nested_rows_are_written_as_fastavro_writes_them(rows: list[dict[str, Any]]) -> None:
    format = open_format(FormatSpec("avro", NESTED))
    columns = format.columns()
    entries = [{**row, "counts": [{"key": k, "value": v} for k, v in row["counts"].items()]} for row in rows]
    payloads = format.encode(pl.DataFrame(entries, schema=columns))
    assert payloads == [datum(NESTED, row) for row in rows]
    decoded = format.decoder(columns or {}).decode(payloads)
    assert decoded.frame.rows(named=True) == entries


@pytest.mark.parametrize(
    ("fields", "rows", "reason"),
    [
        ({"n": "long"}, pl.DataFrame({"n": [None]}, {"n": pl.Int64}), "'n' is null, which the schema doesn't allow"),
        ({"n": "long", "m": "long"}, pl.DataFrame({"n": [1]}), "field 'm' is null"),
        ({"n": "long"}, pl.DataFrame({"n": [1], "m": [2]}), "the schema has no field 'm'; it has n"),
        ({"n": "int"}, pl.DataFrame({"n": [2**40]}), "field 'n' is of type i32, but the value is 1099511627776"),
        ({"n": {"type": "enum", "name": "E", "symbols": ["a"]}}, pl.DataFrame({"n": ["b"]}), "can't be 'b'; it is"),
        ({"n": {"type": "fixed", "name": "F", "size": 2}}, pl.DataFrame({"n": [b"a"]}), "must have exactly 2 bytes"),
        ({"n": {"type": "array", "items": "long"}}, pl.DataFrame({"n": [[1, None]]}), r"field 'n\[\]' is null"),
        ({"n": ["null", PLACE]}, pl.DataFrame({"n": [{"x": None}]}, {"n": AT_X}), "field 'n.x' is null"),
        ({"n": logical("long", "timestamp-millis")}, pl.DataFrame({"n": [NOON.replace(microsecond=5)]}), "value is"),
        ({"n": "bytes"}, pl.DataFrame({"n": [1]}), "column 'n': expected Binary"),
    ],
)  # fmt: skip
def test_rows_that_the_schema_does_not_take_are_refused(fields: Any, rows: pl.DataFrame, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        open_format(FormatSpec("avro", record(**fields))).encode(rows)
    assert caught.value.hint


def test_a_column_that_rows_lack_has_the_default_of_its_field() -> None:
    fields = [
        {"name": "n", "type": "long"},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["s", "m"]}, "default": "m"},
        {"name": "data", "type": "bytes", "default": "\u00ff"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}, "default": 5},
    ]
    schema = {"type": "record", "name": "Order", "fields": fields[:-1]}
    [payload] = open_format(FormatSpec("avro", schema)).encode(pl.DataFrame({"n": [1]}))
    format = open_format(FormatSpec("avro", schema))
    assert format.decoder(format.columns() or {}).decode([payload]).frame.rows() == [(1, "m", b"\xff", [], None)]
    with pytest.raises(DataError, match="its default 5 can't be used"):
        open_format(FormatSpec("avro", {**schema, "fields": fields})).encode(pl.DataFrame({"n": [1]}))


def test_rows_may_have_narrower_types_and_other_zones() -> None:
    format = open_format(FormatSpec("avro", record(n="long", x="double", at=logical("long", "timestamp-millis"))))
    at = pl.Series([NOON]).dt.convert_time_zone("Europe/Vienna")
    for frame in (
        pl.DataFrame({"n": pl.Series([1], dtype=pl.Int8), "x": pl.Series([1], dtype=pl.Int16), "at": at}),
        pl.DataFrame({"n": [1], "x": [1.0], "at": [NOON.replace(tzinfo=None)]}),
    ):
        [payload] = format.encode(frame)
        assert format.decoder(format.columns() or {}).decode([payload]).frame.rows() == [(1, 1.0, NOON)]
