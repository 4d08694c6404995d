"""Read Avro record by record where Polars can't: a schema has a union of several types in an unused field.

That takes fastavro, and many times as long.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from headrace.connectors.formats.avro import MAP, ReadSchema
from headrace.core.errors import DeclarationError
from headrace.rows.pieces import RowsUnreadable
from headrace.rows.values import column


class RowReader:
    """Reads datums of the schema ``text`` as the columns ``made`` of ``schema``, which leaves fields out."""

    def __init__(
        self, text: str, needed: Sequence[str], schema: ReadSchema, made: Mapping[str, pl.Expr], lead: int
    ) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise DeclarationError(
                f"its fields {', '.join(schema.left_out)} have unions, which only fastavro reads, and fastavro isn't "
                "installed",
                hint='install it wherever containers run: pip install "headrace[avro]"',
            ) from error
        named: dict[str, Any] = {}
        try:
            for one in needed:
                fastavro.parse_schema(json.loads(one), named_schemas=named)
            self._parsed = fastavro.parse_schema(json.loads(text), named_schemas=named)
        except Exception as error:
            raise DeclarationError(f"fastavro can't read the schema: {error}", hint="check the schema") from error
        self._read_one = fastavro.schemaless_reader
        self._columns = schema.columns
        self._values = {one["name"]: _value_maker(one["type"]) for one in schema.record["fields"]}
        self._made = [expression.alias(name) for name, expression in made.items()]
        self._names = list(made)
        self._lead = lead

    def read(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        rows: list[Any] = []
        try:
            for payload in payloads:
                data = io.BytesIO(payload)
                data.seek(self._lead)
                rows.append(self._read_one(data, self._parsed, None))
                if data.tell() != len(payload):
                    raise RowsUnreadable("not a datum of the Avro schema: its length doesn't match")
            columns = [
                column(name, [self._values[name](row[name]) for row in rows], dtype)
                for name, dtype in self._columns.items()
            ]
            return pl.DataFrame(columns).with_columns(self._made).select(self._names)
        except RowsUnreadable:
            raise
        except Exception as error:  # fastavro raises whatever it meets
            raise RowsUnreadable("not a datum of the Avro schema") from error


def _value_maker(plain: Any) -> Callable[[Any], Any]:
    """What makes values of a column of fastavro's: maps become lists of entries."""
    if isinstance(plain, list):
        one = _value_maker(next(branch for branch in plain if branch != "null"))
        return lambda value: None if value is None else one(value)
    match plain:
        case {"type": "array", "items": {"type": "record", "name": str(name), "fields": fields}} if name.startswith(
            MAP
        ):
            inner = _value_maker(fields[1]["type"])
            return lambda value: [{"key": key, "value": inner(one)} for key, one in value.items()]
        case {"type": "array", "items": items}:
            each = _value_maker(items)
            return lambda value: [each(one) for one in value]
        case {"type": "record", "fields": fields}:
            makers = {field["name"]: _value_maker(field["type"]) for field in fields}
            return lambda value: {name: maker(value[name]) for name, maker in makers.items()}
    return lambda value: value
