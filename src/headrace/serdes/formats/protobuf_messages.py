"""Protobuf's messages: their classes out of descriptors, and their fields as columns.

Descriptors travel in a ``FormatSpec`` as text, with all that they import, so containers need neither generated code nor
files. Nothing else imports protobuf's package.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import polars as pl

from headrace.core.errors import DeclarationError
from headrace.core.extras import needing
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats.registry.client import Registered

Message = Any
"""A message of protobuf, whose classes are made while the program runs."""

_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_GOOGLES = "google/protobuf/"
"""Files that every registry and every serializer knows."""


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
        """The type of the column."""
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
            raise DeclarationError(
                f"these files have no protobuf message {name!r}", hint=f"they have {there:.500}"
            ) from None
        self.new: Callable[..., Message] = self._google.message_factory.GetMessageClass(self._descriptor)
        self.unreadable: type[Exception] = self._google.message.DecodeError
        self.fields = tuple(_fields(self._descriptor, ()))

    @property
    def columns(self) -> Columns:
        """The columns of its fields."""
        return {field.name: field.column for field in self.fields}

    @property
    def indexes(self) -> list[int]:
        """Return its place in the file: the numbers of the messages around it, then its own among its siblings."""
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
        """Its file as registries take it, and those that it imports, by their names."""
        own = self._descriptor.file.name
        imported = _in_order({name: self._files[name] for name in _imports(own, self._files)})
        return self._schema(own), {one.name: self._schema(one.name) for one in imported if one.name != own}

    def _schema(self, name: str) -> Registered:
        return Registered(base64.b64encode(self._files[name].SerializeToString()).decode(), "PROTOBUF")


def files_of_class(message: Any) -> tuple[str, str]:
    """The full name of a generated class, and its files as text."""
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
    """What ``protoc --include_imports --descriptor_set_out`` has written, as text. Raises ``DeclarationError``."""
    google = _google()
    try:
        files = google.descriptor_pb2.FileDescriptorSet.FromString(data)
    except google.message.DecodeError:
        files = None
    names = {file.name for file in files.file} if files is not None else set()
    if not names:
        raise DeclarationError(
            "this isn't a set of protobuf descriptors",
            hint="create one with protoc --include_imports --descriptor_set_out",
        )
    missing = sorted({one for file in files.file for one in file.dependency} - names)
    if missing:
        raise DeclarationError(
            f"the set of protobuf descriptors lacks {', '.join(missing)}",
            hint="create it with protoc --include_imports",
        )
    return base64.b64encode(data).decode()


def is_message_class(given: object) -> bool:
    """Whether this is a class that protobuf has generated."""
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
    """The files that one needs, itself included, without those that everybody knows."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found and not one.startswith(_GOOGLES):
            found.add(one)
            waiting += files[one].dependency
    return found


def _in_order(files: Mapping[str, Any]) -> list[Any]:
    """Each after those that it imports."""
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
        raise DeclarationError(
            f"the protobuf field {one.full_name} is a group, which can't be a column", hint="declare it as a message"
        )
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
        one.CPPTYPE_INT32: pl.Int32(),
        one.CPPTYPE_INT64: pl.Int64(),
        one.CPPTYPE_UINT32: pl.UInt32(),
        one.CPPTYPE_UINT64: pl.UInt64(),
        one.CPPTYPE_DOUBLE: pl.Float64(),
        one.CPPTYPE_FLOAT: pl.Float32(),
        one.CPPTYPE_BOOL: pl.Boolean(),
        one.CPPTYPE_STRING: pl.Binary() if one.type == one.TYPE_BYTES else pl.String(),
    }
    return types[one.cpp_type]
