"""Columns of Python objects, and of Arrow data from other programs. Pure.

**Plain values.** Conditions under which a Python value surely fits a column, as source text for functions that are
compiled. Such a value is immutable, and a column of this type returns an equal one of the same type.

**Wild views.** What the view of a null in an Arrow array says is undefined: PyArrow doesn't look at it, and Polars
follows it, which ends the process if it leads nowhere. Such views are rare, and legal. So columns that have one are
copied value by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from headrace.rows.dtypes import instantiate


class UnfitError(ValueError):
    """A value can't be one of a column's type. The message says why."""


def column(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """The values as a column of this type. Raises an ``Exception`` if one doesn't fit exactly: Polars panics over some,
    and what it raises then isn't an ``Exception``; from others it rounds digits away.

    >>> column("price", [Decimal("NaN")], pl.Decimal(10, 2))
    Traceback (most recent call last):
    headrace.rows.values.UnfitError: NaN isn't a number that a column can hold
    >>> column("price", [Decimal("1.239")], pl.Decimal(10, 2))
    Traceback (most recent call last):
    headrace.rows.values.UnfitError: 1.239 has more than 2 digits after the point
    """
    try:
        exact = _Values(values, dtype) if type(dtype) in _MADE_AT_ONCE else _exact(values, dtype)
        return pl.Series(name, exact, dtype=dtype, strict=True)
    except (pl.exceptions.PanicException, RuntimeError) as error:  # they speak of Polars' insides
        raise ValueError(f"a value doesn't fit {dtype}") from error


def misfit(name: str, value: Any, dtype: pl.DataType, error: BaseException) -> str:
    why = f": {error}" if isinstance(error, UnfitError) else ""
    return f"column {name!r}: {value!r:.100} ({type(value).__name__}) is not of type {dtype}{why}"


def check_finite(values: Iterable[Any]) -> None:
    """Raise ``UnfitError`` for a decimal, at any depth, that is NaN or infinite; for values of types not yet known."""
    for value in values:
        if isinstance(value, Decimal) and not value.is_finite():
            raise UnfitError(_NO_NUMBER.format(value))
        if is_dataclass(value) and not isinstance(value, type):
            check_finite(getattr(value, field.name) for field in fields(value))
        elif isinstance(value, Mapping):
            check_finite(value.values())
        elif isinstance(value, list | tuple):
            check_finite(value)


_NO_NUMBER = "{} isn't a number that a column can hold"


def _exact(values: Sequence[Any], dtype: Any) -> Sequence[Any]:
    """The values with all decimals in the form that Polars takes. Raises ``UnfitError`` for one that doesn't fit."""
    if isinstance(dtype, pl.List | pl.Array):
        inner = [item for value in values if isinstance(value, list | tuple) for item in value]
        exact = _exact(inner, instantiate(dtype.inner))
        if exact is inner:
            return values
        items = iter(exact)
        return [[next(items) for _ in value] if isinstance(value, list | tuple) else value for value in values]
    if isinstance(dtype, pl.Struct):
        return _exact_structs(values, dtype)
    if isinstance(dtype, pl.Decimal):
        return _exact_decimals(values, dtype)
    if dtype.is_float() and Decimal in set(map(type, values)):
        return [float(value) if isinstance(value, Decimal) else value for value in values]
    _refuse_decimals(values, dtype)
    return values


_MADE_AT_ONCE = frozenset({  # in one pass over the values, if all of them are of the right type
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64,
    pl.String, pl.Binary, pl.Boolean,
})  # fmt: skip


class _Values(list[Any]):
    """Values that are looked at for decimals only if one of them isn't of the right type: that takes a while. Polars
    goes over them to find the first one that isn't null, and to make the column. If that fails, it goes over them again
    to take them as objects of any type, and then it would panic."""

    def __init__(self, values: Sequence[Any], dtype: pl.DataType) -> None:
        super().__init__(values)
        self._dtype = dtype
        self._passes = 0

    @override
    def __iter__(self) -> Iterator[Any]:
        self._passes += 1
        if self._passes > 2:
            _refuse_decimals(super().__iter__(), self._dtype)
        return super().__iter__()


def _refuse_decimals(values: Iterable[Any], dtype: pl.DataType) -> None:
    if any(issubclass(kind, Decimal) for kind in set(map(type, values))):
        raise UnfitError(f"a decimal isn't of type {dtype}")


def _exact_structs(values: Sequence[Any], dtype: pl.Struct) -> Sequence[Any]:
    there = [value for value in values if isinstance(value, Mapping)]
    changed: dict[str, Sequence[Any]] = {}
    for field in dtype.fields:
        inner, of_field = [value.get(field.name) for value in there], instantiate(field.dtype)
        exact = _exact(inner, of_field)
        if exact is not inner:
            changed[field.name] = exact
        if not of_field.is_nested():  # in structs Polars isn't strict: 1.5 would become 1
            pl.Series(exact, dtype=of_field, strict=True)
    if not changed:
        return values
    structs = (
        {**value, **dict(zip(changed, row, strict=True))} for value, *row in zip(there, *changed.values(), strict=True)
    )
    return [next(structs) if isinstance(value, Mapping) else value for value in values]


def _exact_decimals(values: Sequence[Any], dtype: pl.Decimal) -> list[Any]:
    """Decimals, and numbers in text and floats, with all digits that the type has after the point, and no more."""
    last = Decimal((0, (1,), -dtype.scale))
    context = Context(dtype.precision, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])
    try:  # most columns are nothing but decimals that fit
        exact = [None if value is None else Decimal.quantize(value, last, None, context) for value in values]
    except (TypeError, Inexact, InvalidOperation):
        return [_exact_decimal(value, last, context) for value in values]
    if any(map(Decimal.is_nan, filter(None, exact))):
        raise UnfitError(_NO_NUMBER.format("NaN"))
    return exact


def _exact_decimal(value: Any, last: Decimal, context: Context) -> Any:
    if not isinstance(value, Decimal | float | str):
        return value
    try:
        # 0.1 is meant to be a tenth, though no float is.
        number = value if isinstance(value, Decimal) else Decimal(str(value))
        if number.is_finite():
            return number.quantize(last, None, context)
    except Inexact:
        digits = -int(last.as_tuple().exponent)
        raise UnfitError(f"{value!s:.60} has more than {digits} digits after the point") from None
    except InvalidOperation:
        raise UnfitError(f"{value!s:.60} isn't a number of {context.prec} digits") from None
    raise UnfitError(_NO_NUMBER.format(value))


# -- plain values ------------------------------------------------------------------------------------
_KINDS: dict[type[pl.DataType], type] = {
    pl.Float64: float, pl.String: str, pl.Boolean: bool, pl.Binary: bytes, pl.Date: date,
}  # fmt: skip


@cache
def kind_of(dtype: pl.DataType) -> type | None:
    """The only type that values of a column may have to fit surely; None if there is none."""
    if dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128):
        return int
    if isinstance(dtype, pl.Datetime):  # nanoseconds don't reach as far as Python's years
        return datetime if dtype.time_zone is None and dtype.time_unit != "ns" else None
    return _KINDS.get(type(dtype))


@cache
def fits(dtype: pl.DataType, variable: str) -> str:
    """The condition that the value of a variable surely fits a column. The text uses names from ``NAMES``.

    >>> fits(pl.Int8(), "v")
    'type(v) is int and -128 <= v <= 127'
    """
    kind = kind_of(dtype)
    if kind is None:
        return "False"
    condition = f"type({variable}) is {kind.__name__}"
    if kind is int:
        bits = int(str(dtype).lstrip("UInt"))
        below = 1 << bits - 1 if dtype.is_signed_integer() else 0
        condition += f" and {-below} <= {variable} <= {(1 << bits) - below - 1}"
    if kind is str:
        condition += f" and ({variable}.isascii() or is_unicode({variable}))"
    if kind is datetime:
        condition += f" and {variable}.tzinfo is None"
        condition += f" and {variable}.microsecond % 1000 == 0" if dtype == pl.Datetime("ms") else ""
    return condition


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NAMES: dict[str, Any] = {"is_unicode": _is_unicode, "date": date, "datetime": datetime}


# -- wild views --------------------------------------------------------------------------------------
_VIEWS = (pa.string_view().id, pa.binary_view().id)
_WORDS = 4  # a view is four numbers of 32 bits: size, first bytes, buffer, offset; or size and all bytes


def without_wild_views(table: pa.Table) -> pa.Table:
    """The table without views of nulls that lead nowhere. It must be valid."""
    for place, column in enumerate(table.columns):
        dtype = column.type
        if dtype.num_fields == 0 and (dtype.id not in _VIEWS or column.null_count == 0):
            continue  # as most columns: this has to cost little
        if any(_is_wild(view) for chunk in column.chunks for view in _views(chunk)):
            chunks = [_tamed(chunk) for chunk in column.chunks]
            table = table.set_column(place, table.schema.field(place), pa.chunked_array(chunks, dtype))
    return table


def _views(array: pa.Array) -> Iterator[pa.Array]:
    if array.type.id in _VIEWS:
        yield array
    else:
        for part in _parts(array):
            yield from _views(part)


def _parts(array: pa.Array) -> Sequence[pa.Array]:
    """The arrays that a struct or a list consists of; none for other types, which Polars has no columns for."""
    dtype = array.type
    if pa.types.is_struct(dtype):
        return [array.field(place) for place in range(dtype.num_fields)]
    if pa.types.is_large_list(dtype) or pa.types.is_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return [array.values]
    return []


def _tamed(array: pa.Array) -> pa.Array:
    """The same values in arrays of which the wild ones are copied value by value."""
    dtype = array.type
    if dtype.id in _VIEWS:
        return pa.array(array.to_pylist(), dtype) if _is_wild(array) else array
    parts = [_tamed(part) for part in _parts(array)]
    if not parts:
        return array
    if pa.types.is_struct(dtype):  # its fields are sliced already, its validity isn't
        return pa.StructArray.from_arrays(parts, fields=list(dtype), mask=array.is_null())
    buffers = array.buffers()[: dtype.num_buffers]
    return pa.Array.from_buffers(dtype, len(array), buffers, array.null_count, array.offset, parts)


def _is_wild(array: pa.Array) -> bool:
    if array.null_count == 0:
        return False
    validity, views, *data = array.buffers()
    start, stop = array.offset, array.offset + len(array)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=stop, bitorder="little")
    nulls = np.flatnonzero(bits[start:] == 0) + start
    numbers = np.frombuffer(views, "<i4")
    sizes = numbers[nulls * _WORDS]
    long = (sizes < 0) | (sizes > 12)  # up to 12 bytes are in the view itself
    if not long.any():
        return False
    places, sizes = nulls[long] * _WORDS, sizes[long].astype(np.int64)
    buffers, offsets = numbers[places + 2], numbers[places + 3]
    if not data or sizes.min() < 0 or offsets.min() < 0 or buffers.min() < 0 or buffers.max() >= len(data):
        return True
    ends = np.array([buffer.size for buffer in data], np.int64)
    return bool((offsets + sizes > ends[buffers]).any())
