"""An Avro schema as columns, and written out so that Polars can read datums with it. Pure.

Polars knows no references to named types, so each is replaced by what it refers to. It knows no maps either, but a map
has the bytes of an array of records with a key and a value. It can't read unions of several types or of one, and types
that contain themselves; and what has no bytes (null, a record without fields) would let a short payload be a list of
any length. All these are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import Columns

_FIELD = ", field "
MAP = "Entry"
"""How the names of records begin that are entries of maps."""
_PRIMITIVES: Mapping[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "int": pl.Int32(),
    "long": pl.Int64(),
    "float": pl.Float32(),
    "double": pl.Float64(),
    "bytes": pl.Binary(),
    "string": pl.String(),
}

_LOGICAL: Mapping[tuple[str, str], pl.DataType] = {
    ("int", "date"): pl.Date(),
    ("int", "time-millis"): pl.Time(),
    ("long", "time-micros"): pl.Time(),
    ("long", "timestamp-millis"): pl.Datetime("ms", "UTC"),
    ("long", "timestamp-micros"): pl.Datetime("us", "UTC"),
    ("long", "local-timestamp-millis"): pl.Datetime("ms"),
    ("long", "local-timestamp-micros"): pl.Datetime("us"),
}

_DEBEZIUM: Mapping[tuple[str, str], str] = {
    ("int", "io.debezium.time.Date"): "date",
    ("int", "io.debezium.time.Time"): "time-millis",
    ("long", "io.debezium.time.MicroTime"): "time-micros",
    ("long", "io.debezium.time.Timestamp"): "local-timestamp-millis",
    ("long", "io.debezium.time.MicroTimestamp"): "local-timestamp-micros",
}
"""What Debezium means by names of its own. Its times of a day and a year have no zone."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader's schema says about a field that isn't in a record. ``default`` is empty if it says nothing."""

    aliases: tuple[str, ...] = ()
    default: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """A record: ``record`` without references, and its columns. ``notes`` are by the path of a field: ``at.street``.

    ``left_out`` are fields that can't be columns. If there are any, ``record`` doesn't describe what is in a datum.
    """

    record: dict[str, Any]
    columns: Columns
    notes: Mapping[str, Note] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def read_schema(given: object, needed: Sequence[object] = (), *, partly: bool = False) -> ReadSchema:
    """Read a schema of a record, as JSON types or their text. ``needed`` define types that it refers to.

    Raises ``DeclarationError`` for what can't be read; ``partly``: only if no field of the record can.
    """
    schema = _json(given)
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise DeclarationError(
            f"the Avro schema doesn't describe a record: {schema!s:.80}",
            hint='write {"type": "record", "name": "Order", "fields": [...]}',
        )
    reading = _Reading()
    for one in needed:
        try:
            reading.type_of(_json(one), "")
        except DeclarationError:
            if not partly:
                raise
    reading.notes.clear()
    reading.partly = partly
    written, dtype = reading.type_of(schema, "")
    assert isinstance(dtype, pl.Struct)
    columns: Columns = {one.name: one.dtype for one in dtype.fields}  # type: ignore[misc]
    return ReadSchema(written, columns, reading.notes, tuple(reading.left_out))


def _json(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError as error:
        raise DeclarationError(
            f"the Avro schema isn't JSON: {error}", hint="pass the schema's text, not the name of its file"
        ) from error


@dataclass(slots=True)
class _Reading:
    """Reads one schema. ``named`` are the types that were defined so far, ``open`` those that are being defined."""

    named: dict[str, Any] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    notes: dict[str, Note] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    partly: bool = False
    count: int = 0

    def type_of(self, schema: Any, where: str, space: str = "") -> tuple[Any, pl.DataType]:
        """The schema without references, and its type. ``where`` is the field, ``space`` the namespace around it."""
        if isinstance(schema, list):
            return self._union(schema, where, space)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return schema, _PRIMITIVES[schema]
            return self._reference(schema, where, space)
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        if isinstance(kind, list | Mapping):
            return self.type_of(kind, where, space)
        match kind:
            case "record":
                return self._record(schema, where, space)
            case "enum":
                name = self._define(schema, where, space)
                plain = {"type": "enum", "name": name, "symbols": schema.get("symbols", [])}
                return plain, pl.String()
            case "fixed":
                return self._fixed(schema, where, space)
            case "array":
                items, inner = self.type_of(schema.get("items"), where, space)
                return {"type": "array", "items": items}, pl.List(inner)
            case "map":
                return self._map(schema.get("values"), where, space)
            case str() if kind in _PRIMITIVES:
                return self._logical(schema, kind, where)
            case str() if kind != "null":
                return self._reference(kind, where, space)
        raise _refused(where, schema)

    def _union(self, schema: list[Any], where: str, space: str) -> tuple[Any, pl.DataType]:
        others = [one for one in schema if one != "null"]
        if len(others) != 1 or len(schema) != 2:
            raise _refused(where, schema)
        plain, dtype = self.type_of(others[0], where, space)
        return [one if one == "null" else plain for one in schema], dtype

    def _reference(self, name: str, where: str, space: str) -> tuple[Any, pl.DataType]:
        full = name if "." in name or not space else f"{space}.{name}"
        found = full if full in self.named else name
        if found not in self.named:
            raise DeclarationError(
                f"the Avro schema{where}: unknown type {name!r}", hint="define it where it is first used"
            )
        if found in self.open:
            raise DeclarationError(
                f"the Avro schema{where}: {name!r} contains itself, which a column can't",
                hint='read the records with format="bytes"',
            )
        definition, around = self.named[found]
        return self.type_of(definition, where, around)

    def _define(self, schema: Mapping[str, Any], where: str, space: str) -> str:
        """Record a named type; return a unique name, because its definition may be written several times."""
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"the Avro schema{where}: a {schema['type']} has no name", hint='add "name"')
        self.named.setdefault(_full(schema, space), (schema, space))
        self.count += 1
        return f"T{self.count}"

    def _record(self, schema: Mapping[str, Any], where: str, space: str) -> tuple[Any, pl.DataType]:
        name, full = self._define(schema, where, space), _full(schema, space)
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields:
            raise DeclarationError(f"the Avro schema{where}: record {full!r} has no fields", hint='add "fields"')
        self.open.add(full)
        try:
            return self._fields(fields, name, full, where)
        finally:
            self.open.discard(full)

    def _fields(self, fields: list[Any], name: str, full: str, where: str) -> tuple[Any, pl.DataType]:
        plain, types = [], {}
        for one in fields:
            if not isinstance(one, Mapping) or not isinstance(one.get("name"), str) or "type" not in one:
                raise DeclarationError(
                    f"the Avro schema{where}: {one!s:.80} isn't a field", hint='give each field a "name" and a "type"'
                )
            column = one["name"]
            inside = f"{where}.{column}" if where else f"{_FIELD}{column}"
            try:
                written, types[column] = self.type_of(one["type"], inside, full.rpartition(".")[0])
            except DeclarationError:
                if where or not self.partly or (one is fields[-1] and not types):
                    raise
                self.left_out.append(column)
                continue
            plain.append({"name": column, "type": written})
            default = (one["default"],) if "default" in one else ()
            self.notes[inside.removeprefix(_FIELD)] = Note(tuple(one.get("aliases") or ()), default)
        return {"type": "record", "name": name, "fields": plain}, pl.Struct(types)

    def _map(self, values: Any, where: str, space: str) -> tuple[Any, pl.DataType]:
        """A map as the array of its entries."""
        plain, inner = self.type_of(values, where, space)
        self.count += 1
        entry = {
            "type": "record",
            "name": f"{MAP}{self.count}",
            "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": plain}],
        }
        return {"type": "array", "items": entry}, pl.List(pl.Struct({"key": pl.String(), "value": inner}))

    def _fixed(self, schema: Mapping[str, Any], where: str, space: str) -> tuple[Any, pl.DataType]:
        size = schema.get("size")
        name = self._define(schema, where, space)
        if not isinstance(size, int) or size < 1 or schema.get("logicalType") in ("decimal", "duration"):
            raise _refused(where, schema)
        return {"type": "fixed", "name": name, "size": size}, pl.Binary()

    def _logical(self, schema: Mapping[str, Any], kind: str, where: str) -> tuple[Any, pl.DataType]:
        logical = schema.get("logicalType") or _DEBEZIUM.get((kind, str(schema.get("connect.name"))))
        if kind == "bytes" and logical == "decimal":
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            if not isinstance(precision, int) or not isinstance(scale, int) or not 0 < precision <= 38:
                raise _refused(where, schema)
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}, pl.Decimal(
                precision, scale
            )
        if (kind, str(logical)) in _LOGICAL:
            return {"type": kind, "logicalType": logical}, _LOGICAL[kind, str(logical)]
        return kind, _PRIMITIVES[kind]


def _full(schema: Mapping[str, Any], space: str) -> str:
    name, own = str(schema["name"]), schema.get("namespace", space)
    return name if "." in name or not own else f"{own}.{name}"


def _refused(where: str, schema: object) -> DeclarationError:
    return DeclarationError(
        f"the Avro schema{where}: {json.dumps(schema, default=str):.100} can't be read as a column",
        hint='only a union of null and one other type can be a column; read other records with format="bytes", '
        "and decode them in a function of your own",
    )
