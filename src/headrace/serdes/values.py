"""Columns of values that are Python objects: an app's function returned them, or a decoder did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.serdes.dtypes import instantiate


class UnfitError(ValueError):
    """A value can't be one of a column's type. The message says why."""


def column(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Return the values as a column of this type. Raises an ``Exception`` if one of them doesn't fit exactly.

    Polars panics over some values, which prints to stderr, and what it raises then isn't an ``Exception``: nothing that
    handles a bad value would catch it, and the container would end. From others it rounds digits away.

    >>> column("price", [Decimal("NaN")], pl.Decimal(10, 2))
    Traceback (most recent call last):
    headrace.serdes.values.UnfitError: NaN isn't a number that a column can hold
    >>> column("price", [Decimal("1.239")], pl.Decimal(10, 2))
    Traceback (most recent call last):
    headrace.serdes.values.UnfitError: 1.239 has more than 2 digits after the point
    """
    try:
        exact = _Values(values, dtype) if type(dtype) in _MADE_AT_ONCE else _exact(values, dtype)
        return pl.Series(name, exact, dtype=dtype, strict=True)
    except (pl.exceptions.PanicException, RuntimeError) as error:  # they speak of Polars' insides
        raise ValueError(f"a value doesn't fit {dtype}") from error


def misfit(name: str, value: Any, dtype: pl.DataType, error: BaseException) -> str:
    """Say that a value isn't one of a column's type; ``error`` is what ``column`` has raised."""
    why = f": {error}" if isinstance(error, UnfitError) else ""
    return f"column {name!r}: {value!r:.100} ({type(value).__name__}) is not of type {dtype}{why}"


def check_finite(values: Iterable[Any]) -> None:
    """Raise ``UnfitError`` for a decimal, if need be inside other values, that is NaN or infinite.

    For values whose type is still to be found out.
    """
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


_MADE_AT_ONCE = frozenset(
    {
        pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64,
        pl.String, pl.Binary, pl.Boolean,
    }
)  # fmt: skip
"""Types of which Polars makes a column in one pass over the values, if all of them are of the right type."""


class _Values(list[Any]):
    """Values that are looked at for decimals only if one of them isn't of the right type: that takes a while.

    Polars goes over them to find the first one that isn't null, and to make the column. If that fails, it goes over
    them again to take them as objects of any type, and then it would panic.
    """

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
