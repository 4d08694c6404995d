"""The aggregate functions of SQL, as aggregates of Headrace and what is computed from them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl
from sqlglot import exp

import headrace.api.aggregates as hr
from headrace.api.aggregates import Aggregate
from headrace.sql.dialect import wrong
from headrace.sql.expressions import translate
from headrace.sql.functions import LONG, Value
from headrace.sql.relations import Relation


def computed(aggregate: Aggregate) -> tuple[str | bytes, ...]:
    """What an aggregate computes: the text of an expression leaves out the values of lists, and formats."""
    exprs = (one for one in (aggregate.expr, aggregate.by) if one is not None)
    return (aggregate.definition, *(one.meta.serialize() for one in exprs))


@dataclass(slots=True)
class Aggregates:
    """The aggregates of a query: each is computed once, however often it is named.

    An aggregate is called as the column that it is for, else by what it is: a query that gains others keeps its state.
    """

    relation: Relation
    taken: frozenset[str]
    asked: dict[str, Aggregate] = field(default_factory=dict)
    results: dict[str, pl.Expr] = field(default_factory=dict)
    """By a column that stands for a function of the statement, how its value comes from what was asked."""
    _columns: dict[str, str] = field(default_factory=dict)

    def replaced(self, node: exp.Expr) -> exp.Expr:
        """The expression with columns in the place of aggregate functions."""
        named = node.alias if isinstance(node, exp.Alias) and node.alias not in self.taken else ""

        def column(one: exp.Expr) -> exp.Expr:
            if not isinstance(one.this if isinstance(one, exp.Filter) else one, exp.AggFunc):
                return one
            return exp.column(exp.to_identifier(self._column(one, named), quoted=True))

        return node.copy().transform(column)

    def _column(self, node: exp.Expr, named: str) -> str:
        text = node.sql()
        if text not in self._columns:
            before = len(self.asked)
            result = self._result(node)
            if named and named not in self.asked and len(self.asked) == before + 1 and result.meta.is_column():
                self.asked[named] = self.asked.pop(result.meta.output_name())
                result = pl.col(named)
            name = result.meta.output_name() if result.meta.is_column() else f"value${len(self._columns)}"
            self._columns[text] = name
            if not result.meta.is_column():
                self.results[name] = result
        return self._columns[text]

    def _ask(self, aggregate: Aggregate) -> pl.Expr:
        same = computed(aggregate)
        for name, other in self.asked.items():
            if computed(other) == same:
                return pl.col(name)
        words = aggregate.definition
        first = re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")
        if re.search(r"[^\w\s().,\"]", words):  # a + b and a - b have the same letters
            first = f"{first}-{zlib.crc32(words.encode()):08x}"
        name, number = f"{first}$", 1
        while name in self.asked:
            number += 1
            name = f"{first}-{number}$"
        self.asked[name] = aggregate
        return pl.col(name)

    def _result(self, node: exp.Expr) -> pl.Expr:
        where = None
        if isinstance(node, exp.Filter):
            where = node.expression.this
            node = node.this
        rule = _RULES.get(type(node))
        if rule is None:
            raise wrong(
                node, f"the aggregate {node.key.upper()} isn't supported", f"there are {', '.join(NAMES).upper()}"
            )
        return rule(self, node, where)

    def _given(self, node: exp.Expr, where: exp.Expr | None) -> Value:
        """A value, null in rows that FILTER leaves out: what may raise isn't computed for them."""
        only = node if where is None else exp.If(this=where.copy(), true=node.copy())
        return translate(only, self.relation)

    def _count(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        inner = node.this
        if isinstance(inner, exp.Distinct):
            values = [self._given(one, where) for one in inner.expressions]
            if len(values) == 1:
                return self._ask(hr.n_unique(values[0].expr))
            hint = "select the distinct rows in a sub-query first, and count these"
            raise wrong(node, "COUNT(DISTINCT ...) takes one column", hint)
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Literal) and not node.expressions):
            return self._ask(hr.count() if where is None else hr.count(self._given(exp.true(), where).expr))
        counted = [self._given(one, where).expr for one in (inner, *node.expressions)]
        only = pl.when(pl.all_horizontal([one.is_not_null() for one in counted])).then(1)
        return self._ask(hr.count(counted[0] if len(counted) == 1 else only))

    def _count_if(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        return self._ask(hr.count(self._given(exp.If(this=node.this.copy(), true=exp.Literal.number(1)), where).expr))

    def _sum(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        """Null without values, where Polars has 0."""
        value = self._plain(node, where)
        self._number(value, node)
        total = self._ask(hr.sum(value.expr))
        if isinstance(value.dtype, pl.Decimal):
            total = total.cast(pl.Decimal(min(value.dtype.precision + 10, 38), value.dtype.scale))
        return pl.when(self._ask(hr.count(value.expr)) > 0).then(total)

    def _mean(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        value = self._plain(node, where)
        self._number(value, node)
        if isinstance(value.dtype, pl.Decimal):
            raise wrong(node, "the mean of decimals isn't a decimal here", "write AVG(CAST(... AS DOUBLE))")
        return self._ask(hr.mean(value.expr))

    @staticmethod
    def _number(value: Value, node: exp.Expr) -> None:
        if not value.dtype.is_numeric() and value.dtype != pl.Null:
            raise wrong(node, f"this is of {value.dtype}, and numbers are needed", "write CAST(... AS ...)")

    def _plain(self, node: exp.Expr, where: exp.Expr | None) -> Value:
        if isinstance(node.this, exp.Distinct):
            raise wrong(node, "DISTINCT is for COUNT", "select the distinct rows in a sub-query first")
        return self._given(node.this, where)

    def _spread(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        """Variance from sums; of a sample unless the name says population."""
        found = self._plain(node, where)
        self._number(found, node)
        value = found.expr.cast(pl.Float64)
        number, mean, squares = self._ask(hr.count(value)), self._ask(hr.mean(value)), self._ask(hr.sum(value * value))
        whole = isinstance(node, exp.StddevPop | exp.VariancePop)
        by = number if whole else number - 1
        variance = pl.max_horizontal(squares - number * mean * mean, pl.lit(0.0)) / by
        result = pl.when(by > 0).then(variance)
        return result.sqrt() if isinstance(node, exp.Stddev | exp.StddevSamp | exp.StddevPop) else result

    def _best(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        """``max_by``: the value where another is the largest."""
        by = self._given(node.expression, where)
        order = by.expr
        if isinstance(node, exp.ArgMin):
            if not by.dtype.is_numeric() and not isinstance(by.dtype, pl.Datetime | pl.Date):
                raise wrong(node.expression, f"MIN_BY isn't for {by.dtype}", "use ROW_NUMBER(), and WHERE n = 1")
            order = -(
                order if by.dtype.is_float() else order.cast(pl.Decimal(38, 6) if by.dtype.is_decimal() else LONG)
            )
        return self._ask(hr.top_k(self._given(node.this, where).expr, 1, by=order)).list.first()

    def _ordered(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        """The first or the last value by event time, a null among them."""
        if where is not None:
            raise wrong(node, "FIRST and LAST take no FILTER", "leave rows out with WHERE in a sub-query")
        first = isinstance(node, exp.First | exp.FirstValue | exp.AnyValue)
        return self._ask((hr.first if first else hr.last)(self._plain(node, None).expr))

    def _listed(self, node: exp.Expr, where: exp.Expr | None) -> pl.Expr:
        """All values but nulls."""
        values = self._ask(hr.implode(self._plain(node, where).expr)).list.drop_nulls()
        return values.list.unique(maintain_order=True) if isinstance(node, exp.ArrayUniqueAgg) else values


def _with(function: Callable[[pl.Expr], Aggregate]) -> Callable[[Aggregates, exp.Expr, exp.Expr | None], pl.Expr]:
    return lambda own, node, where: own._ask(function(own._plain(node, where).expr))


_RULES: Mapping[type[exp.Expr], Callable[[Aggregates, exp.Expr, exp.Expr | None], pl.Expr]] = {
    exp.Count: Aggregates._count,
    exp.Sum: Aggregates._sum,
    exp.CountIf: Aggregates._count_if,
    exp.Avg: Aggregates._mean,
    **dict.fromkeys((exp.Min, exp.LogicalAnd), _with(hr.min)),
    **dict.fromkeys((exp.Max, exp.LogicalOr), _with(hr.max)),
    **dict.fromkeys((exp.First, exp.FirstValue, exp.AnyValue, exp.Last, exp.LastValue), Aggregates._ordered),
    exp.ApproxDistinct: _with(hr.approx_n_unique),
    **dict.fromkeys((exp.ArrayAgg, exp.ArrayUniqueAgg), Aggregates._listed),
    **dict.fromkeys((exp.Stddev, exp.StddevSamp, exp.StddevPop, exp.Variance, exp.VariancePop), Aggregates._spread),
    **dict.fromkeys((exp.ArgMax, exp.ArgMin), Aggregates._best),
}
NAMES = (
    *("any_value", "approx_count_distinct", "array_agg", "avg", "bool_and", "bool_or", "collect_list", "collect_set"),
    *("count", "count_if", "first", "first_value", "last", "last_value", "max", "max_by", "min", "min_by"),
    *("stddev", "stddev_pop", "stddev_samp", "sum", "var_pop", "var_samp", "variance"),
)
"""The aggregates."""
