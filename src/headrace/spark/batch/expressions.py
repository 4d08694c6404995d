"""Polars expressions as Spark's, so that Spark may skip the partitions and files of which no row is wanted.

Only what gives the same result for every row is translated. A stage runs its steps on the rows that Spark keeps all the
same, so translating too little costs time, and translating too much would cost rows. The two differ in:

- integer arithmetic (Polars wraps, Spark raises), division by zero, and casts that lose something: left to Polars;
- operands of different types, for which each has its own rules: translated if both sides convert without loss;
- null in a list: ``is_in`` ignores it, Spark's ``IN`` turns each mismatch into null: it is taken out of the list;
- NaN and -0.0 in files: Spark compares them as Polars does, but when it hands a comparison to Parquet, the statistics
  of a file leave NaN out and tell -0.0 from 0.0, and rows are lost. So a floating-point column is compared behind
  ``nanvl``, which changes nothing and is never handed on. Its statistics skip no file.

An expression is read as Polars serializes it. Any release may change this form: then it isn't recognized, and nothing
is translated. Nor are literals that JSON doesn't have: NaN and infinity. The value of a literal stays as Polars stores
it (days or microseconds since 1970, digits and scale): Python's dates and times would take a detour over time zones.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial, reduce
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
from headrace.spark.types import to_spark_type

_INTEGERS = (pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64())
_FLOATS = (pl.Float32(), pl.Float64())
_NUMBERS = (*_INTEGERS, *_FLOATS)
_BOOLEAN = pl.Boolean()
_SIMPLE = {str(dtype): dtype for dtype in (*_NUMBERS, _BOOLEAN, pl.String(), pl.Binary(), pl.Date())}

# Casts that keep every value, by the name of their result, and what it can be made from.
_WIDENED: Mapping[str, tuple[pl.DataType, ...]] = {
    "Int16": _INTEGERS[:1],
    "Int32": _INTEGERS[:2],
    "Int64": _INTEGERS[:3],
    "Float64": (*_INTEGERS[:3], pl.Float32()),
}

_COMPARISONS: Mapping[str, Callable[[Column, Column], Column]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtEq": operator.le,
    "Gt": operator.gt,
    "GtEq": operator.ge,
    "EqValidity": lambda a, b: a.eqNullSafe(b),
    "NotEqValidity": lambda a, b: ~a.eqNullSafe(b),
}
_ARITHMETIC = {"Plus": operator.add, "Minus": operator.sub, "Multiply": operator.mul}
_AND = ("And", "LogicalAnd")
_OR = ("Or", "LogicalOr")

# These mean more in a regular expression than themselves.
_PATTERN_CHARACTERS = frozenset(r"\.+*?()|[]{}^$")
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_TIMES = range((dt.datetime.min - _EPOCH) // _MICROSECOND, (dt.datetime.max - _EPOCH) // _MICROSECOND)
"""The times that Python and the texts of Spark can express."""
_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_ALL_DIGITS = Context(prec=100)
_Form: TypeAlias = dict[str, Any]
Value: TypeAlias = int | float | str | bytes | Decimal


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that isn't null, as stored. ``dtype`` is None for a number that takes on the type of what it meets."""

    value: Value
    dtype: pl.DataType | None


@dataclass(frozen=True, slots=True)
class Term:
    """A translated expression. Its column is made only when it is wanted, because that takes a running Spark."""

    dtype: pl.DataType
    column: Callable[[], Column]


_Part: TypeAlias = Term | Constant


class _UntranslatableError(Exception):
    """Spark has no expression that is known to give the same result."""


def quoted(name: str) -> str:
    """A column's name such that Spark takes none of its characters for syntax."""
    return "`{}`".format(name.replace("`", "``"))


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns that an expression can read: all of them with their dtypes, and those that Spark can compute."""

    dtypes: Mapping[str, pl.DataType]
    terms: Mapping[str, Term]

    @classmethod
    def over(cls, columns: Mapping[str, pl.DataType], plain: Iterable[str] | None = None) -> Self:
        """The scope of a DataFrame with these columns, of which only the ``plain`` ones (None: all) are translated."""
        wanted = set(columns if plain is None else plain)
        spelled = _spelled(columns)
        terms = {
            name: Term(dtype, partial(F.col, quoted(name)))
            for name, dtype in columns.items()
            if name in wanted and _spark_type(dtype) is not None and spelled[name.casefold()] == 1
        }
        return cls(columns, terms)

    def projected(self, exprs: Iterable[pl.Expr], *, keep: bool) -> Scope:
        """The scope after a projection; ``keep`` says whether the columns stay that it doesn't replace."""
        lazy = pl.LazyFrame(schema=self.dtypes)
        dtypes = dict(self.dtypes) if keep else {}
        terms = dict(self.terms) if keep else {}
        for expr in exprs:
            same = expr.meta.is_column_selection(allow_aliasing=False)
            for name, dtype in lazy.select(expr).collect_schema().items():
                dtypes[name] = dtype
                term = self.terms.get(name) if same else self.term(expr)
                if term is None:
                    terms.pop(name, None)
                else:
                    terms[name] = term
        return Scope(dtypes, terms)

    def term(self, expr: pl.Expr) -> Term | None:
        """``expr`` as Spark's expression over a DataFrame with these columns; None if the two could differ.

        Each column must hold the same values for both; ``plain_columns`` says which do.
        """
        form = _form(expr)
        if form is None:
            return None
        try:
            # Polars has the last word on what it computes.
            return _fitted(_translated(form, self.terms), _dtype(expr, self.dtypes))
        except (_UntranslatableError, PolarsError):
            return None

    def condition(self, predicate: pl.Expr) -> Column | None:
        """What Spark can check of a predicate: the conjunction of its translated parts; None if there are none."""
        found = [term for part in conjuncts(predicate) if (term := self.term(part)) is not None]
        columns = [term.column() for term in found if term.dtype == _BOOLEAN]
        return reduce(operator.and_, columns) if columns else None


def _spelled(names: Iterable[str]) -> Counter[str]:
    """How often a name occurs. Spark treats two names that differ only in case as the same."""
    return Counter(name.casefold() for name in names)


def _spark_type(dtype: pl.DataType) -> T.DataType | None:
    """The type of Spark that has exactly the values of a dtype, in the same order; None if there is none."""
    is_known = str(dtype) in _SIMPLE or isinstance(dtype, pl.Decimal)
    if is_known or (isinstance(dtype, pl.Datetime) and dtype.time_unit == "us"):
        return to_spark_type(dtype)
    return None


def _form(expr: pl.Expr) -> _Form | None:
    try:
        form = json.loads(_serialized(expr))
    except (PolarsError, ModuleNotFoundError):
        return None  # it contains a Python function
    return form if isinstance(form, dict) else None


def _serialized(expr: pl.Expr) -> str:
    return expr.meta.serialize(format="json")


def _expression(form: _Form) -> pl.Expr:
    return pl.Expr.deserialize(io.StringIO(json.dumps(form)), format="json")


def conjuncts(expr: pl.Expr) -> list[pl.Expr]:
    form = _form(expr)
    if form is None or not (isinstance(inner := form.get("BinaryExpr"), dict) and inner.get("op") in _AND):
        return [expr]
    return [part for side in reversed(expr.meta.pop()) for part in conjuncts(side)]


def _dtype(expr: pl.Expr, schema: Mapping[str, pl.DataType]) -> pl.DataType:
    dtypes = pl.LazyFrame(schema=schema).select(expr).collect_schema().dtypes()
    if len(dtypes) != 1:
        raise _UntranslatableError
    return dtypes[0]


def _translated(form: _Form, terms: Mapping[str, Term]) -> _Part:
    match form:
        case {"Column": str(name)} if name in terms:
            return terms[name]
        case {"Literal": dict(literal)} if (part := _constant(literal)) is not None:
            return part
        case {"Alias": [dict(inner), str()]}:
            return _translated(inner, terms)
        case {"BinaryExpr": {"left": dict(left), "op": str(op), "right": dict(right)}}:
            term = _binary(op, _translated(left, terms), _translated(right, terms))
            if op in _ARITHMETIC:
                # Polars must compute a part in the same precision: what is around it may hide that.
                _fitted(term, _dtype(_expression(form), {name: column.dtype for name, column in terms.items()}))
            return term
        case {"Cast": {"expr": dict(inner), "dtype": {"Literal": str(dtype)}}}:
            return _cast(_translated(inner, terms), dtype)
        case {"Function": {"input": [dict(value), dict(listed)], "function": {"Boolean": {"IsIn": dict(how)}}}}:
            return _is_in(_translated(value, terms), listed, how)
        case {"Function": {"input": list(inputs), "function": dict(function)}}:
            return _called(function, [_translated(value, terms) for value in inputs])
    raise _UntranslatableError


def _constant(form: Mapping[str, Any]) -> Constant | None:
    match form:
        case {"Dyn": {"Int": int(value)}} | {"Dyn": {"Float": float(value)}}:
            return Constant(value, None)
        case {"Scalar": {"Float32": float(value)}}:
            return Constant(float(np.float32(value)), pl.Float32())
        case {"Scalar": {"Datetime": [int(value), "Microseconds", None]}}:
            return Constant(value, pl.Datetime("us"))
        case {"Scalar": {"Datetime": [int(value), "Microseconds", {"inner": str(zone)}]}}:
            return Constant(value, pl.Datetime("us", zone))
        case {"Scalar": {"Decimal": [int(digits), int(precision), int(scale)]}}:
            return Constant(Decimal(f"{digits}e{-scale}"), pl.Decimal(precision, scale))
        case {"Scalar": {"Binary": list(value)}}:
            return Constant(bytes(value), pl.Binary())
        case {"Scalar": dict(scalar)} if len(scalar) == 1:
            ((name, value),) = scalar.items()
            if name in _SIMPLE and isinstance(value, int | float | str):
                return Constant(value, _SIMPLE[name])
    return None


def _computed(dtype: pl.DataType, compute: Callable[..., Column], *terms: Term) -> Term:
    return Term(dtype, lambda: compute(*(term.column() for term in terms)))


def _binary(op: str, left: _Part, right: _Part) -> Term:
    if op in _COMPARISONS:
        return _comparison(op, left, right)
    if op in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[op], left, right)
    if op in _AND:
        return _connected(operator.and_, (left, right))
    if op in _OR:
        return _connected(operator.or_, (left, right))
    if op == "Xor":
        return _comparison("NotEq", _fitted(left, _BOOLEAN), _fitted(right, _BOOLEAN))
    raise _UntranslatableError


def _comparison(op: str, left: _Part, right: _Part) -> Term:
    return _computed(_BOOLEAN, _COMPARISONS[op], *map(_kept_from_files, _alike(left, right)))


def _connected(connective: Callable[[Column, Column], Column], parts: Iterable[_Part]) -> Term:
    return _computed(_BOOLEAN, lambda *columns: reduce(connective, columns), *(_fitted(p, _BOOLEAN) for p in parts))


def _alike(left: _Part, right: _Part) -> tuple[Term, Term]:
    """Two operands whose values Polars and Spark convert to the same common type, without loss."""
    if isinstance(left, Constant):
        if isinstance(right, Constant):
            raise _UntranslatableError  # their dtypes depend on each other
        return _fitted(left, right.dtype), right
    if isinstance(right, Constant):
        return left, _fitted(right, left.dtype)
    one_kind = any(left.dtype in kind and right.dtype in kind for kind in (_INTEGERS, _FLOATS))
    if left.dtype == right.dtype or one_kind:
        return left, right
    raise _UntranslatableError


def _fitted(part: _Part, dtype: pl.DataType) -> Term:
    """``part`` as a value of ``dtype``; a constant must be one of its values exactly, or a conversion would matter."""
    if isinstance(part, Constant) and _is_exact(part, dtype):
        return Term(dtype, lambda: _literal(part.value, dtype))
    if isinstance(part, Constant) or part.dtype != dtype:
        raise _UntranslatableError
    return part


def _is_exact(part: Constant, dtype: pl.DataType) -> bool:
    value, own = part.value, part.dtype
    if dtype in _INTEGERS and isinstance(value, int) and (own is None or own in _INTEGERS):
        bound = 1 << (8 << _INTEGERS.index(dtype)) - 1
        return -bound <= value < bound
    if dtype in _FLOATS and isinstance(value, int | float) and (own is None or own in _FLOATS):
        try:
            close = float(value)
        except OverflowError:
            return False
        with np.errstate(over="ignore"):
            return bool(value == (close if dtype == pl.Float64() else float(np.float32(close))))
    if isinstance(dtype, pl.Decimal) and isinstance(value, Decimal):
        digits = value.scaleb(dtype.scale, _ALL_DIGITS)
        return digits == digits.to_integral_value() and abs(digits) < 10 ** (dtype.precision or 38)
    return bool(own == dtype and (not isinstance(dtype, pl.Datetime) or value in _TIMES))


def _literal(value: Value, dtype: pl.DataType) -> Column:
    match value, dtype:
        case int(), pl.Date():
            return F.date_from_unix_date(F.lit(value))
        case int(), pl.Datetime(time_zone=None):
            return F.lit((_EPOCH + value * _MICROSECOND).isoformat(" ", "microseconds")).cast("timestamp_ntz")
        case int(), pl.Datetime():
            return F.timestamp_micros(F.lit(value).cast("bigint"))
        case bytes(), _:
            return F.lit(bytearray(value))
        case int(), pl.Float32() | pl.Float64():
            return _literal(float(value), dtype)
    literal = F.lit(str(value) if isinstance(value, Decimal) else value)
    return literal if dtype in (_BOOLEAN, pl.String()) else literal.cast(to_spark_type(dtype))


def _kept_from_files(term: Term) -> Term:
    """The same values; if they are floating-point, no comparison with them is handed to a file format."""
    if term.dtype not in _FLOATS:
        return term
    own = to_spark_type(term.dtype)
    return _computed(term.dtype, lambda column: F.nanvl(column, F.lit(float("nan")).cast(own)), term)


def _arithmetic(compute: Callable[[Column, Column], Column], left: _Part, right: _Part) -> Term:
    """Sums and products of floating-point numbers. Integers wrap in Polars; in Spark they raise."""
    dtypes = [part.dtype for part in (left, right) if isinstance(part, Term)]
    floats = [dtype for dtype in dtypes if dtype in _FLOATS]
    if not floats or any(dtype not in _NUMBERS for dtype in dtypes):
        raise _UntranslatableError
    dtype = floats[0] if floats.count(floats[0]) == len(dtypes) else pl.Float64()
    terms = (_fitted(p, dtype) if isinstance(p, Constant) else _as_type(p, dtype) for p in (left, right))
    return _computed(dtype, compute, *terms)


def _as_type(term: Term, dtype: pl.DataType) -> Term:
    if term.dtype == dtype:
        return term
    return _computed(dtype, lambda column: column.cast(to_spark_type(dtype)), term)


def _cast(part: _Part, name: str) -> Term:
    if isinstance(part, Constant) or name not in _WIDENED or part.dtype not in (_SIMPLE[name], *_WIDENED[name]):
        raise _UntranslatableError
    return _as_type(part, _SIMPLE[name])


def _called(function: Mapping[str, object], parts: list[_Part]) -> Term:
    match function, parts:
        case {"Boolean": "Not"}, [_]:
            return _computed(_BOOLEAN, operator.invert, _fitted(parts[0], _BOOLEAN))
        case {"Boolean": "IsNull"}, [Term() as term]:
            return _computed(_BOOLEAN, lambda column: column.isNull(), term)
        case {"Boolean": "IsNotNull"}, [Term() as term]:
            return _computed(_BOOLEAN, lambda column: column.isNotNull(), term)
        case {"Boolean": {"IsBetween": {"closed": str(closed)}}}, [value, low, high]:
            above = _comparison("GtEq" if closed in ("Both", "Left") else "Gt", value, low)
            below = _comparison("LtEq" if closed in ("Both", "Right") else "Lt", value, high)
            return _connected(operator.and_, (above, below))
        case {"Boolean": "AllHorizontal"}, [_, *_]:
            return _connected(operator.and_, parts)
        case {"Boolean": "AnyHorizontal"}, [_, *_]:
            return _connected(operator.or_, parts)
        case {"StringExpr": what}, [Term(dtype=pl.String()) as text, Constant(value=str(found))]:
            return _computed(_BOOLEAN, _test_of_text(what, found), text)
    raise _UntranslatableError


def _test_of_text(what: object, found: str) -> Callable[[Column], Column]:
    match what:
        case "StartsWith":
            return lambda text: text.startswith(F.lit(found))
        case "EndsWith":
            return lambda text: text.endswith(F.lit(found))
        case {"Contains": {"literal": bool(literal)}} if literal or not _PATTERN_CHARACTERS.intersection(found):
            return lambda text: text.contains(F.lit(found))
    raise _UntranslatableError


def _is_in(part: _Part, listed: _Form, how: Mapping[str, object]) -> Term:
    """Null is in a list only if ``nulls_equal`` says so; what isn't in the list isn't, even if null is."""
    if isinstance(part, Constant) or part.dtype in _FLOATS:
        raise _UntranslatableError  # a long list of Spark's tells -0.0 from 0.0
    found = _listed_values(listed)
    raw = found.to_physical() if isinstance(found.dtype, pl.Date | pl.Datetime) else found
    values = [_fitted(Constant(value, found.dtype), part.dtype) for value in raw.drop_nulls().to_list()]
    if not values or not isinstance(nulls_equal := how.get("nulls_equal"), bool):
        raise _UntranslatableError
    has_null = found.null_count() > 0

    def compute(column: Column) -> Column:
        among = column.isin([value.column() for value in values])
        if not nulls_equal:
            return among
        return (column.isNull() | among) if has_null else (column.isNotNull() & among)

    return _computed(_BOOLEAN, compute, part)


def _listed_values(form: _Form) -> pl.Series:
    match form:
        case {"Literal": {"Scalar": {"List": list()}}}:
            return pl.select(_expression(form)).to_series().explode(empty_as_null=False)
        case {"Literal": {"Series": list()}}:
            return pl.select(_expression(form)).to_series()
    raise _UntranslatableError


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingSteps:
    """The filters and projections that an input's messages pass first, and its needed ``columns`` (None: all)."""

    steps: tuple[Filter | Project, ...]
    columns: tuple[str, ...] | None


def leading_steps(plan: Plan, stage: StagePlan, input_id: str) -> LeadingSteps:
    """The steps of ``stage`` before the first one that is no filter or projection, or where the flow branches."""
    nodes = plan.graph.nodes
    node = next(nodes[id_] for id_ in stage.nodes if nodes[id_].operator.stream_read == input_id)
    columns = _columns_needed(plan, node)
    after = plan.successors(stage)
    steps: list[Filter | Project] = []
    while len(after[node.id]) == 1:
        node = nodes[after[node.id][0]]
        if not isinstance(node.operator, Filter | Project):
            break
        steps.append(node.operator)
    return LeadingSteps(steps=tuple(steps), columns=columns)


def _columns_needed(plan: Plan, node: Node) -> tuple[str, ...] | None:
    """The columns that other steps need, and the one with the event time, which the input reads itself."""
    needed = plan.needed.get(node.id)
    if needed is None or node.schema is None:
        return None
    own = {node.event_time.column} if node.event_time is not None else set()
    return tuple(name for name in node.schema.columns if name in {*needed, *own})


def narrowed(rows: DataFrame, leading: LeadingSteps, columns: Mapping[str, pl.DataType]) -> DataFrame:
    """``rows`` without those that the steps drop, as far as Spark knows, and without columns that no step needs."""
    scope = Scope.over(columns, plain_columns(columns, rows.schema))
    for step in leading.steps:
        if isinstance(step, Project):
            scope = scope.projected(step.exprs, keep=step.keep)
        elif (condition := scope.condition(step.predicate)) is not None:
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
