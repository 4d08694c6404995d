"""Mistakes with order, lateness and silence: what shows only against the history of a task's commits."""

from __future__ import annotations

from dataclasses import replace

from mutant_kit import mutant, operators

from headrace.task import event_time as watermark
from headrace.task.event_time import NEVER, UNHEARD, PartitionTime, combined
from headrace.task.inputs.consumers import Idleness
from headrace.task.operators.aligned_windows import AlignedWindow, CountedWindow
from headrace.task.operators.keyed_windows import AssignedWindow
from headrace.task.operators.steps import DropLateOperator
from headrace.task.outputs.outlet import Outlet
from headrace.task.task import Task
from simulator.run import Parts

# -- count windows ---------------------------------------------------------------------------------------


def from_the_last_on(self, rows, before):
    rows = rows.reverse()
    return CountedWindow._slices(self, rows, before)


mutant(
    "count windows in another order",
    "a count window numbers the messages of a batch from the last to the first",
    operators(CountedWindow, _slices=from_the_last_on),
    "app-counted",
)


def uncounted(self):
    return ()


mutant(
    "counts aren't kept",
    "a restart begins each count window anew",
    operators(CountedWindow, stores=uncounted),
    "app-counted",
    first_seed=10,
)


# -- late messages ---------------------------------------------------------------------------------------


def late_without_a_word(self, rows):
    self._counters.count("late", rows.height)


mutant(
    "late messages vanish",
    "a window counts what is too late, and hands it to nobody",
    operators(AlignedWindow, too_late=late_without_a_word),
    "app-late",
    first_seed=2,
)


def resumed_in_the_past(self, watermark):
    self.watermark = NEVER


mutant(
    "late messages are timely after a restart",
    "a step that drops late messages forgets how far event time had come",
    operators(DropLateOperator, resume=resumed_in_the_past),
    "app-late",
    first_seed=26,
)


def resumed_unfired(self, watermark):
    self.time = watermark


mutant(
    "windows fire again after a restart",
    "a window forgets which windows are over",
    operators(AlignedWindow, resume=resumed_unfired),
    "app-late",
    first_seed=108,
)


def impatient(self, rows):
    allowed, self.spec = self.spec, replace(self.spec, lateness_ms=0)
    try:
        return AssignedWindow.assign(self, rows)
    finally:
        self.spec = allowed


mutant(
    "no lateness is allowed",
    "a message counts as too late as soon as its window has spoken",
    operators(AssignedWindow, assign=impatient),
    "app-late-panes",
    first_seed=6,
)


# -- silent sources --------------------------------------------------------------------------------------


class Patient(Idleness):
    def notice(self, chooser, now_ms):
        pass


mutant("silence isn't noticed", "windows wait for silent sources", Parts(idleness=Patient), "app-silent")


class Muted(Task):
    """Forgets with a restart which tasks upstream are silent."""

    def load(self, times):
        super().load(times)
        for partition in self.times.partitions.values():
            partition.wake()
            for said in partition._tasks.values():
                said.update((task, progress._replace(idle=False)) for task, progress in said.items())


mutant(
    "silence is forgotten",
    "a restart waits for those who had said they are silent",
    Parts(task=Muted),
    "app-silent",
    first_seed=412,
)


def of_nothing(self):
    return False


mutant(
    "a task that keeps windows is idle",
    "what is behind open windows doesn't wait for them while their source is silent",
    operators(AlignedWindow, owes=property(of_nothing)),
    "app-silent-direct",
)


def hearsay(parts):
    return watermark_agreed(parts)[0], set()


watermark_agreed = watermark._agreed


mutant(
    "idleness outruns what is under it",
    "readers go on without an idle task though others have heard that a source has woken",
    Parts(),
    "app-silent-again",
    first_seed=31,
    patches=((watermark, "_agreed", hearsay),),
)


def told_of_tasks_alone(said, count):
    return combined(said if len(said) == count else (*said, UNHEARD))._replace(own={})


mutant(
    "no news of sources behind the first shuffle",
    "readers of a stage aren't told which of its sources are idle",
    Parts(),
    "app-silent-again",
    first_seed=193,
    patches=((PartitionTime, "_of_stage", staticmethod(told_of_tasks_alone)),),
)


def as_it_comes(self, stream, rows, keys=()):
    self.before_rows.clear()
    return Outlet_write(self, stream, rows, keys)


Outlet_write = Outlet.write


mutant(
    "rows come before the news that their task isn't idle",
    "readers go on past rows of a task that they take for idle",
    Parts(),
    "app-silent-direct",
    first_seed=282,
    patches=((Outlet, "write", as_it_comes),),
)
