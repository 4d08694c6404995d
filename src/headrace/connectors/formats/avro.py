"""Avro: datums of a schema from bytes to columns and back.

Polars knows no references to named types, so each is replaced by what it refers to. It knows no maps either, but a map
has the bytes of an array of records with a key and a value. Refused are what it can't read (unions of several types or
of one, types that contain themselves) and what has no bytes (null, a record without fields): a short payload could then
be a list of any length.

A writer's records become a reader's columns by Avro's rules of schema resolution. Fields are found by name, or by an
alias of the reader's; one that the writer doesn't have gets the reader's default.

Datums one after another are a block of an Avro file, so Polars reads many at once. One that is too short or too long
would be read on into the next one. So the schema gets one field more, and each datum a mark that no sender knows: when
all marks are in their places, every datum ended where its payload did.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.casting import CastSafety, cast_column, cast_safety
from headrace.rows.dtypes import Columns, written
from headrace.rows.formats import Decoded, Decoder, Format, Payload, decode_halving
from headrace.rows.pieces import RowsUnreadable

_FIELD = ", field "
MAP = "Entry"  # how the names of records begin that are entries of maps
_PRIMITIVES: Mapping[str, pl.DataType] = {
    "boolean": pl.Boolean(), "int": pl.Int32(), "long": pl.Int64(), "float": pl.Float32(), "double": pl.Float64(),
    "bytes": pl.Binary(), "string": pl.String(),
}  # fmt: skip
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


Notes = Mapping[str, Note]  # by the path of a field: ``at.street``


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """A record: ``record`` without references, and its columns.

    ``left_out`` are fields that can't be columns. If there are any, ``record`` doesn't describe what is in a datum.
    """

    record: dict[str, Any]
    columns: Columns
    notes: Notes = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def read_schema(given: object, needed: Sequence[object] = (), *, partly: bool = False) -> ReadSchema:
    """Read a record's schema, with those it refers to (``needed``). ``partly``: leave out fields that can't be read."""
    schema = schema_types(given)
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        hint = 'write {"type": "record", "name": "Order", "fields": [...]}'
        raise DeclarationError(f"the Avro schema doesn't describe a record: {schema!s:.80}", hint=hint)
    reading = _Reading()
    for one in needed:
        try:
            reading.type_of(schema_types(one), "")
        except DeclarationError:
            if not partly:
                raise
    reading.notes.clear()
    reading.partly = partly
    written, dtype = reading.type_of(schema, "")
    assert isinstance(dtype, pl.Struct)
    columns: Columns = {one.name: one.dtype for one in dtype.fields}  # type: ignore[misc]
    return ReadSchema(written, columns, reading.notes, tuple(reading.left_out))


def schema_types(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError as error:
        hint = "pass the schema's text, not the name of its file"
        raise DeclarationError(f"the Avro schema isn't JSON: {error}", hint=hint) from error


@dataclass(slots=True)
class _Reading:
    """``named`` are the types that were defined so far, ``open`` those that are being defined."""

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
                return {"type": "enum", "name": name, "symbols": schema.get("symbols", [])}, pl.String()
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
            hint = "define it where it is first used"
            raise DeclarationError(f"the Avro schema{where}: unknown type {name!r}", hint=hint)
        if found in self.open:
            hint = 'read the records with format="bytes"'
            raise DeclarationError(f"the Avro schema{where}: {name!r} contains itself, which a column can't", hint=hint)
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
                hint = 'give each field a "name" and a "type"'
                raise DeclarationError(f"the Avro schema{where}: {one!s:.80} isn't a field", hint=hint)
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
        plain, inner = self.type_of(values, where, space)
        self.count += 1
        fields = [{"name": "key", "type": "string"}, {"name": "value", "type": plain}]
        entry = {"type": "record", "name": f"{MAP}{self.count}", "fields": fields}
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
            plain = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
            return plain, pl.Decimal(precision, scale)
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


# -- avro resolution ---------------------------------------------------------------------------------
_PROMOTED = {
    (pl.Int32, pl.Float32), (pl.Int32, pl.Float64), (pl.Int64, pl.Float32), (pl.Int64, pl.Float64),
    (pl.String, pl.Binary), (pl.Binary, pl.String),
}  # fmt: skip
"""Avro's casts beyond those that keep every value. Bytes that aren't text make a record unreadable."""


class SchemasDisagree(Exception):
    """Records of the writer's schema can't be read as these columns. Not an error yet: the policy decides."""


def resolve(writer: ReadSchema, columns: Columns, reader: ReadSchema | None) -> dict[str, pl.Expr]:
    """How to make ``columns`` of the writer's. Without a reader's schema, what a writer doesn't have is null."""
    return _Resolution(None if reader is None else reader.notes).fields(writer.columns, columns, pl.col, "")


def declared(what: str, found: Columns, columns: Columns, notes: Notes | None = None) -> dict[str, pl.Expr]:
    """How to make the columns that the app declares. Raises ``DeclarationError`` if a value could be lost."""
    short = what.replace("protobuf ", "")
    for name in columns:
        if name not in found:
            hint = f"declare only fields of {short}, or leave out the input's schema to read all fields"
            raise DeclarationError(f"{what} has no field {name!r}; it has {', '.join(found)}", hint=hint)
    try:
        return _Resolution(notes or {}).fields(found, columns, pl.col, "")
    except SchemasDisagree as error:
        hint = f"declare the types of {short}, and convert the columns afterwards: .with_columns(...)"
        raise DeclarationError(f"{what} and the columns disagree: {error}", hint=hint) from error


class _Resolution:
    def __init__(self, notes: Notes | None) -> None:
        self._notes = notes

    def fields(self, found: Columns, wanted: Columns, take: Callable[[str], pl.Expr], where: str) -> dict[str, pl.Expr]:
        made: dict[str, pl.Expr] = {}
        for name, dtype in wanted.items():
            path = f"{where}.{name}" if where else name
            note = Note(default=(None,)) if self._notes is None else self._notes.get(path, Note())
            there = next((one for one in (name, *note.aliases) if one in found), None)
            if there is not None:
                made[name] = self._fitted(take(there), found[there], dtype, path)
            elif note.default:
                made[name] = default_of(note.default[0], dtype, path)
            else:
                raise SchemasDisagree(f"the field {path!r} is missing, and the reader's schema has no default for it")
        return made

    def _fitted(self, column: pl.Expr, found: pl.DataType, wanted: pl.DataType, path: str) -> pl.Expr:
        if found == wanted:
            return column.cast(wanted)  # Polars reads an enumeration as a category
        if isinstance(found, pl.Struct) and isinstance(wanted, pl.Struct):
            fields = self.fields(_columns(found), _columns(wanted), column.struct.field, path)
            return pl.when(column.is_not_null()).then(pl.struct([one.alias(name) for name, one in fields.items()]))
        if isinstance(found, pl.List) and isinstance(wanted, pl.List):
            inner: Any = self._fitted(pl.element(), found.inner, wanted.inner, path)  # type: ignore[arg-type]
            return column.list.eval(inner)
        if isinstance(found, pl.Datetime) and isinstance(wanted, pl.Datetime) and wanted.time_zone is None:
            found, column = pl.Datetime(found.time_unit), column.dt.replace_time_zone(None)
        safe = cast_safety(found, wanted) in (CastSafety.SAME, CastSafety.LOSSLESS)
        if not safe and (type(found), type(wanted)) not in _PROMOTED:
            types = f"is of type {written(found)} and can't be read as {written(wanted)}"
            raise SchemasDisagree(f"the field {path!r} {types}")
        return column.cast(wanted)


def default_of(value: Any, dtype: pl.DataType, path: str) -> pl.Expr:
    if value is None:
        return pl.lit(None, dtype)
    try:
        if isinstance(dtype, pl.Binary):
            return pl.lit(value.encode("latin-1"), dtype)
        if isinstance(dtype, pl.Time | pl.Decimal):
            raise TypeError
        if isinstance(dtype, pl.Date | pl.Datetime):
            return pl.lit(value).cast(dtype)
        return pl.lit(pl.Series([value], dtype=dtype)).first()
    except (pl.exceptions.PolarsError, TypeError, ValueError, AttributeError, OverflowError):
        raise SchemasDisagree(f"the field {path!r} is missing, and its default {value!r:.40} can't be used") from None


def _columns(dtype: pl.Struct) -> Columns:
    return {one.name: one.dtype for one in dtype.fields}  # type: ignore[misc]


_MARK, _LEAD = "__headrace_end", "__headrace_lead"
_MARK_BYTES = 12
_SYNC = bytes(16)


class AvroFormat(Format):
    """Datums of one schema, given as JSON types or as text."""

    def __init__(self, schema: object) -> None:
        self.schema = read_schema(schema)

    @override
    def columns(self) -> Columns:
        return self.schema.columns

    @override
    def decoder(self, columns: Columns) -> Decoder:
        return _AvroDecoder(self.schema, columns, self.made(columns))

    def made(self, columns: Columns) -> Mapping[str, pl.Expr]:
        return declared("the Avro schema", self.schema.columns, columns, self.schema.notes)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        return _datums(self.schema, rows)


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
        self._header = b"Obj\x01" + varint(2) + entries + varint(0) + _SYNC

    def read(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        """One row for each payload. Raises ``RowsUnreadable`` if any of them isn't a datum."""
        block = b"".join([part for payload in payloads for part in (payload, self._mark)])
        data = self._header + varint(len(payloads)) + varint(len(block)) + block + _SYNC
        try:
            frame = pl.read_avro(io.BytesIO(data))
            if frame.height != len(payloads) or not frame.select((pl.col(_MARK) == pl.lit(self._mark)).all()).item():
                raise RowsUnreadable("not a datum of the Avro schema: its length doesn't match")
            return frame.with_columns(self._made).select(self._names)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
            raise RowsUnreadable("not a datum of the Avro schema") from error


def _bytes(data: bytes) -> bytes:
    return varint(len(data)) + data


def varint(number: int) -> bytes:
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


# -- avro encoding -----------------------------------------------------------------------------------
_BYTES = pa.large_binary()
_NOTHING = pa.scalar(b"", _BYTES)
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def _datums(schema: ReadSchema, rows: pl.DataFrame) -> list[bytes]:
    """One datum for each row. A column that is missing has the default of its field, or else is null."""
    unknown = [name for name in rows.columns if name not in schema.columns]
    if unknown:
        raise _wrong(f"the schema has no field {unknown[0]!r}; it has {', '.join(schema.columns)}")
    if not rows.height:
        return []
    parts = []
    for one in schema.record["fields"]:
        name, dtype = one["name"], schema.columns[one["name"]]
        if name not in rows.columns:
            default = schema.notes[name].default
            try:
                value = default_of(default[0] if default else None, dtype, name)
            except SchemasDisagree as error:
                raise _wrong(str(error)) from error
            rows = rows.with_columns(value.alias(name))
        parts.append(_Field(name).part(one["type"], _cast(rows[name], dtype, name)))
    data = pl.from_arrow(_joined(parts))
    assert isinstance(data, pl.Series)
    return data.to_list()


class _Field:
    """One field; ``path`` names it in errors. Its parts have nulls where its values are null."""

    def __init__(self, path: str) -> None:
        self._path = path

    def part(self, type_: Any, values: pl.Series, there: pl.Series | None = None) -> pa.Array:
        """The bytes of the values. Only where ``there`` says so has a value to be; by default everywhere."""
        if isinstance(type_, list):
            return self._optional(type_, values)
        missing = values.is_null() if there is None else values.is_null() & there
        if missing.any():
            raise _wrong(f"field {self._path!r} is null, which the schema doesn't allow")
        kind = type_ if isinstance(type_, str) else type_["type"]
        match kind:
            case "record":
                return self._record(type_["fields"], values)
            case "array":
                return self._array(type_["items"], values)
            case "enum":
                return self._enum(type_["symbols"], values)
            case "fixed":
                return self._fixed(type_["size"], values)
            case "bytes" if values.dtype == pl.Decimal:
                return _sized(pl.Series([_decimal(one) for one in values.to_list()], dtype=pl.Binary))
            case "bytes" | "string":
                return _sized(values)
            case "boolean":
                return _fixed_width(values.fill_null(False).cast(pl.UInt8).to_numpy(), values)
            case "float" | "double":
                code = "<f4" if kind == "float" else "<f8"
                return _fixed_width(values.fill_null(0).to_numpy().astype(code), values)
            case _:
                return varints(_ticks(type_, values), _valid(values))

    def _optional(self, union: Sequence[Any], values: pl.Series) -> pa.Array:
        null = union.index("null")
        found = self.part(union[1 - null], values, values.is_not_null())
        number = pa.scalar(varint(1 - null), _BYTES)
        return pc.fill_null(pc.binary_join_element_wise(number, found, _NOTHING), pa.scalar(varint(null), _BYTES))

    def _record(self, fields: Sequence[Mapping[str, Any]], values: pl.Series) -> pa.Array:
        there = values.is_not_null()
        parts = [
            _Field(f"{self._path}.{one['name']}").part(one["type"], values.struct.field(one["name"]), there)
            for one in fields
        ]
        # A field of a record that is null may be null itself, and its union would have bytes for that.
        return pc.if_else(there.to_arrow(), _joined(parts), pa.scalar(None, _BYTES))

    def _array(self, items: Any, values: pl.Series) -> pa.Array:
        lists = values.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
        inner = pl.from_arrow(lists.values)
        assert isinstance(inner, pl.Series)
        inner = inner.cast(values.dtype.inner)  # type: ignore[attr-defined]
        parts = _Field(f"{self._path}[]").part(items, inner)
        offsets = np.asarray(lists.offsets)
        whole = pa.LargeListArray.from_arrays(pa.array(offsets), parts)
        joined = pc.binary_join(whole, _NOTHING)
        lengths = np.diff(offsets)
        block = pc.binary_join_element_wise(varints(lengths), joined, pa.scalar(b"\0", _BYTES), _NOTHING)
        ended = pc.if_else(pa.array(lengths == 0), pa.scalar(b"\0", _BYTES), block)
        return pc.if_else(values.is_not_null().to_arrow(), ended, pa.scalar(None, _BYTES))

    def _enum(self, symbols: Sequence[str], values: pl.Series) -> pa.Array:
        numbers = values.replace_strict(symbols, range(len(symbols)), default=-1, return_dtype=pl.Int64)
        unknown = values.filter((numbers == -1) & values.is_not_null())
        if len(unknown):
            raise _wrong(f"field {self._path!r} can't be {unknown[0]!r}; it is one of {', '.join(symbols)}")
        return varints(numbers.fill_null(0).to_numpy(), _valid(values))

    def _fixed(self, size: int, values: pl.Series) -> pa.Array:
        if (values.bin.size() != size).any():
            raise _wrong(f"field {self._path!r} must have exactly {size} bytes")
        return values.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(_BYTES)


def varints(numbers: Ints, valid: Bools | None = None) -> pa.Array:
    """Numbers as Avro has them: zigzag, seven bits a byte, the lowest first. Null where they aren't ``valid``."""
    signed = numbers.astype(np.int64)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    lengths = np.ones(len(zigzag), dtype=np.int64)
    width = 1
    while width < 10 and (longer := zigzag >= np.uint64(1 << 7 * width)).any():
        lengths += longer
        width += 1
    places = np.arange(width, dtype=np.uint64)
    groups = ((zigzag[:, None] >> (places * np.uint64(7))) & np.uint64(0x7F)).astype(np.uint8)
    more = places[None, :] < (lengths - 1).astype(np.uint64)[:, None]
    groups |= more.astype(np.uint8) << np.uint8(7)
    data = groups[places[None, :] < lengths.astype(np.uint64)[:, None]] if width > 1 else groups.ravel()
    return _array(lengths, data, valid)


def _ticks(type_: Any, values: pl.Series) -> Ints:
    logical = type_.get("logicalType") if isinstance(type_, Mapping) else None
    if isinstance(values.dtype, pl.Time):
        unit = 1_000_000 if logical == "time-millis" else 1000
        return (values.to_physical() // unit).fill_null(0).to_numpy()
    return values.to_physical().cast(pl.Int64).fill_null(0).to_numpy()


def _sized(values: pl.Series) -> pa.Array:
    data = values.cast(pl.Binary)
    sizes = varints(data.bin.size().cast(pl.Int64).fill_null(0).to_numpy())
    contents = data.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(_BYTES)
    return pc.binary_join_element_wise(sizes, contents, _NOTHING)


def _fixed_width(numbers: npt.NDArray[Any], values: pl.Series) -> pa.Array:
    lengths = np.full(len(numbers), numbers.itemsize, dtype=np.int64)
    return _array(lengths, np.ascontiguousarray(numbers).view(np.uint8), _valid(values))


def _array(lengths: Ints, data: npt.NDArray[np.uint8], valid: Bools | None) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(_BYTES, len(lengths), buffers)


def _valid(values: pl.Series) -> Bools | None:
    return values.is_not_null().to_numpy() if values.null_count() else None


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _decimal(value: Decimal | None) -> bytes | None:
    if value is None:
        return None
    sign, all_digits, _ = value.as_tuple()
    digits = int("".join(map(str, all_digits))) * (-1 if sign else 1)
    return digits.to_bytes((digits + (digits < 0)).bit_length() // 8 + 1, "big", signed=True)


def _cast(values: pl.Series, dtype: pl.DataType, path: str) -> pl.Series:
    if values.dtype == dtype:
        return values
    if isinstance(values.dtype, pl.Datetime) and isinstance(dtype, pl.Datetime):
        if values.dtype.time_zone is None:
            values = values.dt.replace_time_zone(dtype.time_zone)
        found = values.cast(dtype)
        wrong = found.cast(values.dtype).ne_missing(values).arg_true().to_list()
    else:
        found, wrong = cast_column(values, dtype)
    if wrong:
        raise _wrong(f"field {path!r} is of type {written(dtype)}, but the value is {values[wrong[0]]!r:.40}")
    return found


def _wrong(what: str) -> DataError:
    hint = "make the rows fit the schema, for example with .with_columns(...) before send_to"
    return DataError(f"a row can't be written as Avro: {what}", hint=hint)
