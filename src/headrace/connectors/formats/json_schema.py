"""JSON whose columns are said by a JSON Schema, with the header of a schema registry or without.

Values are read as JSON is (``rows.formats``): the schema names columns and types, and nothing is validated by it but
what a column can't have. Writing checks that there are the properties that it requires, and no null where it allows
none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
from typing_extensions import override

from headrace.connectors.formats.registry import FramedFormat, Registered, writer_of
from headrace.core.errors import DataError, DeclarationError
from headrace.rows.dtypes import Columns
from headrace.rows.formats import Decoder, Format, FormatSpec, JsonFormat

_PLAIN: Mapping[str, pl.DataType] = {"boolean": pl.Boolean(), "integer": pl.Int64(), "number": pl.Float64()}
_TEXTS: Mapping[str, pl.DataType] = {"date": pl.Date(), "date-time": pl.Datetime("us", "UTC")}


@dataclass(frozen=True, slots=True)
class ReadJsonSchema:
    """The columns of a schema. ``required`` have to be there, ``nullable`` may be null, ``closed`` forbids others."""

    columns: Columns
    required: frozenset[str]
    nullable: frozenset[str]
    closed: bool


class _JsonSchemaFormat(Format):
    """JSON objects of ``schema``; None if an input says the columns."""

    def __init__(self, schema: object | None) -> None:
        self._schema = None if schema is None else _read_json_schema(schema)
        self._json = JsonFormat()

    @override
    def columns(self) -> Columns | None:
        return None if self._schema is None else self._schema.columns

    @override
    def decoder(self, columns: Columns) -> Decoder:
        """Columns that the schema doesn't have may be properties of other versions of it; types may be any of JSON."""
        return self._json.decoder(columns)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        if self._schema is None:
            hint = "write hr.io.json_schema(schema, registry=...)"
            raise DeclarationError("writing JSON with a schema needs the schema", hint=hint)
        _check(rows, self._schema)
        return self._json.encode(rows)


def _check(rows: pl.DataFrame, schema: ReadJsonSchema) -> None:
    missing = sorted(schema.required - set(rows.columns))
    if missing:
        hint = "add the missing columns before send_to: .with_columns(...)"
        raise DataError(f"the JSON schema requires {', '.join(missing)}, which the rows lack", hint=hint)
    unknown = [name for name in rows.columns if name not in schema.columns]
    if unknown and schema.closed:
        hint = "select only the schema's properties before send_to"
        raise DataError(f"the JSON schema has no property {unknown[0]!r}, and allows no others", hint=hint)
    for name in rows.columns:
        if name in schema.columns and name not in schema.nullable and rows[name].null_count():
            hint = 'filter such rows out, or allow it: "type": ["string", "null"]'
            raise DataError(f"column {name!r}: a value is null, which the JSON schema doesn't allow", hint=hint)


def _read_json_schema(given: object) -> ReadJsonSchema:
    schema = given
    if isinstance(given, str):
        try:
            schema = json.loads(given)
        except ValueError as error:
            hint = "pass the schema's text, not the name of its file"
            raise DeclarationError(f"the JSON schema isn't JSON: {error}", hint=hint) from error
    reading = _Reading(schema)
    found, _ = reading.resolved(schema, "", ())
    properties = found.get("properties") if isinstance(found, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        hint = 'write {"type": "object", "properties": {"member": {"type": "string"}}}'
        raise DeclarationError(f"the JSON schema doesn't describe an object with properties: {schema!s:.80}", hint=hint)
    types = {name: reading.type_of(one, f", property {name}", ()) for name, one in properties.items()}
    return ReadJsonSchema(
        {name: dtype for name, (dtype, _) in types.items()},
        frozenset(found.get("required") or ()),
        frozenset(name for name, (_, null) in types.items() if null),
        found.get("additionalProperties") is False,
    )


class _Reading:
    def __init__(self, root: object) -> None:
        self._root: Final = root

    def resolved(self, schema: Any, where: str, seen: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        while isinstance(schema, Mapping) and "$ref" in schema:
            reference = schema["$ref"]
            if reference in seen:
                said = f"the JSON schema{where}: {reference} contains itself, which a column can't"
                raise DeclarationError(said, hint="name the columns in the input's schema: app.input(name, {...})")
            seen = (*seen, reference)
            schema = self._root
            if not isinstance(reference, str) or not reference.startswith("#/"):
                raise _refused(where, {"$ref": reference})
            for step in reference[2:].split("/"):
                name = step.replace("~1", "/").replace("~0", "~")
                if not isinstance(schema, Mapping) or name not in schema:
                    hint = 'define it under "$defs"'
                    raise DeclarationError(f"the JSON schema{where}: {reference} is undefined", hint=hint)
                schema = schema[name]
        return schema, seen

    def type_of(self, given: Any, where: str, seen: tuple[str, ...]) -> tuple[pl.DataType, bool]:
        schema, seen = self.resolved(given, where, seen)
        if not isinstance(schema, Mapping):
            raise _refused(where, given)
        for union in ("oneOf", "anyOf"):
            if union in schema:
                return self._union(schema[union], where, seen)
        kinds = schema.get("type")
        if kinds is None and all(isinstance(one, str) for one in schema.get("enum") or [None]):
            kinds = "string"
        if isinstance(kinds, list):
            others = [one for one in kinds if one != "null"]
            if set(others) == {"integer", "number"}:
                others = ["number"]
            if len(others) != 1:
                raise _refused(where, given)
            dtype, _ = self.type_of({**schema, "type": others[0]}, where, seen)
            return dtype, len(others) < len(kinds) and "null" in kinds
        return self._single(kinds, schema, where, seen), False

    def _union(self, given: Any, where: str, seen: tuple[str, ...]) -> tuple[pl.DataType, bool]:
        others = [one for one in given if one != {"type": "null"}]
        if len(others) != 1:
            raise _refused(where, given)
        dtype, null = self.type_of(others[0], where, seen)
        return dtype, null or len(others) < len(given)

    def _single(self, kind: Any, schema: Mapping[str, Any], where: str, seen: tuple[str, ...]) -> pl.DataType:
        match kind:
            case "string" if schema.get("contentEncoding") == "base64":
                return pl.Binary()
            case "string":
                return _TEXTS.get(str(schema.get("format")), pl.String())
            case "array" if isinstance(schema.get("items"), Mapping):
                return pl.List(self.type_of(schema["items"], where, seen)[0])
            case "object" if schema.get("properties"):
                inner = schema["properties"].items()
                return pl.Struct({name: self.type_of(one, f"{where}.{name}", seen)[0] for name, one in inner})
            case str() if kind in _PLAIN:
                return _PLAIN[kind]
        raise _refused(where, schema)


def _refused(where: str, schema: object) -> DeclarationError:
    said = f"the JSON schema{where}: {json.dumps(schema, default=str):.100} can't be read as a column"
    return DeclarationError(said, hint="name the columns in the input's schema: app.input(name, {...})")


def open_json_schema(spec: FormatSpec) -> Format:
    schema, format = spec.schema, _JsonSchemaFormat(spec.schema)
    if "registry" not in spec.settings:
        return format
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return FramedFormat(format, None if schema is None else writer_of(spec, Registered(text, "JSON")))
