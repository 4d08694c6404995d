"""Operators on flows of changes: what they keep, what they take, and the key of what they tell.

Whether a flow carries changes is in its schema (``rows/changes.py``). These operators take flows with changes and
without, and promise the multiset of rows that their results add up to, wherever batches were cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.api.aggregates import Aggregate
from headrace.api.operators.join import ChangesHow
from headrace.api.operators.spec import (
    ColumnSet,
    EventTime,
    Key,
    OperatorSpec,
    StateMeaning,
    columns_read,
    expiry,
    names,
    offset,
    on_one_line,
    typed,
    union,
)
from headrace.api.operators.window import aggregate_columns, aggregate_form
from headrace.core.clock import format_ms
from headrace.rows.changes import CHANGE, KIND
from headrace.rows.schema import Schema
from headrace.stores.base import StateForm, with_types


def with_changes(columns: Mapping[str, pl.DataType]) -> Schema:
    """The schema of a flow of changes of these columns."""
    return Schema.of({name: dtype for name, dtype in columns.items() if name != CHANGE} | {CHANGE: KIND})


def without_changes(schema: Schema) -> dict[str, pl.DataType]:
    """The columns of the rows that change."""
    return {name: dtype for name, dtype in schema.columns.items() if name != CHANGE}


@dataclass(frozen=True, slots=True)
class _OnChanges(OperatorSpec):
    """The base of operators on changes. Results are of a batch, not of a message."""

    takes_changes = True
    places_results = False
    gathers_keys = True
    hidden_state = "a step on changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBy(_OnChanges):
    """A running aggregate of all rows of a key; changes leave with each batch, or at most once in ``every_ms``."""

    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    input: Schema
    every_ms: int | None = None
    event_time: EventTime | None = None
    kind = "group_by"

    @property
    def results(self) -> dict[str, pl.DataType]:
        """The columns of its results, without ``_change``."""
        return {key: self.input.columns[key] for key in self.keys} | aggregate_columns(self.aggregates, self.input)

    @property
    @override
    def defers(self) -> bool:
        return self.every_ms is not None

    @property
    @override
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        return (self.keys,)

    @override
    def change_key(self, keys: Sequence[Key], inputs: Sequence[Schema]) -> Key:
        return self.keys

    @property
    @override
    def growth(self) -> str:
        return "keeps each key until its rows are deleted"

    @property
    @override
    def detail(self) -> str:
        by = f"by {names(self.keys)}" if self.keys else "all rows"
        often = "" if self.every_ms is None else f", at most once in {format_ms(self.every_ms)}"
        return f"{by}{often}: {', '.join(f'{name} = {one.kind}' for name, one in self.aggregates)}"

    @property
    @override
    def expressions(self) -> tuple[str, ...]:
        return tuple(
            f"{name} = {one.kind} of {on_one_line(one.expr)}" for name, one in self.aggregates if one.expr is not None
        )

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        """An aggregate may come and go. All stores are there, whichever a version of the app uses."""
        key = with_types(self.keys, self.input.columns)
        results = self.results
        own = {"__of": pl.Int64(), "__number": pl.Int64(), "__text": pl.Binary()}
        aggregates = {
            name: aggregate_form(one, results[name], self.input, self.event_time) for name, one in self.aggregates
        }
        of = "of changes" if CHANGE in self.input.columns else "of rows"
        values = {**key, **with_types(own, own)}
        told = with_types([name for name, _ in self.aggregates], results)
        return {
            id_: StateForm(what=f"a group_by {of}", key=key, columns=aggregates),
            f"{id_}.values": StateForm(what=f"the distinct values in a group_by {of}", key=values),
            f"{id_}.rows": StateForm(what="the rows in a group_by", key=key, columns=aggregates),
            f"{id_}.told": StateForm(what="what a group_by has told", key=key, columns=told),
        }

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        changes = "with changes" if CHANGE in self.input.columns else "without changes"
        fixed = {"kind": self.kind, "key": typed(self.keys, self.input), "input": changes}
        aggregates = {name: f"{one.definition}{self._by_time(one)}" for name, one in self.aggregates}
        return {id_: StateMeaning(fixed=fixed, columns=aggregates, sheds=True, key=self.keys)}

    def _by_time(self, aggregate: Aggregate) -> str:
        time = self.event_time if aggregate.kind in ("first", "last") else None
        return "" if time is None else f" by {time.column}{offset(time.offset_ms)}"

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return {key: (key,) for key in self.keys}

    @override
    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        exprs = [expr for _, one in self.aggregates for expr in (one.expr, one.by) if expr is not None]
        own = {CHANGE} & set(self.input.columns)
        if self.event_time is not None and any(self._by_time(one) for _, one in self.aggregates):
            own.add(self.event_time.column)
        whole = any(one.function is not None and one.expr is None for _, one in self.aggregates)
        return None if whole else union(frozenset(self.keys) | own, columns_read(exprs))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesJoin(_OnChanges):
    """A join of all rows of both sides, which changes as they do. ``where`` is a further condition on joined columns.

    A side silently forgets a row ``ttl_ms`` of the wall clock after it came; with None, never. The right side's
    columns have the names ``right_names``; those of the key are left out, as they are the left side's. An empty key:
    each row meets each other row of the task.
    """

    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    how: ChangesHow
    right_names: Mapping[str, str]
    where: pl.Expr | None = None
    ttl_ms: int | None = None
    kind = "join"

    @property
    @override
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        return (self.left_keys, self.right_keys)

    @override
    def change_key(self, keys: Sequence[Key], inputs: Sequence[Schema]) -> Key:
        left, right = keys
        if self.how in ("semi", "anti"):
            return left
        if self.how != "inner" or left is None or right is None:
            return None
        paired = dict(zip(self.right_keys, self.left_keys, strict=True))
        theirs = [paired.get(name, self.right_names.get(name, name)) for name in right]
        return tuple(dict.fromkeys([*left, *theirs]))

    @property
    @override
    def growth(self) -> str:
        return "" if self.ttl_ms is not None else "keeps them until they are deleted: ttl= bounds that"

    @property
    @override
    def detail(self) -> str:
        on = [one if one == two else f"{one} = {two}" for one, two in zip(self.left_keys, self.right_keys, strict=True)]
        kept = "all rows are kept" if self.ttl_ms is None else f"rows are kept for {format_ms(self.ttl_ms)}"
        return f"{self.how} on {', '.join(on) or 'nothing'}, {kept}"

    @property
    @override
    def expressions(self) -> tuple[str, ...]:
        return () if self.where is None else (on_one_line(self.where),)

    def kept_columns(self, inputs: Sequence[Schema]) -> tuple[dict[str, pl.DataType], dict[str, pl.DataType]]:
        """The columns that each side keeps. A right side that isn't told keeps only those by which it is compared."""
        left, right = map(without_changes, inputs)
        read = frozenset() if self.where is None else columns_read([self.where])
        if self.how in ("semi", "anti") and read is not None:
            right = {
                name: dtype
                for name, dtype in right.items()
                if name in self.right_keys or self.right_names.get(name) in read
            }
        return left, right

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        sides = zip(("left", "right"), (self.left_keys, self.right_keys), self.kept_columns(inputs), strict=True)
        return {
            f"{id_}.{side}": StateForm(
                what=f"the {side} side of a join of changes",
                key=with_types(keys, columns),
                columns=with_types([name for name in columns if name not in keys], columns),
            )
            for side, keys, columns in sides
        }

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        found = {}
        sides = zip(
            ("left", "right"), (self.left_keys, self.right_keys), inputs, self.kept_columns(inputs), strict=True
        )
        for number, (side, keys, schema, columns) in enumerate(sides):
            fixed = {
                "kind": f"the {side} side of a join of changes",
                "how": self.how,
                "key": typed(keys, schema),
                "condition": "" if self.where is None else on_one_line(self.where),
                "expires": expiry(self.ttl_ms),
                "input": "with changes" if CHANGE in schema.columns else "without changes",
            }
            values = {name: str(dtype) for name, dtype in columns.items() if name not in keys}
            found[f"{id_}.{side}"] = StateMeaning(fixed=fixed, columns=values, key=keys, input=number)
        return found

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return {key: (key,) for key in self.left_keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class Top(_OnChanges):
    """The first ``n`` rows of each key, in the order of the columns ``by``; changes leave when these rows change.

    ``descending`` is by column. Rows that are equal in ``by`` are ordered by their other columns; with ``by`` empty, by
    arrival, the latest first (``descending``) or last. ``rank`` names a column for their number, from 1 on.
    """

    n: int
    keys: tuple[str, ...]
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    input: Schema
    rank: str | None = None
    kind = "top"

    @property
    @override
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        return (self.keys,)

    @override
    def change_key(self, keys: Sequence[Key], inputs: Sequence[Schema]) -> Key:
        if self.n == 1:
            return self.keys
        return (*self.keys, self.rank) if self.rank is not None else keys[0]

    @property
    @override
    def growth(self) -> str:
        return "keeps all rows, as others may be deleted" if CHANGE in self.input.columns else "keeps these of each key"

    @property
    @override
    def detail(self) -> str:
        order = [f"{name} descending" if down else name for name, down in zip(self.by, self.descending, strict=False)]
        return f"{self.n} of each {names(self.keys) or 'task'} by {', '.join(order) or 'arrival'}"

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        return _forms_in_order(id_, self.keys, self.input)

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        kept = "all rows" if CHANGE in self.input.columns else f"{self.n} rows"
        fixed = {"kind": self.kind, "key": typed(self.keys, self.input), "order": self.detail, "kept": kept}
        columns = {name: str(dtype) for name, dtype in without_changes(self.input).items()}
        meaning = StateMeaning(fixed=fixed, columns=columns, key=self.keys)
        return dict.fromkeys(self.state_forms(id_, inputs), meaning)

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return {name: (name,) for name in without_changes(before)}


def _forms_in_order(id_: str, keys: tuple[str, ...], of: Schema) -> dict[str, StateForm]:
    """The forms of rows that are kept in an order: the first ones, and, of a flow of changes, the rest."""
    values = with_types([name for name in without_changes(of) if name not in keys], of.columns)
    form = StateForm(what="rows in an order", key=with_types(keys, of.columns), columns=values)
    return {id_: form, f"{id_}.rest": form} if CHANGE in of.columns else {id_: form}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(_OnChanges):
    """The last row of each key as changes: a new row of a key replaces its earlier one, or ``deleted`` removes it.

    ``deleted`` is a Boolean column of the input, which its results don't have. Of a flow of changes, it tells the
    changes of a key in order: of its rows that are alive, the one that came last.
    """

    keys: tuple[str, ...]
    input: Schema
    deleted: str | None = None
    kind = "changes"

    @property
    def results(self) -> dict[str, pl.DataType]:
        """The columns of its results, without ``_change``."""
        return {name: dtype for name, dtype in without_changes(self.input).items() if name != self.deleted}

    @property
    @override
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        return (self.keys,)

    @override
    def change_key(self, keys: Sequence[Key], inputs: Sequence[Schema]) -> Key:
        return self.keys

    @property
    @override
    def growth(self) -> str:
        return "keeps a row of each key until it is deleted"

    @property
    @override
    def detail(self) -> str:
        return f"of {names(self.keys)}"

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        if CHANGE in self.input.columns:
            return _forms_in_order(id_, self.keys, self.input)
        values = [name for name in self.results if name not in self.keys]
        key = with_types(self.keys, self.input.columns)
        return {id_: StateForm(what="the last rows", key=key, columns=with_types(values, self.input.columns))}

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        kept = "all rows" if CHANGE in self.input.columns else "the last row"
        fixed = {"kind": self.kind, "key": typed(self.keys, self.input), "kept": kept}
        meaning = StateMeaning(fixed=fixed, columns={n: str(t) for n, t in self.results.items()}, key=self.keys)
        return dict.fromkeys(self.state_forms(id_, inputs), meaning)

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return {key: (key,) for key in self.keys}
