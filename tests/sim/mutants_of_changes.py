"""Mistakes that only show when an app changes: what the new version takes over, and what it must not."""

from __future__ import annotations

from msgspec.structs import replace
from mutant_kit import mutant, node, receiving, sending

from headrace.core.frame import END_VERSION
from headrace.plan.inventory import Heritage
from headrace.protocol.frame_judge import FrameJudge
from headrace.protocol.frame_stamper import FrameStamper
from headrace.task.scope import TaskScope
from simulator.app_cluster import AppCluster
from simulator.disks import SimState
from simulator.run import Parts

_position_name = TaskScope.position_name


def cluster(**attributes) -> Parts:
    return Parts(app_cluster=type("MutantCluster", (AppCluster,), attributes))


def named_by_its_id(self, id_):
    return id_


mutant(
    "a store that starts over takes its old name",
    "what is left of a dropped store goes into the one that begins with nothing",
    Parts(),
    "app-cut",
    first_seed=177,
    patches=((TaskScope, "store_name", named_by_its_id),),
)


class NothingDropped(SimState):
    def _is_dropped(self, name):
        return False


mutant(
    "dropped state isn't known",
    "old changes of a store that was dropped stop the task",
    Parts(state=NothingDropped),
    "app-cut",
    first_seed=28,
)


def position_of_the_last_version(self, ssp):
    return f"{_position_name(self, ssp)}-{len(self.specs)}"


mutant(
    "positions are forgotten",
    "a version with a further input reads the others from their start",
    Parts(),
    "app-grown",
    patches=((TaskScope, "position_name", position_of_the_last_version),),
)


def with_the_old_plan(self):
    """The containers of the next run are of both versions."""
    before = self.scopes
    AppCluster.restart(self)
    if self.scopes is not before:
        self.scopes |= {name: scope for name, scope in before.items() if name.number == 0}


def planner(**attributes) -> Parts:
    return Parts(heritage=type("MutantHeritage", (Heritage,), attributes))


mutant(
    "half a change",
    "some tasks go on as the version before",
    cluster(restart=with_the_old_plan),
    "app-grown",
)


def named_anew(self, graph, stages, tasks):
    return {stage.name: stage.name for stage in stages}


mutant(
    "a further input renames its stage",
    "the stage begins under another name, with neither positions nor state",
    planner(_names=named_anew),
    "app-grown",
)


def never_gone(self, graph, stages, tasks):
    return [stage for stage in Heritage.inherit(self, graph, stages, tasks) if stage.nodes]


mutant(
    "a stage that is gone leaves nothing behind",
    "what it wrote last is of a task that nobody knows",
    planner(inherit=never_gone),
    "app-replaced",
)


def at_work(self):
    """Tasks that read nothing aren't started: they would only end."""
    every = self.scopes
    self.scopes = {name: scope for name, scope in every.items() if scope.specs}
    AppCluster.staff(self)
    self.scopes = every


for app in ("app-replaced", "app-narrower"):
    mutant(
        f"tasks without inputs don't end ({app})",
        "the readers of what they wrote wait for their end",
        cluster(staff=at_work),
        app,
    )


def as_far_as_it_writes(self):
    self._former = []
    return FrameStamper.save(self)


mutant(
    "seqs of a former output are forgotten",
    "an output that comes back begins below what is committed in it",
    sending(save=as_far_as_it_writes),
    "app-returned",
    first_seed=8,
)


def all_of_the_last_commit(self, saved):
    last = max((entry.generation for entry in saved), default=0)
    FrameStamper.load(self, [replace(entry, generation=last) for entry in saved])


mutant(
    "an output that returns names a generation that never wrote it",
    "readers take what they hold for copies of void frames",
    sending(load=all_of_the_last_commit),
    "app-returned",
    first_seed=1119,
)


def as_soon_as_there_is_one(self):
    return self.version < self._judge.closed_through < END_VERSION


mutant(
    "labels fall when a task becomes command-driven",
    "its readers commit what it has announced, and not committed",
    node(version_closed=as_soon_as_there_is_one),
    "app-stricter",
    first_seed=21,
)


def closed_as_it_was(self, entries, version, parents_version):
    self._barriers, barriers = True, self._barriers
    FrameJudge.load(self, entries, version, parents_version)
    self._barriers = barriers
    self._recount()


mutant(
    "at-least-once waits for versions",
    "nobody says any more when the version is complete for which the commit before the change has waited",
    receiving(load=closed_as_it_was),
    "app-looser",
)
