"""A machine loses power: what runs on it dies, and its files keep what was synced, and of the rest what chance leaves.

The machine has everything but the targets and the metadata store: all containers, the driver, the readers at the edge,
the logs with the sources that nobody else keeps, the local folders. A log may lose its unsynced end, all or in part, or
records in the middle of it: that is what a repair makes of a file whose length got to the disk before its data.

Then the oracle judges again, from the beginning, what is left: whatever a commit covers that still counts has to be
there, whoever wrote it. With ``durability="process"`` it may be gone, but not silently: the run ends well with an error
that the app reports, or with results that are exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from headrace.core.errors import HeadraceError
from headrace.core.ids import Offset, TaskName
from headrace.protocol import instructions as do
from simulator.readers import Publisher
from simulator.storage import Folder, SimLog
from simulator.world import SimFailure

if TYPE_CHECKING:
    from simulator.cluster import Cluster

_MOMENTS = (
    do.AppendAbort,
    do.ReadChangelog,
    do.Resume,
    do.SendControl,
    do.ScanAhead,
    do.FlushOutputs,
    do.AppendChanges,
    do.AppendCommit,
    do.AppendCommit,
    do.WriteLocal,
    do.WriteLocal,
    do.Report,
    do.End,
)
"""Before which instructions the power is cut when it isn't at any time: most of them take no time."""


class Power:
    """The power of the machine that has it all."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.publishers: list[Publisher] = []
        self.chance = random.Random(f"power {cluster.world.seed}")
        self.cuts = 0
        self.damaged: str | None = None
        """What the oracle finds missing, if the app didn't ask for better."""
        self._aimed: tuple[TaskName, type] | None = None

    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        """When it fails: at any time, or at a certain step of a task."""
        return [(8, self.cut), (16, self._aim)]

    def _aim(self) -> None:
        self._aimed = self.chance.choice(self.cluster.tasks).name, self.chance.choice(_MOMENTS)

    def calm(self) -> None:
        """It doesn't fail any more."""
        self._aimed = None

    def fails_before(self, task: TaskName, instruction: do.Instruction) -> bool:
        """Whether it fails now."""
        if self._aimed != (task, type(instruction)):
            return False
        self._aimed = None
        return True

    def excuses(self, error: Exception) -> bool:
        """Whether the app may end like this: it has refused to go on after a power cut that may have harmed it."""
        if self.cluster.settings.durability == "commit":
            return False
        refused = isinstance(error, HeadraceError) or "the current incarnation was stopped" in str(error)
        return refused and self.cuts > 0

    def cut(self) -> None:
        """It fails."""
        cluster, chance = self.cluster, self.chance
        self.cuts += 1
        cluster.world.tell("power", "is cut")
        for publisher in self.publishers:
            for actor in publisher.actors:
                actor.kill()
        for container in cluster.containers:
            if container.alive:
                container.die()
            container.lose_what_is_sent()
        lost = {}
        for log in (*cluster.logs.values(), *cluster.changelogs.values()):
            lost[log] = log.lose(chance)
            if lost[log]:
                cluster.world.tell(log.name, f"has lost {sorted(lost[log])}, and ends at {log.end}")
        cluster.lose_sources(chance)
        for host in cluster.disks:
            for folder in host.values():
                self._lose_folder(folder)
        cluster.crash_coordinator(chance.random() * 60)
        self._judge_what_is_left(lost)
        for publisher in self.publishers:
            publisher.power_is_back()

    def _judge_what_is_left(self, lost: Mapping[SimLog, Collection[Offset]]) -> None:
        oracle = self.cluster.oracle
        try:
            oracle.recover(lost)
        except SimFailure as failure:
            if self.cluster.settings.durability == "commit":
                raise
            # What is in the logs doesn't fit together any more, and the oracle goes by them: from now on it only knows
            # what the results have to be.
            self.damaged = self.damaged or str(failure)
            oracle.blind = True

    def _lose_folder(self, folder: Folder) -> None:
        draw = self.chance.random()
        if draw < 0.15:
            folder.wipe()
        elif draw < 0.5 and folder.before:
            state, folder.local = self.chance.choice(folder.before)
            folder.state.clear()
            folder.state.update(state)
