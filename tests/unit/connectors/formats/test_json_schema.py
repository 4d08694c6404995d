from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.core.errors import DataError, DeclarationError, InfrastructureError
from headrace.rows.formats import open_format
from servers.schema_registry import SchemaRegistry, schema_registry

HEADER = b"\0\0\0\0\x07"
REGISTRY = hr.io.registry("http://localhost:1")  # which isn't asked for anything that is read


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


PLACE = of(street={"type": "string"}, zip={"type": "integer"})


@pytest.mark.parametrize(
    ("property", "value", "dtype", "read"),
    [
        ({"type": "string"}, "x", pl.String(), "x"),
        ({"type": "integer"}, 5, pl.Int64(), 5),
        ({"type": "number"}, 5, pl.Float64(), 5.0),
        ({"type": "boolean"}, True, pl.Boolean(), True),
        ({"type": ["null", "integer"]}, None, pl.Int64(), None),
        ({"type": ["integer", "number"]}, 0.5, pl.Float64(), 0.5),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, 5, pl.Int64(), 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, pl.Int64(), None),
        ({"enum": ["a", "b"]}, "a", pl.String(), "a"),
        ({"type": "string", "format": "date"}, "2026-01-02", pl.Date(), dt.date(2026, 1, 2)),
        ({"type": "string", "format": "date-time"}, "2026-01-02T03:04:05Z", pl.Datetime("us", "UTC"),
         dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        ({"type": "string", "format": "uuid"}, "x", pl.String(), "x"),
        ({"type": "string", "contentEncoding": "base64"}, "aGk=", pl.Binary(), b"hi"),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], pl.List(pl.Int64()), [1, 2]),
        (PLACE, {"zip": 4}, pl.Struct({"street": pl.String(), "zip": pl.Int64()}), {"street": None, "zip": 4}),
        ({"$ref": "#/$defs/place"}, {"zip": 4}, pl.Struct({"street": pl.String(), "zip": pl.Int64()}),
         {"street": None, "zip": 4}),
        ({"type": "array", "items": {"$ref": "#/$defs/a~1b"}}, ["x"], pl.List(pl.String()), ["x"]),
    ],
)  # fmt: skip
def test_each_type_is_a_column(property: Any, value: Any, dtype: pl.DataType, read: Any) -> None:
    schema = {**of(n={"type": "integer"}, it=property), "$defs": {"place": PLACE, "a/b": {"type": "string"}}}
    format = open_format(hr.io.json_schema(json.dumps(schema)))
    assert format.columns() == {"n": pl.Int64(), "it": dtype}
    decoded = format.decoder(format.columns() or {}).decode([json.dumps({"n": 1, "it": value}).encode()])
    assert decoded.frame.rows() == [(1, read)]


ITSELF = {"$ref": "#/$defs/node", "$defs": {"node": of(next={"$ref": "#/$defs/node"})}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "isn't JSON"),
        ("[]", "doesn't describe an object with properties"),
        ({"type": "string"}, "doesn't describe an object with properties"),
        (of(), "doesn't describe an object with properties"),
        (of(a={"type": ["string", "integer"]}), "property a: .* can't be read as a column"),
        (of(a={"oneOf": [{"type": "string"}, {"type": "integer"}]}), "property a: .* can't be read as a column"),
        (of(a=of(b={"type": "object"})), "property a.b: .* can't be read as a column"),
        (of(a={}), "property a: .* can't be read as a column"),
        (of(a=True), "property a: .* can't be read as a column"),
        (of(a={"type": "array"}), "property a: .* can't be read as a column"),
        (of(a={"enum": ["x", 1]}), "property a: .* can't be read as a column"),
        (of(a={"$ref": "#/$defs/no"}), "is undefined"),
        (of(a={"$ref": "other.json"}), "can't be read as a column"),
        (ITSELF, "contains itself"),
    ],
)
def test_schemas_that_have_no_columns(schema: Any, reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason) as caught:
        hr.io.json_schema(schema)
    assert caught.value.hint


def test_a_schema_or_a_registry_is_needed() -> None:
    with pytest.raises(DeclarationError, match="neither a schema nor a registry"):
        hr.io.json_schema()
    with pytest.raises(DeclarationError, match="is not a JSON Schema"):
        hr.io.json_schema(5)  # type: ignore[arg-type]


PAYLOAD = st.one_of(
    st.integers(-9, 9).map(lambda n: (n, HEADER + b'{"n": %d}' % n)),
    st.sampled_from([b"", b"\0", b'{"n": 1}', HEADER, HEADER + b"[", None]).map(lambda data: (None, data)),
)


@given(st.lists(PAYLOAD, max_size=12))
def test_records_with_the_header_of_a_registry(drawn: list[tuple[int | None, bytes | None]]) -> None:
    decoded = open_format(hr.io.json_schema(registry=REGISTRY)).decoder({"n": pl.Int64()}).decode([p for _, p in drawn])
    assert decoded.frame.rows() == [(n,) for n, _ in drawn if n is not None]
    assert decoded.frame.schema == {"n": pl.Int64()}
    assert [index for index, _ in decoded.bad] == [index for index, (n, _) in enumerate(drawn) if n is None]


def test_a_record_without_a_header_says_so() -> None:
    decoder = open_format(hr.io.json_schema(registry=REGISTRY)).decoder({"n": pl.Int64()})
    [(_, reason)] = decoder.decode([b'{"n": 1}']).bad
    assert reason == "no header of a schema registry: it begins with 0x7b instead of 0x00"


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as registry:
        yield registry


def test_a_writer_finds_the_id_of_its_schema(server: SchemaRegistry) -> None:
    schema = of(n={"type": "integer"})
    registry = hr.io.registry(server.url)
    rows = pl.DataFrame({"n": [1, 2]})
    with pytest.raises(InfrastructureError, match="isn't registered under subject 'orders'"):
        open_format(hr.io.json_schema(schema, registry=registry, subject="orders")).encode(rows)
    spec = hr.io.json_schema(schema, registry=registry, register=True).under("orders-value")
    payloads = open_format(spec).encode(rows)
    assert payloads == [b'\0\0\0\0\x01{"n":1}', b'\0\0\0\0\x01{"n":2}']
    assert server.schemas[1]["schemaType"] == "JSON"
    assert open_format(spec).decoder({"n": pl.Int64()}).decode(payloads).frame.equals(rows)
    with pytest.raises(DeclarationError, match="needs the schema"):
        open_format(hr.io.json_schema(registry=registry)).encode(rows)


def test_rows_that_the_schema_does_not_take_are_refused() -> None:
    schema = {**of(n={"type": "integer"}, note={"type": ["string", "null"]}), "required": ["n"]}
    format = open_format(hr.io.json_schema(schema))
    assert format.encode(pl.DataFrame({"n": [1], "note": [None]})) == [b'{"n":1,"note":null}']
    assert format.encode(pl.DataFrame({"n": [1], "more": [2]})) == [b'{"n":1,"more":2}']
    closed = open_format(hr.io.json_schema({**schema, "additionalProperties": False}))
    for one, frame, reason in (
        (format, pl.DataFrame({"note": ["x"]}), "requires n, which the rows lack"),
        (format, pl.DataFrame({"n": [None]}, {"n": pl.Int64}), "column 'n': a value is null"),
        (closed, pl.DataFrame({"n": [1], "more": [2]}), "has no property 'more', and allows no others"),
    ):
        with pytest.raises(DataError, match=reason):
            one.encode(frame)
