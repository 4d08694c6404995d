"""Mistakes with startpoints: when one counts, what is kept of it, who may say so, what a fan-out does to others."""

from __future__ import annotations

import dataclasses

import msgspec
from mutant_kit import host, mutant, no, node, nothing, yes

from headrace.coordinator.ledger import Ledger
from headrace.coordinator.startpoints import StartpointService
from headrace.core.errors import UnavailableError
from headrace.life import startpoints as fan_out
from headrace.life.metadata import Delete
from headrace.life.startpoints import StartpointBook, StartpointKey, _ordered
from headrace.protocol.machine import STEPS, ProtocolMachine, TaskOrders
from headrace.protocol.protocol import Phase, Step
from headrace.protocol.record import Detour, SourceEntry
from headrace.task.host.attempt import Attempt
from headrace.task.host.orders import TaskStartpoints
from headrace.task.host.task_host import TaskHost
from headrace.task.inputs.frame_receiver import FrameReceiver
from simulator.run import Parts
from simulator.shapes import MOVED
from simulator.storage import STEP

SHAPES = tuple(MOVED)


def orders(**attributes) -> Parts:
    return node(orders_class=type("MutantOrders", (TaskOrders,), attributes))


# -- when one counts, and what a commit says of it ---------------------------------------------------------

mutant(
    "covered and applied",
    "a startpoint is applied again after a commit covers it",
    orders(_covers=no),
    *SHAPES,
    first_seed=14,
)
mutant(
    "the record forgets",
    "a commit record doesn't say which startpoint was applied",
    orders(stamp=lambda self, sources: tuple(sources)),
    *SHAPES,
    first_seed=2,
)


class ForTheTask(TaskOrders):
    """The id of the last startpoint is kept once for a task."""

    def stamp(self, sources):
        last = next(reversed(self._applied.values()), None)
        return tuple(msgspec.structs.replace(entry, startpoint=last) if last else entry for entry in sources)


mutant(
    "an id for the task",
    "the id is kept per task, not per partition",
    node(orders_class=ForTheTask),
    *SHAPES,
    first_seed=10,
)


class ForOneCommit(TaskOrders):
    """Only the commits of the generation that has applied it name a startpoint."""

    def adopt(self, record):
        super().adopt(record)
        named = {(order.stream, order.partition): order.startpoint.id for order in self.due}
        self._applied = named


mutant(
    "an id for a generation",
    "the next generation's commits don't name it",
    node(orders_class=ForOneCommit),
    *SHAPES,
    first_seed=2,
)


class ReleasesEarly(TaskHost):
    def _resume(self, record, intermediate, orders):
        super()._resume(record, intermediate, orders)
        if orders:
            self._startpoints.release(orders, self.generation, self.machine.version)


mutant(
    "released early",
    "a startpoint is released before a commit counts",
    Parts(host=ReleasesEarly),
    *SHAPES,
    first_seed=2,
)

UNRELEASED = tuple(
    Step(s.phase, s.instruction, tuple(then for then in s.then if then[0] is not ProtocolMachine.covered), s.effect)
    if s.phase is Phase.REPORTING
    else s
    for s in STEPS
)
mutant(
    "never released", "no commit that covers a startpoint is reported", node(steps=UNRELEASED), *SHAPES, first_seed=2
)

# -- where is read ------------------------------------------------------------------------------------------

mutant(
    "producers are remembered",
    "what was committed of a partition's producers is kept when it is moved",
    Parts(),
    *SHAPES,
    patches=((Attempt, "move", lambda self, ssp, place: place.offset),),
    first_seed=8,
)

APPLIED = TaskStartpoints.applied


def resolved_again(self, orders, generation, ended):
    return APPLIED(self, [msgspec.structs.replace(order, offset=None) for order in orders], generation, ended)


mutant(
    "resolved again",
    "a startpoint means something else after a rollback",
    Parts(),
    *SHAPES,
    patches=((TaskStartpoints, "applied", resolved_again),),
    first_seed=109,
)


def unreported(self, orders, generation, ended):
    report, self._report = self._report, lambda outcomes: None
    try:
        return APPLIED(self, orders, generation, ended)
    finally:
        self._report = report


mutant(
    "applied in silence",
    "the coordinator isn't told what a startpoint meant",
    Parts(),
    *SHAPES,
    patches=((TaskStartpoints, "applied", unreported),),
    first_seed=2,
)


class KeepsWhenMoved(TaskHost):
    """A task that starts over because of startpoints doesn't drop what isn't committed."""

    def restart_beyond(self, generation):
        if self.generation <= generation and self.restart_at is None and not self._over:
            super().restart_beyond(generation)
            self.machine.abandon()

    def _start_over(self):
        if self.restart_at is None:
            super()._start_over()


mutant(
    "moved as it is", "a task is moved in the middle of a version", Parts(host=KeepsWhenMoved), *SHAPES, first_seed=22
)
mutant("no restart", "a task ignores the order to start over", host(restart_beyond=nothing), *SHAPES, first_seed=4)

# -- a startpoint with an end -------------------------------------------------------------------------------

DETOUR, ENTRY = Detour.of, SourceEntry.at
MOVE, SOURCE_ENTRY = Attempt.move, FrameReceiver._source_entry


def leads_on(cls, until, saved, first):
    return msgspec.structs.replace(DETOUR(until, saved, first), offset=until)


mutant(
    "goes on at the end",
    "behind the end of a startpoint, a task reads on there, and not where it was",
    Parts(),
    *SHAPES,
    first_seed=11,
    patches=((Detour, "of", classmethod(leads_on)),),
)


def one_more(self, ssp, place):
    more = place if place.until is None else dataclasses.replace(place, until=place.until + STEP)
    return MOVE(self, ssp, more)


mutant(
    "one more",
    "a task reads the message at the end of a startpoint, too",
    Parts(),
    *SHAPES,
    patches=((Attempt, "move", one_more),),
    first_seed=4,
)


def forgets_the_way_back(self, ssp, source):
    return msgspec.structs.replace(SOURCE_ENTRY(self, ssp, source), detour=msgspec.UNSET)


mutant(
    "no way back",
    "a commit doesn't say where to go on behind the end of a startpoint",
    Parts(),
    *SHAPES,
    first_seed=40,
    patches=((FrameReceiver, "_source_entry", forgets_the_way_back),),
)
mutant(
    "goes back too early",
    "what another app wrote before the end of a startpoint isn't waited for",
    Parts(),
    *SHAPES,
    first_seed=47,
    patches=((FrameReceiver, "detoured", yes),),
)


def back_into_the_first(cls, until, saved, first):
    return DETOUR(until, saved and msgspec.structs.replace(saved, detour=msgspec.UNSET), first)


mutant(
    "back into a range",
    "a second startpoint with an end leads back into the range of the first one",
    Parts(),
    *SHAPES,
    first_seed=69,
    patches=((Detour, "of", classmethod(back_into_the_first)),),
)


def knows_nobody(cls, ssp, position, **others):
    entry = ENTRY(ssp, position, **others)
    return msgspec.structs.replace(entry, covered=(), plain_before=msgspec.UNSET) if type(position) is Detour else entry


mutant(
    "comes back as a stranger",
    "what was known of a partition's producers is forgotten on the way",
    Parts(),
    *SHAPES,
    first_seed=44,
    patches=((SourceEntry, "at", classmethod(knows_nobody)),),
)

# -- who may say so -----------------------------------------------------------------------------------------

mutant(
    "zombies report",
    "a replaced incarnation says what has become of startpoints",
    Parts(),
    *SHAPES,
    first_seed=168,
    patches=((Ledger, "check_report", nothing),),
)

GRANT = StartpointService.grant


def granted_once(self, tasks):
    told = {s.startpoint.id for s in self.book.states() if s.generation}
    found = GRANT(self, tasks)
    return {task: tuple(o for o in orders if o.startpoint.id not in told) for task, orders in found.items()}


mutant(
    "granted once",
    "only the first generation after the fan-out is given a startpoint",
    Parts(),
    *SHAPES,
    patches=((StartpointService, "grant", granted_once),),
    first_seed=2,
)

NOTE = StartpointBook.note


def note_whatever_is_there(self, task, outcome, now_ms):
    """A release deletes what stands under the key by now."""
    if outcome.state != "released":
        return NOTE(self, task, outcome, now_ms)
    name = _ordered(StartpointKey(outcome.order.stream, outcome.order.partition, task))
    entry = self._store.get(self._namespace, name)
    if entry is not None:
        self._commit([Delete(name, entry.version)])
    return None


mutant(
    "releases what is there",
    "the release of one startpoint deletes the newer one",
    Parts(),
    *SHAPES,
    patches=((StartpointBook, "note", note_whatever_is_there),),
    first_seed=40,
)

# -- the fan-out --------------------------------------------------------------------------------------------

mutant(
    "a task's own is overwritten",
    "a startpoint without a task takes the place of one that names the task",
    Parts(),
    *SHAPES,
    patches=((fan_out._Orders, "yields", yes),),
    first_seed=12,
)

GIVE = fan_out._Orders.give


def give_the_first(self, task, point):
    if StartpointKey(point.stream, point.partition, task) not in self.before:
        GIVE(self, task, point)


mutant(
    "the older one stays",
    "a fan-out drops what comes for a task that has something to apply",
    Parts(),
    *SHAPES,
    patches=((fan_out._Orders, "give", give_the_first),),
    first_seed=14,
)

FAN_OUT = StartpointBook.fan_out


def fan_out_only(self, decide):
    def keeping(present):
        found = decide(present)
        return type(found)(found.ordered, (), found.kept, found.done)

    return FAN_OUT(self, keeping)


mutant(
    "fanned out again",
    "what a fan-out has made orders of stays written",
    Parts(),
    *SHAPES,
    patches=((StartpointBook, "fan_out", fan_out_only),),
    first_seed=2,
)

mutant(
    "silence is a refusal",
    "a startpoint fails because the system of its input doesn't answer for a while",
    Parts(),
    *SHAPES,
    patches=((UnavailableError, "retry", False),),
    first_seed=69,
)
