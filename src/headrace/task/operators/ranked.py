"""The first rows of each key in an order, and the last row of each key: what they are, told as changes.

**First rows.** The state has one row for each key, with lists: its first rows in order, equal ones once with their
number. Of a flow without changes, the results never need others. Most rows of a batch are behind the last one of these
already, and go at once.

Of a flow of changes, a result may be deleted, and a row behind it takes its place. So a list has some more rows than
there are results, and all further rows are in a second store, the *rest*, by all their columns: a row can be changed
there without reading the others of its key. All rows of the rest are behind those in the list. Only when a list becomes
too short, the rest is read for what comes next.

**Order of arrival.** Rows are numbered within their key. Equal rows of a flow of changes are one, which came when the
last of them did; so it doesn't matter where batches were cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.api.operators.changes import Latest, Top, without_changes
from headrace.api.specs import Node
from headrace.core.errors import DeclarationError
from headrace.rows.changes import AFTER, CHANGE, INSERT, WEIGHT, summed, told, updates, weighted
from headrace.rows.dtypes import Columns
from headrace.rows.given import concat_rows, rows_where
from headrace.rows.hashing import hash_rows
from headrace.stores.base import StateStore, conformed, readable
from headrace.stores.keyed import KeyedRows
from headrace.task.operators.base import BuildContext, Operator

_ALL = "__all"  # the key, if there is none
_KEY = "__key"  # the number of a row's key in the batch
_SEQ = "__seq"  # its number by arrival
_N = "__n"  # how many equal rows it stands for; of a batch, how many more
_TOLD = "__told"  # how many of them are results; of old rows, before the batch
_MARK = "__mark"  # it was in its key's list before the batch (1), or arrived with it (2)
_REST = "__rest"  # how many rows the rest has of a key
_NEXT = "__next"  # of a key: all its rows have lower numbers
_SPARE = 16
_EMITTED_ROWS_MAX = 1 << 17

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def _earlier(keys: npt.NDArray[np.uint32], numbers: Numbers) -> Numbers:
    """For each row the sum of the numbers of earlier rows of its key; the rows of a key are together."""
    before = np.cumsum(numbers) - numbers
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])) if len(keys) else np.empty(0, np.int64)
    found: Numbers = before - np.repeat(before[begins], np.diff(np.append(begins, len(keys))))
    return found


def _codes(keys: pl.Series, values: pl.Series, *, down: bool) -> Numbers:
    """Numbers in the order of the keys, and then of the values, of which nulls are last."""
    physical = values.to_physical()
    low, high = physical.min(), physical.max()
    most = int(keys.max() or 0) + 1  # type: ignore[arg-type]
    close = isinstance(low, int) and isinstance(high, int) and (high - low + 2) * most < 1 << 62
    if close and physical.dtype in (pl.Int8, pl.Int16, pl.Int32, pl.Int64):
        known = physical.cast(pl.Int64).fill_null(low).to_numpy()
        numbers = high - known if down else known - low
    else:
        numbers = values.rank("dense", descending=down).fill_null(0).to_numpy().astype(np.int64)
    behind = int(numbers.max(initial=0)) + 1
    if values.null_count():
        numbers[values.is_null().to_numpy()] = behind
    found: Numbers = keys.to_numpy().astype(np.int64) * (behind + 1) + numbers
    return found


def _united(rows: pl.DataFrame, same: Sequence[str]) -> pl.DataFrame:
    """Equal rows, which follow each other, as one."""
    differ = [pl.col(name).ne_missing(pl.col(name).shift()) for name in same]
    begins = rows.select(pl.any_horizontal(differ)).to_series().to_numpy(writable=True)
    begins[:1] = True
    if begins.all():
        return rows
    starts = np.flatnonzero(begins)
    sums = [pl.Series(name, np.add.reduceat(rows.get_column(name).to_numpy(), starts)) for name in (_N, _TOLD)]
    mark = pl.Series(_MARK, np.maximum.reduceat(rows.get_column(_MARK).to_numpy(), starts))
    return rows[starts].with_columns(*sums, mark)


def _with(rows: pl.DataFrame, *columns: pl.Series) -> pl.DataFrame:
    """What ``with_columns`` does, which is a query of Polars: a tenth of a millisecond, however few rows there are."""
    new = {column.name for column in columns}
    return pl.DataFrame([*(column for column in rows.get_columns() if column.name not in new), *columns])


def _hashable(name: str, dtype: pl.DataType) -> bool:
    try:
        hash_rows(pl.DataFrame(schema={name: dtype}), [name])
    except DeclarationError:
        return False
    return True


class _Telling(Operator):
    def tell(self, changes: pl.DataFrame) -> None:
        for part in changes.iter_slices(_EMITTED_ROWS_MAX):
            self.emit(part)


class FirstRows(_Telling):
    """The first rows of each key in the order of columns, or of their arrival."""

    def __init__(self, node: Node, spec: Top | Latest, context: BuildContext) -> None:
        super().__init__(node)
        assert node.schema is not None, "a step that tells changes has an output schema"
        top = spec if isinstance(spec, Top) else Top(n=1, keys=spec.keys, by=(), descending=(), input=spec.input)
        columns = without_changes(spec.input)
        self._counters = context.counters
        self._columns = [name for name in node.schema.columns if name != CHANGE]
        self._n, self._rank = top.n, top.rank
        self._changes = CHANGE in spec.input.columns
        self._keys = list(top.keys) or [_ALL]
        self._values = [name for name in columns if name not in top.keys]
        order = dict(zip(top.by, top.descending, strict=True)) if top.by else {}
        order |= {name: False for name in self._values if name not in order}
        self._order = {name: down for name, down in order.items() if name not in top.keys}
        self._arrival = not top.by
        self._latest = self._arrival and all(top.descending)
        if self._arrival:
            self._order = {_SEQ: self._latest}
        self._listed = [*self._values, *([_SEQ] if self._arrival else []), _N]
        self._most = 2 * self._n + _SPARE if self._changes else self._n
        self._build_stores(node, spec, context, columns)

    def _build_stores(self, node: Node, spec: Top | Latest, context: BuildContext, columns: Columns) -> None:
        forms = spec.state_forms(node.id, context.inputs)
        rest = f"{node.id}.rest"
        types = {_ALL: pl.UInt8(), **columns, _SEQ: pl.Int64(), _N: pl.Int64()}
        self._of_list = {name: types[name] for name in (*self._keys, *self._listed)}
        lists = {name: pl.List(types[name]) for name in self._listed}
        self._kept: Columns = {
            **{name: types[name] for name in self._keys},
            **lists,
            _REST: pl.Int64(),
            _NEXT: pl.Int64(),
        }
        self._store = KeyedRows(
            node.id,
            self._keys,
            [],
            [],
            self._conformed,
            form=forms[node.id],
            shown=lambda rows: readable(self._rows(rows)),
        )
        content = [*self._keys, *self._values]
        self._exact = [name for name in content if _hashable(name, types[name])]
        self._inexact = [name for name in content if name not in self._exact]
        self._rest = KeyedRows(
            rest,
            self._exact,
            self._inexact,
            [],
            lambda rows: conformed(rest, rows, self._of_list, {*self._keys, _N}),
            form=forms.get(rest),
        )

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._store, self._rest) if self._changes else (self._store,)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if self._keys == [_ALL]:
            rows = rows.with_columns(pl.lit(0, pl.UInt8).alias(_ALL))
        keys = rows[self._keys].unique()
        keys = _with(keys, pl.Series(_KEY, np.arange(keys.height, dtype=np.uint32)))
        kept = self._find(keys)
        after = np.zeros(keys.height, np.int64)
        after[kept.get_column(_KEY).to_numpy()] = kept.get_column(_NEXT).to_numpy()
        new = weighted(rows).rename({WEIGHT: _N})
        new = new.join(keys, on=self._keys, how="left", maintain_order="left", nulls_equal=True)
        if self._arrival:
            seq = after[new.get_column(_KEY).to_numpy()] + np.arange(new.height)
            new = new.with_columns(pl.when(pl.col(_N) > 0).then(pl.Series(seq)).alias(_SEQ))
            after += new.height
        if not self._changes:
            new = self._hopeful(new, kept)
            kept = kept.filter(pl.col(_KEY).is_in(new.get_column(_KEY).unique().implode()))
        if new.height:
            self._take_in(new, kept, keys, after)

    def _find(self, keys: pl.DataFrame) -> pl.DataFrame:
        """What the state has of these keys."""
        found = self._store.find(keys[self._keys])
        frames = [_with(rows, pl.Series(_KEY, places, pl.UInt32)) for places, rows in found]
        return concat_rows(frames) if frames else pl.DataFrame(schema={**self._kept, _KEY: pl.UInt32})

    def _hopeful(self, new: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
        """The rows without those that are behind the last one of a full list by the first column of the order."""
        first, down = next(iter(self._order.items()), (_N, False))
        if not kept.height or new.schema[first].is_nested():
            return new
        full = kept.filter(pl.col(_N).list.sum() >= self._n)
        last = full.select(_KEY, pl.lit(value=True).alias(_REST), pl.col(first).list.last().alias(_TOLD))
        row, edge = pl.col(first), pl.col(_TOLD)
        behind = (row < edge if down else row > edge) | row.is_null()
        joined = new.join(last, on=_KEY, how="left", maintain_order="left")
        out = pl.col(_REST).fill_null(value=False) & edge.is_not_null() & behind
        return joined.filter(~out.fill_null(value=False)).drop(_REST, _TOLD)

    def _take_in(self, new: pl.DataFrame, kept: pl.DataFrame, keys: pl.DataFrame, after: Numbers) -> None:
        rest = np.zeros(keys.height, np.int64)
        rest[kept.get_column(_KEY).to_numpy()] = kept.get_column(_REST).to_numpy()
        old = self._rows(kept[[_KEY, *self._listed]].sort(_KEY))
        old = _with(old, pl.Series(_TOLD, self._results(old)), pl.Series(_MARK, np.ones(old.height, np.int8)))
        frames = [old, self._marked(new, new.get_column(_N).to_numpy() > 0 if self._arrival else None)]
        if rest.any():
            outside = self._taken_from_rest(new, keys, rest)
            rest -= np.bincount(outside.get_column(_KEY).to_numpy(), minlength=len(rest))
            frames.append(self._marked(outside))
        firsts, others = self._placed(concat_rows(frames), rest)
        if self._changes:
            firsts = self._balanced(firsts, others, keys, rest)
        now = pl.Series(_TOLD, self._results(firsts))
        differ = [(now - firsts.get_column(_TOLD)).alias(WEIGHT), (-others.get_column(_TOLD)).alias(WEIGHT)]
        parts = (_with(rows, change) for rows, change in zip((firsts, others), differ, strict=True))
        changed = concat_rows([rows_where(rows, rows.get_column(WEIGHT) != 0) for rows in parts])
        self._keep(firsts, kept, keys, changed, rest, after)
        self._tell(old, _with(firsts, now), changed, keys)

    def _results(self, rows: pl.DataFrame) -> Numbers:
        """How many of the equal rows that each row of the lists stands for are results."""
        of_key, number = rows.get_column(_KEY).to_numpy(), rows.get_column(_N).to_numpy()
        found: Numbers = np.minimum(number, np.maximum(self._n - _earlier(of_key, number), 0))
        return found

    def _marked(self, rows: pl.DataFrame, marks: npt.NDArray[np.bool_] | None = None) -> pl.DataFrame:
        none = np.zeros(rows.height, np.int64)
        mark = (none if marks is None else 2 * marks).astype(np.int8)
        return _with(rows[[_KEY, *self._listed]], pl.Series(_TOLD, none), pl.Series(_MARK, mark))

    def _taken_from_rest(self, new: pl.DataFrame, keys: pl.DataFrame, rest: Numbers) -> pl.DataFrame:
        """Rows of the rest that are equal to new ones."""
        wanted = rows_where(new, pl.Series(rest[new.get_column(_KEY).to_numpy()] > 0))[self._exact].unique()
        found = self._rest.take(wanted)
        return self._numbered(pl.DataFrame(schema=self._of_list) if found is None else found, keys)

    def _numbered(self, rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        return rows.join(keys, on=self._keys, how="inner", nulls_equal=True)

    def _placed(self, rows: pl.DataFrame, rest: Numbers) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows of the lists in order, and all others. Some of these are gone: they have a number of 0."""
        if self._arrival and self._changes:  # equal rows come at different times
            sums = pl.col(_N, _TOLD).sum(), pl.col(_SEQ, _MARK).max()
            rows = self._sorted(rows.group_by(_KEY, *self._values).agg(*sums))
        else:
            rows = _united(self._sorted(rows), [_KEY, *self._listed[:-1]])
        of_key, number = rows.get_column(_KEY).to_numpy(), rows.get_column(_N).to_numpy()
        self._counters.count("missing", int(-number[number < 0].sum()))
        mark = rows.get_column(_MARK).to_numpy()
        certain = np.flatnonzero(mark > 0 if self._latest or not self._arrival else mark == 1)
        edge = np.full(len(rest), -1, np.int64)
        edge[of_key[certain]] = certain  # the last one of a key
        listed = (number > 0) & ((rest[of_key] == 0) | (np.arange(len(number)) <= edge[of_key]))
        before = _earlier(of_key, np.where(listed, 1 if self._changes else number, 0))
        listed &= before < self._most
        if not self._changes:
            number = np.where(listed, np.minimum(number, self._n - before), 0)
        rows = _with(rows.drop(_MARK), pl.Series(_N, np.maximum(number, 0)))
        return rows_where(rows, pl.Series(listed)), rows_where(rows, pl.Series(~listed))

    def _sorted(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows by key, and those of a key in order."""
        names = list(self._order)
        plain = bool(names) and not rows.schema[names[0]].is_nested()
        first, others = (names[0], names[1:]) if plain else (_KEY, names)
        codes = _codes(rows.get_column(_KEY), rows.get_column(first), down=self._order.get(first, False))
        order = np.argsort(codes, kind="stable")  # the old rows are in order, so this is a merge
        codes = codes[order]
        same = codes[1:] == codes[:-1]
        if others and same.any():
            tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
            part = _with(rows[others][order[tied]], pl.Series(_KEY, codes[tied]))
            down = [False, *(self._order[name] for name in others)]
            within = part.select(pl.arg_sort_by([_KEY, *others], descending=down, nulls_last=True)).to_series()
            order[tied] = order[tied][within.to_numpy()]
        return rows[order]

    def _balanced(self, firsts: pl.DataFrame, others: pl.DataFrame, keys: pl.DataFrame, rest: Numbers) -> pl.DataFrame:
        """Put the others into the rest, and take from there what comes next, of keys whose list is too short."""
        back = rows_where(others, others.get_column(_N) > 0)
        rest += np.bincount(back.get_column(_KEY).to_numpy(), minlength=len(rest))
        self._put_rest(self._with_keys(back, keys))
        number = np.bincount(firsts.get_column(_KEY).to_numpy(), firsts.get_column(_N).to_numpy(), len(rest))
        short = np.flatnonzero((number < self._n) & (rest > 0))
        if not len(short):
            return firsts
        wanted = keys[short]
        found = self._sorted(concat_rows([self._numbered(rows, wanted) for rows in self._rest.held()]))
        place = _earlier(found.get_column(_KEY).to_numpy(), np.ones(found.height, np.int64))
        next_ = rows_where(found, pl.Series(place < self._n + _SPARE))
        rest -= np.bincount(next_.get_column(_KEY).to_numpy(), minlength=len(rest))
        taken = self._rest.take(next_[self._exact].unique())
        if self._inexact and taken is not None:
            moved = _with(next_, -next_.get_column(_N))[taken.columns]
            self._put_rest(summed(concat_rows([taken, moved]).rename({_N: WEIGHT})).rename({WEIGHT: _N}))
        moved = _with(next_, pl.Series(_TOLD, np.zeros(next_.height, np.int64)))
        return concat_rows([firsts, moved[firsts.columns]]).sort(_KEY, maintain_order=True)

    def _put_rest(self, rows: pl.DataFrame) -> None:
        self._rest.put(rows[list(self._of_list)])

    def _keep(
        self,
        firsts: pl.DataFrame,
        kept: pl.DataFrame,
        keys: pl.DataFrame,
        changed: pl.DataFrame,
        rest: Numbers,
        after: Numbers,
    ) -> None:
        if not self._changes:  # then the lists are the results
            of = changed.get_column(_KEY).unique().implode()
            firsts, kept = firsts.filter(pl.col(_KEY).is_in(of)), kept.filter(pl.col(_KEY).is_in(of))
        if kept.height:
            self._store.take(kept[self._keys])
        lists = firsts.group_by(_KEY, maintain_order=True).agg(self._listed)
        of_key = lists.get_column(_KEY).to_numpy()
        counts = pl.Series(_REST, rest[of_key]), pl.Series(_NEXT, after[of_key])
        self._store.put(self._with_keys(_with(lists, *counts), keys)[list(self._kept)])

    def _with_keys(self, rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        return rows.hstack(keys[self._keys][rows.get_column(_KEY)])

    def _tell(self, old: pl.DataFrame, now: pl.DataFrame, changed: pl.DataFrame, keys: pl.DataFrame) -> None:
        if not changed.height:
            return
        columns = [name for name in self._columns if name != self._rank]
        if self._rank is not None:
            of = pl.col(_KEY).is_in(changed.get_column(_KEY).unique().implode())
            before, after = (self._ranked(self._with_keys(rows.filter(of), keys)) for rows in (old, now))
            self.tell(updates(before, after, [*self._keys_told, self._rank]).select(*self._columns, CHANGE))
            return
        changed = self._with_keys(changed, keys)[[*columns, WEIGHT]]
        if self._n > 1:
            self.tell(told(summed(changed))[[*columns, CHANGE]])
            return
        weights = changed.get_column(WEIGHT)
        gone, come = (rows_where(changed[columns], mask) for mask in (weights < 0, weights > 0))
        self.tell(updates(gone, come, self._keys_told))

    @property
    def _keys_told(self) -> list[str]:
        return [name for name in self._keys if name != _ALL]

    def _ranked(self, rows: pl.DataFrame) -> pl.DataFrame:
        """A row for each result, with its number."""
        rows = rows_where(rows, rows.get_column(_TOLD) > 0)
        number = rows.get_column(_TOLD).to_numpy()
        rows = rows[np.repeat(np.arange(len(number)), number)]
        place = _earlier(rows.get_column(_KEY).to_numpy(), np.ones(rows.height, np.int64)) + 1
        return _with(rows, pl.Series(self._rank, place))[self._columns]

    def _rows(self, kept: pl.DataFrame) -> pl.DataFrame:
        """The rows of lists, one after the other."""
        return kept.explode(self._listed)

    def _conformed(self, kept: pl.DataFrame) -> pl.DataFrame:
        if dict(kept.schema) == dict(self._kept):
            return kept
        of_keys = [*self._keys, _REST, _NEXT]
        rows = kept.with_row_index(_KEY).explode([name for name in kept.columns if name not in of_keys])
        flat = conformed(
            self._store.id, rows.drop(_KEY), {**self._of_list, _REST: pl.Int64(), _NEXT: pl.Int64()}, of_keys
        )
        lists = flat.hstack([rows.get_column(_KEY)]).group_by(_KEY, maintain_order=True)
        return lists.agg(pl.col(of_keys).first(), pl.col(self._listed)).select(list(self._kept))


class LastRows(_Telling):
    """The last row of each key, of a flow without changes."""

    def __init__(self, node: Node, spec: Latest, context: BuildContext) -> None:
        super().__init__(node)
        self._keys = list(spec.keys)
        self._columns = list(spec.results)
        deleted = pl.lit(value=False) if spec.deleted is None else pl.col(spec.deleted).fill_null(value=False)
        self._there = ~deleted
        self._store = KeyedRows(
            node.id,
            self._keys,
            [],
            [],
            lambda rows: conformed(node.id, rows, spec.results, self._keys),
            form=spec.state_forms(node.id, context.inputs)[node.id],
        )

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._store,)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        last = rows.unique(self._keys, keep="last", maintain_order=True)
        now = last.filter(self._there).select(self._columns)
        known = [kept.select(self._columns) for _, kept in self._store.find(last.select(self._keys))]
        changes = updates(concat_rows(known) if known else now.clear(), now, self._keys)
        if not changes.height:
            return
        self._store.take(changes.select(self._keys).unique())
        self._store.put(changes.filter(pl.col(CHANGE).is_in([INSERT, AFTER])).drop(CHANGE))
        self.tell(changes)


def build_latest(node: Node, spec: Latest, context: BuildContext) -> Operator:
    return FirstRows(node, spec, context) if CHANGE in spec.input.columns else LastRows(node, spec, context)
