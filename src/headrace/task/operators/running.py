"""Running aggregates: of all rows of a key so far, told as changes.

The state has one row for each key: the parts of its aggregates (``aggregation.py``). A batch's partial results are
merged with the rows of its keys, and the difference is told. With ``every``, ``<id>.told`` keeps the result that was
told last until it is a key's turn again.

**Rows that are taken away.** The parts of counts, sums and means are taken away from the earlier ones. Infinities and
NaN are counted apart from a sum of floating-point numbers, which couldn't lose them again; its last digits may differ
from those of a sum without the rows that went. Others (a minimum, the first) may have to be found again, so their rows
are kept in ``<id>.rows``. What comes and what goes is added there without looking. A key's rows are read if what was
found has gone, and put in order, without what has gone, when as many have come and gone as there were. Of equal rows,
the first to come goes first.

**Distinct values** are rows of their own in ``<id>.values``: one for each value of a key, with a number for each
aggregate that counts values of the same expression, so a batch reads and writes only the values that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.aggregates import Aggregate
from headrace.api.checks import value_dtype
from headrace.api.operators.changes import GroupBy, without_changes
from headrace.api.specs import Node
from headrace.rows.changes import WEIGHT, carries, updates, weighted
from headrace.rows.given import concat_rows, rows_where
from headrace.rows.schema import Schema
from headrace.stores.base import StateForm, StateStore, conformed, readable
from headrace.stores.keyed import NEVER_DUE, KeyedRows
from headrace.stores.tiers import in_lots
from headrace.task.event_time import StepTime, is_whole_ms
from headrace.task.operators.aggregation import TIME, Aggregation
from headrace.task.operators.base import UNCOMPUTABLE, BuildContext
from headrace.task.operators.windows import Aggregating

_ALL = "__all"  # the key where there is none
_N = "__n"  # how many rows a key has
_SEEN = "__seen"  # not below the place among all rows of a key that any of them has
_MOVED = "__moved"  # how many rows have come and gone since those of ``<id>.rows`` were put in order, less these
_THERE, _DUE = "__there", "__due"
_OF, _NUMBER, _TEXT = "__of", "__number", "__text"
_VALUE, _WAS = "__value", "__was"
_ADDITIVE = {"count", "sum", "mean", "n_unique"}
_WORN = (pl.col(_N) <= 0) | (pl.col(_MOVED) > 16)  # a key whose rows must be put in order
_EMITTED_ROWS_MAX = 1 << 17
Calling = Callable[[str], AbstractContextManager[None]]


class GroupByOperator(Aggregating):
    """A running aggregate of one task."""

    def __init__(self, node: Node, spec: GroupBy, context: BuildContext) -> None:
        super().__init__(node, spec.keys or (_ALL,), [name for name, _ in spec.aggregates])
        self._every = spec.every_ms
        self._counters = context.counters
        self._changing = carries(spec.input.columns)
        self._types = {_ALL: pl.Int8(), **spec.input.columns, **spec.results}
        at: pl.Expr | None = None
        self._time: StepTime | None = None
        if spec.event_time is not None and any(one.kind in ("first", "last") for _, one in spec.aggregates):
            dtype = spec.input.columns[spec.event_time.column]
            at = pl.col(TIME) if is_whole_ms(dtype) else pl.col(spec.event_time.column).to_physical()
            self._time = StepTime(f"operator {node.id!r}", spec.event_time, dtype)
        forms = spec.state_forms(node.id, context.inputs)
        inner, wide, self._finals = _rewritten(spec, self.output)
        self.aggregation = Aggregation(inner, wide, spec.input, at=at, calling=self.calling)
        additive = [(name, one) for name, one in inner if one.kind in _ADDITIVE]
        self._subtraction = Aggregation(additive, wide, spec.input, at=at, calling=self.calling)
        self._counted = [_N, _SEEN, _MOVED] if self._changing else []
        self._values = _Values(node.id, self.keys, spec, forms[f"{node.id}.values"])
        self._rows = _Rows(node.id, self.keys, spec, at, self.calling, forms[f"{node.id}.rows"])
        self._columns = [*self.keys, *self.aggregation.parts, *self._counted]
        self._store = KeyedRows(node.id, self.keys, [], [], self._conformed, form=forms[node.id], shown=self._shown)
        told = f"{node.id}.told"
        self._result = [*self.keys, *(name for name, _ in spec.aggregates)]
        kept = {**{name: self._types[name] for name in self._result}, _THERE: pl.Boolean(), _DUE: pl.Int64()}
        self._told = KeyedRows(
            told,
            self.keys,
            [],
            [_DUE],
            lambda rows: conformed(told, rows, kept, {*self.keys, _THERE, _DUE}),
            form=forms[told],
        )

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._store, self._values.store, self._rows.store, self._told)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if self._every is None and self._told.entries():  # an earlier version of the app told less often
            self._tell(NEVER_DUE)
        if self._time is not None:
            rows = self._time.added(rows, TIME)
        if self.keys == [_ALL]:
            rows = rows.with_columns(pl.lit(0, pl.Int8).alias(_ALL))
        try:
            before, after = self._taken_away(rows) if self._changing else self._added(rows)
        except UNCOMPUTABLE as error:
            raise self.failed(error, "an aggregate") from error
        self._store.put(after)
        if self._every is None:
            self._send(self._results(before), self._results(after))
        else:
            self._wait(rows.select(self.keys).unique(), before, self._every)

    @override
    def due_ms(self) -> int | None:
        return self._told.earliest(_DUE)

    @override
    def on_time(self, now_ms: int) -> None:
        self._tell(now_ms)

    @override
    def on_end(self) -> None:
        self._tell(NEVER_DUE)

    # -- aggregating -----------------------------------------------------------------------------------
    def _added(self, rows: pl.DataFrame) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        new = self.partial(rows, self.keys)
        before = self._store.take(new.select(self.keys))
        return before, self.aggregation.settle(self._merged(before, [new, *self._values.take(rows)]))

    def _taken_away(self, rows: pl.DataFrame) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        rows = weighted(rows)
        before = self._store.take(rows.select(self.keys).unique())
        moves = self._rows.take(rows, before)
        merged = self._merged(before, [*self._both(rows), *self._values.take(rows)])
        lost = self._rows.lost(moves, merged, before)
        if lost is not None:
            merged = self._found_again(merged, lost)
        alive = merged.filter(pl.col(_N) > 0)
        if alive.height < merged.height:
            self._counters.count("missing", -int(merged.get_column(_N).clip(upper_bound=0).sum()))
        return before, alive

    def _both(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """The parts of the rows that come, and of those that go: less than nothing."""
        comes, number = rows.get_column(WEIGHT) > 0, pl.len().cast(pl.Int64)
        own = [number.alias(_N), number.alias(_MOVED)]
        if comes.any():
            place = pl.lit(rows.height, pl.Int64).alias(_SEEN)
            yield self.partial(rows_where(rows, comes), self.keys, *own, place)
        if not comes.all():
            gone = self._subtraction.partial(rows_where(rows, ~comes), self.keys, *own)
            yield gone.with_columns(-pl.col(_N, *self._subtraction.parts))

    def _found_again(self, merged: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
        rest = merged.join(lost, on=self.keys, how="anti", nulls_equal=True)
        mine = merged.join(lost, on=self.keys, how="semi", nulls_equal=True)
        again = self._rows.again(mine.select(*self.keys, _N, _MOVED))
        mine = mine.drop(self._rows.parts, _MOVED)
        for found in again:
            mine = mine.join(found, on=self.keys, how="left", nulls_equal=True)
        filled = (pl.col(part).fill_null(self._nothing[part]) for part in self._rows.parts)
        return concat_rows([rest, mine.with_columns(filled).select(self._columns)])

    def _merged(self, before: pl.DataFrame | None, new: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Frames may lack parts that they don't change."""
        frames = [frame if frame.columns == self._columns else self._whole(frame) for frame in new]
        if before is not None:
            added = [part for part in self.aggregation.parts if before.get_column(part).null_count()]
            before = before.with_columns(pl.col(part).fill_null(self._nothing[part]) for part in added)
            frames = [before.select(self._columns), *frames]
        rows = concat_rows(frames)
        return self.aggregation.merge(rows, self.keys, *(pl.col(name).sum() for name in self._counted))

    def _whole(self, frame: pl.DataFrame) -> pl.DataFrame:
        there = frame.columns
        return frame.select(
            pl.col(name) if name in there else self._nothing[name].alias(name) for name in self._columns
        )

    @cached_property
    def _nothing(self) -> dict[str, pl.Expr]:
        parts = {name: pl.lit(values).first() for name, values in self.aggregation.nothing.items()}
        return parts | {name: pl.lit(0, pl.Int64) for name in self._counted}

    def _conformed(self, rows: pl.DataFrame) -> pl.DataFrame:
        types = {**self._types, **self.aggregation.types}
        columns = {name: types.get(name, pl.Int64()) for name in self._columns}
        # A result that was told without an aggregate has a null there for who reads it, so that is taken back.
        return self.aggregation.conformed(self.node.id, rows, columns, empty=False)

    def _results(self, rows: pl.DataFrame | None) -> pl.DataFrame:
        if rows is None:
            return pl.DataFrame(schema={name: self._types[name] for name in self._result})
        return self.aggregation.final(rows, self.keys).select(*self.keys, *self._finals)

    def _shown(self, rows: pl.DataFrame) -> pl.DataFrame:
        return readable(self._results(rows))

    # -- telling ---------------------------------------------------------------------------------------
    def _send(self, before: pl.DataFrame, after: pl.DataFrame) -> None:
        self.check_results(after)
        for part in updates(before, after, self.keys).select(list(self.output)).iter_slices(_EMITTED_ROWS_MAX):
            self.emit(part)

    def _wait(self, touched: pl.DataFrame, before: pl.DataFrame | None, every: int) -> None:
        assert self.now_ms is not None, "the host sets the wall clock before it hands on messages"
        known = np.zeros(touched.height, np.bool_)
        for places, _ in self._told.find(touched):
            known[places] = True
        told = self._results(before).with_columns(pl.lit(value=True).alias(_THERE))
        waiting = touched.filter(pl.Series(~known)).join(told, on=self.keys, how="left", nulls_equal=True)
        due = (self.now_ms // every + 1) * every  # the same for all keys, so that they leave together
        self._told.put(waiting.with_columns(pl.col(_THERE).fill_null(value=False), pl.lit(due, pl.Int64).alias(_DUE)))

    def _tell(self, now_ms: int) -> None:
        due = self._told.earliest(_DUE)
        if due is None or due > now_ms:
            return
        for lot in in_lots(self._told.take_due(_DUE, now_ms)):
            now = [rows for _, rows in self._store.find(lot.select(self.keys))]
            self._send(lot.filter(_THERE).select(self._result), self._results(concat_rows(now) if now else None))


def _rewritten(
    spec: GroupBy, output: Mapping[str, pl.DataType]
) -> tuple[list[tuple[str, Aggregate]], dict[str, pl.DataType], list[pl.Expr]]:
    """The aggregates whose parts are kept, the types of their results, and how the results come from these."""
    inner: list[tuple[str, Aggregate]] = []
    wide: dict[str, pl.DataType] = {}
    finals: list[pl.Expr] = []
    for name, aggregate in spec.aggregates:
        final, wide[name] = pl.col(name), output[name]
        expr = aggregate.expr
        if aggregate.kind == "n_unique":
            inner.append((name, Aggregate("count", pl.lit(None, pl.Int64))))  # counts what ``_Values`` finds
        elif aggregate.kind in ("sum", "mean") and expr is not None and _may_be_infinite(spec, expr):
            inner.append((name, replace(aggregate, expr=pl.when(expr.is_finite()).then(expr))))
            tests = {"nan": expr.is_nan(), "up": expr == float("inf"), "down": expr == float("-inf")}
            inner += [(f"__{name}.{sort}", Aggregate("count", pl.when(test).then(1))) for sort, test in tests.items()]
            wide |= {f"__{name}.{sort}": pl.Int64() for sort in tests}
            nan, up, down = (pl.col(f"__{name}.{sort}") > 0 for sort in tests)
            final = pl.when(nan | (up & down)).then(float("nan")).when(up).then(float("inf"))
            final = final.when(down).then(float("-inf")).otherwise(pl.col(name)).alias(name)
        else:
            inner.append((name, aggregate))
        finals.append(final)
    return inner, wide, finals


def _may_be_infinite(spec: GroupBy, expr: pl.Expr) -> bool:
    return carries(spec.input.columns) and value_dtype(spec.input, expr).is_float()


# -- distinct values -----------------------------------------------------------------------------------
class _Values:
    """The distinct values of each key, and how many rows have them: without changes 1."""

    def __init__(self, id_: str, keys: list[str], spec: GroupBy, form: StateForm) -> None:
        self._keys = keys
        self._changing = carries(spec.input.columns)
        self._families: dict[str, tuple[pl.Expr, dict[str, pl.Expr | None]]] = {}
        for name, aggregate in spec.aggregates:
            if aggregate.kind == "n_unique" and aggregate.expr is not None:
                of, where = _condition(aggregate.expr)
                self._families.setdefault(str(of), (of, {}))[1][name] = where
        self._numbers = [f"{_N}.{name}" for _, where in self._families.values() for name in where]
        self._identity = [*keys, _OF, _NUMBER, _TEXT]
        types = {_ALL: pl.Int8(), **spec.input.columns, _OF: pl.Int64(), _NUMBER: pl.Int64(), _TEXT: pl.Binary()}
        self._types = {name: types.get(name, pl.Int64()) for name in (*self._identity, *self._numbers)}
        self.store = KeyedRows(f"{id_}.values", self._identity, [], [], self._conformed, form=form)

    def take(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """By key, how many more distinct values each aggregate has, under the name of its part."""
        return [self._take(text, of, where, rows) for text, (of, where) in self._families.items()]

    def _take(self, text: str, of: pl.Expr, where: dict[str, pl.Expr | None], rows: pl.DataFrame) -> pl.DataFrame:
        numbers = {name: f"{_N}.{name}" for name in where}
        tests = {numbers[name]: pl.lit(value=True) if test is None else test for name, test in where.items()}
        tested = rows.select(*self._keys, of.alias(_VALUE), *self._weight, **tests).drop_nulls(_VALUE)
        sums = [self._sum(number) for number in tests]
        found = tested.group_by(*self._keys, _VALUE).agg(sums).filter(pl.any_horizontal(pl.col(*tests) != 0))
        number, coded = _coded(found.get_column(_VALUE))
        name = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
        new = found.drop(_VALUE).with_columns(pl.lit(name, pl.Int64).alias(_OF), number, coded)
        known, before = self._before(new)
        after = {n: before[n] + new[n].to_numpy() if self._changing else before[n] | new[n].to_numpy() for n in tests}
        after = {n: np.maximum(values, 0) for n, values in after.items()}
        moved = np.any([after[n] != before[n] for n in tests], axis=0)
        self.store.take(new.select(self._identity).filter(pl.Series(moved & known)))
        others = [pl.Series(n, before[n]) for n in self._numbers if n not in tests]
        kept = new.with_columns(*(pl.Series(n, values) for n, values in after.items()), *others)
        there = moved & np.any([kept[n].to_numpy() > 0 for n in self._numbers], axis=0)
        self.store.put(kept.select(list(self._types)).filter(pl.Series(there)))
        more = {f"__count.0.{name}": (after[n] > 0).astype(np.int64) - (before[n] > 0) for name, n in numbers.items()}
        changes = new.select(self._keys).hstack(pl.DataFrame(more))
        return changes.group_by(self._keys).agg(pl.col(*more).sum())

    @property
    def _weight(self) -> list[str]:
        return [WEIGHT] if self._changing else []

    def _sum(self, number: str) -> pl.Expr:
        if self._changing:
            return pl.col(WEIGHT).filter(pl.col(number)).sum().alias(number)
        return pl.col(number).any().cast(pl.Int64)

    def _before(self, new: pl.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        known = np.zeros(new.height, np.bool_)
        before = {n: np.zeros(new.height, np.int64) for n in self._numbers}
        for places, rows in self.store.find(new.select(self._identity)):
            known[places] = True
            for n, values in before.items():
                values[places] = rows.get_column(n).to_numpy()
        return known, before

    def _conformed(self, rows: pl.DataFrame) -> pl.DataFrame:
        none = {name: pl.Series(name, [0], pl.Int64) for name in self._numbers}
        return conformed(self.store.id, rows, self._types, self._identity, none)


def _condition(expr: pl.Expr) -> tuple[pl.Expr, pl.Expr | None]:
    """``expr`` as a value, and when it counts: ``x.filter(p)`` is an expression that is null where ``p`` isn't true."""
    parts = expr.meta.pop()
    if len(parts) == 3 and expr.meta.eq(pl.when(parts[0]).then(parts[2])):
        return parts[2], parts[0]
    return expr, None


def _coded(values: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Values of any type as numbers or as bytes; equal ones, and no others, are equal."""
    dtype = values.dtype
    if dtype.is_float():
        floats = values.cast(pl.Float64).to_numpy() + 0.0  # there is no -0.0 then
        numbers = pl.Series(np.where(np.isnan(floats), np.nan, floats).view(np.int64))
    elif dtype == pl.UInt64:
        numbers = values.reinterpret(signed=True)
    elif dtype == pl.Boolean or dtype.is_temporal() or (dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128)):
        numbers = values.to_physical().cast(pl.Int64)
    else:
        text = values if dtype == pl.Binary else values.cast(pl.String).cast(pl.Binary)
        return pl.Series(_NUMBER, [None], pl.Int64).new_from_index(0, len(values)), text.alias(_TEXT)
    return numbers.alias(_NUMBER), pl.Series(_TEXT, [None], pl.Binary).new_from_index(0, len(values))


# -- rows that may be found again ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Found:
    """An aggregate that finds one row of a key, or some: ``value`` and ``by`` are columns of the rows kept for it."""

    name: str
    aggregate: Aggregate
    value: str
    by: str | None
    exprs: list[pl.Expr]
    aggregation: Aggregation

    @property
    def nets(self) -> bool:
        """Equal rows are one, whenever they came."""
        return self.aggregate.kind in ("min", "max")

    def moves(self, rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
        columns = [self.value] if self.by is None else [self.value, self.by]
        picked = rows.select(*keys, *self.exprs, pl.col(WEIGHT).alias(_N), pl.col(_SEEN))
        if self.aggregate.kind not in ("first", "last"):
            picked = picked.drop_nulls(columns[-1:])
        gone = pl.col(_N) < 0
        if self.nets:
            known = picked.group_by(*keys, *columns).agg(pl.col(_N).sum(), gone.any().alias(_WAS))
            return known.with_columns(pl.lit(None, pl.Int64).alias(_SEEN))
        return picked.with_columns(gone.alias(_WAS))

    def lost(
        self, moves: pl.DataFrame, merged: pl.DataFrame, before: pl.DataFrame | None, keys: list[str]
    ) -> pl.DataFrame:
        """The keys of which it may have found what is gone."""
        moves = moves.filter(pl.col(_WAS) & (pl.col(_N) <= 0)).drop(_WAS)
        if not moves.height:
            return moves.select(keys)
        best = self.aggregation.parts[0]
        moves = moves.join(merged.select(*keys, *self.aggregation.parts), on=keys, how="left", nulls_equal=True)
        if self.by is not None and self.aggregate.kind == "top_k":
            ranks = pl.col(self.aggregation.parts[1])
            out = (ranks.list.len() == self.aggregate.k) & (pl.col(self.by) < ranks.list.last())
            return moves.filter(out.fill_null(value=False).not_()).select(keys)
        hit = pl.col(self.value).eq_missing(pl.col(best))
        if self.nets and before is not None:  # it has gone and come back
            was = before.select(*keys, pl.col(best).alias(_WAS))
            moves = moves.join(was, on=keys, how="left", nulls_equal=True)
            hit &= (pl.col(_N) < 0) | pl.col(self.value).ne_missing(pl.col(_WAS))
        return moves.filter(hit).select(keys)


class _Rows:
    """The rows of each key that may be found when others are gone, with what has come and gone since they were read."""

    def __init__(
        self, id_: str, keys: list[str], spec: GroupBy, at: pl.Expr | None, calling: Calling, form: StateForm
    ) -> None:
        self._keys = keys
        types = {_ALL: pl.Int8(), **without_changes(spec.input)}
        self._types: dict[str, pl.DataType] = {**{key: types[key] for key in keys}, _OF: pl.String()}
        self._each: list[_Found] = []
        self._results = spec.results
        for name, aggregate in spec.aggregates if carries(spec.input.columns) else ():
            if aggregate.kind not in _ADDITIVE:
                self._each.append(self._found(name, aggregate, spec, at, calling))
        self._types |= {_SEEN: pl.Int64(), _N: pl.Int64()}
        self.parts = [part for each in self._each for part in each.aggregation.parts]
        self.store = KeyedRows(f"{id_}.rows", keys, [], [], self._conformed, form=form)

    def _found(self, name: str, aggregate: Aggregate, spec: GroupBy, at: pl.Expr | None, calling: Calling) -> _Found:
        assert aggregate.expr is not None, "what finds a row finds a value"
        value, by = f"{_VALUE}.{name}", None
        own: dict[str, pl.DataType] = {value: value_dtype(spec.input, aggregate.expr)}
        exprs = [aggregate.expr.alias(value)]
        if aggregate.by is not None or (at is not None and aggregate.kind in ("first", "last")):
            by = f"__by.{name}"
            own[by] = pl.Int64() if aggregate.by is None else value_dtype(spec.input, aggregate.by)
            exprs.append((at if aggregate.by is None else aggregate.by).alias(by))  # type: ignore[union-attr]
        self._types |= own
        again = replace(aggregate, expr=pl.col(value), by=None if aggregate.by is None or by is None else pl.col(by))
        time = None if by is None else pl.col(by)
        wide = {name: self._results[name]}
        return _Found(
            name,
            aggregate,
            value,
            by,
            exprs,
            Aggregation([(name, again)], wide, Schema.of(own), at=time, calling=calling),
        )

    def take(self, rows: pl.DataFrame, before: pl.DataFrame | None) -> list[pl.DataFrame]:
        """Keep what comes and goes, and return it for each aggregate."""
        if not self._each:
            return []
        place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
        if before is not None:
            seen = before.select(*self._keys, _SEEN)
            rows = rows.join(seen, on=self._keys, how="left", nulls_equal=True, maintain_order="left")
            place += pl.col(_SEEN).fill_null(0)
        rows = rows.with_columns(place.alias(_SEEN))
        moves = [each.moves(rows, self._keys) for each in self._each]
        named = zip(self._each, moves, strict=True)
        self.store.put(concat_rows([self._whole(each.name, some.filter(pl.col(_N) != 0)) for each, some in named]))
        return moves

    def lost(
        self, moves: Sequence[pl.DataFrame], merged: pl.DataFrame, before: pl.DataFrame | None
    ) -> pl.DataFrame | None:
        """The keys whose rows must be read."""
        if not self._each:
            return None
        keys = self._keys
        lost = [each.lost(some, merged, before, keys) for each, some in zip(self._each, moves, strict=True)]
        lost.append(merged.filter(_WORN).select(keys))
        found = concat_rows(lost).unique()
        return found if found.height else None

    def again(self, keys: pl.DataFrame) -> list[pl.DataFrame]:
        """The parts of the aggregates of these keys, found among all of their rows, and ``_MOVED``."""
        own = self._keys
        found = [rows for _, rows in self.store.find(keys.select(own))]
        kept = concat_rows(found) if found else pl.DataFrame(schema=self._types)
        alive = keys.filter(pl.col(_N) > 0)
        kept = self._left(kept.join(alive, on=own, how="semi", nulls_equal=True, maintain_order="left"))
        parts = [each.aggregation.partial(kept.filter(pl.col(_OF) == each.name), own) for each in self._each]
        worn = keys.filter(_WORN)
        if worn.height:
            self.store.take(worn.select(own))
            same = [name for name in self._types if name != _N]
            kept = kept.join(worn, on=own, how="semi", nulls_equal=True, maintain_order="left")
            kept = kept.group_by(same, maintain_order=True).agg(pl.col(_N).sum()).select(list(self._types))
            self.store.put(kept)
            number = kept.group_by(own).agg(-(pl.len().cast(pl.Int64) // len(self._each)).alias(_WAS))
            keys = keys.join(number, on=own, how="left", nulls_equal=True)
            keys = keys.with_columns(pl.when(_WORN).then(pl.col(_WAS).fill_null(0)).otherwise(_MOVED).alias(_MOVED))
        return [keys.select(*own, _MOVED), *parts]

    def _left(self, kept: pl.DataFrame) -> pl.DataFrame:
        """The rows that are there, in the order of arrival."""
        same = [name for name in self._types if name not in (_SEEN, _N)]
        gone = kept.filter(pl.col(_N) < 0).select(same).unique()
        rest = kept.join(gone, on=same, how="anti", nulls_equal=True, maintain_order="left")
        some = kept.join(gone, on=same, how="semi", nulls_equal=True, maintain_order="left")
        comes, goes = pl.col(_N).clip(lower_bound=0), pl.col(_N).clip(upper_bound=0)
        some = some.sort(_SEEN, maintain_order=True)
        unknown = (-pl.col(_N).cum_sum().over(same)).clip(lower_bound=0).max().over(same)  # went before it came
        left = (comes.cum_sum().over(same) + goes.sum().over(same) + unknown).clip(lower_bound=0)
        some = some.with_columns(pl.min_horizontal(comes, left).alias(_N)).filter(pl.col(_N) > 0)
        names = [each.name for each in self._each]
        return concat_rows([rest, some]).filter(pl.col(_OF).is_in(names)).sort(_SEEN, maintain_order=True)

    def _whole(self, name: str, rows: pl.DataFrame) -> pl.DataFrame:
        there = rows.columns
        exprs = [
            pl.col(column) if column in there else pl.lit(None, dtype).alias(column)
            for column, dtype in self._types.items()
            if column != _OF
        ]
        return rows.select(*exprs, pl.lit(name).alias(_OF)).select(list(self._types))

    def _conformed(self, rows: pl.DataFrame) -> pl.DataFrame:
        return conformed(self.store.id, rows, self._types, {*self._keys, _OF, _SEEN, _N})
