"""What a system that stores frames does with a stream's shape: partition count, columns and key. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from headrace.core.errors import DeclarationError, StreamExistsError, UsageError
from headrace.core.ids import MAX_PARTITIONS
from headrace.rows.dtypes import Columns, instantiate
from headrace.systems.base import StreamInfo

_HINT = (
    "columns can be added (headrace stream add-column), but not removed, and a type can't be changed: "
    "use the same columns, or another stream"
)


def wanted_shape(name: str, partitions: int, columns: Columns | None, key: Sequence[str] = ()) -> StreamInfo:
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise DeclarationError(f"stream {name!r} can't have {partitions!r} partitions; use 1 to {MAX_PARTITIONS}")
    typed = None if columns is None else _typed(columns)
    if typed is not None and key:
        from headrace.rows.hashing import hash_rows

        try:
            hash_rows(pl.DataFrame(schema=typed), key)
        except DeclarationError as error:
            raise DeclarationError(f"stream {name!r}: {error.message}", hint=error.hint) from error
    return StreamInfo(name, partitions, typed, key=tuple(key))


def require_same_shape(found: StreamInfo, wanted: StreamInfo) -> StreamInfo:
    if found.partitions != wanted.partitions:
        what = f"stream {found.name!r} already exists with {found.partitions} partitions, not {wanted.partitions}"
        raise StreamExistsError(what, hint="use another name, or the same partition count")
    if wanted.key and wanted.key != found.key:
        what = f"stream {found.name!r} already exists, and is {partitioned(found.key)}, not by {', '.join(wanted.key)}"
        raise StreamExistsError(what, hint="use another name, or the key that it has")
    if wanted.columns is None:
        return found
    if found.columns is None:
        what = f"stream {found.name!r} already exists, without declared columns"
        raise StreamExistsError(what, hint="use another name, or declare no columns")
    missing = [name for name in wanted.columns if name not in found.columns]
    more = [name for name in found.columns if name not in wanted.columns and name not in found.added]
    differences = [*_retyped(found.columns, wanted.columns)]
    differences += [f"it has no column {name!r} ({wanted.columns[name]})" for name in missing]
    differences += [f"it also has a column {name!r} ({found.columns[name]})" for name in more]
    if differences:
        said = f"stream {found.name!r} already exists with other columns: {'; '.join(differences)}"
        raise StreamExistsError(said, hint=_HINT)
    return found


def partitioned(key: Sequence[str]) -> str:
    """Return how a stream with this recorded key is partitioned, in words that follow ``is``."""
    return f"partitioned by {', '.join(key)}" if key else "partitioned by no recorded key"


def new_columns(found: StreamInfo, columns: Columns) -> dict[str, pl.DataType]:
    typed = _typed(columns)
    if found.columns is None:
        what = f"stream {found.name!r} was created without declared columns, so it takes rows with any columns"
        raise UsageError(what, hint="write rows with the new column, without adding it first")
    differences = _retyped(found.columns, typed)
    if differences:
        raise StreamExistsError(f"stream {found.name!r}: {'; '.join(differences)}", hint=_HINT)
    return {name: dtype for name, dtype in typed.items() if name not in found.columns}


def with_columns(found: StreamInfo, more: Columns) -> StreamInfo:
    return replace(found, columns={**(found.columns or {}), **more}, added=found.added | more.keys())


def _typed(columns: Columns) -> dict[str, pl.DataType]:
    return {column: instantiate(dtype, column) for column, dtype in columns.items()}


def _retyped(found: Columns, wanted: Columns) -> list[str]:
    changed = [name for name, dtype in wanted.items() if name in found and found[name] != dtype]
    return [f"column {name!r} is {found[name]}, not {wanted[name]}" for name in changed]
