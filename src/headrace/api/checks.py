"""Checks of what users declare: keys, functions, expressions and words; and where in their code it stands.

Polars infers the schema of expressions over a frame without rows. Batches of a stream begin and end anywhere, so an
expression may read only one row at a time. One that reads several (``sum``, ``shift``, ``over``, ``sort``) is refused,
because its results would depend on how the stream is cut into batches.
"""

from __future__ import annotations

import difflib
import inspect
import io
import json
import linecache
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass, replace
from itertools import islice
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any, Protocol, TypeVar, get_args

import polars as pl
from polars.exceptions import ColumnNotFoundError, DuplicateError, PolarsError
from typing_extensions import override

from headrace.core.calls import called_by, is_async
from headrace.core.errors import DeclarationError
from headrace.rows.dtypes import Columns
from headrace.rows.schema import Schema

# -- location ----------------------------------------------------------------------------------------
_PACKAGE = str(Path(__file__).resolve().parents[1])
_TEXT_MAX = 120
_LINES_MAX = 40


@dataclass(frozen=True, slots=True)
class Location:
    """A file and line of the user's code, and the text of that line. ``code`` is the call if it takes several lines."""

    file: str
    line: int
    text: str = ""
    code: str = ""

    @property
    def whole(self) -> str:
        """All lines of the call."""
        return self.code or self.text

    @property
    def quoted(self) -> str:
        """With the text: ``pipeline.py:12: views.filter("ok")``."""
        return f"{self}: {self.text}" if self.text else str(self)

    @override
    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_said: ContextVar[Location | None] = ContextVar("_said", default=None)


@contextmanager
def declared_at(location: Location) -> Iterator[None]:
    """What is declared meanwhile is at this location, such as a statement of SQL."""
    token = _said.set(location)
    try:
        yield
    finally:
        _said.reset(token)


def here() -> Location:
    """The innermost frame that isn't Headrace's own, unless ``declared_at`` names a location."""
    said = _said.get()
    if said is not None:
        return said
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Location(file, line, linecache.getline(file, line).strip(), _whole(frame))


def _whole(frame: FrameType) -> str:
    code = frame.f_code
    positions = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    first, (_, last, _, end) = frame.f_lineno, positions
    if last is None or last <= first:
        return ""
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    lines[-1] = lines[-1].encode()[:end].decode()  # positions count bytes, and the line may continue after the call
    return dedent("".join(lines[:_LINES_MAX])).rstrip()


class Declaring:
    """Context manager for the body of a public method: adds the method and the user's line to a ``DeclarationError``.

    Methods that take passwords turn ``quoting`` off, because the text of the line may contain one.
    """

    def __init__(self, what: str, *, quoting: bool = True) -> None:
        self._what = what
        self.location = here() if quoting else replace(here(), text="", code="")

    def __enter__(self) -> Location:
        return self.location

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        place = at(self.location)
        if isinstance(error, DeclarationError) and not error.message.endswith((place, f"at {self.location}")):
            error.message = f"{self._what}: {error.message}\n  {place}"
            error.args = (error.message,)


def at(location: Location) -> str:
    """The end of an error's message: ``at pipeline.py:12: <text of the line>``."""
    text = location.text if len(location.text) <= _TEXT_MAX else f"{location.text[: _TEXT_MAX - 3]}..."
    return f"at {location}: {text}" if text else f"at {location}"


# -- literals ----------------------------------------------------------------------------------------
_Choice = TypeVar("_Choice", bound=str)


def one_of(what: str, value: _Choice, literal: object) -> _Choice:
    """Return ``value`` if it is one of the values of a ``Literal``; raise otherwise."""
    allowed = get_args(literal)
    if value not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise DeclarationError(f"{what}={value!r} is not one of the choices", hint=f"write one of {names}")
    return value


# -- schemas -----------------------------------------------------------------------------------------
def schema_difference(found: Schema, wanted: Schema) -> str:
    """Describe how two schemas differ, ignoring the order of columns; empty if they don't."""
    parts = [f"{name!r} is missing" for name in wanted.columns if name not in found.columns]
    parts += [f"{name!r} is not expected" for name in found.columns if name not in wanted.columns]
    parts += [
        f"{name!r} is {dtype}, not {wanted.columns[name]}"
        for name, dtype in found.columns.items()
        if name in wanted.columns and wanted.columns[name] != dtype
    ]
    return "; ".join(parts)


def describe(schema: Schema | None) -> str:
    """A schema in one line."""
    if schema is None:
        return "schema not known yet"
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.columns.items())


# -- expressions -------------------------------------------------------------------------------------
# The serialized form of an expression that evaluates another one over the elements of a list.
_PER_ELEMENT = '{"Eval"'
_ACROSS_ROWS = ('{"Agg"', '"Len"', '{"Over"', '{"Sort', '{"Slice"', '{"Gather"', '{"Filter"', '{"Explode"')


def as_expression(value: object, what: str) -> pl.Expr:
    """A column name or an expression as an expression."""
    if isinstance(value, pl.Expr):
        return value
    if isinstance(value, str):
        return pl.col(value)
    raise DeclarationError(
        f"{what} must be a column name or a Polars expression, not {type(value).__name__} {value!r:.80}",
        hint='write "url", pl.col("url") or pl.lit(value)',
    )


def as_condition(value: object, schema: Schema, what: str) -> pl.Expr:
    """The name of a Boolean column, a condition in SQL, or an expression as an expression."""
    if not isinstance(value, str) or value in schema.columns:
        return as_expression(value, what)
    try:
        expr = pl.sql_expr(value)
        missing = [name for name in expr.meta.root_names() if name not in schema.columns]
    except PolarsError as error:
        raise DeclarationError(
            f"{what} {value!r:.120} isn't a condition in SQL: {_first_line(error)}",
            hint='write a condition such as "url = \'/cart\'" or "ms > 100 and url is not null", or pl.col(...)',
        ) from None
    if missing and f'"{missing[0]}"' in value:
        raise DeclarationError(
            f"{what} {value!r:.120}: there is no column {missing[0]!r}",
            hint=f"in SQL, a text stands in single quotes: '{missing[0]}'",
        )
    return expr


def named_expression(name: str, value: object) -> pl.Expr:
    """A keyword argument (an expression, a column's name or a literal) as an expression."""
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
    """The columns that ``exprs`` compute; with ``keep``, also the columns that they don't replace."""
    exprs = tuple(exprs)
    for expr in exprs:
        _check_row_wise(expr)
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
    """The dtype of an expression, which must compute exactly one column."""
    _check_row_wise(expr)
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
    """The error for a missing column, which lists the columns and suggests the likeliest."""
    near = difflib.get_close_matches(name, columns, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return DeclarationError(f"there is no column {name!r}{where}", hint=f"{guess}the columns are {', '.join(columns)}")


def unchanged_columns(schema: Schema, exprs: Iterable[pl.Expr], *, keep: bool) -> set[str]:
    """The columns whose values a projection leaves unchanged."""
    lazy = pl.LazyFrame(schema=dict(schema.columns))
    same = set(schema.columns) if keep else set()
    for expr in exprs:
        names = set(lazy.select(expr).collect_schema().names())
        if expr.meta.is_column_selection(allow_aliasing=False):
            same |= names
        else:
            same -= names
    return same


def _check_row_wise(expr: pl.Expr) -> None:
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
        if part.meta.is_literal() and not scalar:
            return pl.select(part).height == 1  # the list of SQL's IN: it stands beside each row
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
    """The expression with one field of a struct selected instead of several, which make Polars 2.1 panic."""
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


# -- rows --------------------------------------------------------------------------------------------
class ForeignSchema(Protocol):
    """A schema of PyArrow or Spark."""

    @property
    def names(self) -> Any:
        """The names of its columns."""


SchemaLike = Schema | type | typing.Mapping[str, Any] | ForeignSchema
"""The types that the API accepts as a schema: a dict of columns and types, a class with fields, or a schema."""
ROW, BATCH = ("a row",), ("a batch",)
"""The arguments of most functions."""


def check_function(
    function: object, what: str, given: Sequence[str] = ROW, *, may_be_async: bool = False, may_yield: bool = False
) -> None:
    """Raise unless ``function`` can be called with the arguments ``given``, a description of each."""
    if isinstance(function, pl.Expr) or not callable(function):
        raise DeclarationError(
            f"{what} must be a function, not {type(function).__name__} {function!s:.80}",
            hint="for expressions there are select(...), with_columns(...) and filter(...)",
        )
    if inspect.isasyncgenfunction(called_by(function)) or (is_async(function) and not may_be_async):
        raise DeclarationError(
            f"{what} must be a plain function, and {name_of(function)} is async",
            hint="a function that waits for something is for map_async(...)",
        )
    if not may_yield and inspect.isgeneratorfunction(called_by(function)):
        raise DeclarationError(
            f"{what} must be a plain function, and {name_of(function)} has a yield, so a call doesn't run it",
            hint="write return instead of yield; flat_map(...) takes functions that yield rows",
        )
    _check_parameters(function, given)


def _check_parameters(function: Callable[..., Any], given: Sequence[str]) -> None:
    """Raise if ``function`` certainly can't take these arguments; the signatures of some callables are unknown."""
    try:
        # Headrace calls the wrapper, so the wrapped function's signature doesn't matter.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        arguments = "one argument" if len(given) == 1 else f"{len(given)} arguments"
        called = f"{name_of(function)} is called with {arguments} ({', '.join(given)})"
        raise DeclarationError(
            f"{called}, but takes {signature!s:.80}: {error}",
            hint="bind other arguments with functools.partial, or give them defaults",
        ) from None


def output_schema(function: Callable[..., Any], schema: SchemaLike | None, *, many: bool) -> Schema:
    """The schema of the rows that ``function`` returns; with ``many``, it returns an iterable of rows."""
    if schema is not None:
        return Schema.of(schema)
    row = _returned(function)
    if many:
        row = _element(row)
    if isinstance(row, type) and is_dataclass(row):
        return Schema.of(row)
    wanted = "an Iterable of a dataclass" if many else "a dataclass"
    found = "has no return annotation" if row is None else f"is annotated to return {_readable(row)}"
    raise DeclarationError(
        f"the columns of the result are unknown: {name_of(function)} {found}",
        hint=f'either give schema={{"url": pl.String, ...}}, or annotate the function to return {wanted}',
    )


def name_of(function: object) -> str:
    """A function's name for error messages."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return "the lambda" if name.endswith("<lambda>") else f"{name}()"


def place_of(function: object) -> str:
    """Where a function is defined, ``file:line``; empty if that is unknown."""
    code = getattr(inspect.unwrap(called_by(function)), "__code__", None) if callable(function) else None
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _returned(function: Callable[..., Any]) -> Any:
    function = called_by(function)
    if isinstance(function, type):
        return function  # calling a class returns one of its instances
    try:
        return typing.get_type_hints(function).get("return")
    except NameError as error:
        raise DeclarationError(
            f"the return annotation of {name_of(function)} can't be read: {error}",
            hint="give schema=, or define the dataclass at the top level of the module",
        ) from None


def _element(row: Any) -> Any:
    origin = typing.get_origin(row)
    if isinstance(origin, type) and issubclass(origin, Iterable) and origin is not dict:
        return typing.get_args(row)[0]
    return row if row is None or not is_dataclass(row) else list


def _readable(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


# -- keys --------------------------------------------------------------------------------------------
def key_parts(key: object) -> tuple[Any, ...]:
    """The parts of a key as users write it: one or several, or None for none."""
    if key is None:
        return ()
    return tuple(key) if isinstance(key, Iterable) and not isinstance(key, str) else (key,)


def key_names(key: object) -> tuple[str, ...]:
    """The names in ``key``; raises if a part isn't the name of a column."""
    parts = key_parts(key)
    for part in parts:
        if isinstance(part, pl.Expr) and part.meta.is_column():
            raise DeclarationError(f"a key is a column name, not {part}", hint=f'write "{part.meta.output_name()}"')
        if not isinstance(part, str):
            raise DeclarationError(
                f"a key is a column name, not {type(part).__name__} {part!s:.80}",
                hint='compute it first, with_columns(domain=...), and name it: "domain"',
            )
    return parts


def key_columns(key: str | Iterable[str], schema: Schema, what: str) -> tuple[str, ...]:
    """The columns of ``key``; raises unless there is at least one, all exist, and their types have equality."""
    names = key_names(key)
    if not names:
        raise DeclarationError(
            f"{what} needs a key",
            hint="name one or more columns; for one group of everything add a constant: "
            'with_columns(all=pl.lit(0)).partition_by("all", id=...)',
        )
    for name in check_columns(names, schema, "the key"):
        dtype = schema.columns[name]
        if dtype.is_nested() or dtype.is_object() or dtype == pl.Null:
            raise DeclarationError(
                f"the column {name!r} is {dtype}, which can't be a key",
                hint="compute a column of a plain type from it and use that",
            )
    return names


def key_name(key: str | pl.Expr) -> str:
    """The name of the column that holds a key."""
    if isinstance(key, str):
        return key
    if not isinstance(key, pl.Expr):
        raise DeclarationError(
            f"a key is a column name or an expression, not {type(key).__name__}",
            hint='write "member" or pl.col("url").str.to_lowercase().alias("page")',
        )
    name = key.meta.output_name(raise_if_undetermined=False)
    if not name:
        raise DeclarationError(f"the key expression {key} has no name", hint='give it one: .alias("key")')
    return name
