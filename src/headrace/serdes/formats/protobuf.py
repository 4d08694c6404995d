"""Protobuf: each payload is one message, without a header or with the one of a schema registry.

Messages are parsed by protobuf's own C code, and taken apart field by field, each a column. With a registry, a record
names its schema and, by its place in the file, its message. Reading needs no registry for that: fields are known by
their numbers, whatever the schema that the writer had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats.avro_resolution import SchemasDisagree, fitted
from headrace.serdes.formats.contract import (
    Decoded,
    Decoder,
    Format,
    FormatSpec,
    Payload,
    all_values,
    decode_halving,
    without_nulls,
)
from headrace.serdes.formats.protobuf_messages import Field, Message, MessageType
from headrace.serdes.formats.registry.framing import HEADER_BYTES, decode_framed, message_indexes, no_header
from headrace.serdes.formats.registry.writing import SubjectWriter, writer_of
from headrace.serdes.row_pieces import RowsUnreadable

_US = 1_000_000


class ProtobufFormat(Format):
    """Messages of one type. ``framed``: with the header of a registry; ``writer`` knows the id in it."""

    def __init__(self, message: MessageType, *, framed: bool = False, writer: SubjectWriter | None = None) -> None:
        self._message = message
        self._lead = _leads(message.indexes) if framed else ()
        self._writer = writer

    @override
    def columns(self) -> Columns:
        return self._message.columns

    @override
    def decoder(self, columns: Columns) -> Decoder:
        there = self._message.columns
        for name in columns:
            if name not in there:
                raise DeclarationError(
                    f"the protobuf message has no field {name!r}; it has {', '.join(there)}",
                    hint="declare only fields of the message, or leave out the input's schema to read all fields",
                )
        try:
            made = fitted(there, columns)
        except SchemasDisagree as error:
            raise DeclarationError(
                f"the protobuf message and the columns disagree: {error}",
                hint="declare the types of the message, and convert the columns afterwards: .with_columns(...)",
            ) from error
        return _ProtobufDecoder(self._message, columns, made, self._lead)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        fields = {field.name: field for field in self._message.fields}
        unknown = [name for name in rows.columns if name not in fields]
        if unknown:
            raise DataError(
                f"the protobuf message has no field {unknown[0]!r}; it has {', '.join(fields)}",
                hint="select only the message's fields before send_to",
            )
        values = _values({name: fields[name] for name in rows.columns})
        header = b"" if self._writer is None else self._writer.header() + self._lead[0]
        payloads = []
        try:
            for row in rows.iter_rows(named=True):
                payloads.append(header + self._message.new(**values(row)).SerializeToString())
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise DataError(
                f"a row can't be written as a protobuf message: {error}",
                hint="make the rows fit the message's fields and types; only optional fields may be null",
            ) from error
        return payloads


class _ProtobufDecoder(Decoder):
    def __init__(
        self, message: MessageType, columns: Columns, made: Mapping[str, pl.Expr], leads: Sequence[bytes]
    ) -> None:
        self._columns = columns
        self._parse_one = message.new.FromString  # type: ignore[attr-defined]
        self._unreadable = message.unreadable
        self._fields = [field for field in message.fields if field.name in columns]
        self._made = [expression.alias(name) for name, expression in made.items()]
        self._leads = leads

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        if not all_values(payloads):
            return without_nulls(payloads, self.decode)
        return self._bodies(payloads) if self._leads else self._messages(payloads)

    def _messages(self, payloads: Sequence[bytes]) -> Decoded:
        return decode_halving(payloads, self._columns, self._parse, lambda payload, reason: reason)

    def _parse(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        try:
            messages = list(map(self._parse_one, payloads))
        except self._unreadable as error:
            raise RowsUnreadable("not a message of this type") from error
        return _frame(self._fields, messages).select(self._made)

    def _bodies(self, payloads: Sequence[bytes]) -> Decoded:
        """Messages after their headers. Records of other messages are bad."""
        for lead in self._leads:
            size = HEADER_BYTES + len(lead)
            ends = set(map(itemgetter(slice(HEADER_BYTES, size)), payloads))
            if ends == {lead} and set(map(itemgetter(slice(0, 1)), payloads)) == {b"\0"}:
                return self._messages(list(map(itemgetter(slice(size, None)), payloads)))
        return decode_framed(payloads, self._columns, self._size, self._messages)

    def _size(self, payload: bytes) -> int | str:
        """The bytes before the message, or what is wrong with them."""
        if payload[:1] != b"\0" or len(payload) <= HEADER_BYTES:
            return no_header(payload[:HEADER_BYTES])
        for lead in self._leads:
            if payload.startswith(lead, HEADER_BYTES):
                return HEADER_BYTES + len(lead)
        return "the record has another message of its schema"


def _leads(indexes: Sequence[int]) -> tuple[bytes, ...]:
    """What stands between header and message: what is written comes first. The first message has a short form, too."""
    full = message_indexes(indexes)
    return (b"\0", full) if list(indexes) == [0] else (full,)


# -- messages to columns -------------------------------------------------------------------------------


def _frame(fields: Sequence[Field], messages: Sequence[Message]) -> pl.DataFrame:
    return pl.DataFrame([_column(field, messages) for field in fields])


def _column(field: Field, messages: Sequence[Message]) -> pl.Series:
    name = field.name
    values = list(map(attrgetter(name), messages))
    if field.kind == "map":
        pairs = [pair for one in values for pair in _pairs(field, one)]
        return _lists(field, pairs, list(map(len, values)))
    if field.repeated:
        return _lists(field, list(chain.from_iterable(values)), list(map(len, values)))
    if field.present and field.kind in ("scalar", "enum"):
        # A value other than the default is present, so presence is only checked for the others.
        values = [value if value or one.HasField(name) else None for value, one in zip(values, messages, strict=True)]
    elif field.present:
        values = [value if one.HasField(name) else None for value, one in zip(values, messages, strict=True)]
    return _series(field, values)


def _lists(field: Field, values: list[Any], lengths: list[int]) -> pl.Series:
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    inner = _series(field, values).to_arrow(compat_level=pl.CompatLevel.oldest())
    lists = pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(ends), inner))
    assert isinstance(lists, pl.Series)
    return lists.cast(field.column).alias(field.name)


class _Pair:
    """An entry of a map, as the message that it is on the wire."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key = key
        self.value = value

    def HasField(self, _: str) -> bool:
        return True


def _pairs(field: Field, values: Mapping[Any, Any]) -> Iterator[_Pair]:
    # Iterating over a map of messages yields its keys, each of which has a value.
    return (_Pair(key, values[key]) for key in sorted(values))


def _series(field: Field, values: list[Any]) -> pl.Series:
    """Values of one field; None for what isn't there."""
    match field.kind:
        case "enum":
            names = _Names(field.names or {})
            return pl.Series(field.name, [None if one is None else names[one] for one in values], dtype=pl.String)
        case "timestamp" | "duration":
            ticks = [None if one is None else one.seconds * _US + one.nanos // 1000 for one in values]
            return pl.Series(field.name, ticks, dtype=pl.Int64).cast(field.dtype)
        case "wrapper":
            return pl.Series(field.name, [None if one is None else one.value for one in values], dtype=field.dtype)
        case "message" | "map":
            there = [one for one in values if one is not None]
            structs = _frame(field.inner, there).to_struct(field.name)
            if len(there) == len(values):
                return structs
            found = np.array([one is not None for one in values], dtype=bool)
            places = pl.Series(np.cumsum(found) - 1).set(pl.Series(~found), None)
            return structs.gather(places) if there else pl.Series(field.name, [None] * len(values), dtype=field.dtype)
        case _:
            return pl.Series(field.name, values, dtype=field.dtype)


class _Names(dict[int, str]):
    """An enumeration's names by number. One without a name, as of a newer schema, is its number as text."""

    def __missing__(self, number: int) -> str:
        return str(number)


# -- rows to messages ----------------------------------------------------------------------------------


def _values(fields: Mapping[str, Field]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What makes a row of these fields the arguments of a message."""
    makers = {name: _maker(field) for name, field in fields.items()}

    def values(row: Mapping[str, Any]) -> dict[str, Any]:
        made = {}
        for name, value in row.items():
            if value is not None:
                made[name] = makers[name](value)
            elif not fields[name].present and not fields[name].repeated:
                raise ValueError(f"field {name!r} is null, and isn't optional")
        return made

    return values


def _maker(field: Field) -> Callable[[Any], Any]:
    match field.kind:
        case "message":
            one: Callable[[Any], Any] = _values({inner.name: inner for inner in field.inner})
        case "map":
            entry = _values({inner.name: inner for inner in field.inner})

            def pairs(values: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
                made = (entry(value) for value in values)
                return {pair["key"]: pair["value"] for pair in made}

            return pairs
        case "wrapper":
            one = _wrapped
        case _:
            one = _same
    return (lambda values: [one(value) for value in values]) if field.repeated else one


def _wrapped(value: Any) -> dict[str, Any]:
    return {"value": value}


def _same(value: Any) -> Any:
    return value


def open_protobuf(spec: FormatSpec) -> Format:
    """Make the format of a spec: with the header of a registry, or without."""
    message = MessageType(spec.settings["message"], spec.settings["descriptors"])
    if "registry" not in spec.settings:
        return ProtobufFormat(message)
    schema, imports = message.to_register()
    return ProtobufFormat(message, framed=True, writer=writer_of(spec, schema, imports))
