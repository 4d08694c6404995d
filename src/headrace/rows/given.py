"""Rows as users pass them for writing, put together on the calling thread. Pure.

pandas and Spark aren't imported here: their DataFrames are recognised by the module of their type, and whatever hands
out Arrow data is taken as that.

``pl.concat`` and ``DataFrame.filter`` hand their work to Polars' threads. To hand over a few rows takes a tenth of a
millisecond, ten times as long as the work itself, and a stream at rest has few rows at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, cast

import polars as pl
import pyarrow as pa

from headrace.core.errors import DataError, UsageError
from headrace.rows.schema import Schema
from headrace.rows.values import UnfitError, check_finite


class ArrowStream(Protocol):
    """A DataFrame or table of another library, as Arrow's C stream interface hands it out."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The data, in a capsule."""


Rows = pl.DataFrame | ArrowStream | Iterable[Any]  # of Polars, pandas, Spark or Arrow; or dicts, or dataclass instances


def given_rows(rows: Rows, schema: Schema | None, where: str, optional: Collection[str] = ()) -> pl.DataFrame:
    """Rows that a user passes as a DataFrame, whose columns may still have other types than the schema's. Raises
    ``UsageError`` if they aren't rows, and ``DataError`` for a row that doesn't fit, or a column or key that the schema
    doesn't have. ``where`` names the stream in these errors. Columns that are ``optional`` may be missing."""
    table = as_polars(rows)
    if isinstance(table, pl.DataFrame):
        if schema is not None:
            schema.refuse_others(table.columns, where)
        return table
    records = as_records(table)
    if schema is None:
        try:
            check_finite(records)
        except UnfitError as error:
            raise DataError(f"the rows for {where} have a value that can't be written: {error}") from error
        return pl.DataFrame(records)
    if optional:
        absent = dict.fromkeys(optional)
        records = [{**absent, **record} if isinstance(record, Mapping) else record for record in records]
    schema = _schema_of(records, schema, where, optional)
    frame = schema.from_records(records)
    if schema.record is None and records and max(map(len, records)) > len(schema.columns):
        # Each record has all columns, so those that have more keys have others.
        for record in records:
            schema.refuse_others(record, where)
    return frame


def as_polars(given: object) -> object:
    """A DataFrame of pandas, Spark or Arrow as one of Polars; anything else unchanged."""
    if isinstance(given, pl.DataFrame | pl.Series):
        return given
    origins = [base.__module__ for base in type(given).__mro__ if base.__name__ == "DataFrame"]
    origin = [type(given).__module__, *origins][-1].partition(".")[0]
    try:
        if origin == "pandas":
            named = any(name is not None for name in cast("Any", given).index.names)
            return pl.from_pandas(cast("Any", given), include_index=named)
        if origin == "pyspark" and hasattr(given, "toArrow"):
            return pl.from_arrow(given.toArrow())
        if hasattr(given, "__arrow_c_stream__"):
            return pl.DataFrame(given)
    except Exception as error:
        raise DataError(
            f"a {type(given).__name__} of {origin} can't be converted to Polars: {error!s:.300}",
            hint="convert it to a Polars DataFrame yourself, with one type per column, and pass that",
        ) from error
    return given


def as_records(rows: object) -> list[Any]:
    """Rows that aren't a DataFrame as a list. Raises ``UsageError`` if they aren't a collection."""
    if isinstance(rows, pl.LazyFrame):
        raise UsageError("rows can't be a LazyFrame", hint="call .collect() first")
    if isinstance(rows, Iterable) and not isinstance(rows, Mapping | str | bytes):
        return list(rows)
    raise UsageError(
        f"rows must be a DataFrame, or a list of dicts (or of instances of the stream's dataclass), not {rows!r:.80}",
        hint='put even a single row into a list: [{"member": "ann"}]',
    )


def _schema_of(records: Sequence[Any], schema: Schema, where: str, optional: Collection[str]) -> Schema:
    """The schema to read these records with: instances of any dataclass that has the columns are read as such."""
    first = records[0] if records else None
    if schema.record is not None or not dataclasses.is_dataclass(first) or isinstance(first, type):
        dicts = bool(records) and isinstance(first, Mapping)
        return Schema(schema.columns) if dicts else schema
    fields = [field.name for field in dataclasses.fields(first)]
    schema.refuse_others(fields, where)
    if lacking := [name for name in schema.columns if name not in fields and name not in optional]:
        raise DataError(f"{type(first).__name__} has no field {lacking[0]!r}, which is a column of {where}")
    return Schema({name: dtype for name, dtype in schema.columns.items() if name in fields}, type(first))


def concat_rows(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """All rows in order, in contiguous memory: else every later operator would pay for each chunk."""
    filled = [frame for frame in frames if frame.height]
    if not filled:
        return frames[0] if frames else pl.DataFrame()
    if len(filled) == 1:
        return filled[0]
    rows = filled[0].clone()
    for frame in filled[1:]:
        rows.extend(frame)  # many rows take half the time of ``pl.concat``, too
    return rows


def rows_where(rows: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """The rows for which the mask is true (null is not true)."""
    if not rows.width:
        return rows.filter(mask)
    return pl.DataFrame([column.filter(mask) for column in rows.get_columns()])


HEADERS = pl.List(pl.Struct({"name": pl.String(), "value": pl.Binary()}))  # the type of the column
Headers = Sequence[tuple[str, bytes | None]] | None


def header_column(records: Sequence[Headers]) -> pl.Series:
    """The headers of each record, in their order. A record without headers has an empty list."""
    given = [one or () for one in records]
    ends = [0, *accumulate(map(len, given))]
    names = pa.array([name for one in given for name, _ in one], pa.large_string())
    values = pa.array([value for one in given for _, value in one], pa.large_binary())
    pairs = pa.StructArray.from_arrays([names, values], ["name", "value"])
    found = pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pairs))
    assert isinstance(found, pl.Series)
    return found.cast(HEADERS)
