"""Protobuf: messages as columns, with the header of a schema registry or without.

Descriptors travel in a ``FormatSpec`` as text, with all that they import, so containers need neither generated code nor
files. With a registry, a record names its schema and, by its place in the file, its message. Reading needs no registry
for that: fields are known by their numbers, whatever the schema that the writer had.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from headrace.connectors.formats.avro import declared, varint
from headrace.connectors.formats.registry import FramedFormat, Registered, writer_of
from headrace.core.errors import DataError, DeclarationError, needing
from headrace.rows.dtypes import Columns
from headrace.rows.formats import Decoded, Decoder, Format, FormatSpec, Payload, decode_halving
from headrace.rows.pieces import RowsUnreadable

Message = Any  # a message of protobuf, whose classes are made while the program runs
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_GOOGLES = "google/protobuf/"  # files that every registry and every serializer knows


@dataclass(frozen=True)
class Field:
    """A field as a column. ``kind`` says how values become its ``dtype``; ``inner`` are the fields of its messages.

    ``present``: a message knows whether it has the field, and is null there if not. ``names`` are an enumeration's.
    """

    name: str
    kind: str
    dtype: pl.DataType
    present: bool
    repeated: bool = False
    inner: tuple[Field, ...] = ()
    names: Mapping[int, str] | None = None

    @cached_property
    def column(self) -> pl.DataType:
        return pl.List(self.dtype) if self.repeated else self.dtype


class MessageType:
    """The type ``name`` of a set of files, which is given as text."""

    def __init__(self, name: str, files: str) -> None:
        self._google = _google()
        given = self._google.descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(files))
        self._files = {file.name: file for file in given.file}
        pool = self._google.descriptor_pool.DescriptorPool()
        for file in _in_order(self._files):
            pool.Add(file)
        try:
            self._descriptor = pool.FindMessageTypeByName(name)
        except KeyError:
            there = ", ".join(sorted(_messages(given.file)))
            hint = f"they have {there:.500}"
            raise DeclarationError(f"these files have no protobuf message {name!r}", hint=hint) from None
        self.new: Callable[..., Message] = self._google.message_factory.GetMessageClass(self._descriptor)
        self.unreadable: type[Exception] = self._google.message.DecodeError
        self.fields = tuple(_fields(self._descriptor, ()))
        self.columns: Columns = {field.name: field.column for field in self.fields}

    @property
    def indexes(self) -> list[int]:
        """Its place in the file: the numbers of the messages around it, then its own among its siblings."""
        path: list[str] = []
        inner = self._descriptor
        while inner is not None:
            path.insert(0, inner.name)
            inner = inner.containing_type
        indexes: list[int] = []
        siblings = self._files[self._descriptor.file.name].message_type
        for name in path:
            indexes.append([one.name for one in siblings].index(name))
            siblings = siblings[indexes[-1]].nested_type
        return indexes

    def to_register(self) -> tuple[Registered, dict[str, Registered]]:
        own = self._descriptor.file.name
        imported = _in_order({name: self._files[name] for name in _imports(own, self._files)})
        return self._schema(own), {one.name: self._schema(one.name) for one in imported if one.name != own}

    def _schema(self, name: str) -> Registered:
        return Registered(base64.b64encode(self._files[name].SerializeToString()).decode(), "PROTOBUF")


def files_of_class(message: Any) -> tuple[str, str]:
    google = _google()
    found: dict[str, Any] = {}
    waiting = [message.DESCRIPTOR.file]
    while waiting:
        file = waiting.pop()
        if file.name not in found:
            found[file.name] = file
            waiting += file.dependencies
    files = google.descriptor_pb2.FileDescriptorSet()
    for file in found.values():
        file.CopyToProto(files.file.add())
    return str(message.DESCRIPTOR.full_name), base64.b64encode(files.SerializeToString(deterministic=True)).decode()


def files_of_set(data: bytes) -> str:
    google = _google()
    try:
        files = google.descriptor_pb2.FileDescriptorSet.FromString(data)
    except google.message.DecodeError:
        files = None
    names = {file.name for file in files.file} if files is not None else set()
    if not names:
        hint = "create one with protoc --include_imports --descriptor_set_out"
        raise DeclarationError("this isn't a set of protobuf descriptors", hint=hint)
    missing = sorted({one for file in files.file for one in file.dependency} - names)
    if missing:
        hint = "create it with protoc --include_imports"
        raise DeclarationError(f"the set of protobuf descriptors lacks {', '.join(missing)}", hint=hint)
    return base64.b64encode(data).decode()


def is_message_class(given: object) -> bool:
    return isinstance(given, type) and hasattr(given, "DESCRIPTOR") and hasattr(given, "FromString")


def _google() -> ModuleType:
    with needing("protobuf", "Protobuf", "protobuf"):
        import google.protobuf.descriptor_pb2
        import google.protobuf.descriptor_pool
        import google.protobuf.message
        import google.protobuf.message_factory
    package: ModuleType = google.protobuf
    return package


def _imports(name: str, files: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found and not one.startswith(_GOOGLES):
            found.add(one)
            waiting += files[one].dependency
    return found


def _in_order(files: Mapping[str, Any]) -> list[Any]:
    done: dict[str, Any] = {}

    def add(name: str) -> None:
        if name in files and name not in done:
            for one in files[name].dependency:
                add(one)
            done[name] = files[name]

    for name in files:
        add(name)
    return list(done.values())


def _messages(files: Sequence[Any]) -> Iterator[str]:
    for file in files:
        for one in file.message_type:
            yield f"{file.package}.{one.name}" if file.package else one.name


def _fields(descriptor: Any, around: tuple[str, ...]) -> Iterator[Field]:
    if not descriptor.fields:
        raise DeclarationError(
            f"the protobuf message {descriptor.full_name} has no fields, so it can't be read as columns",
            hint='read the records with format="bytes", and decode them in a function of your own',
        )
    if descriptor.full_name in around:
        raise DeclarationError(
            f"the protobuf message {descriptor.full_name} contains itself, which a column can't",
            hint='read the records with format="bytes", and decode them in a function of your own',
        )
    for one in descriptor.fields:
        yield _field(one, (*around, descriptor.full_name))


def _field(one: Any, around: tuple[str, ...]) -> Field:
    repeated = bool(one.is_repeated)
    present = not repeated and bool(one.has_presence)
    message, enum = one.message_type, one.enum_type
    if one.type == one.TYPE_GROUP:
        hint = "declare it as a message"
        raise DeclarationError(f"the protobuf field {one.full_name} is a group, which can't be a column", hint=hint)
    if enum is not None:
        names = {value.number: value.name for value in reversed(enum.values)}
        return Field(one.name, "enum", pl.String(), present, repeated, names=names)
    if message is None:
        return Field(one.name, "scalar", _scalar(one), present, repeated)
    name = message.full_name
    if name == _TIMESTAMP:
        return Field(one.name, "timestamp", pl.Datetime("us", "UTC"), present, repeated)
    if name == _DURATION:
        return Field(one.name, "duration", pl.Duration("us"), present, repeated)
    if name in _WRAPPERS:
        return Field(one.name, "wrapper", _scalar(message.fields_by_name["value"]), present, repeated)
    inner = tuple(_fields(message, around))
    dtype = pl.Struct({field.name: field.column for field in inner})
    kind = "map" if message.GetOptions().map_entry else "message"
    return Field(one.name, kind, dtype, present, repeated, inner)


def _scalar(one: Any) -> pl.DataType:
    types: dict[int, pl.DataType] = {
        one.CPPTYPE_INT32: pl.Int32(), one.CPPTYPE_INT64: pl.Int64(),
        one.CPPTYPE_UINT32: pl.UInt32(), one.CPPTYPE_UINT64: pl.UInt64(),
        one.CPPTYPE_DOUBLE: pl.Float64(), one.CPPTYPE_FLOAT: pl.Float32(), one.CPPTYPE_BOOL: pl.Boolean(),
        one.CPPTYPE_STRING: pl.Binary() if one.type == one.TYPE_BYTES else pl.String(),
    }  # fmt: skip
    return types[one.cpp_type]


_US = 1_000_000


class _ProtobufFormat(Format):
    def __init__(self, message: MessageType) -> None:
        self._message = message

    @override
    def columns(self) -> Columns:
        return self._message.columns

    @override
    def decoder(self, columns: Columns) -> Decoder:
        made = declared("the protobuf message", self._message.columns, columns)
        return _ProtobufDecoder(self._message, columns, made)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        fields = {field.name: field for field in self._message.fields}
        unknown = [name for name in rows.columns if name not in fields]
        if unknown:
            hint = "select only the message's fields before send_to"
            raise DataError(f"the protobuf message has no field {unknown[0]!r}; it has {', '.join(fields)}", hint=hint)
        values = _values({name: fields[name] for name in rows.columns})
        payloads = []
        try:
            for row in rows.iter_rows(named=True):
                payloads.append(self._message.new(**values(row)).SerializeToString())
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            hint = "make the rows fit the message's fields and types; only optional fields may be null"
            raise DataError(f"a row can't be written as a protobuf message: {error}", hint=hint) from error
        return payloads


class _ProtobufDecoder(Decoder):
    def __init__(self, message: MessageType, columns: Columns, made: Mapping[str, pl.Expr]) -> None:
        self._columns = columns
        self._parse_one = message.new.FromString  # type: ignore[attr-defined]
        self._unreadable = message.unreadable
        self._fields = [field for field in message.fields if field.name in columns]
        self._made = [expression.alias(name) for name, expression in made.items()]

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        return decode_halving(payloads, self._columns, self._parse, lambda payload, reason: reason)

    def _parse(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        try:
            messages = list(map(self._parse_one, payloads))
        except self._unreadable as error:
            raise RowsUnreadable("not a message of this type") from error
        return _frame(self._fields, messages).select(self._made)


def leads(indexes: Sequence[int]) -> tuple[bytes, ...]:
    """What stands between header and message: what is written comes first. The first message has a short form, too."""
    full = b"".join(map(varint, (len(indexes), *indexes)))
    return (b"\0", full) if list(indexes) == [0] else (full,)


# -- messages to columns -------------------------------------------------------------------------------
def _frame(fields: Sequence[Field], messages: Sequence[Message]) -> pl.DataFrame:
    return pl.DataFrame([_column(field, messages) for field in fields])


def _column(field: Field, messages: Sequence[Message]) -> pl.Series:
    name = field.name
    values = list(map(attrgetter(name), messages))
    if field.kind == "map":
        # Iterating over a map of messages yields its keys, each of which has a value.
        pairs = [_Pair(key, one[key]) for one in values for key in sorted(one)]
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


class _Pair(NamedTuple):
    """An entry of a map, as the message that it is on the wire."""

    key: Any
    value: Any

    def HasField(self, _: str) -> bool:
        return True


def _series(field: Field, values: list[Any]) -> pl.Series:
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
    message = MessageType(spec.settings["message"], spec.settings["descriptors"])
    if "registry" not in spec.settings:
        return _ProtobufFormat(message)
    writer = writer_of(spec, *message.to_register())
    return FramedFormat(_ProtobufFormat(message), writer, leads(message.indexes))
