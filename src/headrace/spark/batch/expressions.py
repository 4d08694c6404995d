"""Polars expressions as Spark's, where both give the same result for every row.

constants
    Literals in Polars expressions, and the same values as Spark's literals.

    A value is kept as Polars stores it: a date is its days since 1970, a datetime its microseconds, a decimal its
    digits and scale. Python's own dates and times would take a detour over time zones and calendars on their way into
    Spark.

expressions
    Polars expressions as Spark's, where both give the same result for every row; else None.

    Spark may then skip partitions and files of which no row is wanted. What isn't known to be the same stays with
    Polars, so translating too little costs time, and translating too much would cost rows. The two differ in:

    - integer arithmetic (Polars wraps, Spark raises), division by zero, and casts that lose something: left to Polars;
    - operands of different types, for which each has its own rules: translated if both sides convert without loss;
    - null in a list: ``is_in`` ignores it, Spark's ``IN`` turns each mismatch into null: it is taken out of the list;
    - NaN and -0.0 in files: Spark compares them as Polars does, but when it hands a comparison to Parquet, the
      statistics of a file leave NaN out and tell -0.0 from 0.0, and rows are lost. So a floating-point column is
      compared behind ``nanvl``, which changes nothing and is never handed on. Its statistics skip no file.

    An expression is read in the form in which Polars serializes it. Polars may change this form in any release: then it
    isn't recognized, and nothing is translated. JSON has no NaN and no infinity, so such a literal isn't either.

pushdown
    What a stage lets Spark leave out of an input: rows that its first filters drop, and columns that no step reads.

    The steps run in the stage nevertheless. A row that Spark keeps is filtered again, so Spark need only be sure of the
    rows that it drops.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Self, TypeAlias

import numpy as np
import polars as pl
from polars.exceptions import PolarsError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.api.operators.steps import Filter, Project
from headrace.api.specs import Node
from headrace.plan.model import Plan, StagePlan

# -- constants ---------------------------------------------------------------------------------------
_INTEGERS: Mapping[pl.DataType, tuple[int, str]] = {
    pl.Int8(): (8, "tinyint"),
    pl.Int16(): (16, "smallint"),
    pl.Int32(): (32, "int"),
    pl.Int64(): (64, "bigint"),
}
_FLOATS: Mapping[pl.DataType, str] = {pl.Float32(): "float", pl.Float64(): "double"}
_SIMPLE = {str(dtype): dtype for dtype in (*_INTEGERS, *_FLOATS, pl.String(), pl.Boolean(), pl.Date())}
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_TIMES = range((dt.datetime.min - _EPOCH) // _MICROSECOND, (dt.datetime.max - _EPOCH) // _MICROSECOND)
"""The times that Python and the texts of Spark can express."""


Value: TypeAlias = int | float | str | bytes | Decimal


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that isn't null, as stored. ``dtype`` is None for a number that takes on the type of what it meets."""

    value: Value
    dtype: pl.DataType | None


def stored(values: pl.Series) -> list[Constant]:
    """The values of a series that aren't null."""
    dtype = values.dtype
    raw = values.to_physical() if isinstance(dtype, pl.Date | pl.Datetime) else values
    return [Constant(value, dtype) for value in raw.drop_nulls().to_list()]


def constant(form: Mapping[str, Any]) -> Constant | None:
    """The literal of a serialized expression; None if it is null, or of a type that Spark doesn't have."""
    match form:
        case {"Dyn": {"Int": int(value)}}:
            return Constant(value, None)
        case {"Dyn": {"Float": float(value)}}:
            return Constant(value, None)
        case {"Scalar": {"Float32": float(value)}}:
            return Constant(float(np.float32(value)), pl.Float32())
        case {"Scalar": {"Datetime": [int(value), "Microseconds", None]}}:
            return Constant(value, pl.Datetime("us"))
        case {"Scalar": {"Datetime": [int(value), "Microseconds", {"inner": str(zone)}]}}:
            return Constant(value, pl.Datetime("us", zone))
        case {"Scalar": {"Decimal": [int(digits), int(precision), int(scale)]}}:
            return Constant(_decimal(digits, scale), pl.Decimal(precision, scale))
        case {"Scalar": {"Binary": list(value)}}:
            return Constant(bytes(value), pl.Binary())
        case {"Scalar": dict(scalar)} if len(scalar) == 1:
            ((name, value),) = scalar.items()
            if name in _SIMPLE and isinstance(value, int | float | str):
                return Constant(value, _SIMPLE[name])
    return None


def fitting(part: Constant, dtype: pl.DataType) -> Value | None:
    """The value of ``part`` as one of ``dtype``; None if it isn't one exactly, so that a conversion would matter."""
    value, own = part.value, part.dtype
    if dtype in _INTEGERS and isinstance(value, int) and (own is None or own in _INTEGERS):
        bits, _ = _INTEGERS[dtype]
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    elif dtype in _FLOATS and isinstance(value, int | float) and (own is None or own in _FLOATS):
        if _is_exact(value, dtype):
            return float(value)
    elif isinstance(dtype, pl.Decimal) and isinstance(value, Decimal):
        if _has_digits(value, dtype):
            return value
    elif own == dtype and (not isinstance(dtype, pl.Datetime) or value in _TIMES):
        return value
    return None


def spark_literal(value: Value, dtype: pl.DataType) -> Column:
    """The value of a literal of ``dtype``, as ``fitting`` has returned it. Spark computes it once, when it plans."""
    if dtype in _INTEGERS:
        return F.lit(value).cast(_INTEGERS[dtype][1])
    if dtype in _FLOATS:
        return F.lit(value).cast(_FLOATS[dtype])
    if isinstance(dtype, pl.Decimal):
        return F.lit(str(value)).cast(f"decimal({dtype.precision},{dtype.scale})")
    if dtype == pl.Date():
        return F.date_from_unix_date(F.lit(value))
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return F.timestamp_micros(F.lit(value).cast("bigint"))
    if isinstance(dtype, pl.Datetime) and isinstance(value, int):
        time = _EPOCH + value * _MICROSECOND
        return F.lit(time.isoformat(" ", "microseconds")).cast("timestamp_ntz")
    return F.lit(bytearray(value) if isinstance(value, bytes) else value)


def _decimal(digits: int, scale: int) -> Decimal:
    sign, figures = int(digits < 0), tuple(map(int, str(abs(digits))))
    return Decimal((sign, figures, -scale))


def _has_digits(value: Decimal, dtype: pl.Decimal) -> bool:
    """The value fits into the precision and scale of ``dtype``, without rounding."""
    _, figures, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return False
    digits = int("".join(map(str, figures)) or "0")
    shift = exponent + dtype.scale
    if shift < 0 and digits % 10**-shift:
        return False
    scaled = digits * 10**shift if shift >= 0 else digits // 10**-shift
    return len(str(scaled)) <= dtype.precision


def _is_exact(value: int | float, dtype: pl.DataType) -> bool:
    try:
        close = float(value)
    except OverflowError:
        return False
    if dtype == pl.Float32():
        with np.errstate(over="ignore"):
            close = float(np.float32(close))
    return bool(close == value)


# -- expressions -------------------------------------------------------------------------------------
_SIGNED = (pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64())
_SPARK_FLOATS = (pl.Float32(), pl.Float64())
_BOOLEAN = pl.Boolean()
_SPARK_NAMES: Mapping[pl.DataType, str] = {
    pl.Int16(): "smallint",
    pl.Int32(): "int",
    pl.Int64(): "bigint",
    pl.Float32(): "float",
    pl.Float64(): "double",
}
"""The types that a value can be converted to without loss."""

# These mean more in a regular expression than themselves.
_PATTERN_CHARACTERS = frozenset(r"\.+*?()|[]{}^$")

_Form: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Term:
    """What has been translated: its dtype, and how Spark writes it.

    The column is made only when it is wanted, because that takes a running Spark.
    """

    dtype: pl.DataType
    build: Callable[[], Column]
    name: str | None = None
    """Return the column's name if the expression is just a column of the DataFrame."""


class _UntranslatableError(Exception):
    """Spark has no expression that is known to give the same result."""


_Part: TypeAlias = _Term | Constant


def quoted(name: str) -> str:
    """A column's name such that Spark takes none of its characters for syntax."""
    return "`{}`".format(name.replace("`", "``"))


class Scope:
    """The columns that an expression can read: all of them with their dtypes, and those that Spark can compute."""

    __slots__ = ("_dtypes", "_terms")

    def __init__(self, dtypes: Mapping[str, pl.DataType], terms: Mapping[str, _Term]) -> None:
        self._dtypes = dict(dtypes)
        self._terms = dict(terms)

    @classmethod
    def over(cls, columns: Mapping[str, pl.DataType], plain: Iterable[str] | None = None) -> Self:
        """The scope of a DataFrame with these columns, of which only the ``plain`` ones (None: all) are translated."""
        wanted = set(columns if plain is None else plain)
        spelled = Counter(name.casefold() for name in columns)
        terms = {
            # Spark treats two names that differ only in case as the same.
            name: _column(name, dtype)
            for name, dtype in columns.items()
            if name in wanted and _is_known(dtype) and spelled[name.casefold()] == 1
        }
        return cls(columns, terms)

    def projected(self, exprs: Iterable[pl.Expr], *, keep: bool) -> Scope:
        """The scope after a projection; ``keep`` says whether the columns stay that it doesn't replace."""
        lazy = pl.LazyFrame(schema=self._dtypes)
        dtypes = dict(self._dtypes) if keep else {}
        terms = dict(self._terms) if keep else {}
        for expr in exprs:
            computed = dict(lazy.select(expr).collect_schema())
            same = expr.meta.is_column_selection(allow_aliasing=False)
            for name, dtype in computed.items():
                dtypes[name] = dtype
                term = self._terms.get(name) if same else self._term(expr)
                if term is None:
                    terms.pop(name, None)
                else:
                    terms[name] = term
        return Scope(dtypes, terms)

    def translates(self, expr: pl.Expr) -> bool:
        """Whether ``translated`` returns an expression. Needs no Spark."""
        return self._term(expr) is not None

    def translated(self, expr: pl.Expr) -> Column | None:
        """``expr`` as Spark's expression over a DataFrame with these columns, named as Polars names it.

        None if it can't be translated, or if the two could differ in any value. Each column must hold the same values
        for both; ``pushdown.plain_columns`` says which do. Needs a running Spark.
        """
        term = self._term(expr)
        if term is None:
            return None
        name = expr.meta.output_name()
        return term.build() if term.name == name else term.build().alias(name)

    def split(self, predicate: pl.Expr) -> tuple[Column | None, pl.Expr | None]:
        """A predicate as two that keep the same rows together: one for Spark, and the rest for Polars.

        Either is None if nothing is left for it.
        """
        pushed: list[_Term] = []
        rest: list[pl.Expr] = []
        for part in _conjuncts(predicate):
            term = self._term(part)
            if term is not None and term.dtype == _BOOLEAN:
                pushed.append(term)
            else:
                rest.append(part)
        column = reduce(lambda a, b: a & b, (term.build() for term in pushed)) if pushed else None
        return column, reduce(lambda a, b: a & b, rest) if rest else None

    def _term(self, expr: pl.Expr) -> _Term | None:
        form = _form(expr)
        if form is None:
            return None
        try:
            part = _translated(form, self._terms)
            schema = dict(pl.LazyFrame(schema=self._dtypes).select(expr).collect_schema())
            if len(schema) != 1:
                return None
            (dtype,) = schema.values()
            term = _fitted(part, dtype) if isinstance(part, Constant) else part
        except (_UntranslatableError, PolarsError):
            return None
        # Polars has the last word on what it computes.
        return term if term.dtype == dtype else None


def _form(expr: pl.Expr) -> _Form | None:
    try:
        form = json.loads(_serialized(expr))
    except (PolarsError, ModuleNotFoundError):
        return None  # it contains a Python function
    return form if isinstance(form, dict) else None


def _serialized(expr: pl.Expr) -> str:
    return expr.meta.serialize(format="json")


def _conjuncts(expr: pl.Expr) -> list[pl.Expr]:
    form = _form(expr)
    if form is None or not (isinstance(inner := form.get("BinaryExpr"), dict) and inner.get("op") in _AND):
        return [expr]
    return [part for side in reversed(expr.meta.pop()) for part in _conjuncts(side)]


def _is_known(dtype: pl.DataType) -> bool:
    """Spark has this dtype, and compares its values in the same order."""
    if isinstance(dtype, pl.Datetime):
        return dtype.time_unit == "us"
    return dtype in (*_SIGNED, *_SPARK_FLOATS, _BOOLEAN, pl.String(), pl.Binary(), pl.Date()) or isinstance(
        dtype, pl.Decimal
    )


def _column(name: str, dtype: pl.DataType) -> _Term:
    return _Term(dtype, lambda: F.col(quoted(name)), name)


# -- the forms


def _translated(form: _Form, terms: Mapping[str, _Term]) -> _Part:
    match form:
        case {"Column": str(name)} if name in terms:
            return terms[name]
        case {"Literal": dict(literal)} if (part := constant(literal)) is not None:
            return part
        case {"Alias": [dict(inner), str()]}:
            return _translated(inner, terms)
        case {"BinaryExpr": {"left": dict(left), "op": str(op), "right": dict(right)}}:
            term = _binary(op, _translated(left, terms), _translated(right, terms))
            if op in _ARITHMETIC:
                _check_dtype(form, term, terms)
            return term
        case {"Cast": {"expr": dict(inner), "dtype": {"Literal": str(dtype)}}}:
            return _cast(_translated(inner, terms), dtype)
        case {"Function": {"input": [dict(value), dict(listed)], "function": {"Boolean": {"IsIn": dict(how)}}}}:
            return _is_in(_translated(value, terms), listed, how)
        case {"Function": {"input": list(inputs), "function": {"Boolean": what}}}:
            return _boolean(what, [_translated(value, terms) for value in inputs])
        case {"Function": {"input": list(inputs), "function": {"StringExpr": what}}}:
            return _of_text(what, [_translated(value, terms) for value in inputs])
    raise _UntranslatableError


_COMPARISONS: Mapping[str, Callable[[Column, Column], Column]] = {
    "Eq": lambda a, b: a == b,
    "NotEq": lambda a, b: a != b,
    "Lt": lambda a, b: a < b,
    "LtEq": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b,
    "GtEq": lambda a, b: a >= b,
    "EqValidity": lambda a, b: a.eqNullSafe(b),
    "NotEqValidity": lambda a, b: ~a.eqNullSafe(b),
}
_ARITHMETIC: Mapping[str, Callable[[Column, Column], Column]] = {
    "Plus": lambda a, b: a + b,
    "Minus": lambda a, b: a - b,
    "Multiply": lambda a, b: a * b,
}
_AND = ("And", "LogicalAnd")
_OR = ("Or", "LogicalOr")


def _binary(op: str, left: _Part, right: _Part) -> _Term:
    if op in _COMPARISONS:
        return _comparison(op, left, right)
    if op in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[op], left, right)
    if op in _AND:
        return _all((left, right))
    if op in _OR:
        return _any((left, right))
    if op == "Xor":
        return _comparison("NotEq", _fitted(left, _BOOLEAN), _fitted(right, _BOOLEAN))
    raise _UntranslatableError


def _comparison(op: str, left: _Part, right: _Part) -> _Term:
    first, second = _alike(left, right)
    compare = _COMPARISONS[op]
    return _Term(_BOOLEAN, lambda: compare(_kept_from_files(first), _kept_from_files(second)))


def _alike(left: _Part, right: _Part) -> tuple[_Term, _Term]:
    """Two operands whose values Polars and Spark convert to the same common type, without loss."""
    if isinstance(left, Constant):
        if isinstance(right, Constant):
            raise _UntranslatableError  # their dtypes depend on each other
        return _fitted(left, right.dtype), right
    if isinstance(right, Constant):
        return left, _fitted(right, left.dtype)
    one_kind = any(left.dtype in kind and right.dtype in kind for kind in (_SIGNED, _SPARK_FLOATS))
    if left.dtype == right.dtype or one_kind:
        return left, right
    raise _UntranslatableError


def _fitted(part: _Part, dtype: pl.DataType) -> _Term:
    """``part`` as a value of ``dtype``; a constant must be one of its values exactly."""
    if isinstance(part, Constant):
        value = fitting(part, dtype)
        if value is None:
            raise _UntranslatableError
        return _Term(dtype, lambda: spark_literal(value, dtype))
    if part.dtype != dtype:
        raise _UntranslatableError
    return part


def _kept_from_files(term: _Term) -> Column:
    """The same values; if they are floating-point, no comparison with them is handed to a file format."""
    if term.dtype not in _SPARK_FLOATS:
        return term.build()
    return F.nanvl(term.build(), F.lit(float("nan")).cast(_SPARK_NAMES[term.dtype]))


def _arithmetic(compute: Callable[[Column, Column], Column], left: _Part, right: _Part) -> _Term:
    """Sums and products of floating-point numbers. Integers wrap in Polars; in Spark they raise."""
    terms = [part for part in (left, right) if not isinstance(part, Constant)]
    if len(terms) == 2 and all(term.dtype == pl.Float32() for term in terms):
        dtype: pl.DataType = pl.Float32()
    elif any(term.dtype in _SPARK_FLOATS for term in terms) and all(
        term.dtype in (*_SIGNED, *_SPARK_FLOATS) for term in terms
    ):
        floats = [term.dtype for term in terms if term.dtype in _SPARK_FLOATS]
        dtype = floats[0] if len(terms) == 1 else pl.Float64()
    else:
        raise _UntranslatableError
    first, second = (_fitted(p, dtype) if isinstance(p, Constant) else _as_type(p, dtype) for p in (left, right))
    return _Term(dtype, lambda: compute(first.build(), second.build()))


def _as_type(term: _Term, dtype: pl.DataType) -> _Term:
    if term.dtype == dtype:
        return term
    name = _SPARK_NAMES[dtype]
    return _Term(dtype, lambda: term.build().cast(name))


_WIDENINGS = {
    str(to): (to, frozenset(narrower))
    for to, narrower in {
        pl.Int16(): _SIGNED[:1],
        pl.Int32(): _SIGNED[:2],
        pl.Int64(): _SIGNED[:3],
        pl.Float64(): (*_SIGNED[:3], pl.Float32()),
    }.items()
}
"""Casts that keep every value, by the name of their result: the result, and what it can be made from."""


def _cast(part: _Part, name: str) -> _Term:
    if isinstance(part, Constant) or name not in _WIDENINGS:
        raise _UntranslatableError
    dtype, narrower = _WIDENINGS[name]
    if part.dtype not in (dtype, *narrower):
        raise _UntranslatableError
    return _as_type(part, dtype)


def _all(parts: Iterable[_Part]) -> _Term:
    terms = [_fitted(part, _BOOLEAN) for part in parts]
    return _Term(_BOOLEAN, lambda: reduce(lambda a, b: a & b, (term.build() for term in terms)))


def _any(parts: Iterable[_Part]) -> _Term:
    terms = [_fitted(part, _BOOLEAN) for part in parts]
    return _Term(_BOOLEAN, lambda: reduce(lambda a, b: a | b, (term.build() for term in terms)))


def _boolean(what: object, parts: list[_Part]) -> _Term:
    match what, parts:
        case "Not", [part]:
            inner = _fitted(part, _BOOLEAN)
            return _Term(_BOOLEAN, lambda: ~inner.build())
        case "IsNull", [_Term() as term]:
            return _Term(_BOOLEAN, lambda: term.build().isNull())
        case "IsNotNull", [_Term() as term]:
            return _Term(_BOOLEAN, lambda: term.build().isNotNull())
        case {"IsBetween": {"closed": str(closed)}}, [value, low, high]:
            above = "GtEq" if closed in ("Both", "Left") else "Gt"
            below = "LtEq" if closed in ("Both", "Right") else "Lt"
            return _all((_comparison(above, value, low), _comparison(below, value, high)))
        case "AllHorizontal", [_, *_]:
            return _all(parts)
        case "AnyHorizontal", [_, *_]:
            return _any(parts)
    raise _UntranslatableError


def _is_in(part: _Part, listed: _Form, how: Mapping[str, object]) -> _Term:
    """Null is in a list only if ``nulls_equal`` says so; what isn't in the list isn't, even if null is."""
    if isinstance(part, Constant) or part.dtype in _SPARK_FLOATS:
        raise _UntranslatableError  # a long list of Spark's tells -0.0 from 0.0
    found = _listed_values(listed)
    values = [_fitted(value, part.dtype) for value in stored(found)]
    if not values or not isinstance(nulls_equal := how.get("nulls_equal"), bool):
        raise _UntranslatableError
    has_null = found.null_count() > 0

    def build() -> Column:
        column = part.build()
        among = column.isin([value.build() for value in values])
        if not nulls_equal:
            return among
        return (column.isNull() | among) if has_null else (column.isNotNull() & among)

    return _Term(_BOOLEAN, build)


def _listed_values(form: _Form) -> pl.Series:
    match form:
        case {"Literal": {"Scalar": {"List": list()}}}:
            return _evaluated(form).explode(empty_as_null=False)
        case {"Literal": {"Series": list()}}:
            return _evaluated(form)
    raise _UntranslatableError


def _evaluated(form: _Form) -> pl.Series:
    return pl.select(_expression(form)).to_series()


def _expression(form: _Form) -> pl.Expr:
    return pl.Expr.deserialize(io.StringIO(json.dumps(form)), format="json")


def _check_dtype(form: _Form, term: _Term, terms: Mapping[str, _Term]) -> None:
    """Raise unless Polars computes a part of an expression in the same precision: what is around it may hide that."""
    schema = {name: column.dtype for name, column in terms.items()}
    (dtype,) = pl.LazyFrame(schema=schema).select(_expression(form)).collect_schema().dtypes()
    if dtype != term.dtype:
        raise _UntranslatableError


def _of_text(what: object, parts: list[_Part]) -> _Term:
    """Tests for a part of a text that is the same in each row."""
    match parts:
        case [_Term(dtype=pl.String()) as text, Constant(value=str(part))]:
            pass
        case _:
            raise _UntranslatableError
    match what:
        case "StartsWith":
            return _Term(_BOOLEAN, lambda: text.build().startswith(F.lit(part)))
        case "EndsWith":
            return _Term(_BOOLEAN, lambda: text.build().endswith(F.lit(part)))
        case {"Contains": {"literal": bool(literal)}} if literal or not _PATTERN_CHARACTERS.intersection(part):
            return _Term(_BOOLEAN, lambda: text.build().contains(F.lit(part)))
    raise _UntranslatableError


# -- pushdown ----------------------------------------------------------------------------------------
_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_SPARK_TYPES: Mapping[pl.DataType, T.DataType] = {
    pl.Int8(): T.ByteType(),
    pl.Int16(): T.ShortType(),
    pl.Int32(): T.IntegerType(),
    pl.Int64(): T.LongType(),
    pl.Float32(): T.FloatType(),
    pl.Float64(): T.DoubleType(),
    pl.String(): T.StringType(),
    pl.Binary(): T.BinaryType(),
    pl.Boolean(): T.BooleanType(),
    pl.Date(): T.DateType(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingSteps:
    """The filters and projections that all messages of an input pass first, in order.

    ``columns`` are those of the input that the stage needs, in their order there; None: all of them.
    """

    steps: tuple[Filter | Project, ...]
    columns: tuple[str, ...] | None


def leading_steps(plan: Plan, stage: StagePlan, input_id: str) -> LeadingSteps:
    """The steps of ``stage`` in front of the first one that is anything else than a filter or a projection.

    They end where the flow branches. Raises ``KeyError`` if the stage doesn't read ``input_id``.
    """
    node = _input_node(plan, stage, input_id)
    after = plan.successors(stage)
    columns = _columns_needed(plan, node)
    steps: list[Filter | Project] = []
    while len(after[node.id]) == 1:
        node = plan.graph.nodes[after[node.id][0]]
        if not isinstance(node.operator, Filter | Project):
            break
        steps.append(node.operator)
    return LeadingSteps(steps=tuple(steps), columns=columns)


def pushed_filter(leading: LeadingSteps, columns: Mapping[str, pl.DataType], plain: set[str]) -> Column | None:
    """A condition that Spark can check on the input: it holds for each row that passes all of the steps.

    ``columns`` are all columns of the input, ``plain`` those of ``plain_columns``. None if no part of any filter can
    be translated. Needs a running Spark.
    """
    scope = Scope.over(columns, plain)
    pushed: list[Column] = []
    for step in leading.steps:
        if isinstance(step, Filter):
            condition, _ = scope.split(step.predicate)
            if condition is not None:
                pushed.append(condition)
        else:
            scope = scope.projected(step.exprs, keep=step.keep)
    return reduce(lambda a, b: a & b, pushed) if pushed else None


def narrowed(rows: DataFrame, leading: LeadingSteps, columns: Mapping[str, pl.DataType]) -> DataFrame:
    """Return ``rows`` without those that the steps drop, as far as Spark knows, and without unneeded columns.

    ``columns`` is the schema of the input for Polars. The columns that stay keep their order.
    """
    condition = pushed_filter(leading, columns, plain_columns(columns, rows.schema))
    if condition is not None:
        rows = rows.where(condition)
    spelled = _spelled(rows.columns)
    if leading.columns is None or any(spelled[name.casefold()] != 1 for name in leading.columns):
        return rows
    return rows.select(*(quoted(name) for name in leading.columns))


def plain_columns(columns: Mapping[str, pl.DataType], schema: T.StructType) -> set[str]:
    """The columns of a DataFrame that hold, and compare, the same values for Spark as for Polars.

    Left out are columns of another type than the declared one, texts with a collation, CHAR and VARCHAR (Spark pads
    what they are compared with), and names that Spark takes for one another.
    """
    spelled = _spelled(schema.names)
    return {
        field.name
        for field in schema.fields
        if field.name in columns
        and field.dataType == _spark_type(columns[field.name])
        and _CHAR_OR_VARCHAR not in field.metadata
        and spelled[field.name.casefold()] == 1
    }


def _spark_type(dtype: pl.DataType) -> T.DataType | None:
    """The one type of Spark that has exactly the values of a dtype."""
    if isinstance(dtype, pl.Datetime):
        if dtype.time_unit != "us":
            return None
        return T.TimestampNTZType() if dtype.time_zone is None else T.TimestampType()
    if isinstance(dtype, pl.Decimal):
        return T.DecimalType(dtype.precision, dtype.scale)
    return _SPARK_TYPES.get(dtype)


def _spelled(names: list[str]) -> Counter[str]:
    """Return how often a name occurs; Spark ignores case."""
    return Counter(name.casefold() for name in names)


def _input_node(plan: Plan, stage: StagePlan, input_id: str) -> Node:
    for id_ in stage.nodes:
        node = plan.graph.nodes[id_]
        if node.operator.stream_read == input_id:
            return node
    raise KeyError(input_id)


def _columns_needed(plan: Plan, node: Node) -> tuple[str, ...] | None:
    """The columns that other steps need, and the one with the event time, which the input reads itself."""
    needed = plan.needed.get(node.id)
    if needed is None or node.schema is None:
        return None
    own = {node.event_time.column} if node.event_time is not None else set()
    wanted = {*needed, *own}
    return tuple(name for name in node.schema.columns if name in wanted)
