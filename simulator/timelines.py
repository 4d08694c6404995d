"""Restoring savepoints: the app is stopped, and begins again in a new timeline of which it can't know that it is one.

A new timeline has its own changelogs, intermediate streams and folders. Sources, targets and outputs stay, and so do
containers of the timeline before: some are taken for dead and live on. What the new tasks begin with is worked out by
the functions that a restore uses. Everything then goes wrong as in any other run.

The results are judged as those of an app that stopped at the savepoint and went on from there. Beside them, readers
find what the timeline before has committed after the savepoint: all of it, since they may have seen it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from typing_extensions import override

from headrace.core.errors import UsageError
from headrace.core.frame import END_VERSION, Header, Kind, encode
from headrace.core.ids import TaskName
from headrace.life.founding import (
    Rescaled,
    Restored,
    foundings,
    new_streams,
    renamed,
    rescaled,
    version_of,
    with_tasks_of,
)
from headrace.plan.inventory import Inventory, inventory_of
from headrace.protocol.record import AbortRecord, CommitRecord, Founding, encode_record
from headrace.task.naming import folder_name
from headrace.task.scope import TaskScope
from simulator.app_cluster import AppCluster
from simulator.app_oracle import AppOracle, Inherited
from simulator.cluster import outputs_of
from simulator.planned import AppShape, timeline_shape
from simulator.savepoints import Savepoint, Taker
from simulator.storage import SimLog
from simulator.systems import SimAdmin
from simulator.world import Steps, World

_PARTITIONS_MAX = 4
_DIES = 0.6
"""How likely a container dies when its app is stopped. The others are out of touch, and live on."""
_AWAY = 0.5
"""How likely targets are away before an app is stopped."""


class Timeline(AppCluster):
    """The cluster of an app that was restored."""

    def __init__(self, before: AppCluster, oracle: AppOracle, scopes: Mapping[TaskName, TaskScope]) -> None:
        self.world, self.settings, self.parts, self.user = before.world, before.settings, before.parts, before.user
        self.shape, self.oracle = oracle.shape, oracle
        oracle.impatient = self.impatient
        self.vacant = {}
        self.tasks = self.shape.tasks()
        self._version = self._wanted = 0
        self.scopes = dict(scopes)
        self.disks, self.shared, self.files = before.disks, before.shared, before.files
        self.targets, self.sources, self.coordinator = before.targets, before.sources, before.coordinator
        self.skews = {}
        self.doomed: dict[TaskName, type] = {}
        known = {ssp: log for ssp, log in before.logs.items() if ssp.stream.name in self.shape.outputs}
        wanted = dict.fromkeys(ssp for task in self.tasks for ssp in outputs_of(task))
        self.logs = {ssp: known.get(ssp) or SimLog(str(ssp)) for ssp in wanted}
        number = self.shape.timeline
        self.changelogs = {t.name: SimLog(f"changelog {t.name}@{number}", wakes=False) for t in self.tasks}
        self.partitions = {**self.logs, **self.sources}
        self.partitions |= {self.changelog_of(name): log for name, log in self.changelogs.items()}
        self.admin = SimAdmin(self.partitions, {})
        self._shapes = {task.name: task for task in self.tasks}
        self._folders = {f"{name.stage}-{name.number}": name for name in self._shapes}
        self.current = {}
        self.containers = before.containers
        self._suspected: set[int] = set()
        for ssp, log in self.logs.items():
            oracle.watch_stream(ssp, log)
        for task, log in self.changelogs.items():
            oracle.watch_changelog(task, log)
        self.staff()
        self.coordinator.begin()

    @override
    def check_copies(self) -> None:
        mine = folder_name(self.shape.case.name, self.shape.timeline)
        for host in self.disks:
            for path, folder in host.items():
                if path.parent.name == mine:
                    self._check_copy(path.name.split(".")[0], "folder", folder)
        for path, folder in self.shared.items():
            if path.parent.parent.name == mine:
                self._check_copy(path.parent.name, "snapshot", folder)


class Restorer:
    """Stops the app now and then, and restores a savepoint of it. ``renew`` puts a cluster in the place of another."""

    def __init__(self, world: World, cluster: AppCluster, taker: Taker, renew: Callable[[Timeline], None]) -> None:
        self.world = world
        self.cluster = cluster
        self.taker = taker
        self.chance = random.Random(f"restores {world.seed}")
        self.left = self.chance.choice((1, 1, 2, 3))
        self._of_targets = random.Random(f"targets {world.seed}")
        self._there_and_back = bool(cluster.targets) and self.left > 1 and self._of_targets.random() < 0.5
        """The first savepoint is restored, and then the last one of the same timeline."""
        self.done = 0
        self._renew = renew
        self._number = 1

    def run(self) -> Steps:
        """Restore as often as this run is to."""
        until = self.cluster.settings.faults_until
        while self.left:
            self._lose_targets()
            yield 20 + self.chance.random() * until * 0.6
            if not self.taker.taken:
                self._find_targets()  # tasks don't end without, and those that have ended keep no cut
            while not self.taker.taken and not self.cluster.all_over:
                yield 10
            self._find_targets()
            if not self.taker.taken:
                self.left = 0  # it ended too soon
                return
            yield from self._stop()
            if self.chance.random() < 0.2:
                self._interrupted()
                continue
            yield self.chance.random() * 30
            self._restore(self._chosen())
            self.left -= 1
            self.done += 1

    def _chosen(self) -> Savepoint:
        taken = self.taker.taken
        if self._there_and_back and self.done < 2:
            alike = [savepoint for savepoint in taken if savepoint.oracle is taken[0].oracle]
            return alike[-1] if self.done else alike[0]
        return taken[-1] if self.chance.random() < 0.6 else self.chance.choice(taken)

    def _lose_targets(self) -> None:
        """At times they are away until the app is stopped: what savepoints hold for them has not been published."""
        if self.cluster.targets and self._of_targets.random() < _AWAY:
            self.world.tell("restore", "targets are away until the app is stopped")
            for target in self.cluster.targets.values():
                target.away = True

    def _find_targets(self) -> None:
        for target in self.cluster.targets.values():
            target.away = False

    # -- the app stops

    def _stop(self) -> Steps:
        """It drains, or its driver ends, and most of its containers with it."""
        coordinator = self.cluster.coordinator
        self.world.tell("restore", "the app is stopped")
        if coordinator.up and self.chance.random() < 0.3:
            coordinator.ledger.drain()
            self.cluster.supervisor.kill()
            for _ in range(10):
                yield 10
                if not coordinator.up or coordinator.ledger.state == "finished":
                    break
                self.cluster.pass_on_orders()
        self.cluster.supervisor.kill()
        coordinator.crash()
        for container in self.cluster.containers:
            if container.alive and self.chance.random() < _DIES:
                container.die()

    def _interrupted(self) -> None:
        """Whoever restores dies before it is done: the app goes on as if nothing had been."""
        self.world.tell("restore", "is interrupted")
        self._fence()
        self.cluster.restart()
        self.cluster.watch()

    # -- and begins again

    def _restore(self, savepoint: Savepoint) -> None:
        before = self.cluster
        self._number += 1
        generations = self._fence()
        latest = self._latest()
        shape, inventory, streams, dealt = self._planned(savepoint)
        version = version_of(savepoint.version, latest.values(), before.restored_version)
        former = {*inventory.gone, *streams, *before.shape.recorded.gone}
        former |= {part.kept_as for _, part in inventory_of(before.shape.plan).parts() if part.kind == "stream"}
        restored = Restored(
            version=version,
            kept={task: kept.record for task, kept in savepoint.kept.items()},
            latest=latest,
            inventory=inventory,
            streams={f"log.{old}": f"log.{new}" for old, new in streams.items()},
            former_streams=frozenset(f"log.{name}" for name in former),
            folder=savepoint.tasks,
            rescaled=dealt,
        )
        found = foundings(restored)
        self.world.tell("restore", f"{savepoint.folder} as timeline {self._number} at {version}; dealt {dealt}")
        oracle = AppOracle(self.world, shape, shape.tasks())
        finished = [task for task, founding in found.items() if founding.record.end_of_stream_sent]
        oracle.follow(before.oracle, _inherited(before.oracle, savepoint, version), generations, finished)
        timeline = Timeline(before, oracle, _founded(shape, found))
        timeline.restored_version = version
        self.cluster = timeline
        self._renew(timeline)
        timeline.start()

    def _fence(self) -> dict[int, int]:
        """Fence off the timeline before, as a restore does: its tasks commit nothing more."""
        cluster = self.cluster
        issued = cluster.coordinator.generations.issue(sorted(cluster.scopes))
        for task, generation in issued.items():
            last = cluster.oracle.ledgers[task].last
            if last is not None:
                header = Header(Kind.ABORT, cluster.scopes[task].producer, generation, last.version, 1)
                record = AbortRecord(generation=generation, writer=f"restore-{self._number}")
                cluster.changelogs[task].append(encode(header, encode_record(record)))
        return {cluster.scopes[task].producer: generation for task, generation in issued.items()}

    def _latest(self) -> dict[TaskName, CommitRecord]:
        """The last commit of each task, or else what it was to begin with."""
        found: dict[TaskName, CommitRecord] = {}
        for task, scope in self.cluster.scopes.items():
            last = self.cluster.oracle.ledgers[task].last
            if last is not None:
                found[task] = last
            elif scope.founding is not None:
                found[task] = scope.founding.record
        return found

    def _planned(self, savepoint: Savepoint) -> tuple[AppShape, Inventory, Mapping[str, str], Mapping[str, Rescaled]]:
        """The shape and inventory of the new timeline, the new names of streams, and the stages that are rescaled."""
        then = savepoint.oracle
        assert isinstance(then, AppOracle)
        app, shape = then.shape.case.name, then.shape
        old = with_tasks_of(inventory_of(shape.plan).after(shape.recorded), inventory_of(self.cluster.shape.plan))
        commits = {task: kept.record for task, kept in savepoint.kept.items()}
        counts, new = {}, old
        if shape.case.rescales and self.chance.random() < 0.8:
            counts = self._counts(old)
            try:
                new = rescaled(app, old, counts, commits)
            except UsageError as error:
                self.world.tell("restore", f"{counts}: {error.message}")
                counts = {}
        streams = new_streams(app, old, self._number)
        inventory = renamed(new, streams)
        dealt = {
            name: Rescaled(
                worked=record.active,
                streams=frozenset(
                    f"log.{kept}" for kept, part in record.streams(reads=True).items() if part.id in counts
                ),
            )
            for name, record in old.stages.items()
            if new.stages[name].active != record.active
        }
        return timeline_shape(shape, self._number, inventory), inventory, streams, dealt

    def _counts(self, inventory: Inventory) -> dict[str, int]:
        """Other numbers of partitions for what some stages read: messages of one key have to meet."""
        counts: dict[str, int] = {}
        for record in inventory.stages.values():
            mine = [part.id for part in record.streams(reads=True).values()]
            if mine and self.chance.random() < 0.7:
                counts |= dict.fromkeys(mine, self.chance.randint(1, _PARTITIONS_MAX))
        return counts


def _founded(shape: AppShape, found: Mapping[TaskName, Founding]) -> dict[TaskName, TaskScope]:
    return {task: replace(scope, founding=found[task]) for task, scope in shape.scopes.items()}


def _inherited(before: AppOracle, savepoint: Savepoint, version: int) -> Inherited:
    """What the savepoint covers of all timelines before."""
    then = savepoint.oracle
    assert isinstance(then, AppOracle)
    consumed = {stage: set(messages) for stage, messages in then.inherited.consumed.items()}
    emitted = set(then.inherited.emitted)
    for task, mark in savepoint.marks.items():
        ledger = then.ledgers[task]
        consumed.setdefault(task.stage, set()).update(ledger.consumed[: mark.consumed])
        emitted.update(ledger.emitted[: mark.emitted])
    outputs = before.shape.outputs
    known = {message for message in before.committed if before.stream_of(message) in outputs}
    *spans, (low, _) = then.inherited.spans
    return Inherited(
        consumed={stage: frozenset(messages) for stage, messages in consumed.items()},
        emitted=frozenset(emitted),
        outdated=frozenset(known - emitted),
        # A task that ended early has nothing up to the savepoint's version: what lies above it is of later timelines.
        spans=(*spans, (low, max(kept.record.version for kept in savepoint.kept.values())), (version, END_VERSION)),
    )
