"""Mistakes with cuts: versions that tasks pass over, and states that don't fit together."""

from __future__ import annotations

from mutant_kit import mutant, node, nothing

from headrace.checkpoint.cadence import Cadence
from headrace.runtime.host.savepoints import Keeper
from simulator.disks import SimState
from simulator.run import Parts

BARE = "shuffle+cuts", "wide+cuts", "diamond+cuts"


def cadence(**attributes) -> Parts:
    return node(cadence_class=type("MutantCadence", (Cadence,), attributes))


mutant(
    "a cut doesn't cap M", "a task commits what is closed beyond the cut", cadence(closed=lambda self, v, m: m), *BARE
)


def by_the_clock_alone(self, version):
    return max((version // self._interval + 1) * self._interval, self.clock)


mutant("the clock passes a cut", "a source commits beyond the cut", cadence(_timely=by_the_clock_alone), *BARE)


def due_beyond_the_cut(self):
    lowest = self._judge.lowest_buffered
    return lowest is not None and lowest <= max(self._judge.threshold, self._judge.closed_through)


mutant(
    "early frames don't wait for the cut",
    "what belongs to later versions goes into that of the cut",
    node(buffer_due=due_beyond_the_cut),
    *BARE,
)


def kept_at_all(self):
    return self._kept is not None


mutant(
    "whatever is committed last is kept",
    "a task that has passed the cut keeps a later version",
    node(
        keep_due=lambda self: self._cadence.cut is not None and self.version >= self._cadence.cut and not self.cut_kept,
        cut_kept=property(kept_at_all),
        cut_missed=property(lambda self: False),
    ),
    *BARE,
)


def says_so_before(self):
    self._machine.kept()


mutant(
    "a task says that it has kept what it is about to keep",
    "nothing is there yet when the savepoint is complete",
    Parts(),
    *BARE,
    patches=((Keeper, "keep", says_so_before),),
)

mutant(
    "a task that ends doesn't keep its state",
    "a cut waits for a task that has ended before it",
    Parts(),
    "app-apart+cuts",
    "app-apart-async+cuts",
    patches=((Keeper, "ended", nothing),),
)


class KeepsASnapshot(SimState):
    def keep(self, database, about, data):
        snapshots = self._snapshots()
        if not snapshots:
            super().keep(database, about, data)
            return
        self._disk.discard(database)
        self._disk.shared[database] = self._disk.shared[snapshots[-1].folder]
        self._disk.write(about, data)


mutant("a snapshot is kept", "the state of a commit before the cut", Parts(state=KeepsASnapshot), *BARE)
