"""The schema of a stream: ordered columns and their types, from and to what users write.

Columns come from dicts, dataclasses, and schemas of PyArrow, Spark and Pydantic, which are recognised only if the
program has imported the library. For batches, ``conform`` checks a decoded batch, and casts the columns that can be
cast without loss. For user functions, ``to_records`` and ``from_records`` convert between a batch and dicts or
dataclass instances. Every column may hold nulls. Immutable and pure.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from importlib import import_module
from operator import attrgetter, itemgetter
from typing import Any, TypeGuard

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.casting import beyond, cast_column, is_bounded, why_beyond
from headrace.rows.dtypes import instantiate
from headrace.rows.values import column, misfit


def columns_of_schema(declared: object) -> dict[str, pl.DataType] | None:
    """The columns of a ``pyarrow.Schema`` or of Spark's ``StructType``; None if it is neither."""
    arrow, spark = _arrow(), _spark()
    if arrow is not None and isinstance(declared, arrow.Schema):
        return {field.name: _of_arrow(field.type, field.name) for field in declared}
    if spark is not None and isinstance(declared, spark.StructType):
        return dict(_types().to_polars_columns(declared))
    return None


def type_of(declared: object, column: str) -> pl.DataType | None:
    """The Polars type for a type of PyArrow or Spark, as an instance or as Spark's class; None if it is neither."""
    arrow, spark = _arrow(), _spark()
    if arrow is not None and isinstance(declared, arrow.DataType):
        return _of_arrow(declared, column)
    if spark is None:
        return None
    if isinstance(declared, type) and issubclass(declared, spark.AtomicType):
        declared = declared()
    if isinstance(declared, spark.DataType):
        found: pl.DataType = _types().to_polars_type(declared, column)
        return found
    return None


def model_fields(record: object) -> list[str] | None:
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(record, type) or not issubclass(record, pydantic.BaseModel):
        return None
    fields: dict[str, Any] = getattr(record, "model_fields", {})
    return list(fields)


def _arrow() -> Any:
    return sys.modules.get("pyarrow")


def _spark() -> Any:
    return sys.modules.get("pyspark.sql.types")


def _types() -> Any:
    return import_module("headrace.spark.types")  # this imports Spark, which is installed in this case


def _of_arrow(declared: Any, column: str) -> pl.DataType:
    try:
        found = pl.from_arrow(_arrow().table({column: _arrow().array([], declared)}))
    except (pl.exceptions.PolarsError, NotImplementedError, ValueError, _arrow().ArrowException) as error:
        raise DeclarationError(
            f"column {column!r}: a stream can't hold values of PyArrow's type {declared}: {error}",
            hint="give the column a Polars type, and cast it where it is written",
        ) from None
    assert isinstance(found, pl.DataFrame)
    return found.dtypes[0]


# -- declared ----------------------------------------------------------------------------------------
_DTYPE_OF_PYTHON: Mapping[Any, pl.DataType] = {
    str: pl.String(), int: pl.Int64(), float: pl.Float64(), bool: pl.Boolean(), bytes: pl.Binary(),
    datetime: pl.Datetime("us"), date: pl.Date(),
}  # fmt: skip
_REFUSED = (pl.Object, pl.Unknown, pl.Int128, pl.UInt128)
_ALLOWED_HINTS = "use str, int, float, bool, bytes, datetime, date, list[...], Optional[...] or a dataclass of these"


def dtype_of(column: object, declared: object) -> pl.DataType:
    """The type that a dict schema declares for a column; ``DeclarationError`` for one that a stream can't hold."""
    if not isinstance(column, str) or not column:
        raise DeclarationError(f"{column!r} isn't a column name", hint="use a string that isn't empty")
    dtype = type_of(declared, column)
    if dtype is None:
        simple = isinstance(declared, type) and declared in _DTYPE_OF_PYTHON
        is_hint = simple or is_record(declared) or typing.get_origin(declared) is not None
        dtype = _of_hint(declared, column, ()) if is_hint else instantiate(declared, column)
    if not _holds_refused(dtype):
        return dtype
    raise DeclarationError(
        f"column {column!r}: a stream can't hold values of type {declared!r}",
        hint="use any Polars type but Object, Unknown, Int128 and UInt128",
    )


def columns_of_class(record: type) -> dict[str, pl.DataType]:
    """The columns of a dataclass, which are the fields that its constructor takes, or of a model of Pydantic."""
    return _columns(record, record.__name__, ())


def record_builder(names: list[str], record: type | None) -> Callable[[list[list[Any]]], list[Any]]:
    """A function from columns of values to a list of dicts, or of instances of ``record``."""
    if record is None:
        return _dict_builder(tuple(names))
    hints = typing.get_type_hints(record)
    converters = [_converter(hints[name]) for name in names]
    make = _maker(record, names)

    def build(columns: list[list[Any]]) -> list[Any]:
        ready = [
            values if convert is None else [convert(value) for value in values]
            for values, convert in zip(columns, converters, strict=True)
        ]
        return list(map(make, *ready))

    return build


@lru_cache(maxsize=1000)
def _dict_builder(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[Any]]:
    # Source text is generated and compiled, as the standard library does for dataclasses: a dict display with
    # literal keys is twice as fast as dict(zip(...)). For names ["a", "b"] the source is
    # "lambda columns: [{'a': v0, 'b': v1} for (v0, v1,) in zip(*columns)]". Only repr() of the names enters it.
    slots = [f"v{index}" for index in range(len(names))]
    pairs = ", ".join(f"{name!r}: {slot}" for name, slot in zip(names, slots, strict=True))
    source = f"lambda columns: [{{{pairs}}} for ({', '.join(slots)},) in zip(*columns)]"
    built: Callable[[list[list[Any]]], list[Any]] = eval(source, {"zip": zip})  # noqa: S307
    return built


def record_maker(names: list[str], record: type | None) -> Callable[..., Any]:
    if record is None:
        return _dict_maker(tuple(names))
    hints = typing.get_type_hints(record)
    converters = [_converter(hints[name]) for name in names]
    make = _maker(record, names)
    if not any(converters):
        return make
    parts = [convert or _same for convert in converters]
    return lambda *values: make(*(part(value) for part, value in zip(parts, values, strict=True)))


@lru_cache(maxsize=1000)
def _dict_maker(names: tuple[str, ...]) -> Callable[..., Any]:
    # As in _dict_builder. For names ["a", "b"] the source is "lambda v0, v1: {'a': v0, 'b': v1}".
    slots = [f"v{index}" for index in range(len(names))]
    pairs = ", ".join(f"{name!r}: {slot}" for name, slot in zip(names, slots, strict=True))
    made: Callable[..., Any] = eval(f"lambda {', '.join(slots)}: {{{pairs}}}")  # noqa: S307
    return made


def _columns(record: type, where: str, outer: tuple[type, ...]) -> dict[str, pl.DataType]:
    if record in outer:
        raise DeclarationError(
            f"{where}: {record.__name__} contains itself", hint="a column can't have a recursive type"
        )
    try:
        hints = typing.get_type_hints(record)
    except NameError as error:
        raise DeclarationError(
            f"{where}: a type hint can't be resolved: {error}",
            hint="define or import the type at the top level of the dataclass's module",
        ) from error
    names = model_fields(record)
    if names is None:
        names = [field.name for field in dataclasses.fields(record) if field.init]
    columns = {name: _of_hint(hints[name], f"{where}.{name}", (*outer, record)) for name in names}
    if not columns:
        raise DeclarationError(f"{where} has no fields", hint="a schema needs at least one column")
    return columns


def _of_hint(hint: Any, where: str, outer: tuple[type, ...]) -> pl.DataType:
    hint = _without_none(hint)
    simple = _DTYPE_OF_PYTHON.get(hint) if isinstance(hint, type) else None
    if simple is not None:
        return simple
    if typing.get_origin(hint) is list:
        return pl.List(_of_hint(typing.get_args(hint)[0], where, outer))
    if is_record(hint):
        return pl.Struct(_columns(hint, where, outer))
    raise DeclarationError(f"column {where}: {hint!r} isn't a type that a column can have", hint=_ALLOWED_HINTS)


def is_record(declared: object) -> TypeGuard[type]:
    return isinstance(declared, type) and (dataclasses.is_dataclass(declared) or model_fields(declared) is not None)


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _holds_refused(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_holds_refused(instantiate(field.dtype, field.name)) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _holds_refused(instantiate(dtype.inner))
    return isinstance(dtype, _REFUSED)


def _maker(record: type, names: list[str]) -> Callable[..., Any]:
    if any(field.kw_only for field in dataclasses.fields(record) if field.init):
        return lambda *values: record(**dict(zip(names, values, strict=True)))
    return record


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    """A function from a value that Polars returns to one of the hinted type; None if they are the same."""
    hint = _without_none(hint)
    if typing.get_origin(hint) is list:
        inner = _converter(typing.get_args(hint)[0])
        if inner is None:
            return None
        return lambda value: None if value is None else [inner(item) for item in value]
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return None
    names = [field.name for field in dataclasses.fields(hint) if field.init]
    hints = typing.get_type_hints(hint)
    parts = [_converter(hints[name]) or _same for name in names]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        return hint(**{name: part(value[name]) for name, part in zip(names, parts, strict=True)})

    return convert


def _same(value: Any) -> Any:
    return value


# -- schema ------------------------------------------------------------------------------------------
BYTES_COLUMNS: Mapping[str, pl.DataType] = {"key": pl.Binary(), "value": pl.Binary()}  # if no schema is declared


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """The rows of a batch that don't fit. ``rows`` has all their indexes; the other fields describe the first."""

    column: str
    reason: str
    rows: list[int]

    def error(self) -> DataError:
        which = f"row {self.rows[0]} doesn't fit"
        if len(self.rows) > 1:
            which = f"{len(self.rows)} rows don't fit; the first is row {self.rows[0]}"
        return DataError(
            f"{which}: {self.reason}",
            hint='fix the input, or set on_error="skip" or "dead_letter" to set such rows aside',
        )


class _Misfits:
    def __init__(self) -> None:
        self._rows: set[int] = set()
        self._first: Mismatch | None = None

    def add(self, rows: list[int], column: str, reason: str) -> None:
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
        if self._first is None:
            return df, None
        rows = sorted(self._rows)
        kept = np.ones(df.height, dtype=np.bool_)
        kept[rows] = False
        return df.filter(pl.Series(kept)), dataclasses.replace(self._first, rows=rows)


class Schema:
    """Ordered columns with their types. ``record`` is the dataclass that the schema was made from, if any."""

    __slots__ = (
        "_bounded", "_build", "_dtypes", "_instance_values", "_names", "_read",
        "columns", "dict_values", "make", "record",
    )  # fmt: skip

    def __init__(self, columns: Mapping[str, pl.DataType], record: type | None = None) -> None:
        """Use ``Schema.of``."""
        self.columns = dict(columns)
        self.record = record
        self._names = list(self.columns)
        self._dtypes = list(self.columns.values())
        self._bounded = [name for name, dtype in self.columns.items() if is_bounded(dtype)]
        self._build: Callable[[list[list[Any]]], list[Any]] = record_builder(self._names, record)
        self.make: Callable[..., Any] = record_maker(self._names, record)  # of values in the order of the columns
        self._read: Callable[[str], Callable[[Any], Any]] = attrgetter if record else itemgetter
        self.dict_values = _values_getter(itemgetter, self._names)  # raises ``KeyError`` if one is missing
        self._instance_values = None if record is None else _values_getter(attrgetter, self._names)

    @classmethod
    def of(cls, declared: object = None) -> Schema:
        """The schema of a dict of types (Polars', Python's, PyArrow's or Spark's), a dataclass, a model of Pydantic, a
        schema of PyArrow or Spark, a ``Schema``, or None for bytes (``key``, ``value``). Raises ``DeclarationError``
        for a type that a stream can't hold."""
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
        """A DataFrame with these columns and no rows."""
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
        """The rows that fit, with the schema's columns in its order, and a ``Mismatch`` for the other rows.

        A column of another type is cast if the cast can't change a value. If that depends on the value (a string to a
        number, a wide integer to a narrow one), rows whose value doesn't survive don't fit. Nor do rows with a date,
        time, duration or decimal that can't be represented. Missing columns are null if they are ``optional``. Raises
        ``DataError`` if another one is missing, or has a type that can't be cast to the expected one.
        """
        if df.dtypes == self._dtypes and df.columns == self._names:
            if not self._bounded:
                return df, None
            misfits = _Misfits()
            for name in self._bounded:
                misfits.without_beyond(df.get_column(name))
            return misfits.sorted_out(df)
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

    def to_records(self, df: pl.DataFrame) -> list[Any]:
        """The rows as instances of ``record``, or as dicts. The batch must conform."""
        return self._build([series.to_list() for series in df.get_columns()])

    def from_records(self, records: Sequence[Any], *, exact: bool = False) -> pl.DataFrame:
        """A batch of dicts, or of instances of ``record``; ``exact``: a key that isn't a column doesn't fit. Raises
        ``DataError`` with the index of the first record that doesn't fit, and the reason."""
        try:
            return self._batch(records, exact)
        except Exception as error:
            for index, record in enumerate(records):
                self._check_record(index, record, exact)
            raise DataError(f"{len(records)} records fit the schema one by one, but not as a batch: {error}") from error

    def sift(self, records: Sequence[Any], start: int = 0) -> tuple[pl.DataFrame, list[tuple[int, DataError]]]:
        """A batch of the records that fit exactly, and for each other its index (from ``start``) and an error. They are
        found by bisection, so that a few of them among many records cost little."""
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

    def values_of(self, record: Any) -> Sequence[Any]:
        """The values of a dict, or of an instance of ``record``. Their types aren't checked. Raises ``DataError`` for
        any other object, and for a dict that lacks a column or has another key."""
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
        """A batch of columns of values. Raises ``DataError`` for the first row that doesn't fit; ``where`` names it."""
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
    return pl.Series(name, [None], dtype).new_from_index(0, height)


def filled_up(rows: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The rows with ``columns`` first, in their order: null where they are missing. Others stay, after them."""
    names = rows.columns
    if names[: len(columns)] == list(columns):
        return rows
    there = [
        rows.get_column(name) if name in rows.columns else nulls(name, dtype, rows.height)
        for name, dtype in columns.items()
    ]
    return pl.DataFrame(there + [rows.get_column(name) for name in names if name not in columns])


def _values_getter(getter: Callable[..., Callable[[Any], Any]], names: list[str]) -> Callable[[Any], Sequence[Any]]:
    take = getter(*names)
    return (lambda record: (take(record),)) if len(names) == 1 else take


def _without_dataclasses(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_dataclasses(item) for item in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _did_you_mean(name: str, known: Sequence[str]) -> str | None:
    close = difflib.get_close_matches(name, [text for text in known if isinstance(text, str)], n=1)
    return f"did you mean {close[0]!r}?" if close else None
