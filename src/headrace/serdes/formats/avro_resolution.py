"""How records of a writer's schema become a reader's columns: by Avro's rules of schema resolution. Pure.

Fields are found by name, or by an alias of the reader's. One that the writer doesn't have gets the reader's default;
one that the reader doesn't have is left out. Numbers and bytes are promoted as Avro allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from headrace.serdes.casting import CastSafety, cast_safety
from headrace.serdes.dtypes import Columns, written
from headrace.serdes.formats.avro_schema import Note, ReadSchema

_PROMOTED = {
    (pl.Int32, pl.Float32),
    (pl.Int32, pl.Float64),
    (pl.Int64, pl.Float32),
    (pl.Int64, pl.Float64),
    (pl.String, pl.Binary),
    (pl.Binary, pl.String),
}
"""Avro's casts beyond those that keep every value. Bytes that aren't text make a record unreadable."""


class SchemasDisagree(Exception):
    """Records of the writer's schema can't be read as these columns. Not an error yet: the policy decides."""


def resolve(writer: ReadSchema, columns: Columns, reader: ReadSchema | None) -> dict[str, pl.Expr]:
    """How to make ``columns`` of the writer's. Without a reader's schema, what a writer doesn't have is null.

    Raises ``SchemasDisagree``.
    """
    return _Resolution(None if reader is None else reader.notes).fields(writer.columns, columns, pl.col, "")


def fitted(found: Columns, columns: Columns) -> dict[str, pl.Expr]:
    """How to make ``columns`` of those found, which have at least the same names. Raises ``SchemasDisagree``."""
    return _Resolution({}).fields(found, columns, pl.col, "")


class _Resolution:
    def __init__(self, notes: Mapping[str, Note] | None) -> None:
        self._notes = notes

    def fields(self, found: Columns, wanted: Columns, take: Callable[[str], pl.Expr], where: str) -> dict[str, pl.Expr]:
        """Read the wanted fields of a record; ``take`` reads a present one, and ``where`` is the record's path."""
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
            raise SchemasDisagree(
                f"the field {path!r} is of type {written(found)} and can't be read as {written(wanted)}"
            )
        return column.cast(wanted)


def default_of(value: Any, dtype: pl.DataType, path: str) -> pl.Expr:
    """A default as Avro's JSON has it: bytes are text, times are numbers. Raises ``SchemasDisagree``."""
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
