"""Mistakes with what expires, with the clock, with functions that raise and with caches."""

from __future__ import annotations

import polars as pl
from mutant_kit import mutant, operators

from headrace.stores.keyvalue import KeyValueStore, Stamps
from headrace.task.operators.aggregation import TIME
from headrace.task.operators.functions import BatchFunctionOperator, FailurePolicy, RowFunctionOperator
from headrace.task.operators.joins import LatestJoinOperator
from headrace.task.operators.keyed_windows import KeyedWindow
from headrace.task.operators.steps import DeduplicateOperator, DropLateOperator
from headrace.task.operators.windows import NUMBER, WindowOperator
from headrace.task.tables import RemoteTable, RowCache
from headrace.task.task import Task
from simulator.run import Parts

# -- what expires ----------------------------------------------------------------------------------------


class Immortal(Stamps):
    def alive_from(self):
        return b""


class Hasty(Stamps):
    """Starts a life of its own with each restart: what was put before it counts as old."""

    def advance(self, now_ms):
        first = self._now is None
        super().advance(now_ms)
        self._began = self._now if first else self._began

    def alive_from(self):
        return max(super().alive_from(), self._began.to_bytes(8, "big")) if self._now is not None else b""


def stamped(kind):
    class Changed(Task):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            for store in self.chain.stores().values():
                if isinstance(store, KeyValueStore) and store._stamps is not None:
                    store._stamps.__class__ = kind

    return Parts(task=Changed)


mutant("nothing expires", "a store finds what is beyond its time to live", stamped(Immortal), "app-expiring")
mutant(
    "a restart lets all expire",
    "what was put before a restart isn't found",
    stamped(Hasty),
    "app-expiring",
    first_seed=37,
)


def unswept(self, now_ms):
    pass


mutant(
    "expired rows stay",
    "a join of last messages never looks for what has expired",
    operators(LatestJoinOperator, on_time=unswept),
    "app-expiring",
)


def forgets_at_once(self, watermark):
    DropLateOperator.on_watermark(self, watermark)
    self._known.drop(watermark)


mutant(
    "repeats are forgotten early",
    "what was let through is forgotten when the watermark has passed it",
    operators(DeduplicateOperator, on_watermark=forgets_at_once),
    "app-apart",
    "app-distinct",
    first_seed=7,
)

# -- the clock -------------------------------------------------------------------------------------------


def asleep(self):
    return None


mutant(
    "early panes don't come",
    "nobody is woken for a pane by the clock",
    operators(KeyedWindow, due_ms=asleep),
    "app-ticking",
)


def wakes_for_ever(self, rows, time=None):
    KeyedWindow._keep(self, rows.with_columns((pl.col(NUMBER) + 1).alias(NUMBER)), time)


mutant(
    "panes for nothing",
    "a window speaks at each tick, whether something has come or not",
    operators(KeyedWindow, _keep=wakes_for_ever),
    "app-ticking",
)


def by_the_raw_clock(self, rows):
    if self.spec.axis != "processing":
        WindowOperator.on_batch(self, rows)
        return
    now = self.now()
    if now > self.time:
        self.on_time(now)
    self.take_in(rows.with_columns(pl.lit(now, pl.Int64).alias(TIME)))


mutant(
    "clocks that are set back lose messages",
    "a window of the clock takes for late what comes when the clock was set back",
    operators(WindowOperator, on_batch=by_the_raw_clock),
    "app-clocked",
    first_seed=1129,
)


# -- functions that raise --------------------------------------------------------------------------------


class OneLetter(FailurePolicy):
    def rows(self, what, rows, failures, whereabouts=None):
        super().rows(what, rows, failures[:1], whereabouts)


class Sparing(Task):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        for operator in self.chain:
            if isinstance(operator, RowFunctionOperator | BatchFunctionOperator):
                operator._policy.__class__ = OneLetter


mutant("one letter a batch", "of the rows that failed one is written about", Parts(task=Sparing), "app-mapped")


def half_done(self, records, flat, first):
    if self._spec.mode != "flat_map":
        return RowFunctionOperator._called(self, records, flat, first)
    results = []
    for record in records:
        try:
            for part in self._spec.function(record):
                flat.append(part)
        except ValueError:
            self.rows -= 1
        results.append(len(flat))
    return results, []


mutant(
    "half of a message",
    "a row on which a function raised keeps what it gave before",
    operators(RowFunctionOperator, _called=half_done),
    "app-mapped",
)

# -- caches ----------------------------------------------------------------------------------------------


class Eternal(RowCache):
    def put(self, key, row, now_ms):
        self._ttl_ms = 1 << 40
        super().put(key, row, now_ms)


class Deaf(RemoteTable):
    """Isn't told what the task has written."""

    def written(self, rows, gone, now_ms):
        pass


def remote(change):
    class Changed(Task):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            for table in self.chain.tables.remote.values():
                change(table)

    return Parts(task=Changed)


def eternal(table):
    table.cache.__class__ = Eternal


def deaf(table):
    table.__class__ = Deaf


mutant(
    "caches keep for ever",
    "a cache doesn't look at the time",
    remote(eternal),
    "app-cached",
    "app-around",
    first_seed=228,
)
mutant(
    "caches miss writes",
    "a cache keeps what its task has overwritten",
    remote(deaf),
    "app-cached",
    "app-around",
    first_seed=568,
)
