"""The aggregate functions of SQL, as aggregates of Headrace and what is computed from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl
from sqlglot import exp

import headrace.api.aggregates as hr
from headrace.api.aggregates import Aggregate
from headrace.sql.dialect import wrong
from headrace.sql.expressions import Value, predicate, translate
from headrace.sql.relations import Relation


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
        words = aggregate.definition
        for name, other in self.asked.items():
            if other.definition == words:
                return pl.col(name)
        name = f"{re.sub(r'[^A-Za-z0-9]+', '-', words).strip('-')}$"
        self.asked[name] = aggregate
        return pl.col(name)

    def _result(self, node: exp.Expr) -> pl.Expr:
        where = None
        if isinstance(node, exp.Filter):
            where = predicate(node.expression.this, self.relation)
            node = node.this
        rule = _RULES.get(type(node))
        if rule is None:
            raise wrong(node, f"the aggregate {node.key.upper()} isn't supported", f"there are {', '.join(_NAMES)}")
        return rule(self, node, where)

    def _given(self, node: exp.Expr, where: pl.Expr | None) -> Value:
        found = translate(node, self.relation)
        return found if where is None else Value(pl.when(where).then(found.expr), found.dtype)

    def _count(self, node: exp.Expr, where: pl.Expr | None) -> pl.Expr:
        inner = node.this
        if isinstance(inner, exp.Distinct):
            values = [self._given(one, where) for one in inner.expressions]
            if len(values) == 1:
                return self._ask(hr.n_unique(values[0].expr))
            known = pl.all_horizontal([one.expr.is_not_null() for one in values])
            return self._ask(
                hr.n_unique(pl.when(known).then(pl.struct([v.expr.alias(str(n)) for n, v in enumerate(values)])))
            )
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Literal) and not node.expressions):
            return self._ask(hr.count() if where is None else hr.count(pl.when(where).then(1)))
        return self._ask(hr.count(self._given(inner, where).expr))

    def _sum(self, node: exp.Expr, where: pl.Expr | None) -> pl.Expr:
        """Null without values, where Polars has 0."""
        value = self._number(node, where)
        return pl.when(self._ask(hr.count(value.expr)) > 0).then(self._ask(hr.sum(value.expr)))

    def _plain(self, node: exp.Expr, where: pl.Expr | None) -> Value:
        if isinstance(node.this, exp.Distinct):
            raise wrong(node, "DISTINCT is for COUNT", "select the distinct rows in a sub-query first")
        return self._given(node.this, where)

    def _number(self, node: exp.Expr, where: pl.Expr | None) -> Value:
        value = self._plain(node, where)
        if not value.dtype.is_numeric() and value.dtype != pl.Null:
            hint = "write CAST(... AS DOUBLE)"
            raise wrong(node, f"{node.key.upper()} takes numbers, and this is {value.dtype}", hint)
        return value

    def _mean(self, node: exp.Expr, where: pl.Expr | None) -> pl.Expr:
        return self._ask(hr.mean(self._number(node, where).expr))

    def _spread(self, node: exp.Expr, where: pl.Expr | None) -> pl.Expr:
        """Variance from sums; of a sample unless the name says population."""
        value = self._number(node, where).expr.cast(pl.Float64)
        number, mean, squares = self._ask(hr.count(value)), self._ask(hr.mean(value)), self._ask(hr.sum(value * value))
        whole = isinstance(node, exp.StddevPop | exp.VariancePop)
        by = number if whole else number - 1
        variance = pl.max_horizontal(squares - number * mean * mean, pl.lit(0.0)) / by
        found = pl.when(by > 0).then(variance)
        return found.sqrt() if isinstance(node, exp.Stddev | exp.StddevSamp | exp.StddevPop) else found

    def _best(self, node: exp.Expr, where: pl.Expr | None) -> pl.Expr:
        """``max_by``: the value where another is the largest."""
        by = self._given(node.expression, where)
        order = by.expr if isinstance(node, exp.ArgMax) else -by.expr
        return self._ask(hr.top_k(self._given(node.this, where).expr, 1, by=order)).list.first()


def _with(function: Callable[[pl.Expr], Aggregate]) -> Callable[[Aggregates, exp.Expr, pl.Expr | None], pl.Expr]:
    return lambda own, node, where: own._ask(function(own._plain(node, where).expr))


_RULES: Mapping[type[exp.Expr], Callable[[Aggregates, exp.Expr, pl.Expr | None], pl.Expr]] = {
    exp.Count: Aggregates._count,
    exp.Sum: Aggregates._sum,
    exp.Avg: Aggregates._mean,
    exp.Min: _with(hr.min),
    exp.Max: _with(hr.max),
    exp.First: _with(hr.first),
    exp.FirstValue: _with(hr.first),
    exp.Last: _with(hr.last),
    exp.LastValue: _with(hr.last),
    exp.ApproxDistinct: _with(hr.approx_n_unique),
    exp.ArrayAgg: _with(hr.implode),
    **dict.fromkeys((exp.Stddev, exp.StddevSamp, exp.StddevPop, exp.Variance, exp.VariancePop), Aggregates._spread),
    exp.ArgMax: Aggregates._best,
    exp.ArgMin: Aggregates._best,
}
_NAMES = ("COUNT", "SUM", "AVG", "MIN", "MAX", "FIRST", "LAST", "STDDEV", "VARIANCE", "APPROX_COUNT_DISTINCT", "MAX_BY")
