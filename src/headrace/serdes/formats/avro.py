"""Avro: each payload is one datum of a schema, without a header.

Datums one after another are a block of an Avro file, so Polars reads many at once. A datum that is too short or too
long would be read on into the next one. So the schema gets one field more, and each datum a mark that no sender knows:
when all marks are in their places, every datum ended where its payload did.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, InfrastructureError
from headrace.serdes.casting import CastSafety, cast_safety
from headrace.serdes.dtypes import Columns, written
from headrace.serdes.formats.avro_schema import ReadSchema, read_schema
from headrace.serdes.formats.contract import Decoded, Decoder, Format, Payload, decode_halving
from headrace.serdes.row_pieces import RowsUnreadable

_MARK = "__headrace_end"
_MARK_BYTES = 12
_SYNC = bytes(16)


class AvroFormat(Format):
    """Datums of one schema, given as JSON types or as text."""

    def __init__(self, schema: object) -> None:
        self._given = schema
        self._schema = read_schema(schema)

    @override
    def columns(self) -> Columns:
        return self._schema.columns

    @override
    def decoder(self, columns: Columns) -> Decoder:
        casts = {name: _cast(name, self._schema.columns, dtype) for name, dtype in columns.items()}
        return _AvroDecoder(self._schema, columns, casts)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        """Needs fastavro."""
        try:
            import fastavro
        except ImportError as error:
            raise InfrastructureError(
                f"writing Avro needs fastavro, which can't be imported here: {error}",
                hint='install it wherever containers run: pip install "headrace[avro]"',
            ) from error
        payloads = []
        try:
            schema = fastavro.parse_schema(_parsed(self._given))
            for row in rows.iter_rows(named=True):
                out = io.BytesIO()
                fastavro.schemaless_writer(out, schema, row)
                payloads.append(out.getvalue())
        except Exception as error:
            raise DataError(
                f"a row can't be written as Avro: {type(error).__name__}: {error}",
                hint="the schema says which fields there are, and which may be null",
            ) from error
        return payloads


class _AvroDecoder(Decoder):
    def __init__(self, schema: ReadSchema, columns: Columns, casts: Mapping[str, pl.Expr]) -> None:
        self._columns = columns
        self._casts = casts
        self._mark = secrets.token_bytes(_MARK_BYTES)
        mark = {"name": _MARK, "type": {"type": "fixed", "name": _MARK, "size": _MARK_BYTES}}
        marked = {**schema.record, "fields": [*schema.record["fields"], mark]}
        text = json.dumps(marked).encode()
        entries = _bytes(b"avro.schema") + _bytes(text) + _bytes(b"avro.codec") + _bytes(b"null")
        self._header = b"Obj\x01" + _varint(2) + entries + _varint(0) + _SYNC

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        return decode_halving(payloads, self._columns, self._parse, lambda payload, reason: reason)

    def _parse(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        block = b"".join([part for payload in payloads for part in (payload, self._mark)])
        data = self._header + _varint(len(payloads)) + _varint(len(block)) + block + _SYNC
        try:
            frame = pl.read_avro(io.BytesIO(data))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
            raise RowsUnreadable("not a datum of the Avro schema") from error
        if frame.height != len(payloads) or not frame.select((pl.col(_MARK) == pl.lit(self._mark)).all()).item():
            raise RowsUnreadable("not a datum of the Avro schema: it ends elsewhere")
        return frame.select(**self._casts)


def _cast(name: str, there: Columns, wanted: pl.DataType) -> pl.Expr:
    """How a column becomes what the app declares. Raises ``DeclarationError`` if a value could be lost."""
    if name not in there:
        raise DeclarationError(
            f"the Avro schema has no field {name!r}; it has {', '.join(there)}",
            hint="declare columns that are there, or leave the schema out for all of them",
        )
    found = there[name]
    column = pl.col(name)
    if isinstance(found, pl.Datetime) and isinstance(wanted, pl.Datetime) and wanted.time_zone is None:
        found, column = pl.Datetime(found.time_unit), column.dt.replace_time_zone(None)
    if cast_safety(found, wanted) not in (CastSafety.SAME, CastSafety.LOSSLESS):
        raise DeclarationError(
            f"the field {name!r} of the Avro schema is of type {written(found)} and can't be read as {written(wanted)}",
            hint="declare it so, or convert it afterwards: .with_columns(...)",
        )
    return column.cast(wanted)


def _parsed(schema: object) -> Any:
    return json.loads(schema) if isinstance(schema, str) else schema


def _bytes(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """An Avro long that isn't negative."""
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
