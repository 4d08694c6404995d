"""Queries as flows: FROM, WHERE, GROUP BY, HAVING, SELECT, in this order.

**Grouping.** By the bounds of a window function's windows: the results of a window, when it ends. By the bounds of
windows that a query inside has computed: a window again, of those results. Else all rows so far: a flow of changes.

**Rank.** ``ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...)`` is bounded by the query around it: ``WHERE n <= 3``.

**Names.** State is named by the view or output, the aliases of sub-queries on the way, and the clause. Equal parts of
queries, a shuffle or a window over the same flow, are made once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import polars as pl
from sqlglot import exp
from typing_extensions import override

from headrace.api.aggregates import Aggregate
from headrace.api.aggregates import min as least
from headrace.api.draft import Table
from headrace.api.operators.join import ChangesHow
from headrace.api.operators.spec import LostTime
from headrace.api.operators.window import PROCESSING
from headrace.api.specs import Hopping, Session, Tumbling, WindowShape
from headrace.api.stream import Stream
from headrace.core.clock import Duration
from headrace.core.errors import DeclarationError
from headrace.sql import joins
from headrace.sql.aggregates import Aggregates, computed
from headrace.sql.dialect import WINDOWS, wrong
from headrace.sql.expressions import Function, duration_ms, predicate, translate
from headrace.sql.relations import (
    END,
    OWN,
    START,
    Name,
    OpenRank,
    OpenWindow,
    Relation,
    conjuncts,
    of_shape,
)

Tables = Callable[[exp.Table], Relation]
"""What a table of the statement is; raises ``DeclarationError`` if there is none."""
_ALWAYS, _ORDER = "always$", "order$"
_CLAUSES = frozenset(
    {"with_", "expressions", "distinct", "from_", "joins", "where", "group", "having", "order", "limit"}
)
_OF_TABLE = frozenset({"this", "alias", "db", "catalog"})
_OF_UNION = frozenset({"with_", "this", "expression", "distinct"})
_OTHER_WAYS = {
    "qualify": "put a query around this one: SELECT * FROM (...) WHERE n <= 3",
    "order": "put a query around this one: SELECT * FROM (...) ORDER BY ... LIMIT 10",
    "limit": "put a query around this one: SELECT * FROM (...) ORDER BY ... LIMIT 10",
    "version": "a table is looked up in a JOIN; here, leave it out",
    "offset": "bound it: ORDER BY ... LIMIT 10",
}


@dataclass(slots=True)
class Shared(joins.Shuffle):
    """The shuffles and windows that the queries of an app have made so far."""

    shuffled: dict[tuple[str, tuple[str, ...]], list[Stream]] = field(default_factory=dict)
    windows: dict[tuple[object, ...], Stream] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def name(self, text: str) -> str:
        """A new name; queries inside that have no alias to be told apart by get numbers."""
        first = name = named(text)
        while name in self.taken:
            name = f"{first}-{int(name.removeprefix(first).lstrip('-') or 1) + 1}"
        self.taken.add(name)
        return name

    @override
    def __call__(self, stream: Stream, keys: Sequence[str], prefix: str) -> Stream:
        own = stream.draft.key_at(stream.node)
        if own is not None and set(own) <= set(keys) and (own or not keys):
            return stream
        return stream if own == () else self.shuffled_by(stream, keys, prefix)

    @override
    def shuffled_by(self, stream: Stream, keys: Sequence[str], prefix: str, met: Stream | None = None) -> Stream:
        there = self.shuffled.setdefault((stream.node, tuple(keys)), [])
        for made in there:
            if met is None or not joins.leads_to(made, met):
                return made
        id_ = self.name(f"{prefix}-by-{'-'.join(keys) or 'all'}")
        there.append(stream.partition_by(list(keys) or None, id=id_))
        return there[-1]


@dataclass(slots=True)
class _View:
    """A query of WITH, which is planned once; it sees the ``views`` before it."""

    node: exp.Expr
    prefix: str
    views: dict[str, _View]
    relation: Relation | None = None


@dataclass(slots=True)
class Queries:
    """Plans the queries of one statement. ``tables`` are those of the catalogue."""

    tables: Tables
    shared: Shared
    functions: Mapping[str, Function]
    lookups: Callable[[exp.Table, tuple[str, ...]], Table]
    looked_up: Callable[[exp.Table], Mapping[str, pl.DataType]]
    ttl: Duration | Literal["never"] = "never"
    _views: dict[str, _View] = field(default_factory=dict)

    def planned(self, node: exp.Expr, prefix: str) -> Relation:
        """The flow of a query, with nothing open."""
        found = self.query(node, prefix)
        if found.rank is not None:
            raise wrong(
                found.rank.node,
                "ROW_NUMBER() numbers rows without an end",
                f"put a query around this one that bounds it: WHERE {found.rank.name} <= 10",
            )
        return found

    def query(self, node: exp.Expr, prefix: str) -> Relation:
        """The flow of a query or a table."""
        known = dict(self._views)
        with_ = node.args.get("with_") or node.args.get("with")
        if with_ is not None:
            for one in with_.expressions:
                self._views[one.alias.casefold()] = _View(one.this, f"{prefix}-{one.alias}", dict(self._views))
        try:
            if isinstance(node, exp.Subquery):
                return self.query(node.this, prefix)
            if isinstance(node, exp.SetOperation):
                return self._set_operation(node, prefix)
            if isinstance(node, exp.Select):
                return _Select(self, node, prefix).planned()
            raise wrong(node, f"{node.key.upper()} isn't supported here", "write SELECT ... FROM ...")
        finally:
            self._views = known

    def source(self, node: exp.Expr, prefix: str) -> Relation:
        """The flow of an item of FROM, under its alias."""
        alias = node.alias
        if isinstance(node, exp.Subquery):
            return self.query(node.this, f"{prefix}-{alias or 'query'}").aliased(alias or "")
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous):
            return self._function(node.this, prefix).aliased(alias or "")
        if isinstance(node, exp.Table):
            _check_clauses(node, _OF_TABLE)
            view = self._views.get(node.name.casefold())
            if view is not None and not node.db:
                return self._viewed(view).aliased(alias or node.name)
            return self.tables(node).aliased(alias or node.name)
        raise wrong(node, f"{node.key.upper()} isn't supported in FROM")

    def _viewed(self, view: _View) -> Relation:
        if view.relation is None:
            known, self._views = self._views, view.views
            try:
                view.relation = self.query(view.node, view.prefix)
            finally:
                self._views = known
        return view.relation

    def _function(self, node: exp.Anonymous, prefix: str) -> Relation:
        """``TABLE(TUMBLE(TABLE t, DESCRIPTOR(c), ...))``."""
        call = node.expressions[0] if node.name.upper() == "TABLE" and node.expressions else node
        if not isinstance(call, exp.Anonymous) or call.name.upper() not in WINDOWS:
            raise wrong(node, "FROM takes tables, queries, and TUMBLE, HOP and SESSION of a table")
        if len(call.expressions) < 3 or not isinstance(call.expressions[0], exp.Table):
            raise wrong(
                call, f"{call.name} is incomplete", "write TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)"
            )
        table, time, *sizes = call.expressions
        base = self.source(table, prefix)
        return open_window(base, call.name.upper(), time, sizes, call)

    def _set_operation(self, node: exp.SetOperation, prefix: str) -> Relation:
        if not isinstance(node, exp.Union):
            raise wrong(
                node, f"{node.key.upper()} isn't supported", "use a join, or NOT EXISTS written as an anti join"
            )
        _check_clauses(node, _OF_UNION)
        left, right = self.planned(node.this, f"{prefix}-1"), self.planned(node.expression, f"{prefix}-2")
        ours, theirs = list(left.all_of("")), list(right.all_of(""))
        if len(ours) != len(theirs):
            raise wrong(node, f"the first query has {len(ours)} columns, and the second {len(theirs)}")
        if len({name.name for name in ours}) < len(ours):
            raise wrong(node.this, "two columns have one name", "give one another name: ... AS name")
        one = left.stream.select(**{name.name: pl.col(name.column or "") for name in ours})
        two = right.stream.select(**{a.name: pl.col(b.column or "") for a, b in zip(ours, theirs, strict=True)})
        for name, dtype in one.schema.columns.items():
            if two.schema.columns.get(name, dtype) != dtype:
                raise wrong(
                    node, f"the column {name} is {dtype} in one query and {two.schema.columns[name]} in the other"
                )
        both = Relation.of(one.merge(two), "", self.functions)
        return distinct(self, both, prefix) if node.args.get("distinct") else both


def named(text: str) -> str:
    """A name that a stream or a state may have."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "", text)[:128]


def is_clock(node: exp.Expr) -> bool:
    """Whether this is ``PROCTIME()``."""
    return isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME"


def open_window(base: Relation, name: str, time: exp.Expr, sizes: Sequence[exp.Expr], node: exp.Expr) -> Relation:
    """A relation whose rows are in windows by a column of time."""
    named = base.named(time) if isinstance(time, exp.Column) else None
    if named is None:
        base.names()
        raise wrong(time, "a window needs a column of time", "write DESCRIPTOR(ts)")
    if named.column is not None and (base.time is None or base.time.column != named.column):
        gone, hint = base.stream._time, "declare it: WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
        own = f"the event time is {base.time.column}" if base.time else "the table has no event time"
        if isinstance(gone, LostTime):
            own, hint = f"the event time {gone}", "open the windows before that step, or keep its column as it is"
        raise wrong(time, f"{named.name} isn't the event time; {own}", hint)
    lengths = [duration_ms(one) for one in sizes]
    shape: WindowShape
    match name, lengths:
        case "TUMBLE", [size]:
            shape = Tumbling(size)
        case "TUMBLE", [size, moved]:
            shape = Tumbling(size, moved % size)
        case "HOP", [every, size]:
            shape = Hopping(size, every)
        case "HOP", [every, size, moved]:
            shape = Hopping(size, every, moved % every)
        case "SESSION", [gap]:
            shape = Session(gap)
        case _:
            hint = "TUMBLE takes one, HOP two, and one more to be moved by; SESSION takes one"
            raise wrong(node, f"{name} with {len(lengths)} intervals isn't supported", hint)
    names = (*base.names_, Name("", START, START), Name("", END, END))
    return replace(base, names_=names, window=OpenWindow(shape, named.column is None, node))


def distinct(queries: Queries, relation: Relation, prefix: str) -> Relation:
    """Each row once: a group by all columns."""
    keys = [one.column for one in relation.all_of("") if one.column is not None]
    stream = queries.shared(relation.stream, keys, prefix).group_by(keys, id=queries.shared.name(f"{prefix}-distinct"))
    found = stream.agg(**{_ALWAYS: least(pl.lit(1))})
    return relation.on(found.drop(_ALWAYS), of_windows=None)


@dataclass(slots=True)
class _Select:
    """One SELECT."""

    queries: Queries
    node: exp.Select
    prefix: str

    def planned(self) -> Relation:
        _check_clauses(self.node, _CLAUSES)
        if self.node.args.get("distinct") is not None:
            _check_clauses(self.node.args["distinct"], frozenset())
        order, limit = self.node.args.get("order"), self.node.args.get("limit")
        if isinstance(limit, exp.Fetch):
            raise wrong(limit, "FETCH isn't supported", "write LIMIT 10; ties are left out")
        if order is None and limit is not None:
            raise wrong(limit, "LIMIT of a stream isn't supported", "bound it: ORDER BY ... LIMIT 10")
        if order is not None and limit is None:
            raise wrong(order, "a stream has no end, so it can't be sorted", "add LIMIT 10, for the first rows so far")
        relation = self._from()
        items, by = self._with_order(list(self.node.expressions))
        if (
            self.node.args.get("group") is not None
            or self.node.args.get("having") is not None
            or any(self._aggregates(one) for one in items)
        ):
            relation, items = self._grouped(relation, items)
        relation = self._selected(relation, items)
        if relation.rank is not None and (self.node.args.get("distinct") or order is not None):
            hint = "put a query around this one: SELECT DISTINCT ... FROM (...) WHERE n <= 3"
            raise wrong(relation.rank.node, "ROW_NUMBER() isn't possible beside DISTINCT and ORDER BY", hint)
        if self.node.args.get("distinct"):
            relation = distinct(self.queries, relation, self.prefix)
        return self._first_rows(relation, by) if order is not None else relation

    def _with_order(self, items: list[exp.Expr]) -> tuple[list[exp.Expr], list[exp.Expr]]:
        """What to select and by which columns of that to sort: other columns of ORDER BY are selected, too."""
        named = {one.alias_or_name for one in items}
        everything = any(one.is_star for one in items)
        by: list[exp.Expr] = []
        hidden: list[exp.Expr] = []
        order = self.node.args.get("order")
        for one in order.expressions if order is not None else []:
            node = one.this
            if isinstance(node, exp.Literal) and not node.is_string:
                item = _by_number(node, items)
                node = exp.column(item.alias_or_name) if item.alias_or_name else item
            plain = isinstance(node, exp.Column) and not node.table and (node.name in named or everything)
            if not plain and not self.node.args.get("distinct"):
                hidden.append(exp.alias_(node.copy(), f"{_ORDER}{len(hidden)}", quoted=True))
                node = exp.column(exp.to_identifier(hidden[-1].alias, quoted=True))
            by.append(node)
        return [*items, *hidden], by

    def _id(self, clause: str) -> str:
        return self.queries.shared.name(f"{self.prefix}-{clause}")

    def _aggregates(self, node: exp.Expr) -> bool:
        """Whether an item has an aggregate that is of this query, and not OVER rows or of a query inside."""
        within = (one.find_ancestor(exp.Window, exp.Select) for one in node.find_all(exp.AggFunc))
        return any(one is None or one is self.node for one in within)

    # -- from and where ------------------------------------------------------------------------------
    def _from(self) -> Relation:
        source = self.node.args.get("from_") or self.node.args.get("from")
        if source is None:
            raise wrong(self.node, "a query of a stream needs FROM", "write SELECT ... FROM clicks")
        relation = self.queries.source(source.this, self.prefix)
        where = self.node.args.get("where")
        left = conjuncts(where.this) if where is not None else []
        asked = [one for one in left if one.find(exp.Query) is not None]
        left = [one for one in left if one not in asked]
        written = self.node.args.get("joins") or []
        given = self._met(relation, written, left)
        for number, join in enumerate(given):
            if any(joins.join_kind(one) in ("right", "full") for one in given[number + 1 :]):
                relation, _ = self._join(relation, join, [])  # a row that WHERE leaves out is a partner until then
            else:
                relation, left = self._join(relation, join, left)
        if given is not written:
            places = {join.this.alias_or_name: number for number, join in enumerate(written)}
            ordered = sorted(relation.names_, key=lambda one: places.get(one.table, -1))
            relation = replace(relation, names_=tuple(ordered))
        if relation.rank is not None:
            relation, left = self._bounded(relation, relation.rank, left)
        relation = joins.filtered(relation, left)
        for number, one in enumerate(asked):
            relation = self._semi_join(relation, one, number)
        return relation

    def _met(self, relation: Relation, given: list[exp.Join], where: Sequence[exp.Expr]) -> list[exp.Join]:
        """``FROM a, b, c``: the tables in an order in which each has an equality with one before it."""
        for one in given:
            table = isinstance(one.this, exp.Table) and isinstance(one.this.this, exp.Identifier)
            said = {name for name, value in one.args.items() if value} - {"this", "kind"}
            if not table or one.this.args.get("version") or said or one.kind not in ("", "CROSS"):
                return given
        known, rest, found = relation, list(given), list[exp.Join]()
        while rest:
            sides = [self.queries.source(one.this, self.prefix) for one in rest]
            met = (n for n, side in enumerate(sides) if joins.split_conditions(where, known, side)[2])
            number = next(met, 0)
            known = replace(known, names_=(*known.names_, *sides[number].names_))
            found.append(rest.pop(number))
        return found if any(one is not two for one, two in zip(found, given, strict=True)) else given

    def _semi_join(self, relation: Relation, node: exp.Expr, number: int) -> Relation:
        """``x IN (SELECT ...)`` and ``[NOT] EXISTS (SELECT ... WHERE inner = outer)``: a semi or an anti join."""
        name, alias = self._id(f"where{number or ''}"), f"where${number}"
        shuffles = joins.Shuffles(self.queries.shared, name, self.queries.ttl)
        turned = isinstance(node, exp.Not)
        asked = node.this if isinstance(node, exp.Not) else node
        if isinstance(asked, exp.In) and asked.args.get("query") is not None and not turned:
            right = self.queries.planned(asked.args["query"].unnest(), name).aliased(alias)
            columns = list(right.all_of(""))
            if len(columns) != 1:
                raise wrong(asked, f"IN needs a query of one column, and this has {len(columns)}")
            same = [(asked.this, exp.column(exp.to_identifier(columns[0].name, quoted=True), table=alias))]
            return joins.joined(relation, right, "semi", same, [], shuffles, node)[0]
        if not isinstance(asked, exp.Exists) or not isinstance(asked.this, exp.Select):
            raise wrong(
                node, "a query isn't possible here", "there are x IN (SELECT y ...), EXISTS and NOT EXISTS in WHERE"
            )
        inner = asked.this.copy()
        conditions = conjuncts(inner.args["where"].this) if inner.args.get("where") is not None else []
        plain = _Select(self.queries, inner, name)
        if any(map(inner.args.get, ("group", "having", "limit"))) or any(map(plain._aggregates, inner.selects)):
            raise wrong(node, "EXISTS takes a plain query", "put the query into FROM, and join it")
        inner.set("where", None)
        right = plain._from()
        right = replace(right, names_=(*right.names_, *(replace(one, table=alias) for one in right.names_)))
        for column in (column for one in conditions for column in one.find_all(exp.Column)):
            if right.has(column) and relation.has(column):  # the query that is nearest has it
                column.set("table", exp.to_identifier(alias, quoted=True))
        of_left, of_right, equal, both = joins.split_conditions(conditions, relation, right)
        how: ChangesHow = "anti" if turned else "semi"
        both = [*both, *of_left] if turned else both
        relation = relation if turned else joins.filtered(relation, of_left)
        return joins.joined(relation, joins.filtered(right, of_right), how, equal, both, shuffles, node)[0]

    def _join(self, relation: Relation, join: exp.Join, where: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        if isinstance(join.this, exp.Table) and join.this.args.get("version") is not None:
            return self._looked_up(relation, join), where
        name = self._id(f"join-{join.this.alias_or_name or 'query'}")
        right = self.queries.source(join.this, self.prefix)
        for one in (relation, right):
            if one.rank is not None:
                hint = f"bound it in a query around it, and join that: ... WHERE {one.rank.name} <= 1"
                raise wrong(one.rank.node, "ROW_NUMBER() numbers rows without an end", hint)
            if one.window is not None:
                raise wrong(
                    one.window.node,
                    "rows are put into windows, but not grouped by them",
                    "group them in a sub-query, and join that",
                )
        how = joins.join_kind(join)
        on = conjuncts(join.args.get("on"))
        using = [column.name for column in join.args.get("using") or []]
        for column in using:
            tables = [
                next((n.table for n in side.names_ if n.name.casefold() == column.casefold() and not n.twice), "")
                for side in (relation, right)
            ]
            on.append(exp.EQ(this=exp.column(column, table=tables[0]), expression=exp.column(column, table=tables[1])))
        later: list[exp.Expr] = []
        if how == "inner":
            of_here = [one for one in where if relation.has(one) or right.has(one) or self._has(relation, right, one)]
            later = [one for one in where if one not in of_here]
            on += of_here
        else:
            later = where
        of_left, of_right, pairs, both = joins.split_conditions(on, relation, right)
        if how in ("inner", "semi"):
            relation, right = joins.filtered(relation, of_left), joins.filtered(right, of_right)
        elif how in ("left", "anti"):
            right, both = joins.filtered(right, of_right), [*both, *of_left]
        else:
            both = [*both, *of_left, *of_right]
        shuffles = joins.Shuffles(self.queries.shared, name, self.queries.ttl)
        found, rest = joins.joined(relation, right, how, pairs, both, shuffles, join)
        found = found if not using else _once(found, len(relation.names_), using, how)
        return joins.filtered(found, rest), later

    def _looked_up(self, relation: Relation, join: exp.Join) -> Relation:
        """``FOR SYSTEM_TIME AS OF proctime``: the row of a table as it is when a row of the flow is processed."""
        version = join.this.args["version"].expression
        at = relation.named(version) if isinstance(version, exp.Column) else None
        if not (at is not None and at.column is None) and not isinstance(version, exp.Anonymous):
            raise wrong(
                join.this,
                "a table is looked up as of the time of processing",
                "write FOR SYSTEM_TIME AS OF PROCTIME(); for event time, app.table(versions=...) in Python",
            )
        if relation.stream.changing:
            what = "a look-up can't take rows that may be changed or deleted later"
            raise wrong(join.this, what, "look up first, or join without FOR SYSTEM_TIME")
        how = joins.join_kind(join)
        columns = self.queries.looked_up(join.this)
        names = tuple(Name(join.this.alias_or_name, name, name) for name in columns)
        of_left, of_right, pairs, both = joins.split_conditions(
            conjuncts(join.args.get("on")), relation, relation.on(relation.stream, names_=names)
        )
        keys = [two.name for _, two in pairs if isinstance(two, exp.Column)]
        if not keys or len(keys) < len(pairs) or how not in ("inner", "left"):
            raise wrong(join, "a look-up joins on equal columns, inner or left", "write ON a.x = t.key")
        relation, ours = joins.with_keys(relation, [one for one, _ in pairs])
        casts = {
            name: pl.col(name).cast(columns[key])
            for name, key in zip(ours, keys, strict=True)
            if relation.columns[name] != columns[key]
        }
        stream = relation.stream.with_columns(**casts) if casts else relation.stream
        suffix = f"${join.this.alias_or_name}"
        found = stream.join(self.queries.lookups(join.this, tuple(keys)), list(ours), how=how, suffix=suffix)
        there = dict(zip(keys, ours, strict=True)) | {
            name: f"{name}{suffix}" if name in stream.schema.columns else name for name in columns if name not in keys
        }
        if how == "left":  # its key is null, too, if there is no row; a row of nulls is as good as none
            known = pl.any_horizontal([pl.col(there[name]).is_not_null() for name in columns if name not in keys])
            own = {key: f"{key}{suffix}{OWN}" for key in keys}
            found = found.with_columns(**{own[key]: pl.when(known).then(pl.col(there[key])) for key in keys})
            there |= own
        together = (*relation.names_, *(replace(one, column=there[one.name]) for one in names))
        result = relation.on(found, names_=together)
        conditions = [*of_left, *of_right, *both]
        if how == "inner" or not conditions:
            return joins.filtered(result, conditions)
        met = pl.all_horizontal([predicate(one, result) for one in conditions])
        return result.on(found.with_columns(**{name: pl.when(met).then(pl.col(name)) for name in there.values()}))

    @staticmethod
    def _has(left: Relation, right: Relation, node: exp.Expr) -> bool:
        return all(left.has(column) or right.has(column) for column in node.find_all(exp.Column))

    def _bounded(self, relation: Relation, rank: OpenRank, where: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """The first rows of each key, if a condition bounds the row number."""
        most: int | None = None
        left = []
        for one in where:
            bound = _row_bound(one, rank.name)
            if bound is None:
                left.append(one)
            else:
                most = bound if most is None else min(most, bound)
        if most is None or most < 1:
            raise wrong(
                rank.node,
                "ROW_NUMBER() numbers rows without an end",
                f"bound it in this query: WHERE {rank.name} <= 10",
            )
        shown = any(isinstance(one, exp.Star) or one.find(exp.Star) for one in self.node.expressions) or any(
            column.name == rank.name for item in (*self.node.expressions, *left) for column in item.find_all(exp.Column)
        )
        stream = self.queries.shared(relation.stream, rank.keys, self.prefix)
        top = stream.top(
            most,
            rank.by,
            key=list(rank.keys) or None,
            descending=list(rank.descending),
            rank=rank.name if shown else None,
            id=self._id("top"),
        )
        names = relation.names_ if not shown else (*relation.names_, Name("", rank.name, rank.name))
        return relation.on(top, names_=names, rank=None, of_windows=None), left

    # -- group by ------------------------------------------------------------------------------------
    def _grouped(self, relation: Relation, items: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        keys, relation, bounds = self._keys(relation, items)
        asked = Aggregates(relation, frozenset(keys.values()) | {START, END})
        having = self.node.args.get("having")
        inner = having.find(exp.Query) if having is not None else None
        if inner is not None:
            raise wrong(inner, "a query isn't possible in HAVING", "join it: ... FROM (grouped) JOIN (query) ON ...")
        items = [asked.replaced(one) for one in items]
        conditions = [asked.replaced(one) for one in conjuncts(having.this)] if having is not None else []
        result = self._aggregated(relation, keys, asked, bounds)
        swapped = dict(keys)
        items = [_swapped(one, swapped) for one in items]
        conditions = [_swapped(one, swapped) for one in conditions]
        named = {*asked.asked, *asked.results}
        of_keys = replace(result, names_=tuple(one for one in result.names_ if one.column not in named))
        for one in (*items, *conditions):
            plain = one.unalias()
            if not isinstance(plain, exp.Anonymous) or _old_bound(plain) is None:
                _check_grouped(plain, relation, of_keys if one in items else result)
        return joins.filtered(result, conditions), items

    @staticmethod
    def _group_items(group: exp.Group | None, relation: Relation, items: Sequence[exp.Expr]) -> Iterator[exp.Expr]:
        """What to group by: an item may be named by its number or by its alias."""
        aliases = {one.alias: one.unalias() for one in items if isinstance(one, exp.Alias)}
        for node in group.expressions if group is not None else []:
            if isinstance(node, exp.Literal) and not node.is_string:
                yield _by_number(node, items).unalias()
            elif isinstance(node, exp.Column) and node.name in aliases and not relation.has(node):
                yield aliases[node.name]
            else:
                yield node

    def _keys(self, relation: Relation, items: Sequence[exp.Expr]) -> tuple[dict[str, str], Relation, bool]:
        """The columns to group by, by the text of their expressions; whether they are the bounds of windows, too."""
        group = self.node.args.get("group")
        if group is not None:
            _check_clauses(group, frozenset({"expressions"}))
        found: dict[str, str] = {}
        bounds = False
        for node in self._group_items(group, relation, items):
            if isinstance(node, exp.Anonymous) and node.name.upper() in WINDOWS:
                relation = open_window(relation, node.name.upper(), node.expressions[0], node.expressions[1:], node)
                bounds = True
                continue
            named = relation.named(node) if isinstance(node, exp.Column) else None
            if relation.window is not None and named is not None and named.column in (START, END):
                bounds = True
                continue
            if named is not None and named.column is not None:
                found[node.sql()] = named.column
                continue
            name = f"group${len(found)}"
            relation = relation.on(relation.stream.with_columns(translate(node, relation).expr.alias(name)))
            found[node.sql()] = name
        return found, relation, bounds

    def _aggregated(self, relation: Relation, keys: Mapping[str, str], asked: Aggregates, bounds: bool) -> Relation:
        columns = list(dict.fromkeys(keys.values()))
        aggregates: dict[str, Aggregate] = asked.asked or {_ALWAYS: least(pl.lit(1))}
        windows = relation.of_windows
        if bounds and relation.window is not None:
            opened = relation.window
            stream = self._window(relation.stream, opened.shape, columns, aggregates, opened.by_clock)
            after = None if opened.by_clock else of_shape(opened.shape)
            bound_names = [Name("", START, START), Name("", END, END)]
        elif windows is not None and {windows.start, windows.end} & set(columns) and not relation.stream.changing:
            others = [name for name in columns if name not in (windows.start, windows.end)]
            stream = self._window(
                relation.stream, Tumbling(windows.every_ms, windows.moved_ms), others, aggregates, by_clock=False
            )
            begin = (pl.col(END) - pl.duration(milliseconds=windows.size_ms)).cast(stream.schema.columns[END])
            stream = stream.with_columns(begin.alias(START))
            after, bound_names = replace(windows, start=START, end=END), []
        else:
            shuffled = self.queries.shared(relation.stream, columns, self.prefix)
            try:
                stream = shuffled.group_by(columns or None, id=self._id("group")).agg(**aggregates)
            except DeclarationError as error:  # it names a column of the plan
                raise wrong(self.node, error.message.partition("\n")[0], error.hint) from None
            after, bound_names = None, []
        bound_of = {} if windows is None else {windows.start: START, windows.end: END}
        values = asked.results
        stream = stream.with_columns(**values) if values else stream
        kept = tuple(
            replace(
                one,
                column=bound_of.get(one.column, one.column) if after is not None and not bound_names else one.column,
            )
            for one in relation.names_
            if one.column in columns
        )
        own = [Name("", name, name) for name in (*columns, *asked.asked, *values) if name in stream.schema.columns]
        return relation.on(stream, names_=(*kept, *bound_names, *own), window=None, of_windows=after)

    def _window(
        self, stream: Stream, shape: WindowShape, keys: list[str], aggregates: Mapping[str, Aggregate], by_clock: bool
    ) -> Stream:
        """The results of windows; those that are there already are used again."""
        shared = self.queries.shared
        words = tuple(computed(one) for one in aggregates.values())
        same = (stream.node, shape, tuple(keys), tuple(aggregates), words, by_clock)
        if same not in shared.windows:
            grouped = shared(stream, keys, self.prefix)
            window = grouped.window(
                shape, key=keys or None, id=self._id("window"), time=PROCESSING if by_clock else None
            )
            found = window.agg(**aggregates)
            if by_clock:  # its bounds are milliseconds; in SQL they are timestamps
                found = found.with_columns(pl.col(START, END).cast(pl.Datetime("ms")))
            shared.windows[same] = found
        return shared.windows[same]

    # -- select --------------------------------------------------------------------------------------
    def _selected(self, relation: Relation, items: Sequence[exp.Expr]) -> Relation:
        if relation.window is not None:
            raise wrong(
                relation.window.node,
                "rows are put into windows, but not grouped by them",
                "add GROUP BY window_start, window_end",
            )
        relation, items = self._ranked(relation, items)
        columns: dict[str, pl.Expr] = {}
        names: list[Name] = []
        for item in items:
            for name, expr, _ in self._item(relation, item):
                if expr is None:
                    names.append(Name("", name, None))
                    continue
                own = name if name not in columns else f"{name}${len(columns)}"
                columns[own] = expr
                names.append(Name("", name, own))
        selected = {
            one.meta.root_names()[0]: name
            for name, one in columns.items()
            if one.meta.is_column_selection(allow_aliasing=True) and one.meta.root_names()
        }
        rank, windows = relation.rank, relation.of_windows
        hidden: dict[str, str] = {}
        if rank is not None:
            hidden = {n: f"{n}$rank" for n in (*rank.keys, *rank.by) if n not in selected}
            there = selected | hidden
            rank = replace(rank, keys=tuple(there[n] for n in rank.keys), by=tuple(there[n] for n in rank.by))
        stream = relation.stream.select(**columns, **{own: pl.col(name) for name, own in hidden.items()})
        if windows is not None:
            both = windows.start in selected and windows.end in selected
            windows = replace(windows, start=selected[windows.start], end=selected[windows.end]) if both else None
        return replace(relation, stream=stream, names_=tuple(names), rank=rank, of_windows=windows)

    def _item(self, relation: Relation, item: exp.Expr) -> list[tuple[str, pl.Expr | None, str | None]]:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            table = item.table if isinstance(item, exp.Column) else ""
            found = [(one.name, pl.col(one.column or ""), one.column) for one in relation.all_of(table)]
            if not found:
                raise wrong(item, f"there is no table {table}")
            return list(found)
        node = item.unalias()
        if is_clock(node):
            return [(item.alias or "proctime", None, None)]
        if isinstance(node, exp.Anonymous) and (bound := _old_bound(node)) is not None:
            return [(item.alias or bound, pl.col(bound), bound)]
        if isinstance(node, exp.Column) and (named := relation.named(node)) is not None and named.column is None:
            return [(item.alias or named.name, None, None)]
        name = (
            item.alias
            or (node.name if isinstance(node, exp.Column | exp.Dot) else "")
            or f"_c{self.node.expressions.index(item) if item in self.node.expressions else 0}"
        )
        return [(name, translate(node, relation).expr, name)]

    def _ranked(self, relation: Relation, items: Sequence[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """Take out ``ROW_NUMBER()``, which stays open."""
        found = [one for one in items if isinstance(one.unalias(), exp.Window)]
        if not found:
            return relation, list(items)
        window = found[0].unalias()
        if len(found) > 1 or not isinstance(window.this, exp.RowNumber):
            raise wrong(
                window, f"{window.this.key.upper()} OVER isn't supported", "there is one ROW_NUMBER() in a query"
            )
        keys = []
        order = window.args.get("order")
        if order is None:
            raise wrong(window, "ROW_NUMBER() needs ORDER BY")
        for number, node in enumerate(window.args.get("partition_by") or []):
            relation, name = self._as_column(relation, node, f"part${number}")
            keys.append(name)
        relation, by, down = self._sorted_by(relation, [(one.this, one) for one in order.expressions])
        name = found[0].alias or "row_number"
        rank = OpenRank(name, tuple(keys), tuple(by), tuple(down), window)
        return replace(relation, rank=rank), [one for one in items if one is not found[0]]

    def _sorted_by(
        self, relation: Relation, items: Sequence[tuple[exp.Expr, exp.Expr]]
    ) -> tuple[Relation, list[str], list[bool]]:
        """The columns to sort by, and which of them downwards. Nulls are last, unless a column before puts them first.

        Nulls of Spark SQL are first without DESC, and last with it.
        """
        by: list[str] = []
        down: list[bool] = []
        for number, (node, ordered) in enumerate(items):
            relation, name = self._as_column(relation, node, f"{_ORDER}{number}")
            if ordered.args.get("nulls_first") and (relation.time is None or relation.time.column != name):
                null = f"{_ORDER}{number}-null"
                relation = relation.on(relation.stream.with_columns(pl.col(name).is_null().alias(null)))
                by.append(null)
                down.append(True)
            by.append(name)
            down.append(bool(ordered.args.get("desc")))
        return relation, by, down

    def _as_column(self, relation: Relation, node: exp.Expr, name: str) -> tuple[Relation, str]:
        named = relation.named(node) if isinstance(node, exp.Column) else None
        if named is not None and named.column is not None:
            return relation, named.column
        return relation.on(relation.stream.with_columns(translate(node, relation).expr.alias(name))), name

    def _first_rows(self, relation: Relation, nodes: Sequence[exp.Expr]) -> Relation:
        """``ORDER BY ... LIMIT n``: the first rows so far."""
        limit = self.node.args["limit"]
        if not limit.expression.is_int or int(limit.expression.name) < 1:
            raise wrong(limit, "LIMIT takes a number of at least 1", "write LIMIT 10")
        relation, by, down = self._sorted_by(
            relation, list(zip(nodes, self.node.args["order"].expressions, strict=True))
        )
        stream = self.queries.shared(relation.stream, (), self.prefix)
        top = stream.top(int(limit.expression.name), by, key=None, descending=down, id=self._id("top"))
        added = [name for name in by if name.startswith(_ORDER)]
        names = tuple(one for one in relation.names_ if one.column not in added)
        return relation.on(top.drop(*added) if added else top, names_=names, of_windows=None)


def _once(joined: Relation, of_left: int, using: Sequence[str], how: ChangesHow) -> Relation:
    """A join with USING, of which one name stands for both sides' columns; of a full join, none does."""
    names = list(joined.names_)
    hidden = {"inner": range(of_left, len(names)), "left": range(of_left, len(names)), "right": range(of_left)}
    for number in hidden.get(how, ()):
        if names[number].name.casefold() in map(str.casefold, using):
            names[number] = replace(names[number], twice=True)
    return replace(joined, names_=tuple(names))


def _check_clauses(node: exp.Expr, known: frozenset[str]) -> None:
    """Refuse a clause that has no meaning here, rather than leaving it out."""
    for name, value in sorted(node.args.items()):
        if value and name not in known:
            part = value[0] if isinstance(value, list) else value
            hint = _OTHER_WAYS.get(name, "look at docs/sql.md for what there is")
            raise wrong(part if isinstance(part, exp.Expr) else node, f"{name.upper()} isn't supported", hint)


def _by_number(node: exp.Expr, items: Sequence[exp.Expr]) -> exp.Expr:
    number = int(node.name) if node.is_int else 0
    if not 1 <= number <= len(items):
        raise wrong(node, f"there is no column number {node.name} in the SELECT", f"write 1 to {len(items)}, or a name")
    return items[number - 1]


def _check_grouped(node: exp.Expr, before: Relation, after: Relation) -> None:
    for column in node.find_all(exp.Column):
        written = any("line" in part.meta for part in column.walk())  # others stand for an aggregate or a key
        if written and before.has(column) and not after.has(column):
            hint = f"add it to GROUP BY, or write MAX({column.name})"
            raise wrong(column, f"{column.name} is neither grouped by nor aggregated", hint)


def _row_bound(node: exp.Expr, name: str) -> int | None:
    """The most that a condition allows for a row number."""
    left, right = node.args.get("this"), node.args.get("expression")
    if isinstance(right, exp.Column) and isinstance(left, exp.Literal):
        turned: dict[type[exp.Expr], type[exp.Expr]] = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
        flipped = turned.get(type(node))
        return None if flipped is None else _row_bound(flipped(this=right, expression=left), name)
    if not (
        isinstance(left, exp.Column) and left.name == name and isinstance(right, exp.Literal) and not right.is_string
    ):
        return None
    most = int(right.name)
    if isinstance(node, exp.LTE):
        return most
    if isinstance(node, exp.LT):
        return most - 1
    return 1 if isinstance(node, exp.EQ) and most == 1 else None


def _old_bound(node: exp.Anonymous) -> str | None:
    """``SESSION_START(ts, ...)``, ``TUMBLE_END`` and so on stand for a bound of the window that is grouped by."""
    name = node.name.upper()
    for window in WINDOWS:
        if name == f"{window}_START":
            return START
        if name == f"{window}_END":
            return END
    return None


def _swapped(node: exp.Expr, columns: Mapping[str, str]) -> exp.Expr:
    """Expressions that are grouped by become their columns."""

    def column(one: exp.Expr) -> exp.Expr:
        found = None if isinstance(one, exp.Identifier) else columns.get(one.sql())
        if found is None or (isinstance(one, exp.Column) and one.name == found):
            return one
        return exp.column(exp.to_identifier(found))

    if isinstance(node, exp.Column) and node.sql() in columns and columns[node.sql()] != node.name:
        return exp.alias_(column(node), node.name)
    return node.copy().transform(column)
