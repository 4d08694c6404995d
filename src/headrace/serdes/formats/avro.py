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
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats.avro_resolution import SchemasDisagree, resolve
from headrace.serdes.formats.avro_schema import ReadSchema, read_schema
from headrace.serdes.formats.contract import Decoded, Decoder, Format, Payload, decode_halving
from headrace.serdes.row_pieces import RowsUnreadable

if TYPE_CHECKING:
    from headrace.serdes.formats.avro_encoding import DatumWriter

_MARK, _LEAD = "__headrace_end", "__headrace_lead"
_MARK_BYTES = 12
_SYNC = bytes(16)


class AvroFormat(Format):
    """Datums of one schema, given as JSON types or as text."""

    def __init__(self, schema: object) -> None:
        self._schema = read_schema(schema)

    @cached_property
    def _writer(self) -> DatumWriter:
        # Its module makes a value of pyarrow, which then imports pandas: twice the time that all of headrace takes.
        from headrace.serdes.formats.avro_encoding import DatumWriter

        return DatumWriter(self._schema)

    @override
    def columns(self) -> Columns:
        return self._schema.columns

    @override
    def decoder(self, columns: Columns) -> Decoder:
        return _AvroDecoder(self._schema, columns, self.made(columns))

    def made(self, columns: Columns) -> Mapping[str, pl.Expr]:
        """How to make the columns that the app declares. Raises ``DeclarationError`` if a value could be lost."""
        for name in columns:
            if name not in self._schema.columns:
                raise DeclarationError(
                    f"the Avro schema has no field {name!r}; it has {', '.join(self._schema.columns)}",
                    hint="declare only fields of the Avro schema, or leave out the input's schema to read all fields",
                )
        try:
            return resolve(self._schema, columns, self._schema)
        except SchemasDisagree as error:
            raise DeclarationError(
                f"the Avro schema and the columns disagree: {error}",
                hint="declare the types of the Avro schema, and convert the columns afterwards: .with_columns(...)",
            ) from error

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        return self._writer.write(rows)


class _AvroDecoder(Decoder):
    def __init__(self, schema: ReadSchema, columns: Columns, casts: Mapping[str, pl.Expr]) -> None:
        self._columns = columns
        self._read = DatumReader(schema, casts).read

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        return decode_halving(payloads, self._columns, self._read, lambda payload, reason: reason)


class DatumReader:
    """Reads many datums of one schema as the columns ``made``. ``lead`` bytes before each aren't looked at."""

    def __init__(self, schema: ReadSchema, made: Mapping[str, pl.Expr], lead: int = 0) -> None:
        self._made = [expression.alias(name) for name, expression in made.items()]
        self._names = list(made)
        self._mark = secrets.token_bytes(_MARK_BYTES)
        ends = [(_LEAD, lead)] if lead else []
        first, last = (
            [{"name": name, "type": {"type": "fixed", "name": name, "size": size}} for name, size in fields]
            for fields in (ends, [(_MARK, _MARK_BYTES)])
        )
        marked = {**schema.record, "fields": [*first, *schema.record["fields"], *last]}
        text = json.dumps(marked).encode()
        entries = _bytes(b"avro.schema") + _bytes(text) + _bytes(b"avro.codec") + _bytes(b"null")
        self._header = b"Obj\x01" + _varint(2) + entries + _varint(0) + _SYNC

    def read(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        """One row for each payload. Raises ``RowsUnreadable`` if any of them isn't a datum."""
        block = b"".join([part for payload in payloads for part in (payload, self._mark)])
        data = self._header + _varint(len(payloads)) + _varint(len(block)) + block + _SYNC
        try:
            frame = pl.read_avro(io.BytesIO(data))
            if frame.height != len(payloads) or not frame.select((pl.col(_MARK) == pl.lit(self._mark)).all()).item():
                raise RowsUnreadable("not a datum of the Avro schema: its length doesn't match")
            return frame.with_columns(self._made).select(self._names)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
            raise RowsUnreadable("not a datum of the Avro schema") from error


def parsed_schema(schema: object) -> Any:
    """A schema as JSON types."""
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
