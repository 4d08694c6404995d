"""Scalar expressions of SQL as Polars expressions. Pure.

An expression is translated only if Polars gives what Spark SQL gives, for nulls too; what would differ is refused, with
what to write instead. ``functions.py`` has the functions; here is what has its own grammar, and the rules of types.

**Errors that depend on values**, a division by zero, an overflow, a cast that fails, stop the app as those of any step
do: ``try_cast``, ``try_divide`` and ``nullif`` avoid them. Polars computes all branches of a CASE for all rows, so what
may raise is given null where a row doesn't reach it (``_reached``).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Protocol

import polars as pl
from polars.exceptions import PolarsError
from sqlglot import exp
from sqlglot.expressions.datatypes import DType

from headrace.core.errors import DeclarationError
from headrace.sql import functions as known
from headrace.sql.dialect import Streams, wrong
from headrace.sql.functions import DATE, DOUBLE, INT, LONG, MONTHS, TEXT, TIME, Value, refuse

Function = Callable[..., pl.Expr]


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


def duration_ms(node: exp.Expr) -> int:
    """How long an ``INTERVAL`` is."""
    if not isinstance(node, exp.Interval) or not isinstance(node.this, exp.Literal) or node.unit is None:
        raise wrong(node, "this isn't an interval", "write INTERVAL '10' SECOND")
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


Binary = Callable[[pl.Expr, pl.Expr], pl.Expr]

_COMPARISONS: Mapping[type[exp.Expr], Binary] = {
    exp.EQ: lambda one, two: one == two,
    exp.NEQ: lambda one, two: one != two,
    exp.LT: lambda one, two: one < two,
    exp.LTE: lambda one, two: one <= two,
    exp.GT: lambda one, two: one > two,
    exp.GTE: lambda one, two: one >= two,
    exp.NullSafeEQ: lambda one, two: one.eq_missing(two),
    exp.EqualNull: lambda one, two: one.eq_missing(two),
}
_ARITHMETIC: Mapping[type[exp.Expr], Binary] = {
    exp.Add: lambda one, two: one + two,
    exp.Sub: lambda one, two: one - two,
    exp.Mul: lambda one, two: one * two,
}
_TRIED: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.SafeAdd: exp.Add,
    exp.SafeSubtract: exp.Sub,
    exp.SafeMultiply: exp.Mul,
}
_BITS: Mapping[type[exp.Expr], Binary] = {
    exp.BitwiseAnd: lambda one, two: one & two,
    exp.BitwiseOr: lambda one, two: one | two,
    exp.BitwiseXor: lambda one, two: one ^ two,
}
_ZERO = "division by zero: write nullif(x, 0) or try_divide to get null, or leave such rows out with WHERE"


class _Translation:
    """One expression's way from SQL to Polars."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._reached: pl.Expr | None = None

    def value(self, node: exp.Expr) -> Value:
        """The value of a node, whatever it is."""
        if isinstance(node, exp.Func):
            own = next((name for name in _names(node) if name in self._scope.functions), None)
            if own is not None:
                return self._own(own, node)
        rule = _RULES.get(type(node))
        if rule is not None:
            return rule(self, node)
        if isinstance(node, exp.AggFunc | exp.Window):
            raise wrong(
                node, f"{node.key} isn't possible here", "aggregate in a sub-query: SELECT ... FROM (SELECT ...)"
            )
        name, arguments = _called(node)
        if name in _NAMED:
            return _NAMED[name](self, node)
        function = known.FUNCTIONS.get(name)
        if function is None:
            raise self._unknown(name, node)
        return self._call(name, function, arguments, node)

    def condition(self, node: exp.Expr) -> pl.Expr:
        """The value of a condition."""
        found = self.value(node)
        if found.dtype not in (pl.Boolean, pl.Null):
            raise wrong(node, f"a condition is true or false, and this is {found.dtype}")
        return found.expr

    @contextmanager
    def _only(self, where: pl.Expr) -> Iterator[None]:
        """What is translated meanwhile counts only for rows for which this is true."""
        before = self._reached
        self._reached = where if before is None else before & where
        try:
            yield
        finally:
            self._reached = before

    def _at_risk(self, expr: pl.Expr) -> pl.Expr:
        """The expression, with null for rows that don't reach it: it goes into what may raise."""
        return expr if self._reached is None else pl.when(self._reached).then(expr)

    def _typed(self, expr: pl.Expr, node: exp.Expr) -> Value:
        try:
            (dtype,) = pl.LazyFrame(schema=dict(self._scope.columns)).select(expr.alias("x")).collect_schema().dtypes()
        except PolarsError as error:
            raise wrong(node, f"it can't be computed: {error}".partition("\n")[0]) from None
        return Value(expr, dtype)

    # -- functions -----------------------------------------------------------------------------------
    def _own(self, name: str, node: exp.Expr) -> Value:
        _, arguments = _called(node)
        values = [self.value(one).expr for one in arguments]
        try:
            return self._typed(self._scope.functions[name](*values), node)
        except (TypeError, DeclarationError) as error:
            raise wrong(node, f"the function {name} failed: {error}") from None

    def _unknown(self, name: str, node: exp.Expr) -> DeclarationError:
        if name in known.REFUSED:
            return wrong(node, f"{name.upper()} isn't supported", known.REFUSED[name])
        names = [*self._scope.functions, *known.FUNCTIONS, *known.ALSO, *GRAMMAR]
        near = difflib.get_close_matches(name, names, n=1)
        hint = "docs/sql.md has the functions; give one of your own: app.sql(..., functions={...})"
        if not isinstance(node, exp.Func):
            return wrong(node, f"{name.upper()} isn't supported", hint)
        return wrong(node, f"there is no function {name}", f"did you mean {near[0]}?" if near else hint)

    def _call(self, name: str, rule: known.Rule, given: Sequence[exp.Expr], node: exp.Expr) -> Value:
        needed, _, more = rule.takes.removeprefix("!").partition("?")
        letters = (needed + more).replace("*", "")
        if more == "" and needed.endswith("*"):
            letters += letters[-1] * (len(given) - len(letters))
        if not len(needed.replace("*", "")) <= len(given) <= len(letters):
            count = str(len(needed)) if not more else f"{len(needed)} to {len(letters)}"
            raise wrong(node, f"{name} takes {count} arguments, and this has {len(given)}", "look at docs/sql.md")
        raises = rule.takes.startswith("!")
        try:
            values = [self._argument(kind, one, raises=raises) for kind, one in zip(letters, given, strict=False)]
            expr = rule.to(*values)
        except ValueError as error:
            raise wrong(node, str(error)) from None
        return self._typed(expr if rule.gives is None else expr.cast(rule.gives), node)

    def _argument(self, kind: str, node: exp.Expr, *, raises: bool) -> Any:
        """An argument as its letter says."""
        if kind.isupper():
            return _constant(kind, node)
        found = self.value(node)
        if kind in "vx":
            expr = self._at_risk(found.expr) if raises else found.expr
            return Value(expr, found.dtype) if kind == "v" else expr
        expr = self._as(kind, found, node)
        return self._at_risk(expr) if raises else expr

    def _as(self, kind: str, found: Value, node: exp.Expr) -> pl.Expr:
        """A value as text, a number or a time; ``kind`` is a letter of ``functions.py``."""
        dtype = found.dtype
        if dtype == pl.Null and kind != "a":
            return found.expr.cast(known.CASTS[kind])
        fits = {
            "s": dtype == TEXT,
            "c": dtype == TEXT
            or dtype.is_integer()
            or isinstance(dtype, pl.Decimal | pl.Date | pl.Datetime | pl.Boolean),
            "n": dtype.is_numeric(),
            "i": dtype.is_integer(),
            "b": dtype == pl.Boolean,
            "t": isinstance(dtype, pl.Datetime | pl.Date),
            "d": isinstance(dtype, pl.Datetime | pl.Date),
            "a": isinstance(dtype, pl.List),
        }[kind]
        if not fits:
            raise wrong(node, f"this is {dtype}, and {known.KINDS[kind]} is needed", "write CAST(... AS ...)")
        if kind == "c":
            return self._converted(found, TEXT, node, strict=True)
        if isinstance(dtype, pl.Datetime) and dtype.time_zone:
            found = Value(known.in_utc(found.expr), pl.Datetime(dtype.time_unit))
        if kind == "t":
            return found.expr.cast(TIME) if isinstance(dtype, pl.Date) else found.expr
        return found.expr.cast(known.CASTS[kind]) if kind in "nid" and dtype != known.CASTS[kind] else found.expr

    # -- names and constants -------------------------------------------------------------------------
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

    # -- comparisons ---------------------------------------------------------------------------------
    def _compared(self, node: exp.Expr) -> Value:
        one, two = self._alike([node.this, node.expression], node, "can't be compared with")
        return Value(_COMPARISONS[type(node)](one.expr, two.expr), pl.Boolean())

    def _alike(self, nodes: Sequence[exp.Expr], node: exp.Expr, what: str) -> list[Value]:
        """Values of one type: text beside a time is read as one, numbers become the wider."""
        values = [self.value(one) for one in nodes]
        dtype = self._common(values, node, what)
        return [self._widened(one, dtype) for one in values]

    def _common(self, values: Sequence[Value], node: exp.Expr, what: str) -> pl.DataType:
        dtype: pl.DataType = pl.Null()
        for value in values:
            both = known.wider(dtype, value.dtype)
            if both is None:
                raise wrong(node, f"{dtype} {what} {value.dtype}", "write CAST(... AS ...)")
            dtype = both
        return dtype

    def _widened(self, found: Value, dtype: pl.DataType) -> Value:
        if found.dtype == dtype:
            return found
        if found.dtype == TEXT:
            return Value(known.read_text(self._at_risk(found.expr), dtype, strict=True), dtype)
        return Value(found.expr.cast(dtype), dtype)

    def _and(self, node: exp.Expr) -> Value:
        left = self.condition(node.this)
        with self._only(left.fill_null(value=True)):
            return Value(left & self.condition(node.expression), pl.Boolean())

    def _or(self, node: exp.Expr) -> Value:
        left = self.condition(node.this)
        with self._only(~left.fill_null(value=False)):
            return Value(left | self.condition(node.expression), pl.Boolean())

    def _not(self, node: exp.Expr) -> Value:
        return Value(~self.condition(node.this).cast(pl.Boolean), pl.Boolean())

    def _is(self, node: exp.Expr) -> Value:
        found = self.value(node.this)
        if isinstance(node.expression, exp.Null):
            return Value(found.expr.is_null(), pl.Boolean())
        return Value(self.condition(node.this).eq_missing(self.value(node.expression).expr), pl.Boolean())

    def _between(self, node: exp.Expr) -> Value:
        low = exp.GTE(this=node.this, expression=node.args["low"])
        high = exp.LTE(this=node.this, expression=node.args["high"])
        return Value(self.value(low).expr & self.value(high).expr, pl.Boolean())

    def _in(self, node: exp.Expr) -> Value:
        if node.args.get("query") is not None:
            raise wrong(
                node,
                "IN with a sub-query isn't possible here",
                "write LEFT SEMI JOIN ... ON, or LEFT ANTI JOIN for NOT IN",
            )
        subject, *others = self._alike([node.this, *node.expressions], node, "can't be compared with")
        if all(isinstance(one, exp.Literal) for one in node.expressions):
            listed = pl.select(pl.concat_list([one.expr for one in others])).to_series()
            return Value(subject.expr.is_in(pl.lit(listed)), pl.Boolean())
        found = pl.lit(False)
        for one in others:
            found = found | (subject.expr == one.expr)
        return Value(found, pl.Boolean())

    def _like(self, node: exp.Expr) -> Value:
        escape = "\\"
        negate = bool(node.args.get("negate"))
        if isinstance(node, exp.Escape):
            escape, node = node.expression.name, node.this
            negate = bool(node.args.get("negate"))
        if not (isinstance(node.expression, exp.Literal) and node.expression.is_string):
            raise wrong(node, "LIKE needs a pattern that doesn't change", "write LIKE '%x%'")
        try:
            regex = known.like_regex(node.expression.name, escape, any_case=isinstance(node, exp.ILike))
        except ValueError as error:
            raise wrong(node, str(error)) from None
        found = self._as("s", self.value(node.this), node.this).str.contains(regex)
        return Value(~found if negate else found, pl.Boolean())

    # -- branches ------------------------------------------------------------------------------------
    def _case(self, node: exp.Expr) -> Value:
        subject, tests, results, before = node.this, [], [], pl.lit(True)
        for one in node.args["ifs"]:
            with self._only(before):
                test = self.condition(one.this if subject is None else exp.EQ(this=subject, expression=one.this))
                with self._only(test.fill_null(value=False)):
                    results.append(self.value(one.args["true"]))
            tests.append(test)
            before = before & ~test.fill_null(value=False)
        default = node.args.get("default")
        with self._only(before):
            results.append(Value(pl.lit(None), pl.Null()) if default is None else self.value(default))
        dtype = self._common(results, node, "and it gives other types, too:")
        chain = self._widened(results[-1], dtype).expr
        for test, result in zip(reversed(tests), reversed(results[:-1]), strict=True):
            chain = pl.when(test).then(self._widened(result, dtype).expr).otherwise(chain)
        return Value(chain, dtype)

    def _if(self, node: exp.Expr) -> Value:
        true, false = node.args["true"], node.args.get("false")
        test = node.this if isinstance(node, exp.If) else exp.Not(this=exp.Is(this=node.this, expression=exp.Null()))
        return self._case(exp.Case(ifs=[exp.If(this=test, true=true)], default=false))

    def _coalesce(self, node: exp.Expr) -> Value:
        values, before = [], pl.lit(True)
        for one in (node.this, *node.expressions):
            with self._only(before):
                values.append(self.value(one))
            before = before & values[-1].expr.is_null()
        dtype = self._common(values, node, "and it gives other types, too:")
        return Value(pl.coalesce([self._widened(one, dtype).expr for one in values]), dtype)

    def _nullif(self, node: exp.Expr) -> Value:
        one, two = self._alike([node.this, node.expression], node, "can't be compared with")
        found = self.value(node.this)
        return Value(pl.when((one.expr != two.expr).fill_null(value=True)).then(found.expr), found.dtype)

    def _extreme(self, node: exp.Expr) -> Value:
        """The largest or the smallest that isn't null; NaN is larger than all numbers."""
        values = self._alike([node.this, *node.expressions], node, "can't be compared with")
        exprs, dtype = [one.expr for one in values], values[0].dtype
        if isinstance(node, exp.Least):
            return Value(pl.min_horizontal(exprs), dtype)
        largest = pl.max_horizontal(exprs)
        if not dtype.is_float():
            return Value(largest, dtype)
        odd = pl.any_horizontal([one.is_nan().fill_null(value=False) for one in exprs])
        return Value(pl.when(odd).then(pl.lit(float("nan"), dtype)).otherwise(largest), dtype)

    # -- arithmetic ----------------------------------------------------------------------------------
    def _computed(self, node: exp.Expr) -> Value:
        kind, strict = (_TRIED[type(node)], False) if type(node) in _TRIED else (type(node), True)
        if isinstance(node.expression, exp.Interval) and kind is not exp.Mul:
            return self._moved(node)
        one, two = self.value(node.this), self.value(node.expression)
        if isinstance(one.dtype, pl.Date) and two.dtype.is_integer() and kind is not exp.Mul:
            days = _ARITHMETIC[kind](one.expr.cast(INT), two.expr.cast(INT))
            return Value(days.cast(DATE), DATE)
        if isinstance(one.dtype, pl.Datetime | pl.Date) and isinstance(two.dtype, pl.Datetime | pl.Date):
            raise wrong(node, "the difference of times isn't a value here", "write TIMESTAMPDIFF(SECOND, a, b)")
        for value, part in ((one, node.this), (two, node.expression)):
            if not value.dtype.is_numeric() and value.dtype != pl.Null:
                raise wrong(part, f"this is {value.dtype}, and a number is needed", "write CAST(... AS ...)")
        dtype = known.wider(one.dtype, two.dtype)
        assert dtype is not None, "numbers have a common type"
        if dtype.is_integer():
            wide = pl.Int128() if dtype == LONG else LONG
            sides = [self._at_risk(side.expr) if strict else side.expr for side in (one, two)]
            exact = _ARITHMETIC[kind](sides[0].cast(wide), sides[1].cast(wide))
            return Value(exact.cast(dtype, strict=strict), dtype)
        if isinstance(dtype, pl.Decimal):
            return self._decimal(kind, (one, node.this), (two, node.expression), node, strict=strict)
        return Value(_ARITHMETIC[kind](one.expr.cast(dtype), two.expr.cast(dtype)), dtype)

    def _decimal(
        self,
        kind: type[exp.Expr],
        one: tuple[Value, exp.Expr],
        two: tuple[Value, exp.Expr],
        node: exp.Expr,
        *,
        strict: bool,
    ) -> Value:
        """With the digits that Spark gives the result, if it has room for all."""
        ours, theirs = _digits(*one), _digits(*two)
        if kind is exp.Mul:
            precision, scale = ours[0] + theirs[0] + 1, ours[1] + theirs[1]
        else:
            scale = max(ours[1], theirs[1])
            precision = max(ours[0] - ours[1], theirs[0] - theirs[1]) + scale + 1
        if precision > 38 and scale > min(max(38 - precision + scale, 6), scale):
            raise wrong(node, "its digits don't fit into DECIMAL(38)", "write CAST(... AS DECIMAL(18, 4)) or AS DOUBLE")
        wide = pl.Decimal(38, scale)
        sides = [self._at_risk(side.expr).cast(wide, strict=strict) for side, _ in (one, two)]
        dtype = pl.Decimal(min(precision, 38), scale)
        return Value(_ARITHMETIC[kind](*sides).cast(dtype, strict=strict), dtype)

    def _moved(self, node: exp.Expr) -> Value:
        """A time and an interval. A date stays one if the interval is of days."""
        found = self.value(node.this)
        time = self._as("t", found, node.this)
        interval = node.expression
        unit = "" if interval.unit is None else interval.unit.name.lower().removesuffix("s")
        if unit in MONTHS:
            if not isinstance(interval.this, exp.Literal) or not interval.this.name.lstrip("-").isdigit():
                raise wrong(interval, "this isn't an interval", "write INTERVAL '1' MONTH")
            number = int(interval.this.name) * (1 if isinstance(node, exp.Add) else -1)
            return Value(known.moved(time, pl.lit(number), unit).cast(found.dtype), found.dtype)
        length = duration_ms(interval)
        whole = isinstance(found.dtype, pl.Date) and length % 86_400_000 == 0
        dtype = found.dtype if whole or isinstance(found.dtype, pl.Datetime) else TIME
        unit = dtype.time_unit if isinstance(dtype, pl.Datetime) else "us"  # a coarser interval would round the time
        by = pl.duration(milliseconds=length, time_unit=unit)
        return Value(_ARITHMETIC[type(node)](time, by).cast(dtype), dtype)

    def _numbers(self, node: exp.Expr, kind: str) -> tuple[pl.Expr, pl.Expr]:
        """Both sides, and the right one isn't zero."""
        values = self.value(node.this), self.value(node.expression)
        for value, part in zip(values, (node.this, node.expression), strict=True):
            if isinstance(value.dtype, pl.Decimal) and not all(
                other.dtype.is_float() or other is value for other in values
            ):
                raise wrong(part, "decimals aren't divided here", "write CAST(... AS DOUBLE)")
            self._as(kind, value, part)
        one, two = (
            self._as(kind, value, part) for value, part in zip(values, (node.this, node.expression), strict=True)
        )
        return one, two

    def _divided(self, node: exp.Expr) -> Value:
        """As Spark: of integers a double. A zero is an error."""
        one, two = self._numbers(node, "n")
        if isinstance(node, exp.SafeDivide):
            return Value(known.quotient(one, pl.when(two != 0).then(two)), DOUBLE)
        return Value(known.quotient(one, self._not_zero(two, DOUBLE)), DOUBLE)

    def _not_zero(self, divisor: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        divisor = self._at_risk(divisor)
        return refuse(divisor == 0, divisor, _ZERO, dtype)

    def _whole_division(self, node: exp.Expr) -> Value:
        one, two = self._numbers(node, "i")
        by = self._not_zero(two, LONG)
        return Value((one - known.remainder(one, by)) // by, LONG)

    def _modulo(self, node: exp.Expr) -> Value:
        """With the sign of the dividend; PMOD is never negative for a positive divisor."""
        positive = isinstance(node, exp.Anonymous)
        if positive and len(node.expressions) != 2:
            raise wrong(node, "PMOD takes two numbers", "write PMOD(x, 10)")
        pair = exp.Mod(this=node.expressions[0], expression=node.expressions[1]) if positive else node
        one, two = self._numbers(pair, "i")
        by = self._not_zero(two, LONG)
        rest = known.remainder(one, by)
        if positive:
            rest = pl.when(rest < 0).then(known.remainder(rest + by, by)).otherwise(rest)
        dtype = known.wider(self.value(pair.this).dtype, self.value(pair.expression).dtype) or LONG
        return Value(rest.cast(dtype), dtype)

    def _negative(self, node: exp.Expr) -> Value:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            found = self.value(node.this)
            return Value(-found.expr, found.dtype)
        zero: exp.Expr = exp.Literal.number(0)
        found = self.value(node.this)
        if found.dtype.is_integer() and found.dtype != LONG:
            zero = exp.cast(zero, "TINYINT", dialect=Streams)
        if found.dtype.is_integer() or not found.dtype.is_numeric():
            return self._computed(exp.Sub(this=zero, expression=node.this))
        return Value(-found.expr, found.dtype)

    def _absolute(self, node: exp.Expr) -> Value:
        found = self.value(node.this)
        self._as("n", found, node.this)
        if not found.dtype.is_integer():
            return Value(found.expr.abs(), found.dtype)
        with self._only(found.expr < 0):
            turned = self._negative(exp.Neg(this=exp.Paren(this=node.this)))
        return Value(pl.when(found.expr < 0).then(turned.expr).otherwise(found.expr), found.dtype)

    def _of_bits(self, node: exp.Expr) -> Value:
        if isinstance(node, exp.BitwiseNot):
            found = self.value(node.this)
            self._as("i", found, node.this)
            return Value(~found.expr, found.dtype)
        one, two = self._alike([node.this, node.expression], node, "has no common bits with")
        self._as("i", one, node)
        return Value(_BITS[type(node)](one.expr, two.expr), one.dtype)

    # -- casts and times -----------------------------------------------------------------------------
    def _cast(self, node: exp.Expr) -> Value:
        found, to = self.value(node.this), data_type(node.args["to"])
        if found.dtype == to:
            return found
        strict = not isinstance(node, exp.TryCast)
        return Value(self._converted(found, to, node, strict=strict), to)

    def _converted(self, found: Value, to: pl.DataType, node: exp.Expr, *, strict: bool) -> pl.Expr:
        """A value as another type."""
        of, expr = found.dtype, self._at_risk(found.expr) if strict else found.expr
        timely = isinstance(to, pl.Datetime | pl.Date)
        if of in (pl.Null, to):
            return expr.cast(to)
        if isinstance(of, pl.Datetime) and of.time_zone:
            expr = known.in_utc(expr)
        if of == TEXT:
            return known.read_text(expr, to, strict=strict)
        if to == TEXT and (isinstance(of, pl.List | pl.Struct) or of.is_float()):
            raise wrong(
                node, f"text of {of} isn't the same in Polars", "write CAST(... AS DECIMAL(20, 4)), then AS STRING"
            )
        if to == TEXT and isinstance(of, pl.Datetime):
            return known.text_of_time(expr)
        if to == TEXT and isinstance(of, pl.Date):
            return expr.dt.strftime("%Y-%m-%d")
        if timely and of.is_integer() and isinstance(to, pl.Datetime):
            return (expr.cast(LONG) * 10**6).cast(TIME).cast(to)
        if isinstance(of, pl.Datetime) and to.is_integer():
            return (known.micros_of(expr) // 10**6).cast(to, strict=strict)
        if isinstance(of, pl.Datetime | pl.Date) != timely and not (timely and isinstance(of, pl.Datetime | pl.Date)):
            raise wrong(node, f"{of} can't be cast to {to}")
        if isinstance(to, pl.Decimal) and of.is_float():
            expr = known.half_up(expr.cast(DOUBLE), to.scale)
        if isinstance(to, pl.Decimal) and isinstance(of, pl.Decimal) and of.scale > to.scale:
            expr = expr.round(to.scale, mode="half_away_from_zero")
        return self._typed(expr.cast(to, strict=strict), node).expr

    def _read_time(self, node: exp.Expr) -> Value:
        """``TO_DATE``, ``TO_TIMESTAMP`` and ``UNIX_TIMESTAMP`` of a text or a time."""
        if isinstance(node.this, exp.CurrentTimestamp):
            raise self._unknown("now", node)
        to = DATE if isinstance(node, exp.TsOrDsToDate) else TIME
        found = self.value(node.this)
        if found.dtype != TEXT:
            read = self._as("d" if to == DATE else "t", found, node.this)
        elif node.args.get("format") is None:
            read = known.read_text(self._at_risk(found.expr), to, strict=True)
        else:
            try:
                pattern = known.time_pattern(_format(node))
            except ValueError as error:
                raise wrong(node, str(error)) from None
            read = known.read_time(self._at_risk(found.expr), pattern, strict=True).cast(to)
        if isinstance(node, exp.StrToUnix):
            return Value(known.towards_zero(known.micros_of(read), 10**6), LONG)
        return self._typed(read, node)


def _true(own: _Translation, node: exp.Expr) -> Value:
    return Value(pl.lit(bool(node.this)), pl.Boolean())


def _null(own: _Translation, node: exp.Expr) -> Value:
    return Value(pl.lit(None), pl.Null())


def _dot(own: _Translation, node: exp.Expr) -> Value:
    return own._fields(own.value(node.this), [node.expression.name], node)


def _inner(own: _Translation, node: exp.Expr) -> Value:
    return own.value(node.this)


def _decode(own: _Translation, node: exp.Expr) -> Value:
    subject, *rest = node.expressions
    pairs = zip(rest[::2], rest[1::2], strict=False)
    branches = [exp.If(this=exp.NullSafeEQ(this=subject, expression=one), true=two) for one, two in pairs]
    return own._case(exp.Case(ifs=branches, default=rest[-1] if len(rest) % 2 else None))


def _array(own: _Translation, node: exp.Expr) -> Value:
    if not node.expressions:
        raise wrong(node, "an array without elements has no type", "write CAST(NULL AS ARRAY<INT>)")
    values = own._alike(node.expressions, node, "can't be in an array with")
    if isinstance(values[0].dtype, pl.List):
        raise wrong(node, "an array of arrays isn't supported", "give a function of your own: functions={...}")
    return own._typed(pl.concat_list([one.expr for one in values]), node)


def _struct(own: _Translation, node: exp.Expr) -> Value:
    fields: dict[str, pl.Expr] = {}
    for number, one in enumerate(node.expressions):
        named = isinstance(one, exp.PropertyEQ)
        name = one.this.name if named else one.alias_or_name or f"col{number + 1}"
        fields[name] = own.value(one.expression if named else one.unalias()).expr
    return own._typed(pl.struct([expr.alias(name) for name, expr in fields.items()]), node)


def _json(own: _Translation, node: exp.Expr) -> Value:
    path = ""
    for one in node.expression.expressions if isinstance(node.expression, exp.JSONPath) else [node.expression]:
        if isinstance(one, exp.JSONPathKey) and isinstance(one.this, str):
            path += f"['{one.this}']"
        elif isinstance(one, exp.JSONPathSubscript) and isinstance(one.this, int):
            path += f"[{one.this}]"
        elif not isinstance(one, exp.JSONPathRoot):
            raise wrong(node, "this path isn't supported", "there are $.name, ['name'] and [0]")
    arguments = [node.this, exp.Literal.string(f"${path}")]
    return own._call("get_json_object", known.FUNCTIONS["get_json_object"], arguments, node)


def _item(own: _Translation, node: exp.Expr) -> Value:
    """``array[0]``, ``struct['field']``, and ``element_at(array, 1)``."""
    base, (index,) = own.value(node.this), node.expressions
    if isinstance(base.dtype, pl.Struct):
        return own._fields(base, [index.name], node)
    if node.args.get("offset"):
        name = "try_element_at" if node.args.get("safe") else "element_at"
        return own._call(name, known.FUNCTIONS[name], [node.this, index], node)
    place = own._at_risk(own._as("i", own.value(index), index))
    array = own._at_risk(own._as("a", base, node.this))
    return own._typed(known.item(array, place, strict=True), node)


def translate(node: exp.Expr, scope: Scope) -> Value:
    """The Polars expression of a scalar expression. Raises ``DeclarationError``."""
    return _Translation(scope).value(node)


def predicate(node: exp.Expr, scope: Scope) -> pl.Expr:
    """The Polars expression of a condition."""
    return _Translation(scope).condition(node)


def _digits(value: Value, node: exp.Expr) -> tuple[int, int]:
    """Precision and scale of a number beside a decimal."""
    whole = value.dtype.is_integer() and isinstance(node, exp.Literal)
    return (len(node.name), 0) if whole else known.digits_of(value.dtype)


def _names(node: exp.Func) -> list[str]:
    """The names of a function in lower case."""
    return [node.name.lower()] if isinstance(node, exp.Anonymous) else [one.lower() for one in node.sql_names()]


def _called(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """The function that a node calls, by its name in Spark, with its arguments."""
    special = _CALLS.get(type(node))
    if special is not None:
        name, given = special(node)
        return name, [one for one in given if one is not None]
    if not isinstance(node, exp.Func):
        return node.key, []
    name = next((one for one in _names(node) if one in known.FUNCTIONS or one in known.ALSO), _names(node)[0])
    arguments: list[exp.Expr] = []
    for key in node.arg_types if not isinstance(node, exp.Anonymous) else ("expressions",):
        one = node.args.get(key)
        arguments += one if isinstance(one, list) else [one] if isinstance(one, exp.Expr) else []
    if name in ("locate", "position", "charindex"):  # the text comes second
        arguments[:2] = reversed(arguments[:2])
    return known.ALSO.get(name, name), arguments


def _constant(kind: str, node: exp.Expr) -> Any:
    """An argument that must be constant."""
    negative = isinstance(node, exp.Neg)
    literal = node.this if negative else node
    if kind == "U":
        return node.name
    if kind == "F":
        return known.time_pattern(node.name)
    if kind == "I":
        if not isinstance(literal, exp.Literal) or not literal.name.isdigit():
            raise wrong(node, "a whole number that doesn't change is needed here", "write 2")
        return -int(literal.name) if negative else int(literal.name)
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise wrong(node, "text that doesn't change is needed here", "write 'x'")
    return known.rust_regex(node.name) if kind == "R" else node.name


def _format(node: exp.Expr) -> str:
    """The pattern of times as the statement has it: sqlglot keeps it in Python's words."""
    written = Streams().generator().format_time(node) or "''"
    return written[1:-1].replace("\\'", "'").replace("\\\\", "\\")


def _with_format(name: str) -> Callable[[exp.Expr], tuple[str, list[exp.Expr | None]]]:
    def call(node: exp.Expr) -> tuple[str, list[exp.Expr | None]]:
        time = node.this.this if isinstance(node.this, exp.TimeStrToTime) else node.this
        return name, [time, exp.Literal.string(_format(node))]

    return call


def _difference(node: exp.Expr) -> tuple[str, list[exp.Expr | None]]:
    if node.args.get("unit") is None or node.args["unit"].name.upper() == "DAY":
        return "datediff", [node.this, node.expression]
    return "timestampdiff", [node.args["unit"], node.expression, node.this]


_TRIMS = {"LEADING": "ltrim", "TRAILING": "rtrim"}
_CALLS: Mapping[type[exp.Expr], Callable[[exp.Expr], tuple[str, list[exp.Expr | None]]]] = {
    exp.Trim: lambda node: (_TRIMS.get(node.args.get("position") or "", "trim"), [node.this, node.expression]),
    exp.Pad: lambda node: (
        "lpad" if node.args.get("is_left") else "rpad",
        [node.this, node.expression, node.args.get("fill_pattern")],
    ),
    exp.TsOrDsAdd: lambda node: ("date_add", [node.this, node.expression]),
    exp.TimestampAdd: lambda node: ("timestampadd", [node.args["unit"], node.expression, node.this]),
    exp.TimestampDiff: lambda node: ("timestampdiff", [node.args["unit"], node.expression, node.this]),
    exp.DateDiff: _difference,
    exp.TimestampTrunc: lambda node: ("date_trunc", [node.this, node.args["unit"]]),
    exp.DateTrunc: lambda node: ("trunc", [node.args["unit"], node.this]),
    exp.ArraySlice: lambda node: ("slice", [node.this, node.args["start"], node.args["end"]]),
    exp.ArraySort: lambda node: (
        "sort_array" if node.args["nulls_first"].this else "array_sort",
        [node.this, node.expression],
    ),
    exp.TimeToStr: _with_format("date_format"),
    exp.UnixToStr: _with_format("from_unixtime"),
    exp.RegexpSplit: lambda node: ("split", [node.this, node.expression, node.args.get("limit")]),
    exp.FromTimeZone: lambda node: ("to_utc_timestamp", []),
    exp.AtTimeZone: lambda node: ("from_utc_timestamp", [_uncast(node.this), node.args["zone"]]),
    exp.BitwiseLeftShift: lambda node: ("shiftleft", [node.this, node.expression]),
    exp.BitwiseRightShift: lambda node: ("shiftright", [node.this, node.expression]),
    exp.BitwiseCount: lambda node: ("bit_count", [node.this]),
    exp.Log: lambda node: (
        ("log", [node.this, node.expression])
        if node.this.name not in ("2", "10")
        else (f"log{node.this.name}", [node.expression])
    ),
}


def _uncast(node: exp.Expr) -> exp.Expr:
    inner: exp.Expr = node.this if isinstance(node, exp.Cast) else node
    return inner


_RULES: Mapping[type[exp.Expr], Callable[[_Translation, exp.Expr], Value]] = {
    exp.Column: _Translation._column,
    exp.Dot: _dot,
    exp.Literal: _Translation._literal,
    exp.Boolean: _true,
    exp.Null: _null,
    exp.Paren: _inner,
    **dict.fromkeys(_COMPARISONS, _Translation._compared),
    **dict.fromkeys((*_ARITHMETIC, *_TRIED), _Translation._computed),
    **dict.fromkeys((exp.Div, exp.SafeDivide), _Translation._divided),
    **dict.fromkeys((*_BITS, exp.BitwiseNot), _Translation._of_bits),
    exp.IntDiv: _Translation._whole_division,
    exp.Mod: _Translation._modulo,
    **dict.fromkeys((exp.Neg, exp.Negative), _Translation._negative),
    exp.Abs: _Translation._absolute,
    **dict.fromkeys((exp.Greatest, exp.Least), _Translation._extreme),
    exp.And: _Translation._and,
    exp.Or: _Translation._or,
    exp.Not: _Translation._not,
    exp.Is: _Translation._is,
    exp.Between: _Translation._between,
    exp.In: _Translation._in,
    exp.Case: _Translation._case,
    **dict.fromkeys((exp.If, exp.Nvl2), _Translation._if),
    exp.DecodeCase: _decode,
    exp.Coalesce: _Translation._coalesce,
    exp.Nullif: _Translation._nullif,
    **dict.fromkeys((exp.Cast, exp.TryCast), _Translation._cast),
    exp.DPipe: lambda own, node: own._call("concat", known.FUNCTIONS["concat"], [node.this, node.expression], node),
    **dict.fromkeys((exp.Like, exp.ILike, exp.Escape), _Translation._like),
    **dict.fromkeys((exp.TsOrDsToDate, exp.StrToTime, exp.StrToUnix), _Translation._read_time),
    exp.Bracket: _item,
    exp.Array: _array,
    exp.Struct: _struct,
    exp.JSONExtractScalar: _json,
}


def _known_null(own: _Translation, node: exp.Expr) -> Value:
    (of,) = node.expressions
    found = own.value(of).expr.is_null()
    return Value(found if node.name.lower() == "isnull" else ~found, pl.Boolean())


_NAMED: Mapping[str, Callable[[_Translation, exp.Expr], Value]] = {
    "pmod": _Translation._modulo,
    **dict.fromkeys(("isnull", "isnotnull"), _known_null),
}
_GRAMMAR = """
abs array case cast coalesce decode equal_null greatest if ifnull isnotnull isnull least mod named_struct negative
nullif nvl nvl2 pmod struct to_date to_timestamp try_add try_cast try_divide try_multiply try_subtract unix_timestamp
"""
GRAMMAR = tuple(_GRAMMAR.split())
"""The functions that aren't in the table of ``functions.py``."""

__all__ = [
    "GRAMMAR",
    "Function",
    "Scope",
    "Value",
    "data_type",
    "duration_ms",
    "predicate",
    "translate",
]
