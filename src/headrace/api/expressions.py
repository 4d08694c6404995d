"""Compute the schema of Polars expressions, and check whether a stream may use them.

Polars infers the schema over a frame without rows. Batches of a stream begin and end anywhere, so an expression may
read only one row at a time. An expression that reads several (``sum``, ``shift``, ``over``, ``sort``) is refused,
because its results would depend on how the stream is cut into batches.
"""

from __future__ import annotations

import difflib
import io
import json
import re
from collections.abc import Iterable, Iterator

import polars as pl
from polars.exceptions import ColumnNotFoundError, DuplicateError, PolarsError

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import Columns
from headrace.serdes.schema import Schema

# The serialized form of an expression that evaluates another one over the elements of a list.
_PER_ELEMENT = '{"Eval"'
_ACROSS_ROWS = ('{"Agg"', '"Len"', '{"Over"', '{"Sort', '{"Slice"', '{"Gather"', '{"Filter"', '{"Explode"')


def as_expression(value: object, what: str) -> pl.Expr:
    """Return a column name or an expression as an expression."""
    if isinstance(value, pl.Expr):
        return value
    if isinstance(value, str):
        return pl.col(value)
    raise DeclarationError(
        f"{what} must be a column name or a Polars expression, not {type(value).__name__} {value!r:.80}",
        hint='write "url", pl.col("url") or pl.lit(value)',
    )


def named_expression(name: str, value: object) -> pl.Expr:
    """Return a keyword argument (an expression, a column's name or a literal) as an expression."""
    if isinstance(value, str | pl.Expr):
        return as_expression(value, name).alias(name)
    try:
        return pl.lit(value).alias(name)
    except (PolarsError, TypeError):
        raise DeclarationError(
            f"{name}= must be an expression or a plain value, not {type(value).__name__} {value!r:.80}",
            hint="write pl.col(...), the name of a column, or a number, text or time",
        ) from None


def projected(schema: Schema, exprs: Iterable[pl.Expr], *, keep: bool) -> dict[str, pl.DataType]:
    """Return the columns that ``exprs`` compute; with ``keep``, also the columns that they don't replace."""
    exprs = tuple(exprs)
    for expr in exprs:
        check_row_wise(expr)
    lazy = pl.LazyFrame(schema=dict(schema.columns))
    columns = _resolve(lazy.with_columns(*exprs) if keep else lazy.select(*exprs), schema, exprs)
    if not columns:
        raise DeclarationError("the result has no columns", hint="name at least one column to keep")
    if not keep and all(_is_scalar(expr) for expr in exprs):
        raise DeclarationError(
            "only constants are selected, so the number of rows would be lost",
            hint="keep a column of the stream, or add constants with with_columns(...)",
        )
    return columns


def value_dtype(schema: Schema, expr: pl.Expr) -> pl.DataType:
    """Return the dtype of an expression, which must compute exactly one column."""
    check_row_wise(expr)
    columns = _resolve(pl.LazyFrame(schema=dict(schema.columns)).select(expr), schema, (expr,))
    if len(columns) != 1:
        raise DeclarationError(f"{short(expr)} computes {len(columns)} columns, not one")
    return next(iter(columns.values()))


def check_predicate(schema: Schema, predicate: pl.Expr) -> None:
    """Raise unless ``predicate`` is a Boolean."""
    dtype = value_dtype(schema, predicate)
    if dtype != pl.Boolean:
        raise DeclarationError(
            f"the predicate {short(predicate)} is {dtype}, not Boolean",
            hint='compare it with something: pl.col("n") > 0, pl.col("url").is_not_null()',
        )


def check_columns(names: Iterable[str], schema: Schema, what: str) -> tuple[str, ...]:
    """Return ``names`` as a tuple; raise if one isn't a column, or appears twice."""
    names = tuple(names)
    for name in names:
        if name not in schema.columns:
            raise unknown_column(name, schema.columns)
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise DeclarationError(f"{what} names {doubled[0]!r} twice", hint="name each column once")
    return names


def unknown_column(name: str, columns: Columns, where: str = "") -> DeclarationError:
    """Return the error for a missing column, which lists the columns and suggests the likeliest."""
    near = difflib.get_close_matches(name, columns, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return DeclarationError(f"there is no column {name!r}{where}", hint=f"{guess}the columns are {', '.join(columns)}")


def unchanged_columns(schema: Schema, exprs: Iterable[pl.Expr], *, keep: bool) -> set[str]:
    """Return the columns whose values a projection leaves unchanged."""
    lazy = pl.LazyFrame(schema=dict(schema.columns))
    same = set(schema.columns) if keep else set()
    for expr in exprs:
        names = set(lazy.select(expr).collect_schema().names())
        if expr.meta.is_column_selection(allow_aliasing=False):
            same |= names
        else:
            same -= names
    return same


def check_row_wise(expr: pl.Expr) -> None:
    """Raise if a part of ``expr`` reads more than one row."""
    for part in _parts(_judgeable(expr)):
        if not _is_row_wise(part):
            raise DeclarationError(
                f"{short(part)} reads more than one row, and the batches of a stream begin and end anywhere",
                hint="aggregate in a window: window(shape, key=, id=).agg(...); "
                "drop or multiply rows with filter() or flat_map()",
            )


def _is_row_wise(part: pl.Expr) -> bool:
    try:
        scalar = part.meta.is_scalar() and part.meta.is_row_separable()
        return scalar or (part.meta.is_row_separable() and part.meta.is_length_preserving())
    except PolarsError:
        # Judging selectors and struct or list functions would need a schema; their kind is enough.
        return not _serialized(part).startswith(_ACROSS_ROWS)


def _parts(expr: pl.Expr) -> Iterator[pl.Expr]:
    yield expr
    if not _serialized(expr).startswith(_PER_ELEMENT):
        for part in expr.meta.pop():
            yield from _parts(part)


def _serialized(expr: pl.Expr) -> str:
    try:
        return expr.meta.serialize(format="json")
    except (PolarsError, ModuleNotFoundError):
        return ""  # a Python function inside has no serialized form here


def _judgeable(expr: pl.Expr) -> pl.Expr:
    """Return the expression with one field of a struct selected instead of several, which make Polars 2.1 panic."""
    form = _serialized(expr)
    if '"SelectFields"' not in form:
        return expr

    def one_field(part: dict[str, object]) -> dict[str, object]:
        return {"FieldByName": ""} if "SelectFields" in part else part

    return pl.Expr.deserialize(io.StringIO(json.dumps(json.loads(form, object_hook=one_field))), format="json")


def _is_scalar(expr: pl.Expr) -> bool:
    try:
        return _judgeable(expr).meta.is_scalar()
    except PolarsError:
        return False


def _resolve(lazy: pl.LazyFrame, schema: Schema, exprs: tuple[pl.Expr, ...]) -> dict[str, pl.DataType]:
    try:
        return dict(lazy.collect_schema())
    except ColumnNotFoundError as error:
        missing = [name for e in exprs for name in e.meta.root_names() if name not in schema.columns]
        if missing:
            raise unknown_column(missing[0], schema.columns) from None
        raise DeclarationError(_first_line(error)) from None
    except DuplicateError as error:
        name = re.search(r"'([^']*)'", _first_line(error))
        which = f" called {name[1]!r}" if name else " of one name"
        raise DeclarationError(f"the result would have two columns{which}", hint='rename one: .alias("...")') from None
    except PolarsError as error:
        columns = ", ".join(f"{name} {dtype}" for name, dtype in schema.columns.items())
        raise DeclarationError(_first_line(error), hint=f"the columns are: {columns}") from None


def _first_line(error: PolarsError) -> str:
    return str(error).split("\n", 1)[0]


def short(expr: pl.Expr) -> str:
    """An expression in a message, cut if it is long."""
    text = str(expr)
    return text if len(text) <= 80 else f"{text[:77]}..."
