"""How two flows of a query are joined: by windows or a bound of time where the conditions say so, else all rows.

**Conditions.** Equalities between the sides are the key; a key that is an expression becomes a column first. Of an
inner join, conditions on one side go before it. ``l.t BETWEEN r.t - INTERVAL ... AND r.t + INTERVAL ...``, of the event
times of both, is a bound of time: rows are kept for so long. Equal event times (of windows, by their ends) are a bound
of 0.

**Outer joins.** The key columns of a side without a partner are null in SQL, but one column for both in Headrace: so
each side keeps a copy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, cast

import polars as pl
from sqlglot import exp

from headrace.api.operators.join import ChangesHow
from headrace.api.stream import Stream
from headrace.core.clock import Duration
from headrace.sql.dialect import wrong
from headrace.sql.expressions import Value, duration_ms, predicate, translate
from headrace.sql.relations import OWN, Name, Relation

_FLIPPED: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.GTE: exp.LTE,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.LT: exp.GT,
}
_KEY = "key$"


@dataclass(frozen=True, slots=True)
class Shuffles:
    """What the planner of queries does for a join: it sends flows to the partitions of a key, and names state."""

    by: Shuffle
    id: str
    ttl: Duration | Literal["never"]


class Shuffle:
    """Partitions a flow by columns, unless it is already."""

    def __call__(self, stream: Stream, keys: Sequence[str], prefix: str) -> Stream:
        """Return the flow with all rows of a key in one task."""
        raise NotImplementedError

    def shuffled_by(self, stream: Stream, keys: Sequence[str], prefix: str, met: Stream | None = None) -> Stream:
        """Return the flow partitioned by exactly these columns, which may be joined with ``met``."""
        raise NotImplementedError


def join_kind(join: exp.Join) -> ChangesHow:
    """Which join it is."""
    side, kind = (join.side or "").lower(), (join.kind or "").lower()
    if join.args.get("method") or kind not in ("", "inner", "outer", "cross", "semi", "anti"):
        raise wrong(join, f"{' '.join(filter(None, [join.args.get('method'), side, kind]))} join isn't supported")
    if kind in ("semi", "anti"):
        return cast("ChangesHow", kind)
    return cast("ChangesHow", side or "inner")


def split_conditions(
    conditions: Sequence[exp.Expr], left: Relation, right: Relation
) -> tuple[list[exp.Expr], list[exp.Expr], list[tuple[exp.Expr, exp.Expr]], list[exp.Expr]]:
    """Conditions on the left side, on the right, pairs that are equal, and those on both."""
    of_left, of_right, pairs, both = [], [], list[tuple[exp.Expr, exp.Expr]](), []
    for one in conditions:
        if not any(one.find_all(exp.Column)):
            both.append(one)
        elif left.has(one):
            of_left.append(one)
        elif right.has(one):
            of_right.append(one)
        elif isinstance(one, exp.EQ) and left.has(one.this) and right.has(one.expression):
            pairs.append((one.this, one.expression))
        elif isinstance(one, exp.EQ) and right.has(one.this) and left.has(one.expression):
            pairs.append((one.expression, one.this))
        else:
            both.append(one)
    return of_left, of_right, pairs, both


def filtered(relation: Relation, conditions: Sequence[exp.Expr]) -> Relation:
    """The rows for which all conditions are true."""
    if not conditions:
        return relation
    whole = exp.and_(*conditions) if len(conditions) > 1 else conditions[0]  # the first keep the others from raising
    return relation.on(relation.stream.filter(predicate(whole, relation)))


def joined(
    left: Relation,
    right: Relation,
    how: ChangesHow,
    pairs: Sequence[tuple[exp.Expr, exp.Expr]],
    both: Sequence[exp.Expr],
    shuffles: Shuffles,
    node: exp.Expr,
) -> tuple[Relation, list[exp.Expr]]:
    """The join of two relations, and the conditions that are left for a filter behind it."""
    if not pairs:
        raise wrong(
            node,
            "this join has no equality between its sides, so each row would meet all rows of the other",
            "write ON a.x = b.x AND ...",
        )
    left, left_keys = with_keys(left, [one for one, _ in pairs])
    right, right_keys = with_keys(right, [two for _, two in pairs])
    left, right, left_keys, right_keys = _alike(left, right, left_keys, right_keys, pairs)
    if how in ("left", "right", "full"):
        right = _with_copies(right, right_keys)
    if how in ("right", "full"):
        left = _with_copies(left, left_keys)
    bounds, beside = _bounds(left, right, left_keys, right_keys, both)
    ours = left.stream.schema.columns
    suffix = _suffix(right, shuffles.id)
    named = dict(zip(right_keys, left_keys, strict=True)) | {
        name: f"{name}{suffix}" if name in ours else name for name in right.columns if name not in right_keys
    }
    names = (
        *left.names_,
        *(replace(one, column=None if one.column is None else named[one.column]) for one in right.names_),
    )
    one, two = _together(left.stream, right.stream, left_keys, right_keys, shuffles)
    plain = not left.stream.changing and not right.stream.changing
    if bounds is not None and plain and how in ("inner", "left", "full"):
        if how != "inner" and beside:
            raise wrong(beside[0], "an outer join within a bound of time takes no further condition")
        two = _renamed_keys(two, left_keys, right_keys)
        stream = one.join(two, left_keys, how=how, within=bounds, id=shuffles.id, suffix=suffix)
        return Relation(stream=stream, names_=names, functions=left.functions, of_windows=left.of_windows), beside
    relation = Relation(stream=left.stream, names_=names, functions=left.functions)
    where = None
    if both:
        columns = dict(ours) | {named[name]: dtype for name, dtype in right.columns.items()}
        scope = _Both(relation, columns)
        where = predicate(exp.and_(*both) if len(both) > 1 else both[0], scope)
    stream = one.join(
        two,
        how=how,
        ttl=shuffles.ttl,
        left_on=left_keys,
        right_on=right_keys,
        where=where,
        id=shuffles.id,
        suffix=suffix,
    )
    kept = names if how not in ("semi", "anti") else left.names_
    return Relation(stream=stream, names_=kept, functions=left.functions), []


class _Both:
    """The scope of conditions on joined columns."""

    def __init__(self, relation: Relation, columns: dict[str, pl.DataType]) -> None:
        self._relation = relation
        self.columns: Mapping[str, pl.DataType] = columns
        self.functions = relation.functions

    def names(self) -> list[str]:
        return self._relation.names()

    def column(self, node: exp.Column) -> Value | None:
        found = self._relation.named(node)
        if found is None or found.column is None:
            return self._relation.column(node)
        return Value(pl.col(found.column), self.columns[found.column])


def with_keys(relation: Relation, nodes: Sequence[exp.Expr]) -> tuple[Relation, list[str]]:
    """The columns of a key; an expression becomes a column."""
    keys, added = [], {}
    for number, node in enumerate(nodes):
        name = relation.named(node) if isinstance(node, exp.Column) and relation.column(node) is not None else None
        if name is not None and name.column is not None and name.column not in keys:
            keys.append(name.column)
        else:
            keys.append(_key_name(number, relation))
            added[keys[-1]] = translate(node, relation).expr
    return (relation.on(relation.stream.with_columns(**added)) if added else relation), keys


def _key_name(number: int, *relations: Relation) -> str:
    """A column for a part of a key: an earlier join may have such columns, too."""
    name = f"{_KEY}{number}"
    while any(name in one.columns for one in relations):
        name += "$"
    return name


def _alike(
    left: Relation,
    right: Relation,
    left_keys: list[str],
    right_keys: list[str],
    pairs: Sequence[tuple[exp.Expr, exp.Expr]],
) -> tuple[Relation, Relation, list[str], list[str]]:
    """Keys of one type: an integer of 32 bits meets one of 64 as that."""
    for number, ((one, two), (node, _)) in enumerate(zip(zip(left_keys, right_keys, strict=True), pairs, strict=True)):
        ours, theirs = left.columns[one], right.columns[two]
        if ours == theirs:
            continue
        if not (ours.is_integer() and theirs.is_integer()):
            raise wrong(node, f"{ours} can't be equal to {theirs}", "write CAST(... AS ...) on one side")
        name = _key_name(number, left, right)
        left = left.on(left.stream.with_columns(pl.col(one).cast(pl.Int64).alias(name)))
        right = right.on(right.stream.with_columns(pl.col(two).cast(pl.Int64).alias(name)))
        left_keys, right_keys = [*left_keys], [*right_keys]
        left_keys[number] = right_keys[number] = name
    return left, right, left_keys, right_keys


def _with_copies(relation: Relation, keys: Sequence[str]) -> Relation:
    copies = {key: f"{key}{OWN}" for key in keys}
    stream = relation.stream.with_columns(*(pl.col(key).alias(copy) for key, copy in copies.items()))
    names = tuple(
        replace(one, column=copies.get(one.column, one.column)) if one.column is not None else one
        for one in relation.names_
    )
    return relation.on(stream, names_=names)


def _renamed_keys(stream: Stream, ours: Sequence[str], theirs: Sequence[str]) -> Stream:
    """Interval joins have one name for a key: the left side's."""
    changed = {old: new for old, new in zip(theirs, ours, strict=True) if old != new}
    if not changed:
        return stream
    taken = {new: f"{new}$right" for new in changed.values() if new in stream.schema.columns and new not in changed}
    return stream.rename(taken | changed)


def _together(
    left: Stream, right: Stream, left_keys: Sequence[str], right_keys: Sequence[str], shuffles: Shuffles
) -> tuple[Stream, Stream]:
    """Both flows partitioned by the same parts of the key, if need be: a side that is already stays as it is."""
    placed = []
    for stream, keys in ((left, left_keys), (right, right_keys)):
        own = stream.draft.key_at(stream.node)
        there = own is not None and set(own) <= set(keys)
        placed.append(tuple(list(keys).index(name) for name in own) if there and own is not None else None)
    chosen = next((places for places in placed if places is not None), tuple(range(len(left_keys))))
    for n, (stays, moves) in enumerate(((left, right), (right, left))):
        if placed[n] == chosen != placed[1 - n] and _before(stays, here=True) & _before(moves, here=False):
            placed[n] = None  # else a stage would feed itself
    one, two = left, right
    if placed[0] != chosen:
        met = right if placed[1] == chosen else None
        one = shuffles.by.shuffled_by(left, [left_keys[n] for n in chosen], f"{shuffles.id}-left", met)
    if placed[1] != chosen:
        two = shuffles.by.shuffled_by(right, [right_keys[n] for n in chosen], f"{shuffles.id}-right", one)
    return one, two


def leads_to(shuffled: Stream, met: Stream) -> bool:
    """Whether a flow is in a stage after the one that reads ``shuffled``: tied together, they would feed themselves."""
    return shuffled.node in _before(met, here=False) - _before(met, here=True)


def _before(stream: Stream, *, here: bool) -> set[str]:
    """The steps that lead to a flow; ``here``: without those that lead to streams which its stage reads."""
    nodes = stream.draft.nodes
    found, left = set[str](), [stream.node]
    while left:
        id_ = left.pop()
        if id_ not in found:
            found.add(id_)
            read = nodes[id_].operator.stream_read
            left += nodes[id_].inputs
            if read is not None and not here:
                left += [one.id for one in nodes.values() if one.operator.stream_written == read]
    return found


def _suffix(right: Relation, id_: str) -> str:
    tables = {one.table for one in right.names_ if one.table}
    return f"${tables.pop()}" if len(tables) == 1 else f"${id_.rpartition('-')[2]}"


def _bounds(
    left: Relation, right: Relation, left_keys: Sequence[str], right_keys: Sequence[str], both: Sequence[exp.Expr]
) -> tuple[tuple[timedelta, timedelta] | None, list[exp.Expr]]:
    """How far the right time may be from the left one, if the conditions bound it, and the conditions that are left."""
    ours, theirs = left.time, right.time
    if ours is None or theirs is None:
        return None, list(both)
    apart = theirs.offset_ms - ours.offset_ms
    if (ours.column, theirs.column) in zip(left_keys, right_keys, strict=True):
        return (timedelta(milliseconds=apart), timedelta(milliseconds=apart)), list(both)
    low: int | None = None
    high: int | None = None
    rest = []
    for one in both:
        found = _bound(one, left, right)
        if found is None:
            rest.append(one)
            continue
        for lower, ms, strict in found:
            if lower:
                low = ms if low is None else max(low, ms)
            else:
                high = ms if high is None else min(high, ms)
            if strict:
                rest.append(one)
    if low is None or high is None or low > high:
        return None, list(both)
    return (timedelta(milliseconds=low + apart), timedelta(milliseconds=high + apart)), rest


def _bound(node: exp.Expr, left: Relation, right: Relation) -> list[tuple[bool, int, bool]] | None:
    """What a condition says of (right time - left time): whether it is a lower bound, in ms, and strict."""
    if isinstance(node, exp.Between):
        parts = [
            _bound(exp.GTE(this=node.this, expression=node.args["low"]), left, right),
            _bound(exp.LTE(this=node.this, expression=node.args["high"]), left, right),
        ]
        return None if None in parts else [one for part in parts if part is not None for one in part]
    if type(node) not in _FLIPPED:
        return None
    one, two = _moved(node.this), _moved(node.expression)
    if one is None or two is None:
        return None
    kind: type[exp.Expr] = type(node)
    if _is_time(one[0], right) and _is_time(two[0], left):
        pass
    elif _is_time(one[0], left) and _is_time(two[0], right):
        one, two, kind = two, one, _FLIPPED[kind]
    else:
        return None
    # right + a >= left + b: right - left >= b - a
    return [(kind in (exp.GTE, exp.GT), two[1] - one[1], kind in (exp.GT, exp.LT))]


def _moved(node: exp.Expr) -> tuple[exp.Column, int] | None:
    """A column that is moved by intervals."""
    if isinstance(node, exp.Paren):
        return _moved(node.this)
    if isinstance(node, exp.Column):
        return node, 0
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        base = _moved(node.this)
        ms = duration_ms(node.expression)
        return None if base is None else (base[0], base[1] + (ms if isinstance(node, exp.Add) else -ms))
    return None


def _is_time(node: exp.Column, relation: Relation) -> bool:
    if not relation.has(node) or relation.time is None:
        return False
    found: Name | None = relation.named(node)
    return found is not None and found.column == relation.time.column
