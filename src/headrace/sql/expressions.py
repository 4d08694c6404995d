"""Scalar expressions of SQL as Polars expressions. Pure.

An expression is translated only if Polars gives what Spark SQL gives, for nulls too; what would differ is refused, with
what to write instead. Errors that depend on values (a division by zero, a cast that fails) stop the app as those of any
step do: ``try_cast`` and ``nullif`` avoid them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

import polars as pl
from polars.exceptions import PolarsError
from sqlglot import exp
from sqlglot.expressions.datatypes import DType

from headrace.core.errors import DeclarationError
from headrace.sql.dialect import wrong

Function = Callable[..., pl.Expr]


@dataclass(frozen=True, slots=True)
class Value:
    """A Polars expression and the type of its results."""

    expr: pl.Expr
    dtype: pl.DataType


class Scope(Protocol):
    """What names mean at a place of a statement."""

    @property
    def columns(self) -> Mapping[str, pl.DataType]:
        """The columns of the flow there."""

    @property
    def functions(self) -> Mapping[str, Function]:
        """Users' functions by their names in lower case."""

    def column(self, node: exp.Column) -> Value | None:
        """The column that a name means; None if there is none. Raises ``DeclarationError`` if it may mean several."""

    def names(self) -> list[str]:
        """All names, for "did you mean"."""


def translate(node: exp.Expr, scope: Scope) -> Value:
    """The Polars expression of a scalar expression. Raises ``DeclarationError``."""
    return _Translation(scope).value(node)


def predicate(node: exp.Expr, scope: Scope) -> pl.Expr:
    """The Polars expression of a condition."""
    found = translate(node, scope)
    if found.dtype not in (pl.Boolean, pl.Null):
        raise wrong(node, f"a condition is true or false, and this is {found.dtype}")
    return found.expr


def duration_ms(node: exp.Expr) -> int:
    """How long an ``INTERVAL`` is."""
    if not isinstance(node, exp.Interval) or not isinstance(node.this, exp.Literal) or node.unit is None:
        raise wrong(node, "this is no interval", "write INTERVAL '10' SECOND")
    unit = node.unit.name.upper().removesuffix("S")
    if unit not in _UNITS:
        raise wrong(node, f"an interval in {unit.lower()}s isn't supported", f"units are {', '.join(_UNITS)}")
    try:
        return int(Decimal(node.this.name) * _UNITS[unit])
    except ArithmeticError:
        raise wrong(node, f"{node.this.name!r} isn't a number", "write INTERVAL '10' SECOND") from None


_UNITS = {
    "MILLISECOND": 1,
    "SECOND": 1000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "WEEK": 604_800_000,
}

TYPES: Mapping[DType, pl.DataType] = {
    exp.DataType.Type.BOOLEAN: pl.Boolean(),
    exp.DataType.Type.TINYINT: pl.Int8(),
    exp.DataType.Type.SMALLINT: pl.Int16(),
    exp.DataType.Type.INT: pl.Int32(),
    exp.DataType.Type.BIGINT: pl.Int64(),
    exp.DataType.Type.FLOAT: pl.Float32(),
    exp.DataType.Type.DOUBLE: pl.Float64(),
    exp.DataType.Type.TEXT: pl.String(),
    exp.DataType.Type.VARCHAR: pl.String(),
    exp.DataType.Type.CHAR: pl.String(),
    exp.DataType.Type.BINARY: pl.Binary(),
    exp.DataType.Type.VARBINARY: pl.Binary(),
    exp.DataType.Type.DATE: pl.Date(),
    exp.DataType.Type.TIME: pl.Time(),
}
_TIMESTAMPS = {
    exp.DataType.Type.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ,
    exp.DataType.Type.TIMESTAMPLTZ,
    exp.DataType.Type.TIMESTAMPNTZ,
}


def data_type(node: exp.DataType) -> pl.DataType:
    """The Polars type of a type of SQL; a timestamp's precision chooses its unit, by default microseconds."""
    kind = node.this
    if kind in TYPES:
        return TYPES[kind]
    if kind in _TIMESTAMPS:
        digits = int(node.expressions[0].name) if node.expressions else 6
        return pl.Datetime("ms" if digits <= 3 else "us" if digits <= 6 else "ns")
    if kind == exp.DataType.Type.DECIMAL:
        sizes = [int(one.name) for one in node.expressions]
        return pl.Decimal(sizes[0] if sizes else 10, sizes[1] if len(sizes) > 1 else 0)
    if kind == exp.DataType.Type.ARRAY and node.expressions:
        return pl.List(data_type(node.expressions[0]))
    if kind == exp.DataType.Type.STRUCT:
        return pl.Struct([pl.Field(one.name, data_type(one.args["kind"])) for one in node.expressions])
    raise wrong(node, f"the type {node.sql()} isn't supported", "docs/sql.md has the types")


_COMPARISONS: Mapping[type[exp.Expr], Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    exp.EQ: lambda one, two: one == two,
    exp.NEQ: lambda one, two: one != two,
    exp.LT: lambda one, two: one < two,
    exp.LTE: lambda one, two: one <= two,
    exp.GT: lambda one, two: one > two,
    exp.GTE: lambda one, two: one >= two,
    exp.NullSafeEQ: lambda one, two: one.eq_missing(two),
}
_ARITHMETIC: Mapping[type[exp.Expr], Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    exp.Add: lambda one, two: one + two,
    exp.Sub: lambda one, two: one - two,
    exp.Mul: lambda one, two: one * two,
}
_PARTS: Mapping[type[exp.Expr], Callable[[pl.Expr], pl.Expr]] = {
    exp.Year: lambda x: x.dt.year(),
    exp.Month: lambda x: x.dt.month().cast(pl.Int32),
    exp.Day: lambda x: x.dt.day().cast(pl.Int32),
    exp.Hour: lambda x: x.dt.hour().cast(pl.Int32),
    exp.Minute: lambda x: x.dt.minute().cast(pl.Int32),
    exp.Second: lambda x: x.dt.second().cast(pl.Int32),
    exp.Quarter: lambda x: x.dt.quarter().cast(pl.Int32),
}
_TEXTS: Mapping[type[exp.Expr], Callable[[pl.Expr], pl.Expr]] = {
    exp.Lower: lambda x: x.str.to_lowercase(),
    exp.Upper: lambda x: x.str.to_uppercase(),
    exp.Length: lambda x: x.str.len_chars().cast(pl.Int32),
    exp.Reverse: lambda x: x.str.reverse(),
}
_NUMBERS: Mapping[type[exp.Expr], Callable[[pl.Expr], pl.Expr]] = {
    exp.Neg: lambda x: -x,
    exp.Abs: lambda x: x.abs(),
    exp.Sqrt: lambda x: x.cast(pl.Float64).sqrt(),
}


class _Translation:
    """One expression's way from SQL to Polars."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def value(self, node: exp.Expr) -> Value:
        """The value of a node, whatever it is."""
        rule = _RULES.get(type(node))
        if rule is not None:
            return rule(self, node)
        for table, check in ((_TEXTS, pl.String()), (_PARTS, pl.Datetime()), (_NUMBERS, pl.Int64())):
            if type(node) in table:
                return self._typed(table[type(node)](self._of_kind(node.this, check)), node)
        if isinstance(node, exp.AggFunc | exp.Window):
            raise wrong(
                node, f"{node.key} isn't possible here", "aggregate in a sub-query: SELECT ... FROM (SELECT ...)"
            )
        raise wrong(
            node,
            f"{node.key.upper()} isn't supported",
            "docs/sql.md has the functions; a Python function can be given by name: app.sql(..., functions={...})",
        )

    def _typed(self, expr: pl.Expr, node: exp.Expr) -> Value:
        try:
            (dtype,) = pl.LazyFrame(schema=dict(self._scope.columns)).select(expr.alias("x")).collect_schema().dtypes()
        except PolarsError as error:
            raise wrong(node, f"it can't be computed: {error}".partition("\n")[0]) from None
        return Value(expr, dtype)

    def _of_kind(self, node: exp.Expr, like: pl.DataType) -> pl.Expr:
        found = self.value(node)
        fits = found.dtype in (like, pl.Null)
        if isinstance(like, pl.Datetime):
            fits = fits or isinstance(found.dtype, pl.Datetime | pl.Date)
        elif like == pl.Int64:
            fits = fits or found.dtype.is_numeric()
        if not fits:
            kind = "a timestamp" if isinstance(like, pl.Datetime) else "a number" if like == pl.Int64 else "text"
            raise wrong(node, f"this is {found.dtype}, and {kind} is needed", "write CAST(... AS ...)")
        return found.expr

    def _column(self, node: exp.Expr) -> Value:
        assert isinstance(node, exp.Column), "a column"
        found = self._scope.column(node)
        if found is not None:
            return found
        parts = [part.name for part in node.parts]
        for taken in range(len(parts) - 1, 0, -1):  # a.b.c may be a column's field
            names = [exp.to_identifier(name) for name in parts[:taken]]
            base = self._scope.column(exp.Column(this=names[-1], table=names[-2] if taken > 1 else None))
            if base is not None and isinstance(base.dtype, pl.Struct):
                return self._fields(base, parts[taken:], node)
        near = difflib.get_close_matches(parts[-1], self._scope.names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self._scope.names())}"
        raise wrong(node, f"there is no column {'.'.join(parts)}", hint)

    def _fields(self, base: Value, names: list[str], node: exp.Expr) -> Value:
        for name in names:
            if not isinstance(base.dtype, pl.Struct):
                raise wrong(node, f"{name} can't be a field of {base.dtype}")
            fields = {field.name: field.dtype for field in base.dtype.fields}
            if name not in fields:
                raise wrong(node, f"there is no field {name}", f"there are {', '.join(fields)}")
            dtype = fields[name]
            base = Value(base.expr.struct.field(name), dtype if isinstance(dtype, pl.DataType) else dtype())
        return base

    def _dot(self, node: exp.Expr) -> Value:
        return self._fields(self.value(node.this), [node.expression.name], node)

    def _literal(self, node: exp.Expr) -> Value:
        if node.args.get("is_string"):
            return Value(pl.lit(node.name), pl.String())
        text = node.name
        if "e" in text.lower():
            return Value(pl.lit(float(text)), pl.Float64())
        if "." in text:
            number = Decimal(text)
            digits, exponent = number.as_tuple().digits, int(number.as_tuple().exponent)
            dtype = pl.Decimal(max(len(digits), -exponent), -exponent)
            return Value(pl.lit(number, dtype), dtype)
        small = abs(int(text)) < 1 << 31
        return Value(pl.lit(int(text), pl.Int32() if small else pl.Int64()), pl.Int32() if small else pl.Int64())

    def _compared(self, node: exp.Expr) -> Value:
        one, two = self._alike(node.this, node.expression, node)
        return Value(_COMPARISONS[type(node)](one.expr, two.expr), pl.Boolean())

    def _alike(self, left: exp.Expr, right: exp.Expr, node: exp.Expr) -> tuple[Value, Value]:
        """Two values that can be compared: text beside a time is read as one, numbers may differ in type."""
        one, two = self.value(left), self.value(right)
        for text, other in ((one, two), (two, one)):
            if text.dtype == pl.String and isinstance(other.dtype, pl.Datetime | pl.Date):
                read = Value(text.expr.str.to_datetime(time_unit="us").cast(other.dtype), other.dtype)
                return (read, two) if text is one else (one, read)
        if _family(one.dtype) != _family(two.dtype) and pl.Null not in (one.dtype, two.dtype):
            raise wrong(node, f"{one.dtype} can't be compared with {two.dtype}", "write CAST(... AS ...)")
        return one, two

    def _computed(self, node: exp.Expr) -> Value:
        if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
            moved = pl.duration(milliseconds=duration_ms(node.expression), time_unit="ms")
            time = self._of_kind(node.this, pl.Datetime())
            found = self.value(node.this)
            return Value(_ARITHMETIC[type(node)](time, moved).cast(found.dtype), found.dtype)
        one, two = self.value(node.this), self.value(node.expression)
        for value, part in ((one, node.this), (two, node.expression)):
            if not value.dtype.is_numeric() and value.dtype != pl.Null:
                raise wrong(part, f"this is {value.dtype}, and a number is needed", "write CAST(... AS ...)")
        return self._typed(_ARITHMETIC[type(node)](*_widened(one, two)), node)

    def _divided(self, node: exp.Expr) -> Value:
        """As Spark: of integers a double. A zero is an error."""
        one, two = self._of_kind(node.this, pl.Int64()), self._of_kind(node.expression, pl.Int64())
        return Value(one.cast(pl.Float64) / _not_zero(two).cast(pl.Float64), pl.Float64())

    def _whole_division(self, node: exp.Expr) -> Value:
        one, two = self._of_kind(node.this, pl.Int64()), self._of_kind(node.expression, pl.Int64())
        exact = (one - self._remainder(one, two)) // two
        return self._typed(exact.cast(pl.Int64), node)

    def _modulo(self, node: exp.Expr) -> Value:
        one, two = self._of_kind(node.this, pl.Int64()), self._of_kind(node.expression, pl.Int64())
        return self._typed(self._remainder(one, two), node)

    def _remainder(self, one: pl.Expr, two: pl.Expr) -> pl.Expr:
        """The remainder has the sign of the dividend, as in Spark; Polars' has that of the divisor."""
        by = _not_zero(two)
        rest = one % by
        return pl.when((rest != 0) & ((rest < 0) != (one < 0))).then(rest - by).otherwise(rest)

    def _and(self, node: exp.Expr) -> Value:
        return Value(predicate(node.this, self._scope) & predicate(node.expression, self._scope), pl.Boolean())

    def _or(self, node: exp.Expr) -> Value:
        return Value(predicate(node.this, self._scope) | predicate(node.expression, self._scope), pl.Boolean())

    def _not(self, node: exp.Expr) -> Value:
        return Value(~predicate(node.this, self._scope), pl.Boolean())

    def _is(self, node: exp.Expr) -> Value:
        found = self.value(node.this)
        if isinstance(node.expression, exp.Null):
            return Value(found.expr.is_null(), pl.Boolean())
        return Value(found.expr.eq_missing(self.value(node.expression).expr), pl.Boolean())

    def _between(self, node: exp.Expr) -> Value:
        low = exp.GTE(this=node.this, expression=node.args["low"])
        high = exp.LTE(this=node.this, expression=node.args["high"])
        return Value(self.value(low).expr & self.value(high).expr, pl.Boolean())

    def _in(self, node: exp.Expr) -> Value:
        if node.args.get("query") is not None:
            raise wrong(node, "IN with a sub-query isn't possible here", "put it into the WHERE by itself, or join")
        found: pl.Expr | None = None
        for one in node.expressions:
            same = self._compared(exp.EQ(this=node.this, expression=one)).expr
            found = same if found is None else found | same
        assert found is not None, "IN has values"
        return Value(found, pl.Boolean())

    def _case(self, node: exp.Expr) -> Value:
        subject, branches = node.this, node.args["ifs"]
        results = [self.value(one.args["true"]) for one in branches]
        default = node.args.get("default")
        other = Value(pl.lit(None), pl.Null()) if default is None else self.value(default)
        self._one_family([*results, other], node)
        chain: pl.Expr | None = None
        for one, result in zip(reversed(branches), reversed(results), strict=True):
            test = one.this if subject is None else exp.EQ(this=subject, expression=one.this)
            chain = (
                pl.when(predicate(test, self._scope))
                .then(result.expr)
                .otherwise(other.expr if chain is None else chain)
            )
        assert chain is not None, "CASE has branches"
        return self._typed(chain, node)

    def _if(self, node: exp.Expr) -> Value:
        return self._case(
            exp.Case(ifs=[exp.If(this=node.this, true=node.args["true"])], default=node.args.get("false"))
        )

    def _coalesce(self, node: exp.Expr) -> Value:
        values = [self.value(one) for one in (node.this, *node.expressions)]
        self._one_family(values, node)
        return self._typed(pl.coalesce([one.expr for one in values]), node)

    def _nullif(self, node: exp.Expr) -> Value:
        one, two = self._alike(node.this, node.expression, node)
        return Value(pl.when((one.expr != two.expr).fill_null(value=True)).then(one.expr), one.dtype)

    def _one_family(self, values: list[Value], node: exp.Expr) -> None:
        families = {_family(one.dtype) for one in values if one.dtype != pl.Null}
        if len(families) > 1:
            raise wrong(
                node, f"its results are of different types: {', '.join(sorted(families))}", "write CAST(... AS ...)"
            )

    def _cast(self, node: exp.Expr) -> Value:
        found, to = self.value(node.this), data_type(node.args["to"])
        strict = not isinstance(node, exp.TryCast)
        if found.dtype == to:
            return found
        if found.dtype == pl.String and isinstance(to, pl.Datetime | pl.Date):
            read = found.expr.str.to_datetime(time_unit="us", strict=strict)
            return Value(read.cast(to), to)
        if (to == pl.String and isinstance(found.dtype, pl.Datetime | pl.List | pl.Struct)) or (
            found.dtype.is_float() and to == pl.String
        ):
            raise wrong(
                node, f"text of {found.dtype} isn't the same in Polars", "write DATE_FORMAT(..., 'yyyy-MM-dd HH:mm:ss')"
            )
        text = found.expr.str.strip_chars() if found.dtype == pl.String and to != pl.Binary else found.expr
        if found.dtype == pl.Boolean and to == pl.String:
            return Value(pl.when(found.expr).then(pl.lit("true")).when(~found.expr).then(pl.lit("false")), to)
        return self._typed(text.cast(to, strict=strict), node)

    def _concat(self, node: exp.Expr) -> Value:
        parts = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
        return Value(pl.concat_str([self._of_kind(one, pl.String()) for one in parts]), pl.String())

    def _time_text(self, node: exp.Expr) -> Value:
        source = node.this.this if isinstance(node.this, exp.TimeStrToTime) else node.this
        time = self._of_kind(source, pl.Datetime())
        pattern = node.args["format"].name.replace("strict", "")
        return Value(time.dt.strftime(pattern), pl.String())

    def _like(self, node: exp.Expr) -> Value:
        if not isinstance(node.expression, exp.Literal):
            raise wrong(node, "LIKE needs a text that doesn't change", "write LIKE '%x%'")
        pattern = "".join({"%": ".*", "_": "."}.get(c, _escaped(c)) for c in node.expression.name)
        return Value(self._of_kind(node.this, pl.String()).str.contains(f"(?s)^{pattern}$"), pl.Boolean())

    def _regexp_like(self, node: exp.Expr) -> Value:
        return Value(self._of_kind(node.this, pl.String()).str.contains(node.expression.name), pl.Boolean())

    def _regexp_extract(self, node: exp.Expr) -> Value:
        """As Flink: null where nothing is found."""
        group = int(node.args["group"].name) if node.args.get("group") is not None else 1
        return Value(self._of_kind(node.this, pl.String()).str.extract(node.expression.name, group), pl.String())

    def _substring(self, node: exp.Expr) -> Value:
        start, length = node.args["start"], node.args.get("length")
        if not isinstance(start, exp.Literal) or int(start.name) < 1:
            raise wrong(node, "SUBSTRING needs a first place of at least 1, as a number")
        size = None if length is None else self.value(length).expr
        return Value(self._of_kind(node.this, pl.String()).str.slice(int(start.name) - 1, size), pl.String())

    def _named(self, node: exp.Expr) -> Value:
        assert isinstance(node, exp.Anonymous), "a function by name"
        name = node.name.lower()
        own = self._scope.functions.get(name)
        values = [self.value(one) for one in node.expressions]
        if own is not None:
            try:
                return self._typed(own(*(one.expr for one in values)), node)
            except (TypeError, DeclarationError) as error:
                raise wrong(node, f"the function {name} failed: {error}") from None
        if name == "split_index":
            text, by, at = values
            return Value(text.expr.str.split(by.expr).list.get(at.expr, null_on_oob=True), pl.String())
        if name == "char_length":
            return Value(values[0].expr.str.len_chars().cast(pl.Int32), pl.Int32())
        near = difflib.get_close_matches(name, [*self._scope.functions, "split_index", "char_length"], n=1)
        hint = f"did you mean {near[0]}?" if near else "docs/sql.md has the functions; give your own: functions={...}"
        raise wrong(node, f"there is no function {node.name}", hint)

    def _true(self, node: exp.Expr) -> Value:
        return Value(pl.lit(bool(node.this)), pl.Boolean())

    def _null(self, node: exp.Expr) -> Value:
        return Value(pl.lit(None), pl.Null())

    def _inner(self, node: exp.Expr) -> Value:
        return self.value(node.this)


def _escaped(char: str) -> str:
    return f"\\{char}" if not char.isalnum() and not char.isspace() else char


def _not_zero(divisor: pl.Expr) -> pl.Expr:
    return divisor.map_batches(_refuse_zero, is_elementwise=True)


def _refuse_zero(values: pl.Series) -> pl.Series:
    if (values == 0).any():
        raise ZeroDivisionError("division by zero: write nullif(x, 0) to get null, or leave such rows out with WHERE")
    return values


def _widened(one: Value, two: Value) -> tuple[pl.Expr, pl.Expr]:
    """Two numbers to compute with: integers beside a decimal are decimals, and 32 bits become 64."""
    wide = []
    for value, other in ((one, two), (two, one)):
        if value.dtype.is_integer() and isinstance(other.dtype, pl.Decimal):
            wide.append(value.expr.cast(pl.Decimal(38, 0)))
        elif value.dtype.is_integer() and value.dtype != pl.UInt64:
            wide.append(value.expr.cast(pl.Int64))
        else:
            wide.append(value.expr)
    return wide[0], wide[1]


def _family(dtype: pl.DataType) -> str:
    if dtype.is_numeric():
        return "number"
    return "time" if isinstance(dtype, pl.Datetime | pl.Date) else str(dtype.base_type())


_RULES: Mapping[type[exp.Expr], Callable[[_Translation, exp.Expr], Value]] = {
    exp.Column: _Translation._column,
    exp.Dot: _Translation._dot,
    exp.Literal: _Translation._literal,
    exp.Boolean: _Translation._true,
    exp.Null: _Translation._null,
    exp.Paren: _Translation._inner,
    **dict.fromkeys(_COMPARISONS, _Translation._compared),
    **dict.fromkeys(_ARITHMETIC, _Translation._computed),
    exp.Div: _Translation._divided,
    exp.IntDiv: _Translation._whole_division,
    exp.Mod: _Translation._modulo,
    exp.And: _Translation._and,
    exp.Or: _Translation._or,
    exp.Not: _Translation._not,
    exp.Is: _Translation._is,
    exp.Between: _Translation._between,
    exp.In: _Translation._in,
    exp.Case: _Translation._case,
    exp.If: _Translation._if,
    exp.Coalesce: _Translation._coalesce,
    exp.Nullif: _Translation._nullif,
    exp.Cast: _Translation._cast,
    exp.TryCast: _Translation._cast,
    exp.Concat: _Translation._concat,
    exp.DPipe: _Translation._concat,
    exp.TimeToStr: _Translation._time_text,
    exp.Like: _Translation._like,
    exp.RegexpLike: _Translation._regexp_like,
    exp.RegexpExtract: _Translation._regexp_extract,
    exp.Substring: _Translation._substring,
    exp.Anonymous: _Translation._named,
}

__all__ = ["DeclarationError", "Function", "Scope", "Value", "data_type", "duration_ms", "predicate", "translate"]
