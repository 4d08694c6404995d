"""Mistakes with savepoints: cuts that tasks pass over, states that don't fit together, timelines that begin wrongly."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from mutant_kit import mutant, node, nothing

import headrace.life.founding
import headrace.task.host.commits
import simulator.run
import simulator.savepoints
import simulator.timelines
from headrace.life.founding import Rescaled, _first_record
from headrace.protocol.machine import Cadence
from headrace.rows.hashing import partition_of
from headrace.stores.base import Share
from headrace.stores.outbox import Outbox
from headrace.task.event_time import Progress, TimesCheckpoint
from headrace.task.host.commits import Keeper
from headrace.task.inputs.chooser import MEMORY_BYTES_MAX
from simulator.disks import SimState
from simulator.run import Parts

NOTHING_HEARD = TimesCheckpoint(watermark=Progress().watermark, partitions=[])
BARE = "shuffle+cuts", "wide+cuts", "diamond+cuts"


def cadence(**attributes) -> Parts:
    return node(cadence_class=type("MutantCadence", (Cadence,), attributes))


mutant(
    "a cut doesn't cap M",
    "a task commits what is closed beyond the cut",
    cadence(closed=lambda self, v, m, *, whole: m),
    *BARE,
    first_seed=11,
)


def by_the_clock_alone(self, version):
    return max((version // self._interval + 1) * self._interval, self.clock)


mutant(
    "the clock passes a cut",
    "a source commits beyond the cut",
    cadence(timely=by_the_clock_alone),
    *BARE,
    first_seed=13,
)


def due_beyond_the_cut(self):
    lowest = self._judge.lowest_buffered
    return lowest is not None and lowest <= max(self._judge.threshold, self._judge.closed_through)


mutant(
    "early frames don't wait for the cut",
    "what belongs to later versions goes into that of the cut",
    node(buffer_due=due_beyond_the_cut),
    *BARE,
    first_seed=52,
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
    first_seed=2,
)

mutant(
    "a task that ends doesn't keep its state",
    "a cut waits for a task that has ended before it",
    Parts(),
    "app-apart+cuts",
    "app-apart-async+cuts",
    patches=((Keeper, "ended", nothing),),
    first_seed=11,
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


mutant("a snapshot is kept", "the state of a commit before the cut", Parts(state=KeepsASnapshot), *BARE, first_seed=4)


mutant(
    "nobody checks whether a cut fits together",
    "a savepoint lacks what a task sent after its readers had passed the cut",
    Parts(),
    "shuffle+cuts",
    patches=((simulator.savepoints, "misfit", nothing),),
    first_seed=264,
)


# -- restores

DEALT = "app-counts+restores", "app-inner+restores", "app-panes+restores", "app-distinct+restores"
founding = headrace.life.founding


def with_the_seqs_of_parents(restored, task, donors):
    """The first record, as if the new streams went on where the old ones were."""
    record = _first_record(restored, task, donors)
    kept = restored.kept.get(task)
    if kept is None:
        return record
    inputs = tuple(
        msgspec.structs.replace(entry, stream=restored.streams.get(entry.stream, entry.stream), offset=None)
        for entry in kept.inputs
    )
    return msgspec.structs.replace(record, inputs=inputs)


mutant(
    "a founding keeps the seqs of parents",
    "the first frames of new streams are taken for duplicates, or for gaps",
    Parts(),
    "app-counts+restores",
    patches=((founding, "_first_record", with_the_seqs_of_parents),),
)


def has_always_worked(worked, streams):
    return Rescaled(worked=worked + 99, streams=streams)


mutant(
    "a task without partitions has a say in event time",
    "when it gets partitions again, what was emitted meanwhile is emitted again",
    Parts(),
    "app-sliding+restores",
    patches=(
        (simulator.timelines, "Rescaled", has_always_worked),
        (simulator.run, "_EARLY_BYTES", ((MEMORY_BYTES_MAX,),)),  # it is rare, and known in a run without these limits
        (simulator.run, "_PATIENCE_MS", (math.inf,)),
    ),
    first_seed=17,
)

mutant(
    "the seqs of outputs begin at 0",
    "a restore voids what readers of an output have had",
    Parts(),
    "app-counts+restores",
    patches=((founding, "_outputs", lambda restored, latest: ()),),
)

mutant(
    "a timeline begins with the version of its savepoint",
    "a target takes what is written again for old",
    Parts(),
    "app-outbox+restores",
    patches=((simulator.timelines, "version_of", lambda savepoint, latest, before: savepoint),),
    first_seed=2,
)


def from_the_end(restored, task, donors):
    record = _first_record(restored, task, donors)
    latest = restored.latest.get(task)
    return record if latest is None else msgspec.structs.replace(record, sources=latest.sources)


mutant(
    "sources go on from where they were last",
    "what was processed after the savepoint is lost",
    Parts(),
    "app-counts+restores",
    patches=((founding, "_first_record", from_the_end),),
)


def by_another_modulus(self, store, rows):
    return partition_of(rows, self.columns, self.partitions + 1) == self.partition


mutant(
    "a share by another modulus",
    "keys go to tasks that don't get their messages",
    Parts(),
    *DEALT,
    patches=((Share, "mask", by_another_modulus),),
    first_seed=7,
)

_mask = Share.mask


def all_of_one_partition(self, store, rows):
    return np.ones(rows.height, np.bool_) if self.partitions == 1 else _mask(self, store, rows)


mutant(
    "a task without a partition keeps all it had",
    "what it had was dealt to others, too",
    Parts(),
    *DEALT,
    first_seed=35,
    patches=((Share, "mask", all_of_one_partition),),
)

mutant(
    "an outbox is dealt to other tasks",
    "targets know their writers by number",
    Parts(),
    "app-outbox+restores",
    patches=(
        (headrace.task.host.commits, "Share", lambda number, tasks, first: Share(number, tasks, first=not first)),
    ),
    first_seed=10,
)

mutant(
    "what is pending isn't taken over",
    "rows that were committed by the savepoint never reach their target",
    Parts(),
    "app-outbox+restores",
    patches=((Outbox, "whole", lambda self, share=None: iter(())),),
    first_seed=94,
)

mutant(
    "a writer is the same one in all timelines",
    "what is pending in a savepoint passes for published if another timeline has published since",
    Parts(),
    "app-outbox+restores",
    patches=((Outbox, "timeline_of", lambda self, version: None),),
    first_seed=422,
)


def issued_alone(self):
    cluster = self.cluster
    issued = cluster.coordinator.generations.issue(sorted(cluster.scopes))
    return {cluster.scopes[task].producer: generation for task, generation in issued.items()}


mutant(
    "nobody is fenced",
    "a container of the timeline before goes on committing",
    Parts(),
    *DEALT,
    patches=((simulator.timelines.Restorer, "_fence", issued_alone),),
    first_seed=65,
)

mutant(
    "a latecomer opens windows again",
    "event time begins again in a new timeline",
    Parts(),
    *DEALT,
    patches=((founding, "_times", lambda restored, task, kept: NOTHING_HEARD),),
    first_seed=15,
)
