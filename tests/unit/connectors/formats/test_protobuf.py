from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.connectors.formats.protobuf import leads
from headrace.core.errors import DataError, DeclarationError, InfrastructureError
from headrace.rows.formats import Decoded, FormatSpec, open_format
from protobuf_files import classes, file, message
from servers.schema_registry import SchemaRegistry, schema_registry


def order_file() -> Any:
    made = file("order.proto")
    size = made.enum_type.add(name="Size")
    for number, name in enumerate(("UNKNOWN", "SMALL", "LARGE")):
        size.value.add(name=name, number=number)
    message(made, "Order", n="int64", note="optional string", size=".shop.Size", tags="repeated string")
    return made


ORDER = classes(order_file())["shop.Order"]
COLUMNS = {"n": pl.Int64(), "note": pl.String(), "size": pl.String(), "tags": pl.List(pl.String())}


def decode(spec: FormatSpec, payloads: list[bytes | None], columns: Any = None) -> Decoded:
    format = open_format(spec)
    return format.decoder(columns or format.columns() or {}).decode(payloads)


def one_field(text: str, *, imports: tuple[str, ...] = (), syntax: str = "proto3") -> Any:
    made = file("one.proto", imports=tuple(f"google/protobuf/{name}.proto" for name in imports), syntax=syntax)
    message(made, "Place", street="string", zip="optional int32")
    message(made, "One", first="int64", it=text, last="string")
    return classes(made)["shop.One"]


PLACE = pl.Struct({"street": pl.String(), "zip": pl.Int32()})
EARLIER = dt.timedelta(seconds=-1.5)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
TYPED = [
    ("int32", -5, pl.Int32(), -5),
    ("sint32", -(2**31), pl.Int32(), -(2**31)),
    ("sfixed32", 5, pl.Int32(), 5),
    ("int64", -(2**63), pl.Int64(), -(2**63)),
    ("sint64", 2**63 - 1, pl.Int64(), 2**63 - 1),
    ("sfixed64", -1, pl.Int64(), -1),
    ("uint32", 2**32 - 1, pl.UInt32(), 2**32 - 1),
    ("fixed32", 7, pl.UInt32(), 7),
    ("uint64", 2**64 - 1, pl.UInt64(), 2**64 - 1),
    ("fixed64", 7, pl.UInt64(), 7),
    ("double", 0.1, pl.Float64(), 0.1),
    ("float", 0.5, pl.Float32(), 0.5),
    ("bool", True, pl.Boolean(), True),
    ("string", "ü", pl.String(), "ü"),
    ("bytes", b"\xff", pl.Binary(), b"\xff"),
    ("repeated int32", [1, -2, 3], pl.List(pl.Int32()), [1, -2, 3]),
    ("repeated .shop.Place", [{"street": "x"}, {"zip": 4}], pl.List(PLACE),
     [{"street": "x", "zip": None}, {"street": "", "zip": 4}]),
    (".shop.Place", {"street": "x", "zip": 4}, PLACE,
     {"street": "x", "zip": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value", "dtype", "read"), TYPED)
def test_each_type_is_a_column(text: str, value: Any, dtype: pl.DataType, read: Any) -> None:
    made = one_field(text)
    spec = hr.io.protobuf(made)
    assert open_format(spec).columns() == {"first": pl.Int64(), "it": dtype, "last": pl.String()}
    payload = made(first=7, it=value, last="end").SerializeToString()
    decoded = decode(spec, [payload, payload])
    assert decoded.frame.schema == open_format(spec).columns()
    assert decoded.frame.rows() == [(7, read, "end")] * 2
    again = open_format(spec).encode(decoded.frame)
    assert [made.FromString(one) for one in again] == [made.FromString(payload)] * 2


@pytest.mark.parametrize(
    ("text", "file", "value", "dtype", "read"),
    [
        (".google.protobuf.Timestamp", "timestamp", NOON, pl.Datetime("us", "UTC"), NOON),
        (".google.protobuf.Duration", "duration", EARLIER, pl.Duration("us"), EARLIER),
        (".google.protobuf.StringValue", "wrappers", {"value": ""}, pl.String(), ""),
        (".google.protobuf.Int64Value", "wrappers", {"value": 5}, pl.Int64(), 5),
    ],
)  # fmt: skip
def test_types_of_google_are_columns(text: str, file: str, value: Any, dtype: pl.DataType, read: Any) -> None:
    made = one_field(text, imports=(file,))
    spec = hr.io.protobuf(made)
    payloads: list[bytes | None] = [one.SerializeToString() for one in (made(it=value), made())]
    decoded = decode(spec, payloads, {"it": dtype})
    assert decoded.frame["it"].to_list() == [read, None]
    assert open_format(spec).encode(decoded.frame) == payloads


def test_a_field_is_null_where_a_message_can_tell_that_it_lacks_it() -> None:
    for syntax, missing in (("proto3", ""), ("proto2", None)):
        made = one_field("string", syntax=syntax)
        assert decode(hr.io.protobuf(made), [b""], {"it": pl.String()}).frame.rows() == [(missing,)]
    optional = one_field("optional string")
    payloads: list[bytes | None] = [b"", optional(it="").SerializeToString()]
    assert decode(hr.io.protobuf(optional), payloads, {"it": pl.String()}).frame.rows() == [(None,), ("",)]
    place = one_field(".shop.Place")
    payloads = [b"", place(it={}).SerializeToString(), b""]
    zips = {"it": pl.Struct({"zip": pl.Int64()})}
    assert decode(hr.io.protobuf(place), payloads, zips).frame.rows() == [(None,), ({"zip": None},), (None,)]


def test_a_map_is_a_list_of_entries() -> None:
    made = file("map.proto")
    message(made, "Value", n="int64")
    holder = message(made, "Holder", it="repeated .shop.Holder.ItEntry")
    entry = message(holder, "ItEntry", key="string", value=".shop.Value")
    entry.options.map_entry = True
    holder_class = classes(made)["shop.Holder"]
    spec = hr.io.protobuf(holder_class)
    value = holder_class()
    value.it["b"].n = 2
    value.it["a"].n = 1
    decoded = decode(spec, [value.SerializeToString(), b""])
    entries = [{"key": "a", "value": {"n": 1}}, {"key": "b", "value": {"n": 2}}]
    assert decoded.frame.rows() == [(entries,), ([],)]
    assert [holder_class.FromString(one) for one in open_format(spec).encode(decoded.frame)] == [value, holder_class()]


def test_a_number_without_a_name_is_its_number() -> None:
    data = ORDER(size=2).SerializeToString().replace(b"\x02", b"\x07")
    decoded = decode(hr.io.protobuf(ORDER), [ORDER(size=2).SerializeToString(), data, b""], {"size": pl.String()})
    assert decoded.frame["size"].to_list() == ["LARGE", "7", "UNKNOWN"]


def test_fields_of_a_newer_schema_are_left_out() -> None:
    newer = file("newer.proto")
    message(newer, "Order", n="int64", note="optional string", size="int32", tags="repeated string", more="string")
    data = classes(newer)["shop.Order"](n=5, more="new").SerializeToString()
    assert decode(hr.io.protobuf(ORDER), [data]).frame.rows() == [(5, None, "UNKNOWN", [])]


ROW = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "note": st.none() | st.text(),
        "size": st.sampled_from(["UNKNOWN", "SMALL", "LARGE"]),
        "tags": st.lists(st.text(), max_size=3),
    }
)


@given(st.lists(ROW, max_size=8))
def test_what_is_written_can_be_read(rows: list[dict[str, Any]]) -> None:
    spec = hr.io.protobuf(ORDER)
    payloads = open_format(spec).encode(pl.DataFrame(rows, schema=COLUMNS))
    assert payloads == [ORDER(**{k: v for k, v in row.items() if v is not None}).SerializeToString() for row in rows]
    decoded = decode(spec, list(payloads))
    assert decoded.frame.schema == COLUMNS
    assert decoded.frame.rows(named=True) == rows


@given(st.lists(st.tuples(ROW, st.sampled_from(["good", "cut", "null"])), max_size=10))
def test_payloads_that_are_no_messages_are_bad(drawn: list[tuple[dict[str, Any], str]]) -> None:
    payloads: list[bytes | None] = []
    for row, kind in drawn:
        data = ORDER(**{k: v for k, v in row.items() if v is not None}).SerializeToString()
        payloads.append({"good": data, "cut": data + b"\x12\x05abc", "null": None}[kind])
    decoded = decode(hr.io.protobuf(ORDER), payloads)
    assert decoded.frame.rows(named=True) == [row for row, kind in drawn if kind == "good"]
    assert [index for index, _ in decoded.bad] == [i for i, (_, kind) in enumerate(drawn) if kind != "good"]


def test_floats_that_are_none() -> None:
    made = one_field("double")
    decoded = decode(hr.io.protobuf(made), [made(it=v).SerializeToString() for v in (math.nan, math.inf)])
    assert [str(value) for value in decoded.frame["it"]] == ["nan", "inf"]


def test_columns_are_those_that_the_app_declares() -> None:
    spec = hr.io.protobuf(ORDER)
    assert decode(spec, [ORDER(n=1).SerializeToString()], {"n": pl.Float64()}).frame.rows() == [(1.0,)]
    with pytest.raises(DeclarationError, match="no field 'm'; it has n, note, size, tags"):
        decode(spec, [], {"m": pl.Int64()})
    with pytest.raises(DeclarationError, match="the field 'n' is of type i64 and can't be read as i32"):
        decode(spec, [], {"n": pl.Int32()})


def test_rows_that_do_not_fit_are_refused() -> None:
    format = open_format(hr.io.protobuf(ORDER))
    for frame, reason in (
        (pl.DataFrame({"m": [1]}), "has no field 'm'; it has n, note, size, tags"),
        (pl.DataFrame({"n": [None]}, {"n": pl.Int64}), "field 'n' is null, and isn't optional"),
        (pl.DataFrame({"n": ["x"]}), "can't be written as a protobuf message"),
        (pl.DataFrame({"size": ["HUGE"]}), "can't be written as a protobuf message"),
    ):
        with pytest.raises(DataError, match=reason):
            format.encode(frame)


def test_messages_that_have_no_columns() -> None:
    made = file("bad.proto")
    message(made, "Node", next=".shop.Node")
    message(made, "Empty")
    message(made, "Around", it=".shop.Empty")
    found = classes(made)
    with pytest.raises(DeclarationError, match=r"shop\.Node contains itself"):
        hr.io.protobuf(found["shop.Node"])
    for name in ("shop.Empty", "shop.Around"):
        with pytest.raises(DeclarationError, match=r"shop\.Empty has no fields"):
            hr.io.protobuf(found[name])


def test_a_message_is_named_in_a_set_of_descriptors() -> None:
    files = descriptor_pb2.FileDescriptorSet(file=[order_file()])
    spec = hr.io.protobuf("shop.Order", descriptors=files.SerializeToString())
    assert decode(spec, [ORDER(n=5).SerializeToString()]).frame["n"].to_list() == [5]
    for wrong, reason in (
        ({"message": "shop.Other", "descriptors": files.SerializeToString()}, r"no protobuf message 'shop\.Other'"),
        ({"message": "shop.Order", "descriptors": b"\xff"}, "isn't a set of protobuf descriptors"),
        ({"message": "shop.Order", "descriptors": b""}, "isn't a set of protobuf descriptors"),
        ({"message": "shop.Order"}, "isn't a Protobuf message"),
        ({"message": int}, "isn't a Protobuf message"),
        ({"message": ORDER, "descriptors": b""}, "isn't a Protobuf message"),
    ):
        with pytest.raises(DeclarationError, match=reason) as caught:
            hr.io.protobuf(**wrong)  # type: ignore[arg-type]
        assert caught.value.hint
    lacking = descriptor_pb2.FileDescriptorSet(file=[file("a.proto", imports=("b.proto",))])
    with pytest.raises(DeclarationError, match=r"lacks b\.proto"):
        hr.io.protobuf("shop.A", descriptors=lacking.SerializeToString())


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as registry:
        yield registry


def test_indexes_are_zigzag_varints() -> None:
    assert leads([0]) == (b"\0", b"\x02\x00")
    assert leads([1, 0]) == (b"\x04\x02\x00",)
    assert leads([100]) == (b"\x02\xc8\x01",)


def test_records_with_the_header_of_a_registry() -> None:
    spec = hr.io.protobuf(ORDER, registry=hr.io.registry("http://localhost:1"))  # which isn't asked
    data = ORDER(n=5).SerializeToString()
    header = b"\0\0\0\0\x07"
    payloads: list[bytes | None] = [header + lead + data for lead in (b"\0", b"\x02\x00")]
    assert decode(spec, payloads[:1] * 3).frame["n"].to_list() == [5, 5, 5]
    assert decode(spec, payloads).frame["n"].to_list() == [5, 5]
    bad: list[bytes | None] = [data, b"", header, header + b"\x02\x02" + data, None, payloads[0], header + b"\0\xff"]
    decoded = decode(spec, [*payloads, *bad])
    assert decoded.frame["n"].to_list() == [5, 5, 5]
    reasons = dict(decoded.bad)
    assert list(reasons) == [2, 3, 4, 5, 6, 8]
    assert reasons[2].startswith("no header of a schema registry: it begins with 0x08")
    assert reasons[3].startswith("too short")
    assert reasons[5] == "the record has another message of its schema"
    assert reasons[8] == "not a message of this type"


def test_a_message_inside_another_one_has_several_indexes() -> None:
    made = file("inner.proto")
    message(made, "First", n="int64")
    message(message(made, "Outer", n="int64"), "Inner", n="int64")
    inner = classes(made)["shop.Outer"].Inner
    spec = hr.io.protobuf(inner, registry=hr.io.registry("http://localhost:1"))
    data = inner(n=5).SerializeToString()
    decoded = decode(spec, [b"\0\0\0\0\x07" + lead + data for lead in (b"\x04\x02\x00", b"\x02\x00", b"\0")])
    assert decoded.frame["n"].to_list() == [5]
    assert [index for index, _ in decoded.bad] == [1, 2]


def test_a_writer_registers_its_files(server: SchemaRegistry) -> None:
    money = file("money.proto")
    message(money, "Money", cents="int64")
    made = file("sale.proto", imports=("money.proto", "google/protobuf/timestamp.proto"))
    message(made, "Sale", price=".shop.Money", at=".google.protobuf.Timestamp")
    sale = classes(money, made)["shop.Sale"]
    registry = hr.io.registry(server.url)
    rows = pl.DataFrame({"price": [{"cents": 5}]})
    with pytest.raises(InfrastructureError, match=r"isn't registered under subject 'money\.proto'"):
        open_format(hr.io.protobuf(sale, registry=registry, subject="sales")).encode(rows)
    spec = hr.io.protobuf(sale, registry=registry, subject="sales", register=True)
    [payload] = open_format(spec).encode(rows)
    assert payload == b"\0\0\0\0\x02\0" + sale(price={"cents": 5}).SerializeToString()
    assert server.subjects == {"money.proto": [1], "sales": [2]}
    assert server.schemas[2]["references"] == [{"name": "money.proto", "subject": "money.proto", "version": 1}]
    assert decode(spec, [payload], {"price": pl.Struct({"cents": pl.Int64()})}).frame.rows() == [({"cents": 5},)]
    looked_up = hr.io.protobuf(sale, registry=registry).under("sales")
    assert open_format(looked_up).encode(rows) == [payload]
