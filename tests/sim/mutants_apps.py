"""Mistakes with operators and stores: what only a run of real ones can show."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace
from mutant_kit import host, mutant
from mutants_more import without_times

from headrace.core.ids import SSP
from headrace.stores.runs import Runs
from headrace.task.event_time import FOREVER
from headrace.task.host.attempt import Attempt
from headrace.task.host.task_host import TaskHost
from headrace.task.operators.interval_join import IntervalJoinOperator
from headrace.task.outputs.publisher import Publisher
from headrace.task.task import Task, _Step
from simulator.disks import SimState
from simulator.run import Parts
from simulator.systems import RowTarget

# -- stores and the changelog ----------------------------------------------------------------------------


def nothing_after_a_rollback(self, version):
    if self.machine.rollbacks and not getattr(self, "forgot", False) and any(self.state.changes(version)):
        self.forgot = True
    TaskHost._append_changes(self, version)


mutant(
    "changes after a rollback",
    "a store that was rolled back doesn't say what changed next",
    host(_append_changes=nothing_after_a_rollback),
    "app-counts",
    "app-panes",
    "app-inner",
    first_seed=21,
)


def persist_first(self, version):
    TaskHost._append_changes(self, version)
    if self.machine.local is not None:
        self.state.persist(self.machine.local)


mutant(
    "persisted before the commit",
    "the local state is written before the commit record is there",
    host(_append_changes=persist_first),
    "app-counts",
    "app-mixed",
    first_seed=205,
)


class Twice(SimState):
    def apply(self, local):
        self._held += self._held
        super().apply(local)


mutant(
    "applied twice",
    "a change read back is applied twice",
    Parts(state=Twice),
    "app-counts",
    "app-mixed",
    first_seed=56,
)


class Detached(SimState):
    """Knows which commit the folder holds, and doesn't read what is in it."""

    def begin(self, stores):
        local = super().begin({})
        self._stores = stores
        return local


mutant(
    "not attached",
    "a restart takes the folder's commit without its contents",
    Parts(state=Detached),
    "app-counts",
    first_seed=3,
)


class Unremoved(SimState):
    """Drops changes that take something out: their first byte is 2 or 3 in all stores that have such."""

    def changes(self, version):
        for change in super().changes(version):
            if bytes(change.change[:1]) not in (b"\x02", b"\x03"):
                yield change


mutant(
    "removals aren't logged",
    "the changelog doesn't hear of rows that were taken out",
    Parts(state=Unremoved),
    "app-counts",
    "app-panes",
)


class Surviving(TaskHost):
    """Begins again with the operators as they are."""

    def _start_over(self):
        before = self.task
        super()._start_over()
        if before is not self.task:
            self.task.chain = before.chain


mutant(
    "operators survive", "a rollback keeps what the operators hold", Parts(host=Surviving), "app-counts", first_seed=5
)


# -- bookkeeping -----------------------------------------------------------------------------------------


mutant(
    "bookkeeping isn't restored",
    "watermarks and ends begin anew",
    Parts(),
    "app-counts",
    "app-mixed",
    patches=((Attempt, "restore", without_times),),
    first_seed=8,
)


class Later(Task):
    def load(self, times):
        later = {id_: time + 1000 if 0 < time < 1 << 40 else time for id_, time in times.operators.items()}
        super().load(replace(times, operators=later))


mutant(
    "time restored too late",
    "a restart takes event time to be later than it is",
    Parts(task=Later),
    "app-counts",
    "app-mixed",
    "app-inner",
    first_seed=19,
)


def unheld(self):
    return self.reached


mutant(
    "joins don't hold watermarks",
    "the watermark overtakes results that a join makes late",
    Parts(),
    "app-pairs",
    first_seed=107,
    patches=((_Step, "_let_through", unheld),),
)


class AsPolled(TaskHost):
    def _append_commit(self):
        entries = self.receiver.source_entries
        self.receiver.source_entries = lambda: tuple(
            replace(entry, offset=self.inputs.position(SSP.of(entry.stream, entry.partition))) for entry in entries()
        )
        yield from super()._append_commit()
        self.receiver.source_entries = entries


mutant(
    "positions as polled",
    "what waits in the chooser counts as processed",
    Parts(host=AsPolled),
    "diamond",
    "shuffle",
    first_seed=9,
)


# -- joins -----------------------------------------------------------------------------------------------


def joins(task):
    return [operator for operator in task.chain if isinstance(operator, IntervalJoinOperator)]


def buffers(join):
    return join.left._buffer, join.right._buffer


class Hasty(Runs):
    def drop(self, bound):
        super().drop(min(bound, FOREVER - 700) + 700)


class DropsEarly(Task):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        for join in joins(self):
            join.left._buffer.__class__ = join.right._buffer.__class__ = Hasty


mutant(
    "join drops too early",
    "a join gives up messages that may have a partner yet",
    Parts(task=DropsEarly),
    "app-inner",
    "app-left",
    "app-outer",
    first_seed=24,
)


class Unmatched(Task):
    """What has had a partner isn't part of the state."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for join in joins(self):
            join.stores = partial(buffers, join)


mutant(
    "matches are forgotten",
    "a restart forgets which messages have had a partner",
    Parts(task=Unmatched),
    "app-left",
    "app-outer",
)


# -- outboxes --------------------------------------------------------------------------------------------


def committed_at_once(self, version):
    TaskHost._append_changes(self, version)
    self.publishing.committed()
    self.publishing.advance(self._clock.monotonic_ms())


mutant(
    "published before the commit",
    "an outbox is published when it is sealed",
    host(_append_changes=committed_at_once),
    "app-outbox",
    first_seed=2,
)


class Careless(RowTarget):
    def publish(self, writer, version, rows):
        self._positions.pop(writer, None)
        super().publish(writer, version, rows)


mutant(
    "targets don't compare versions",
    "an outbox entry is published twice",
    Parts(target=Careless),
    "app-outbox",
    first_seed=257,
)


class Leaky(Publisher):
    """Leaves its outboxes out of the state."""

    def stores(self):
        return {}

    def committed(self):
        for output in self._outputs.values():
            output.outbox.take_changes(self._version)
        super().committed()


def seals(self, version):
    self.publishing._version = version
    TaskHost._append_changes(self, version)


mutant(
    "outboxes aren't kept",
    "a restart forgets what is committed and not published",
    Parts(publisher=Leaky, host=host(_append_changes=seals).host),
    "app-outbox",
    first_seed=39,
)
