"""JSON: each payload is one object. A missing field is null, and other fields are ignored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl
from typing_extensions import override

from headrace.core.records import UNREADABLE
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats.contract import Decoded, Decoder, Format, Payload, decode_halving
from headrace.serdes.json_lines import encode_lines
from headrace.serdes.json_rows import readable
from headrace.serdes.row_pieces import Parse, RowsUnreadable
from headrace.serdes.wire import from_wire, why_unreadable, wire_columns


def json_parser(columns: Columns) -> Parse:
    """A parser of lines with one object each that has these columns."""
    wire = wire_columns(columns)
    empty = pl.DataFrame(schema=columns)

    def parse(data: bytes) -> pl.DataFrame:
        if not data.strip():
            return empty
        try:
            return from_wire(pl.read_ndjson(data, schema=wire), columns)
        except pl.exceptions.PolarsError as error:
            raise RowsUnreadable(why_unreadable(error)) from error

    return parse


class JsonFormat(Format):
    """JSON objects."""

    @override
    def columns(self) -> None:
        return None

    @override
    def decoder(self, columns: Columns) -> Decoder:
        return _JsonDecoder(columns)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        return encode_lines(rows).splitlines() if rows.height else []


class _JsonDecoder(Decoder):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._parse_lines = json_parser(columns)

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        return decode_halving(payloads, self._columns, self._parse, self._explain)

    def _parse(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        # A line has one object, or can't be read. So only an empty payload can make the count of rows wrong. Line
        # breaks become carriage returns: between values that is the same to JSON, and inside a text both are refused.
        data = b"\n".join(payloads)
        if data.count(b"\n") >= len(payloads):
            data = b"\n".join([payload.replace(b"\n", b"\r") for payload in payloads])
        return self._parse_lines(data)

    def _explain(self, payload: bytes, reason: str) -> str:
        if not payload.strip():
            return "empty"
        try:
            value = msgspec.json.decode(payload)
        except UNREADABLE as error:
            return readable(error)
        if not isinstance(value, dict):
            return f"a JSON {_JSON_NAMES.get(type(value), 'number')}, not an object"
        for name, dtype in self._columns.items():
            if name in value:
                try:
                    json_parser({name: dtype})(msgspec.json.encode({name: value[name]}))
                except RowsUnreadable as error:
                    return f"field {name!r}: {error}"
        return reason


_JSON_NAMES = {list: "array", str: "text", bool: "boolean", type(None): "null"}
