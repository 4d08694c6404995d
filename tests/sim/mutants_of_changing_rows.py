"""Mistakes with rows that change: what is taken away, what is told, and what must be kept for that."""

from __future__ import annotations

import polars as pl
from mutant_kit import mutant, nothing, operators

from headrace.rows.changes import BEFORE, CHANGE, WEIGHT, summed, updates, weighted
from headrace.task.operators import changes_join, ranked, running
from headrace.task.operators.aggregation import Aggregation
from headrace.task.operators.changes_join import ChangesJoinOperator, JoinSide
from headrace.task.operators.joins import TableWriter
from headrace.task.operators.ranked import FirstRows, LastRows
from headrace.task.operators.running import GroupByOperator, _Rows, _Values
from headrace.task.operators.steps import FilterOperator, SendOperator
from simulator.run import Parts

# -- what is taken away ----------------------------------------------------------------------------------


def all_added(rows):
    return weighted(rows).with_columns(pl.col(WEIGHT).abs())


for app, module in (("app-changed-totals", running), ("app-changed-pairs", changes_join), ("app-first", ranked)):
    mutant(
        f"deletes count as inserts ({app})",
        "a row that is taken away counts once more",
        Parts(),
        app,
        patches=((module, "weighted", all_added),),
    )


def all_stay(self, rows):
    gone = _parted(self, rows)
    self.store.put(gone)
    return gone


_parted = JoinSide._parted

mutant(
    "a join keeps rows that have gone",
    "what is deleted on one side meets what comes on the other one later",
    Parts(),
    "app-changed-pairs",
    patches=((JoinSide, "_parted", all_stay),),
)


def never_lost(self, moves, merged, before):
    return None


mutant(
    "a maximum stays when its row has gone",
    "the rows that may be the largest now aren't read again",
    Parts(),
    "app-changed-totals",
    patches=((_Rows, "lost", never_lost),),
)


def on_batch_undeleted(self, rows):
    self._there = pl.lit(value=True)
    LastRows.on_batch(self, rows)


mutant(
    "a deleting message replaces the row",
    "the last row of a key stays, though a message deletes it",
    operators(LastRows, on_batch=on_batch_undeleted),
    "app-changed-totals",
)


def only_puts(self, rows):
    if not self.node.operator.deletes:
        TableWriter.on_batch(self, rows)


mutant(
    "a deletion leaves the table as it is",
    "a key whose rows have gone is found nevertheless",
    operators(TableWriter, on_batch=only_puts),
    "app-kept",
    first_seed=3,
)

# -- how often a row is there ----------------------------------------------------------------------------


def once(self, number):
    return pl.col(WEIGHT).filter(pl.col(number)).sum().clip(-1, 1).alias(number)


mutant(
    "of equal values one is counted",
    "a value has gone with the first of its rows",
    Parts(),
    "app-changed-totals",
    first_seed=6,
    patches=((_Values, "_sum", once),),
)


def unknown(self, new):
    known, before = _before(self, new)
    return known, {name: values * 0 for name, values in before.items()}


_before = _Values._before

mutant(
    "known values count again",
    "a distinct value counts in each batch that has it",
    Parts(),
    "app-totals",
    patches=((_Values, "_before", unknown),),
)

mutant(
    "equal rows meet as one",
    "a pair is told once, though its row is there twice",
    Parts(),
    "app-changed-pairs",
    patches=((changes_join, "_times", nothing),),
)

# -- what is told ----------------------------------------------------------------------------------------


def backwards(before, after, key):
    return updates(before, after, key).reverse()


for app, module in (("app-totals", running), ("app-first", ranked)):
    mutant(
        f"updates are told backwards ({app})",
        "the row after an update comes before the one that it replaces",
        Parts(),
        app,
        patches=((module, "updates", backwards),),
    )


def without_first_halves(self, rows):
    SendOperator.on_batch(self, rows.filter(pl.col(CHANGE) != BEFORE) if CHANGE in rows.columns else rows)


mutant(
    "a shuffle drops the first halves of updates",
    "the task that has the earlier row isn't told that it has gone",
    operators(SendOperator, on_batch=without_first_halves),
    "app-changed-totals",
)

mutant(
    "partners come and go unnoticed",
    "a row goes on as told: with a partner, or without any",
    Parts(),
    "app-changed-pairs",
    patches=((JoinSide, "turn", nothing),),
)


def as_they_were(self, firsts, kept, keys, changed, rest, after):
    FirstRows._keep(self, firsts, kept.clear(), keys, changed, rest, after)


mutant(
    "earlier first rows stay in the state",
    "what was first once comes back when its key changes",
    operators(FirstRows, _keep=as_they_were),
    "app-first",
)


def whole_updates(self, rows):
    """Says of what is left that it is as it was."""
    self._changes = False
    FilterOperator.on_batch(self, rows)


mutant(
    "a filter keeps halves of updates",
    "an update is told whose other half was dropped",
    operators(FilterOperator, on_batch=whole_updates),
    "app-first",
)

# -- what is kept ----------------------------------------------------------------------------------------


def without_told(self):
    return [store for store in GroupByOperator.stores(self) if store is not self._told]


mutant(
    "what waits to be told is forgotten",
    "a restart doesn't know which keys have changed since they were last told",
    operators(GroupByOperator, stores=without_told),
    "app-totals",
    first_seed=16,
)


def without_rows(self):
    return [store for store in GroupByOperator.stores(self) if store is not self._rows.store]


mutant(
    "rows that may be found again are forgotten",
    "after a restart a maximum that has gone has nothing to follow it",
    operators(GroupByOperator, stores=without_rows),
    "app-changed-totals",
    first_seed=16,
)


def with_left_only(self):
    return ChangesJoinOperator.stores(self)[:1]


mutant(
    "a join forgets its right side",
    "after a restart rows meet nobody of the right side",
    operators(ChangesJoinOperator, stores=with_left_only),
    "app-changed-pairs",
)


def netted(self, rows):
    rows = summed(rows)
    times = pl.col(WEIGHT).abs().alias(changes_join._TIMES)
    gone = rows.filter(pl.col(WEIGHT) < 0).with_columns(times).drop(WEIGHT)
    needed = pl.col(changes_join._TIMES).alias(changes_join._NEEDED)
    return rows.filter(pl.col(WEIGHT) > 0).with_columns(times).drop(WEIGHT), gone.with_columns(needed)


mutant(
    "a row that comes again isn't kept anew",
    "a join forgets it as if it had been there all the time, or doesn't know that it has forgotten it",
    Parts(),
    "app-brief-pairs",
    patches=((JoinSide, "_by_age", netted),),
)


def never_due(self, now_ms):
    return None


mutant(
    "a join forgets nothing",
    "rows meet partners that have been there for too long",
    operators(ChangesJoinOperator, on_time=never_due),
    "app-brief-pairs",
)


def told_only_in_time(self, now_ms):
    if self._every is not None:
        _tell(self, now_ms)


_tell = GroupByOperator._tell

mutant(
    "what an earlier version had to tell isn't told",
    "a version that tells at once takes back what nobody was told",
    operators(GroupByOperator, _tell=told_only_in_time),
    "app-told-sooner",
    first_seed=13,
)


def empty_at_first(self, id_, rows, columns, **_):
    return _conformed(self, id_, rows, columns)


_conformed = Aggregation.conformed

mutant(
    "a further result was 0 before it was there",
    "rows are taken back with a value that nobody was told",
    Parts(),
    "app-grown-first",
    patches=((Aggregation, "conformed", empty_at_first),),
)
