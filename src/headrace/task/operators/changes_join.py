"""The join of all rows of two flows: what it tells adds up to the SQL join of what both have told so far.

Each side keeps its rows by key; those of a flow of changes with how often each is there. A batch is netted, then its
rows meet those of their keys on the other side.

**Alone.** Some rows are also told (or, in a semi join, not told) because they have no partner. Such a side keeps with
each row whether it had one when it was last told. A batch of the other side turns the rows for which that has changed.
So nothing is taken back that wasn't told, even if partners have been forgotten.

Null keys have no partners: such rows aren't kept, and their deletions are told as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.api.operators.changes import ChangesJoin
from headrace.api.specs import Node
from headrace.core.errors import UsageError
from headrace.rows.changes import CHANGE, DELETE, INSERT, KIND, WEIGHT, summed, weighted
from headrace.rows.given import concat_rows, rows_where
from headrace.stores.base import StateStore, conformed
from headrace.stores.keyed import NEVER_DUE, KeyedRows
from headrace.task.operators.base import UNCOMPUTABLE, BuildContext, Operator
from headrace.task.tables import SWEEP_INTERVAL_MS

_TIMES, _MET, _DUE = "__n", "__met", "__due"
_ROW, _GONE, _NEEDED = "__row", "__gone", "__needed"
_EMITTED_ROWS_MAX = 1 << 17
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_KINDS = {kind: pl.Series(CHANGE, [kind], KIND) for kind in (INSERT, DELETE)}
Told = dict[str, list[pl.DataFrame]]  # by kind of change; rows with ``_TIMES`` are told so often


class ChangesJoinOperator(Operator):
    """A join of all rows of two flows, in one task."""

    def __init__(self, node: Node, spec: ChangesJoin, context: BuildContext) -> None:
        super().__init__(node)
        assert node.schema is not None, "a join has an output schema"
        self.spec = spec
        self.counters = context.counters
        self.columns = {name: dtype for name, dtype in node.schema.columns.items() if name != CHANGE}
        self._changing = CHANGE in node.schema.columns
        self._multiplies = spec.how not in ("semi", "anti")
        self._told_alone = spec.how != "semi"  # else a row is told while it has a partner
        self._left = JoinSide(self, 0, context)
        self._right = JoinSide(self, 1, context)
        self._swept_ms = 0

    @override
    def side(self, number: int) -> Operator:
        return self._right if number else self._left

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._left.store, self._right.store)

    @override
    def due_ms(self) -> int | None:
        if self.spec.ttl_ms is None:
            return None
        dues = [due for side in (self._left, self._right) if (due := side.store.earliest(_DUE)) is not None]
        return max(min(dues), self._swept_ms + SWEEP_INTERVAL_MS) if dues else None

    @override
    def on_time(self, now_ms: int) -> None:
        if self.spec.ttl_ms is not None:
            self._swept_ms = now_ms
            for side in (self._left, self._right):
                side.store.take_due(_DUE, now_ms)

    def now(self) -> int:
        if self.now_ms is None:
            raise UsageError(f"join {self.node.id!r} got rows before the wall clock was set")
        return self.now_ms

    def meet(self, side: JoinSide, rows: pl.DataFrame) -> None:
        if self.spec.ttl_ms is not None:
            self.on_time(self.now())
        other = self._left if side is self._right else self._right
        told: Told = {DELETE: [], INSERT: []}
        added, removed = side.netted(rows)
        if side.keys:
            for kind, some in ((DELETE, removed), (INSERT, added)):
                if side.lone and self._told_alone:
                    told[kind].append(side.without_key(some))
            added, removed = side.with_key(added), side.with_key(removed)
        added, gone = side.take(added, removed)
        keys, (gone_rows, new) = side.by_key([gone, added])
        theirs, numbers = other.find(keys)
        lost, _ = self._multiply(side, gone_rows, theirs, numbers, DELETE)
        gained, met = self._multiply(side, new, theirs, numbers, INSERT)
        if side.lone:
            told[DELETE].append(_where(gone, gone.get_column(_MET).to_numpy() != self._told_alone))
            told[INSERT].append(_where(added, met != self._told_alone))
        told = {kind: [side.alone(frame) for frame in frames if frame.height] for kind, frames in told.items()}
        if other.lone and theirs.height:
            had = theirs.get_column(_MET).to_numpy()
            leaves = had & lost & ~gained
            if leaves.any():
                leaves[leaves] = ~self._paired(side, keys, _where(theirs, leaves), numbers[leaves])
            for joins, turned in ((True, ~had & gained), (False, leaves)):
                if turned.any():
                    rows = _where(theirs, turned)
                    told[DELETE if joins == self._told_alone else INSERT].append(other.alone(rows))
                    other.turn(rows, met=joins)
        for kind, frames in told.items():
            for frame in frames:
                self._tell(frame[list(self.columns)], _times(frame), kind)
        side.put(added, met)

    def _multiply(
        self, side: JoinSide, mine: _ByKey, theirs: pl.DataFrame, numbers: Numbers, kind: str
    ) -> tuple[Mask, Mask]:
        """Tell the products of rows of ``side`` and of the other one; return which of ``theirs`` and ``mine`` have any.

        ``numbers`` are those of the keys of ``theirs``.
        """
        where = self.spec.where
        met, theirs_met = np.zeros(mine.rows.height, np.bool_), np.zeros(theirs.height, np.bool_)
        if where is None and mine.rows.height:
            there = np.zeros(len(mine.counts), np.bool_)
            there[numbers] = True
            met, theirs_met = there[mine.numbers], mine.counts[numbers] > 0
        if where is None and not self._multiplies:
            return theirs_met, met
        counts = _times(mine.rows), _times(theirs)
        for rows, of_mine, of_theirs in self._pairs(side, mine, theirs, numbers):
            if where is not None:
                met[of_mine] = theirs_met[of_theirs] = True
            if self._multiplies:
                often = [n[of] for n, of in zip(counts, (of_mine, of_theirs), strict=True) if n is not None]
                self._tell(rows, np.prod(often, axis=0) if often else None, kind)
        return theirs_met, met

    def _paired(self, side: JoinSide, keys: pl.DataFrame, theirs: pl.DataFrame, numbers: Numbers) -> Mask:
        """Which of ``theirs`` have partners that ``side`` keeps."""
        some, number_of = np.unique(numbers, return_inverse=True)
        rows, of_keys = side.find(keys[some], one=self.spec.where is None)
        mine = _ByKey(rows, of_keys, len(some))
        if self.spec.where is None:
            return mine.counts[number_of] > 0
        found = np.zeros(theirs.height, np.bool_)
        for _, _, of_theirs in self._pairs(side, mine, theirs, number_of):
            found[of_theirs] = True
        return found

    def _pairs(
        self, side: JoinSide, mine: _ByKey, theirs: pl.DataFrame, numbers: Numbers
    ) -> Iterator[tuple[pl.DataFrame, Numbers, Numbers]]:
        """Joined rows, some at a time, each with its place in ``mine`` and in ``theirs``."""
        if not mine.rows.height or not theirs.height:
            return
        other = self._left if side is self._right else self._right
        my_rows, their_rows = side.named(mine.rows), other.named(theirs)
        for of_theirs, nth in _spread(mine.counts[numbers]):
            of_mine = mine.order[mine.starts[numbers[of_theirs]] + nth]
            parts = [(my_rows, of_mine), (their_rows, of_theirs)]
            ordered = parts if side is self._left else parts[::-1]
            rows = pl.DataFrame([column for each, of in ordered if each.width for column in each[of].get_columns()])
            if self.spec.where is None:
                yield rows, of_mine, of_theirs
            elif (agree := self._agree(rows)).any():
                yield _where(rows, agree), of_mine[agree], of_theirs[agree]

    def _agree(self, rows: pl.DataFrame) -> Mask:
        assert self.spec.where is not None, "only called with a condition"
        try:
            mask = rows.select(self.spec.where).to_series().fill_null(value=False)
        except UNCOMPUTABLE as error:
            raise self.failed(error, "the condition") from error
        return np.broadcast_to(mask.to_numpy(), rows.height)  # a constant is one value

    def _tell(self, rows: pl.DataFrame, times: Numbers | None, kind: str) -> None:
        if times is not None and (times != 1).any():
            for which, _ in _spread(times):
                self._send(rows[which], kind)
            return
        for part in rows.iter_slices(_EMITTED_ROWS_MAX):
            self._send(part, kind)

    def _send(self, rows: pl.DataFrame, kind: str) -> None:
        self.emit(rows.hstack([_KINDS[kind].new_from_index(0, rows.height)]) if self._changing else rows)


class JoinSide(Operator):
    """One input of a join, and its rows."""

    def __init__(self, join: ChangesJoinOperator, number: int, context: BuildContext) -> None:
        super().__init__(join.node)
        spec, right = join.spec, number == 1
        kept = spec.kept_columns(context.inputs)[number]
        self._join = join
        self._columns = list(kept)
        self.keys = list(spec.right_keys if right else spec.left_keys)
        self._changes = CHANGE in context.inputs[number].columns
        self.lone = spec.how in (("right", "full") if right else ("left", "full", "semi", "anti"))
        self._as_set = right and spec.how in ("semi", "anti") and not self._changes  # one of equal rows is enough
        own: dict[str, pl.DataType] = {_TIMES: pl.Int64()} if self._changes else {}
        own |= {_MET: pl.Boolean()} if self.lone else {}
        own |= {} if spec.ttl_ms is None else {_DUE: pl.Int64()}
        self._types = types = {**kept, **own}
        self._expires = spec.ttl_ms is not None
        id_ = f"{self.node.id}.{'right' if right else 'left'}"
        values = [name for name in kept if name not in self.keys] if self._changes or self.lone else []
        self.store = KeyedRows(
            id_,
            self.keys,
            values,
            [_DUE] if self._expires else [],
            lambda rows: conformed(id_, rows, types, {*self.keys, *own}),
            form=spec.state_forms(self.node.id, context.inputs)[id_],
            by_row=[name for name in values if not kept[name].is_nested()],
        )
        names = spec.right_names if right else {name: name for name in kept}
        self._named = [(old, new) for old, new in names.items() if old in kept]
        shared = dict(zip(self.keys, spec.left_keys, strict=True))
        shown = {new: old for old, new in (shared | dict(names)).items()}
        self._alone = [
            pl.col(shown[name]).alias(name) if name in shown else pl.lit(None, dtype).alias(name)
            for name, dtype in join.columns.items()
        ]

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self._join.meet(self, rows)

    def named(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Its columns of joined rows."""
        return pl.DataFrame([rows.get_column(old).alias(new) for old, new in self._named])

    def alone(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Results of rows without a partner."""
        return rows.select(*self._alone, *([_TIMES] if self._changes else []))

    def netted(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows that a batch adds, and those that it takes away."""
        if not self._changes:
            rows = rows[self._columns]
            return (rows.unique() if self._as_set else rows), rows.clear()
        rows = weighted(rows[[*self._columns, CHANGE]])
        if (rows.get_column(WEIGHT) > 0).all():
            rows = rows.rename({WEIGHT: _TIMES})
            return rows, rows.clear()
        if self._expires:
            return self._by_age(rows)
        rows = summed(rows)
        adds = (rows.get_column(WEIGHT) > 0).to_numpy()
        rows = rows.rename({WEIGHT: _TIMES}).with_columns(pl.col(_TIMES).abs())
        return _where(rows, adds), _where(rows, ~adds)

    def _by_age(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Not netted: of equal rows, the one that came first goes, and a later one stays for longer.

        ``_NEEDED``: how many must be there before, so that none is taken away that isn't there.
        """
        weight, adds = pl.col(WEIGHT), pl.col(WEIGHT).clip(lower_bound=0)
        rows = rows.group_by(self._columns).agg(
            adds.sum().alias(_TIMES), (adds - weight).sum().alias(_GONE), -weight.cum_sum().min().alias(_NEEDED)
        )
        added, removed = rows.filter(pl.col(_TIMES) > 0), rows.filter(pl.col(_GONE) > 0)
        return added.drop(_GONE, _NEEDED), removed.with_columns(pl.col(_GONE).alias(_TIMES)).drop(_GONE)

    def with_key(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.drop_nulls(self.keys) if self._lacks_key(rows) else rows

    def without_key(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(pl.any_horizontal(pl.col(self.keys).is_null())) if self._lacks_key(rows) else rows.clear()

    def _lacks_key(self, rows: pl.DataFrame) -> bool:
        return any(rows.get_column(key).null_count() for key in self.keys)

    def by_key(self, frames: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, list[_ByKey]]:
        """The different keys of all these rows, and the rows by the numbers of their keys."""
        if self.keys:
            keys, numbers = _numbered(concat_rows([frame[self.keys] for frame in frames]))
        else:
            keys, numbers = pl.DataFrame({_ROW: [0]}), np.zeros(sum(frame.height for frame in frames), np.int64)
        ends = np.cumsum([frame.height for frame in frames])
        parts = zip(frames, np.split(numbers, ends[:-1]), strict=True)
        return keys, [_ByKey(frame, part, keys.height) for frame, part in parts]

    def find(self, keys: pl.DataFrame, *, one: bool = False) -> tuple[pl.DataFrame, Numbers]:
        """The rows of these keys, which may be the other side's, and the number of each one's key."""
        found = list(self.store.find(self._own(keys), one=one)) if keys.height else []
        if not found:
            return pl.DataFrame(schema=self._types), np.empty(0, np.int64)
        return concat_rows([rows for _, rows in found]), np.concatenate([numbers for numbers, _ in found])

    def take(self, added: pl.DataFrame, removed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Take out rows; return what is still to be added, and what is gone."""
        none = pl.DataFrame(schema=self._types)
        if not removed.height:
            return added, none
        before = self.store.take_rows(removed[self._columns])
        before = none if before is None else before
        if self._expires:
            return self._oldest(added, before, removed)
        met = [pl.col(_MET).any()] if self.lone else []
        gone, times = pl.col(_GONE), pl.col(_TIMES)
        rows = concat_rows([before.with_columns(pl.lit(0, pl.Int64).alias(_GONE)), self._wanted(removed)])
        rows = rows.group_by(self._columns).agg(times.sum(), gone.sum(), *met)
        self._missing(int(rows.select((gone - times).clip(lower_bound=0).sum()).item()))
        return added, self._parted(rows.with_columns(pl.min_horizontal(gone, times).alias(_GONE)))

    def _oldest(
        self, added: pl.DataFrame, before: pl.DataFrame, removed: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        gone, times, lacking, columns = pl.col(_GONE), pl.col(_TIMES), pl.col(_NEEDED), self._columns
        zero = pl.lit(0, pl.Int64)
        wanted = self._wanted(removed).with_columns(removed.get_column(_NEEDED))
        rows = concat_rows([before.with_columns(zero.alias(_GONE), zero.alias(_NEEDED)), wanted])
        rows = rows.sort(_DUE, maintain_order=True)  # ``wanted`` last
        there = times.sum().over(columns)
        rows = rows.with_columns((lacking.sum().over(columns) - there).clip(lower_bound=0).alias(_NEEDED))
        rows = rows.with_columns(
            (gone.sum().over(columns) - lacking - times.cum_sum().over(columns) + times).alias(_GONE)
        )
        of_batch = rows.get_column(_DUE) == NEVER_DUE
        rest = rows.filter(of_batch)
        self._missing(int(rest.get_column(_NEEDED).sum()))
        at_once = rest.filter(gone > 0)  # added and taken away by one batch: only their partners lose one
        if at_once.height:
            less = at_once.select(*columns, (-gone).alias(_TIMES))
            added = concat_rows([added.select(less.columns), less]).group_by(columns).agg(times.sum()).filter(times > 0)
        rows = rows.filter(~of_batch).with_columns(gone.clip(0, times))
        left = self._parted(rows)
        return added, concat_rows([left, at_once.select(left.columns)])

    def _wanted(self, removed: pl.DataFrame) -> pl.DataFrame:
        own = {_TIMES: 0, _MET: False, _DUE: NEVER_DUE}
        rows = removed.rename({_TIMES: _GONE})
        rows = rows.with_columns(
            pl.lit(own[name], self._types[name]).alias(name) for name in own if name in self._types
        )
        return rows.select(*self._types, _GONE)

    def _parted(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put back those that stay; return those that are gone."""
        gone = pl.col(_GONE)
        stay = rows.filter(pl.col(_TIMES) > gone).with_columns(pl.col(_TIMES) - gone)
        self.store.put(stay.select(list(self._types)))
        return rows.filter(gone > 0).with_columns(gone.alias(_TIMES)).select(list(self._types))

    def _missing(self, number: int) -> None:
        self._join.counters.count("missing", number)

    def put(self, added: pl.DataFrame, met: Mask) -> None:
        if self._as_set and self._columns == self.keys and not self._expires:
            known = np.zeros(added.height, np.bool_)
            for places, _ in self.store.find(added, one=True):
                known[places] = True
            added = _where(added, ~known)
        own = [pl.Series(_MET, met)] if self.lone else []
        if (ttl_ms := self._join.spec.ttl_ms) is not None:
            own.append(pl.Series(_DUE, [self._join.now() + ttl_ms], pl.Int64).new_from_index(0, added.height))
        self.store.put(added.hstack(own)[list(self._types)])

    def turn(self, rows: pl.DataFrame, *, met: bool) -> None:
        """Rows that have got a first partner, or lost their last one."""
        taken = self.store.take_rows(rows[self._columns].unique())
        assert taken is not None, "rows that were found are there"
        self.store.put(taken.with_columns(pl.lit(met).alias(_MET)))

    def _own(self, keys: pl.DataFrame) -> pl.DataFrame:
        return keys.rename(dict(zip(keys.columns, self.keys, strict=True))) if self.keys else keys


class _ByKey:
    """Rows by the numbers of their keys: those of key k are ``counts[k]`` of ``order``, from ``starts[k]`` on."""

    def __init__(self, rows: pl.DataFrame, numbers: Numbers, keys: int) -> None:
        self.rows, self.numbers = rows, numbers
        self.counts = np.bincount(numbers, minlength=keys)
        self.starts = np.cumsum(self.counts) - self.counts
        self.order = np.argsort(numbers)


def _numbered(rows: pl.DataFrame) -> tuple[pl.DataFrame, Numbers]:
    """The different rows, and for each row the number of the one that it is equal to."""
    if rows.height == 1:
        return rows, np.zeros(1, np.int64)
    grouped = rows.with_row_index(_ROW).group_by(rows.columns).agg(_ROW)
    places = grouped.get_column(_ROW)
    numbers = np.empty(rows.height, np.int64)
    numbers[places.explode(empty_as_null=False).to_numpy()] = np.repeat(
        np.arange(grouped.height), places.list.len().to_numpy()
    )
    return grouped.drop(_ROW), numbers


def _spread(counts: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Each place as often as it counts, with a number from 0 on: of 2 and 1, (0, 0), (0, 1), (1, 0). In portions."""
    ends = np.cumsum(counts)
    begins = ends - counts
    total = int(ends[-1]) if len(ends) else 0
    for first in range(0, total, _EMITTED_ROWS_MAX):
        after = min(first + _EMITTED_ROWS_MAX, total)
        low, high = np.searchsorted(ends, [first, after - 1], "right")
        some = slice(low, high + 1)
        here = np.minimum(ends[some], after) - np.maximum(begins[some], first)
        which = np.repeat(np.arange(low, high + 1), here)
        yield which, np.arange(first, after) - begins[which]


def _times(rows: pl.DataFrame) -> Numbers | None:
    return rows.get_column(_TIMES).to_numpy() if _TIMES in rows.columns else None


def _where(rows: pl.DataFrame, mask: Mask) -> pl.DataFrame:
    return rows if mask.all() else rows_where(rows, pl.Series(mask))
