"""Mistakes of the host: in what order it does things, what it keeps, when it wakes up, when it leaves."""

from __future__ import annotations

import msgspec
from mutant_kit import host, loop, mutant, no, nothing, yes
from mutants_more import without

from headrace.protocol import instructions as do
from headrace.protocol.read_committed import ReadCommitted
from headrace.protocol.record import ReaderPosition
from headrace.task import run_loop
from headrace.task.host.task_host import TaskHost
from headrace.task.inputs.consumers import InputConsumers
from headrace.task.inputs.frame_receiver import FrameReceiver
from headrace.task.inputs.intake import CommittedSource
from headrace.task.run_loop import RollCall, RunLoop
from headrace.task.scope import Ticks
from simulator.container import SimContainer
from simulator.disks import SimState
from simulator.run import ALONE_SHAPES, Parts

SOURCES = "mixed", "direct", "join"

# -- the order of things -----------------------------------------------------------------------------------

mutant("no scan by the host", "a restart isn't shown the restores that lie ahead", without(do.ScanAhead), first_seed=2)


class PublishesFirst(TaskHost):
    """What is in the outboxes counts as committed before the record is in the changelog."""

    def _append_commit(self):
        self.publishing.committed()
        self.publish(self._clock.monotonic_ms())
        yield from super()._append_commit()


mutant(
    "outboxes before the record",
    "rows leave before the commit record",
    Parts(host=PublishesFirst),
    "app-outbox",
    first_seed=2,
)


class Unchecked(TaskHost):
    """Its local state goes on before it is known whether the commit counts."""

    def _check_changelog(self, start, end):
        if self.machine.local is not None:
            self.state.persist(self.machine.local)
        yield from super()._check_changelog(start, end)


mutant(
    "the batch before the check",
    "the changes of a commit get into the local state under the commit before it",
    Parts(host=Unchecked),
    first_seed=109,
)


class TrimsWhatIsRead(TaskHost):
    def _write_local(self, local):
        yield from super()._write_local(local)
        self._changelog.trim(self.machine._read_from)


mutant("the changelog is trimmed as read", "what a restart needs is trimmed", Parts(host=TrimsWhatIsRead))


def over_is_finished(self, now_ms):
    self.publishing.advance(now_ms)
    self.finished = self._over


mutant(
    "over before published",
    "a task has finished although rows wait to be published",
    host(publish=over_is_finished),
    "app-outbox",
    first_seed=35,
)


# -- what survives a rollback ------------------------------------------------------------------------------


class KeepsAll(TaskHost):
    def _start_over(self):
        pass


mutant("nothing is dropped", "a rollback goes on with the same attempt", Parts(host=KeepsAll))


class KeepsWaiting(TaskHost):
    def _start_over(self):
        waiting = self.attempt.chooser
        super()._start_over()
        while waiting is not self.attempt.chooser and (envelope := waiting.choose()) is not None:
            self.attempt.chooser.offer(envelope)


mutant("waiting frames survive", "a rollback keeps what waits to be processed", Parts(host=KeepsWaiting), first_seed=2)


class KeepsOutboxes(TaskHost):
    def _start_over(self):
        publisher = self.publishing
        super()._start_over()
        if publisher is not self.publishing:
            self.attempt.publisher = self.attempt.outlet._publisher = publisher


mutant(
    "outboxes survive", "a rollback keeps rows to be published", Parts(host=KeepsOutboxes), "app-outbox", first_seed=3
)


def goes_on_polling(self, positions):
    """Seeks only the first time."""
    if not self._begun:
        return BEGIN(self, positions)
    return {ssp: self.position(ssp) for ssp in positions}


BEGIN = InputConsumers.begin
mutant(
    "consumers aren't moved back",
    "a rollback goes on reading where it was",
    Parts(),
    patches=((InputConsumers, "begin", goes_on_polling),),
)

# -- state -------------------------------------------------------------------------------------------------


class Remembers(SimState):
    def forget(self):
        pass


mutant(
    "replay doesn't forget",
    "changes before a fence are applied with the next commit",
    Parts(state=Remembers),
    first_seed=579,
)


class Unlocked(SimState):
    def _open(self, folders):
        return self._disk.open(folders.local)


mutant("the folder isn't locked", "two incarnations write one folder", Parts(state=Unlocked), first_seed=137)


# -- waking up ---------------------------------------------------------------------------------------------


def without_news(self, now_ms):
    news, self._has_news = self._has_news, no
    try:
        return UNTIL_DUE(self, now_ms)
    finally:
        self._has_news = news


UNTIL_DUE = TaskHost._until_due
mutant(
    "no wake-up for watermarks", "a watermark waits for the next commit", host(_until_due=without_news), first_seed=15
)


def next_second(self, now_ms):
    return 1000.0


mutant(
    "no wake-up for commits", "an idle task sleeps through its checkpoint", host(_until_due=next_second), first_seed=30
)


def now_and_then(self, clock_ms, now_ms):
    self._shown = clock_ms // self._interval_ms
    return self._every.due(now_ms)


mutant(
    "ticks only now and then",
    "a tick just before a checkpoint is due puts that off",
    Parts(),
    first_seed=11,
    patches=((Ticks, "due", now_and_then),),
)


class Drowsy(RunLoop):
    def turning(self):
        yield from super().turning()
        return 50.0


mutant("sleeps on work", "a container sleeps although something waits", Parts(loop=Drowsy))


class Unrung(SimContainer):
    """Nobody tells the loop that calls are done."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._calls._wake = lambda: None


mutant("no wake-up for calls", "answers wait for the next turn", Parts(container=Unrung), "app-async", "app-remote")


mutant("ticks are lost", "a task isn't shown the clock", host(_tick=lambda self, now_ms: None), first_seed=5)

# -- visits and rest -----------------------------------------------------------------------------------------

mutant(
    "tasks that have more to do aren't visited",
    "a task waits for the clock although envelopes wait",
    Parts(),
    patches=((RollCall, "at_once", nothing),),
    first_seed=3,
)

mutant(
    "a task is visited when something arrives alone",
    "what is due by the clock is forgotten",
    Parts(),
    patches=((RollCall, "ask_again", nothing),),
    first_seed=5,
)

mutant(
    "tasks rest whatever they have done",
    "what was processed isn't committed until something else happens",
    Parts(),
    *ALONE_SHAPES,
    patches=((run_loop, "settled", yes), (run_loop, "can_rest", yes)),
    first_seed=14,
)

# -- leaving -----------------------------------------------------------------------------------------------


def asks_and_leaves(self):
    for each in self.hosts:
        each.ask_for_commit()
        yield from each.performing()


mutant("a drain that leaves early", "followers haven't committed yet", loop(draining=asks_and_leaves), first_seed=2)


def unpublished(self, label):
    return self.machine.version >= label


mutant(
    "a drain that doesn't publish",
    "what is committed isn't published when a drain ends",
    host(has_committed=unpublished),
    "app-outbox",
    first_seed=214,
)

# -- sources that somebody else commits --------------------------------------------------------------------


def as_processed(self, ssp, source):
    return msgspec.structs.replace(source.entry(), offset=self.positions[ssp])


mutant(
    "held frames are passed over",
    "a checkpoint ignores what a source still holds",
    Parts(),
    *SOURCES,
    first_seed=11,
    patches=((FrameReceiver, "_source_entry", as_processed),),
)


def plain_again(self):
    return msgspec.structs.replace(ENTRY(self), plain_before=msgspec.UNSET)


ENTRY = CommittedSource.entry
mutant(
    "plain frames come again",
    "a restart hands out again what stood behind a held frame",
    Parts(),
    *SOURCES,
    first_seed=33,
    patches=((CommittedSource, "entry", plain_again),),
)


def held_anew(self, ssp, start, saved):
    INIT(self, ssp, start, saved)
    self._reader = ReadCommitted(ReaderPosition(offset=start))


INIT = CommittedSource.__init__
mutant(
    "a source's entry is ignored",
    "a restart reads a source without knowing what was covered",
    Parts(),
    *SOURCES,
    first_seed=33,
    patches=((CommittedSource, "__init__", held_anew),),
)
