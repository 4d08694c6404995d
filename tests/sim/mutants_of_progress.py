"""Mutants of progress while part of an app is down: of who is set aside, what of theirs is held, and who comes back."""

from __future__ import annotations

from mutant_kit import Parts, mutant, node, receiving

from headrace.core.frame import END_VERSION
from headrace.protocol.frame_judge import FrameJudge
from headrace.protocol.instructions import Parent
from headrace.protocol.machine import Cadence, TableMethods
from simulator.run import CUT_SHAPES

SHAPES = ("merge", "join", "mixed", "shuffle", "diamond")
CUTS = tuple(name for name in CUT_SHAPES if name.partition("+")[0] in SHAPES)


def undoes_nothing(self):
    aside, _ = FrameJudge.set_aside(self)
    return aside, False


mutant(
    "set aside, and nothing undone",
    "what a late task hasn't committed is committed downstream",
    receiving(set_aside=undoes_nothing),
    *SHAPES,
    first_seed=11,
)


class ProcessesOnSight(FrameJudge):
    def timely(self, parent, header, control):
        return header.version <= self.threshold


mutant(
    "set aside, and processed on sight",
    "frames of a task that nobody waits for are processed before they are committed",
    node(judge_class=ProcessesOnSight),
    *SHAPES,
    first_seed=18,
)


class Unheld(Parent):
    def holds(self, label):
        return False


mutant(
    "held frames are fed in turn",
    "a label that others have closed is fed with what a late task hasn't committed of it",
    Parts(),
    *SHAPES,
    patches=((Parent, "holds", Unheld.holds),),
    first_seed=18,
)

mutant(
    "held frames are fed with their label",
    "a label that is due for one task is processed for all",
    Parts(),
    *SHAPES,
    patches=((FrameJudge, "held", lambda self, label: frozenset()),),
    first_seed=20,
)


def at_once(self, parent, version):
    self.close(parent, version)
    parent.aside = None
    self._recount()


mutant(
    "any word brings a task back",
    "a task that hasn't caught up is awaited again, and what it sends is late",
    receiving(_announced=at_once),
    *SHAPES,
    first_seed=20,
)


def silently(self, parent, version):
    due = self.due
    FrameJudge.close(self, parent, version)
    if parent.aside is not None:
        self.due = due


mutant(
    "held frames wait for something else",
    "a checkpoint of a task that nobody waits for doesn't have its frames processed",
    receiving(close=silently),
    *SHAPES,
    first_seed=106,
)


def closed_by_all(self, parent, version):
    entry = FrameJudge.covered(self, parent, version)
    closed = version if parent.buffered else entry.version
    return type(entry)(
        producer=entry.producer,
        generation=entry.generation,
        version=closed,
        seq=entry.seq,
        resume_offset=entry.resume_offset,
    )


mutant(
    "the record says that all have closed",
    "after a restart, held frames count as committed",
    receiving(covered=closed_by_all),
    *SHAPES,
    first_seed=18,
)

mutant(
    "a cut without those set aside",
    "the states of a savepoint don't fit",
    Parts(),
    *CUTS,
    patches=(
        (Cadence, "closed", lambda self, version, closed, whole=True, then=Cadence.closed: then(self, version, closed)),
        (TableMethods, "whole", property(lambda self: True)),
    ),
    first_seed=5,
)


def the_end(self, parents):
    return min((parent.closed for parent in parents), default=END_VERSION)


mutant(
    "the end of the others is committed",
    "when all others have ended, the task that is awaited can't be left out of the end",
    receiving(_committable=the_end),
    *SHAPES,
    first_seed=127,
)
