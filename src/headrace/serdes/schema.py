"""The schema of a stream: ordered columns and their Polars types, and conversions of batches and rows.

For batches, ``conform`` checks a decoded batch, and casts the columns that can be cast without loss. For user
functions, ``to_records`` and ``from_records`` convert between a batch and dicts or dataclass instances. Every column
may hold nulls. Columns that the schema doesn't name are dropped.

Immutable and pure; nothing here blocks.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.bounds import beyond, is_bounded, why_beyond
from headrace.serdes.casting import cast_column
from headrace.serdes.declared import columns_of_class, dtype_of, is_record, record_builder, record_maker
from headrace.serdes.foreign_schemas import columns_of_schema
from headrace.serdes.values import column, misfit

BYTES_COLUMNS: Mapping[str, pl.DataType] = {"key": pl.Binary(), "value": pl.Binary()}
"""The columns of a stream that is declared without a schema."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """The rows of a batch that don't fit. ``rows`` has all their indexes; the other fields describe the first."""

    column: str
    reason: str
    rows: list[int]

    def error(self) -> DataError:
        """Return the error to raise when the policy is to fail."""
        which = f"row {self.rows[0]} doesn't fit"
        if len(self.rows) > 1:
            which = f"{len(self.rows)} rows don't fit; the first is row {self.rows[0]}"
        return DataError(
            f"{which}: {self.reason}",
            hint='fix the input, or set on_error="skip" or "dead_letter" to set such rows aside',
        )


class _Misfits:
    """The rows of a batch that don't fit, and why the first doesn't."""

    def __init__(self) -> None:
        self._rows: set[int] = set()
        self._first: Mismatch | None = None

    def add(self, rows: list[int], column: str, reason: str) -> None:
        """Add the rows that don't fit because of a column; ``reason`` is of the first."""
        self._rows.update(rows)
        if self._first is None or rows[0] < self._first.rows[0]:
            self._first = Mismatch(column, reason, rows)

    def without_beyond(self, column: pl.Series) -> pl.Series:
        """Add the rows in which a column holds what can't be represented; return the column with nulls there."""
        rows = beyond(column).tolist()
        if not rows:
            return column
        self.add(rows, column.name, why_beyond(column, rows[0]))
        wrong = pl.int_range(column.len(), eager=True).is_in(rows)
        return pl.select(pl.when(wrong).then(None).otherwise(column).alias(column.name)).to_series()

    def sorted_out(self, df: pl.DataFrame) -> tuple[pl.DataFrame, Mismatch | None]:
        """Return the rows that fit, and a ``Mismatch`` for the others."""
        if self._first is None:
            return df, None
        rows = sorted(self._rows)
        kept = np.ones(df.height, dtype=np.bool_)
        kept[rows] = False
        return df.filter(pl.Series(kept)), dataclasses.replace(self._first, rows=rows)


class Schema:
    """Ordered columns with their types. ``record`` is the dataclass that the schema was made from, if any."""

    __slots__ = (
        "_bounded",
        "_build",
        "_dtypes",
        "_instance_values",
        "_names",
        "_read",
        "columns",
        "dict_values",
        "make",
        "record",
    )

    def __init__(self, columns: Mapping[str, pl.DataType], record: type | None = None) -> None:
        """Use ``Schema.of``."""
        self.columns = dict(columns)
        self.record = record
        self._names = list(self.columns)
        self._dtypes = list(self.columns.values())
        self._bounded = [name for name, dtype in self.columns.items() if is_bounded(dtype)]
        self._build: Callable[[list[list[Any]]], list[Any]] = record_builder(self._names, record)
        self.make: Callable[..., Any] = record_maker(self._names, record)
        """Makes a dict, or an instance of ``record``, of the values of a row, in the order of the columns."""
        self._read: Callable[[str], Callable[[Any], Any]] = attrgetter if record else itemgetter
        self.dict_values = _values_getter(itemgetter, self._names)
        """Returns the values of a dict that has all columns. Raises ``KeyError`` for another."""
        self._instance_values = None if record is None else _values_getter(attrgetter, self._names)

    @classmethod
    def of(cls, declared: object = None) -> Schema:
        """Return the schema of a declaration of columns.

        That is a dict of types (Polars', Python's, PyArrow's or Spark's), a dataclass, a model of Pydantic, a schema of
        PyArrow or Spark, a ``Schema``, or None for bytes (``key``, ``value``). Raises ``DeclarationError`` naming the
        first column whose type a stream can't hold.
        """
        if declared is None:
            return cls(BYTES_COLUMNS)
        if isinstance(declared, Schema):
            return declared
        if isinstance(declared, Mapping):
            if not declared:
                raise DeclarationError("a schema needs at least one column")
            return cls({name: dtype_of(name, dtype) for name, dtype in declared.items()})
        if is_record(declared):
            return cls(columns_of_class(declared), declared if dataclasses.is_dataclass(declared) else None)
        if (columns := columns_of_schema(declared)) is not None:
            return cls.of(columns)
        raise DeclarationError(
            f"{declared!r} isn't a schema",
            hint='use a dict like {"member": pl.String, "ts": pl.Int64}, a dataclass, a model of Pydantic, '
            "a schema of PyArrow or Spark, or nothing for bytes",
        )

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self._names == other._names and self._dtypes == other._dtypes

    @override
    def __hash__(self) -> int:
        return hash((tuple(self._names), tuple(self._dtypes)))

    @override
    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{name}: {dtype}" for name, dtype in self.columns.items()) + ")"

    @override
    def __reduce__(self) -> tuple[type[Schema], tuple[dict[str, pl.DataType], type | None]]:
        return Schema, (self.columns, self.record)

    def empty(self) -> pl.DataFrame:
        """Return a batch without rows."""
        return pl.DataFrame(schema=self.columns)

    def require(self, columns: Iterable[str], where: str) -> None:
        """Raise ``DeclarationError`` if a column isn't in the schema; ``where`` begins the message."""
        for name in columns:
            if name not in self.columns:
                raise DeclarationError(
                    f"{where}: unknown column {name!r}; the columns are {', '.join(self._names)}",
                    hint=_did_you_mean(name, self._names),
                )

    def refuse_others(self, names: Iterable[object], where: str) -> None:
        """Raise ``DataError`` for a name that isn't a column: its values would be lost. ``where`` has the columns."""
        for name in names:
            if name not in self.columns:
                close = _did_you_mean(str(name), self._names)
                raise DataError(
                    f"{where} has no column {name!r}; it has {', '.join(self._names)}",
                    hint=close or f"leave {name!r} out, or declare it as a column",
                )

    def conform(
        self, df: pl.DataFrame, optional: Collection[str] = frozenset()
    ) -> tuple[pl.DataFrame, Mismatch | None]:
        """Return the rows that fit, with the schema's columns in its order, and a ``Mismatch`` for the other rows.

        Columns that are missing are null if they are ``optional``: the rows were written before these were added.

        A column of another type is cast if the cast can't change a value. If that depends on the value (a string to a
        number, a wide integer to a narrow one), rows whose value doesn't survive are left out and listed in the
        ``Mismatch``. So are rows with a date, time, duration or decimal that can't be represented. A batch that
        already fits is returned unchanged.

        Raises ``DataError`` if a column is missing, or has a type that can't be cast to the expected one.
        """
        if df.dtypes == self._dtypes and df.columns == self._names:
            return self._in_bounds(df) if self._bounded else (df, None)
        found = dict(zip(df.columns, df.dtypes, strict=True))
        cast: list[pl.Series] = []
        misfits = _Misfits()
        for name, expected in self.columns.items():
            if name not in found and name in optional:
                cast.append(nulls(name, expected, df.height))
                continue
            if name not in found:
                raise DataError(
                    f"column {name!r} ({expected}) is missing; the rows have {', '.join(found) or 'no columns'}",
                    hint=_did_you_mean(name, list(found)),
                )
            column = misfits.without_beyond(df.get_column(name))
            series, rows = cast_column(column, expected)
            if rows:
                reason = f"column {name!r} should be {expected}, found {column[rows[0]]!r} ({found[name]})"
                misfits.add(rows, name, reason)
            cast.append(series if series is column else misfits.without_beyond(series))
        return misfits.sorted_out(pl.DataFrame(cast))

    def _in_bounds(self, df: pl.DataFrame) -> tuple[pl.DataFrame, Mismatch | None]:
        misfits = _Misfits()
        for name in self._bounded:
            misfits.without_beyond(df.get_column(name))
        return misfits.sorted_out(df)

    def to_records(self, df: pl.DataFrame) -> list[Any]:
        """Return the rows as instances of ``record``, or as dicts. The batch must conform."""
        return self._build([series.to_list() for series in df.get_columns()])

    def from_records(self, records: Sequence[Any], *, exact: bool = False) -> pl.DataFrame:
        """Return a batch of dicts, or of instances of ``record``.

        Keys that the schema doesn't name are dropped, unless it is to be ``exact``: then they don't fit.

        Raises ``DataError`` with the index of the first record that doesn't fit, and the reason.
        """
        try:
            return self._batch(records, exact)
        except Exception as error:
            for index, record in enumerate(records):
                self._check_record(index, record, exact)
            raise DataError(f"{len(records)} records fit the schema one by one, but not as a batch: {error}") from error

    def sift(self, records: Sequence[Any], start: int = 0) -> tuple[pl.DataFrame, list[tuple[int, DataError]]]:
        """Return a batch of the records that fit exactly, and for each other its index (from ``start``) and an error.

        Records that don't fit are found by bisection, so that a few of them among many records cost little.
        """
        try:
            return self._batch(records, exact=True), []
        except Exception as error:  # noqa: BLE001  # a value may raise anything; its record is reported in the end
            if len(records) == 1:
                return self.empty(), [(start, self._misfit(records[0], error))]
        half = len(records) // 2
        left, wrong_left = self.sift(records[:half], start)
        right, wrong_right = self.sift(records[half:], start + half)
        return pl.concat([left, right], rechunk=True), wrong_left + wrong_right

    def _batch(self, records: Sequence[Any], exact: bool) -> pl.DataFrame:
        table = pl.DataFrame([self._column(name, dtype, records) for name, dtype in self.columns.items()])
        # Each dict has all columns, so that there are more keys only if there are others.
        if exact and self.record is None and sum(map(len, records)) > len(records) * len(self._names):
            raise DataError("a record has other keys than the schema")
        return table

    def _misfit(self, record: Any, error: Exception) -> DataError:
        try:
            self._check_record(0, record, exact=True)
        except DataError as misfit:
            return misfit
        return DataError(f"the record can't be converted to a row: {error}")

    # -- single rows, as tuples of values in the order of the columns

    def values_of(self, record: Any) -> Sequence[Any]:
        """Return the values of a dict, or of an instance of ``record``. Their types aren't checked.

        Raises ``DataError`` for any other object, and for a dict that lacks a column or has another key.
        """
        try:
            if type(record) is dict or isinstance(record, Mapping):
                values = self.dict_values(record)
                if len(record) > len(self._names):
                    self.refuse_others(record, f"{record!r:.200}: the schema")
                return values
            if self._instance_values is not None and self.record is not None and isinstance(record, self.record):
                return [_without_dataclasses(value) for value in self._instance_values(record)]
        except KeyError as error:
            raise DataError(
                f"{record!r:.200} has no {error.args[0]!r}", hint=_did_you_mean(error.args[0], list(record))
            ) from error
        wanted = "a dict" if self.record is None else f"a {self.record.__name__} or a dict"
        raise DataError(f"{record!r:.200} is a {type(record).__name__}, not {wanted}")

    def from_columns(self, columns: Sequence[Sequence[Any]], where: Callable[[int], str]) -> pl.DataFrame:
        """Return a batch of columns of values, in the schema's order.

        Raises ``DataError`` for the first row that doesn't fit; ``where`` maps its index to the start of the message.
        """
        try:
            return pl.DataFrame(list(map(column, self._names, columns, self._dtypes)))
        except Exception as error:
            for index, row in enumerate(zip(*columns, strict=True)):
                for (name, dtype), value in zip(self.columns.items(), row, strict=True):
                    try:
                        column(name, [value], dtype)
                    except Exception as cause:
                        raise DataError(f"{where(index)}: {misfit(name, value, dtype, cause)}") from cause
            raise DataError(f"{len(columns[0])} rows fit the schema one by one, but not as a batch: {error}") from error

    def _column(self, name: str, dtype: pl.DataType, records: Sequence[Any]) -> pl.Series:
        values = list(map(self._read(name), records))
        if self.record is not None and isinstance(dtype, pl.Struct | pl.List):
            values = [_without_dataclasses(value) for value in values]
        return column(name, values, dtype)

    def _check_record(self, index: int, record: Any, exact: bool) -> None:
        """Raise ``DataError`` if this record doesn't fit."""
        wanted = self.record.__name__ if self.record else "dict"
        fits = isinstance(record, self.record) if self.record else isinstance(record, Mapping)
        if not fits:
            raise DataError(f"record {index} is a {type(record).__name__}, not a {wanted}: {record!r:.200}")
        for name, dtype in self.columns.items():
            if self.record is None and name not in record:
                raise DataError(
                    f"record {index} has no {name!r}: {record!r:.200}", hint=_did_you_mean(name, list(record))
                )
            try:
                self._column(name, dtype, [record])
            except Exception as error:
                value = self._read(name)(record)
                raise DataError(f"record {index}, {misfit(name, value, dtype, error)}") from error
        if exact and self.record is None:
            self.refuse_others(record, f"record {index} is {record!r:.200}; the schema")


def nulls(name: str, dtype: pl.DataType, height: int) -> pl.Series:
    """Return a column without values, for rows that were written before it was added."""
    return pl.Series(name, [None], dtype).new_from_index(0, height)


def filled_up(rows: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the rows with ``columns`` first, in their order: null where they are missing. Others stay, after them."""
    names = rows.columns
    if names[: len(columns)] == list(columns):
        return rows
    there = [
        rows.get_column(name) if name in rows.columns else nulls(name, dtype, rows.height)
        for name, dtype in columns.items()
    ]
    return pl.DataFrame(there + [rows.get_column(name) for name in names if name not in columns])


def _values_getter(getter: Callable[..., Callable[[Any], Any]], names: list[str]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that returns the values of these names in a record."""
    take = getter(*names)
    return (lambda record: (take(record),)) if len(names) == 1 else take


def _without_dataclasses(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_dataclasses(item) for item in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _did_you_mean(name: str, known: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(name, [text for text in known if isinstance(text, str)], n=1)
    return f"did you mean {close[0]!r}?" if close else None
