"""Savepoints: somebody orders cuts of the app while everything goes wrong, and judges those that all tasks have kept.

A cut may be ordered too late for some tasks, may be given up or overtaken by another, and may be left standing. None of
that may show in what the app does otherwise. When nothing goes wrong any more, a cut has to succeed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace.coordinator.books import CutOrder, CutReport
from headrace.core.frame import END_VERSION
from headrace.core.ids import TaskName
from headrace.life.folder import misfit
from headrace.protocol.protocol import Phase
from headrace.protocol.record import COMMIT_FILE, DATABASE_FOLDER, LOCAL_KEY, Cut, KeptCommit, LocalCheckpoint
from headrace.task.naming import task_folder
from simulator.cluster import Cluster
from simulator.oracle import Mark, Oracle
from simulator.storage import Folder
from simulator.world import Steps, World

_CALM_TRIES_MAX = 6
_PATIENCE_INTERVALS = 15
_STARTING_MS_MAX = 100


@dataclass(frozen=True)
class Savepoint:
    """What all tasks have kept at one version, and how far each had come by then."""

    folder: Path
    version: int
    kept: Mapping[TaskName, KeptCommit]
    marks: Mapping[TaskName, Mark]
    oracle: Oracle
    """The judge of the timeline that it is of."""

    @property
    def tasks(self) -> Mapping[TaskName, Path]:
        """Where each task has its state."""
        return {task: self.folder / task_folder(task) for task in self.kept}


class _Order(NamedTuple):
    cut: Cut
    term: int
    patient_until: float
    calm: bool


class Taker:
    """Takes savepoints of an app. Its chance is its own, so a run without it stays what it was."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.world = world
        self.cluster = cluster
        self.chance = random.Random(f"savepoints {world.seed}")
        self.taken: list[Savepoint] = []
        self.calm = False
        """Nothing goes wrong any more."""
        self.satisfied = False
        """A savepoint was taken since."""
        self._by_interval = self.chance.random() < 0.8
        self._mischief = random.Random(f"mischief {world.seed}")
        self._meddles = self._mischief.random() < 0.5
        self._number = 0
        self._missed = 0

    def run(self) -> Steps:
        """Order a cut now and then."""
        interval = self.cluster.settings.interval_ms
        while True:
            yield self.chance.random() * interval
            meddle = self._meddles and not self.calm and self._mischief.random() < 0.5
            if meddle:
                yield from self._promise_too_much()
            coordinator = self.cluster.coordinator
            if coordinator.up and not coordinator.draining and coordinator.ledger.state != "finished":
                yield from self._take(soon=meddle)

    def _promise_too_much(self) -> Steps:
        """Have a container start with its clock ahead before the cut is ordered, and behind once others have kept it.

        So its tasks promise that nothing comes up to the cut any more, and then don't keep the promise.
        """
        cluster, interval = self.cluster, self.cluster.settings.interval_ms
        seat = self._mischief.choice(sorted(cluster.current))
        yield from self._replace(seat, interval * self._mischief.uniform(1, 4))
        for _ in range(_STARTING_MS_MAX):
            hosts = cluster.current[seat].hosts if seat in cluster.current else ()
            if any(host.machine.label > self.world.now + interval for host in hosts):
                stuck_ms = interval * self._mischief.uniform(0.5, 2)
                cluster.current[seat].actor.pause(stuck_ms)
                again = self._replace(seat, -interval * self._mischief.uniform(1, 4), after=stuck_ms)
                self.world.spawn("mischief", again)
                return
            yield 1.0

    def _replace(self, seat: int, skew: float, after: float = 0.0) -> Steps:
        """Kill a container, and wait until another one has its place, whose clock is so far off."""
        yield after
        victim = self.cluster.current.get(seat)
        if victim is None or not victim.alive or self.calm:
            return
        self.world.tell(victim.name, "is killed because of a cut")
        victim.die()
        self.cluster.skews[seat] = skew
        for _ in range(_STARTING_MS_MAX):
            if self.cluster.current.get(seat) is not victim:
                return
            yield 1.0
        self.cluster.skews.pop(seat, None)

    def _take(self, *, soon: bool) -> Steps:
        order = self._order(soon=soon)
        while self.world.now < order.patient_until:
            yield 3 + self.chance.random() * 6
            if (report := self._asked(order)) is None:
                return
            states = set(report.states.values())
            if "missed" in states:
                self._note_missed(order, sorted(task for task, state in report.states.items() if state == "missed"))
                break
            if states <= {"kept", "over"}:
                self._complete(order, report)
                break
        else:
            self._check_waiting(order)
        if self.chance.random() < 0.7:
            self.cluster.coordinator.cut(CutOrder())

    def _order(self, *, soon: bool) -> _Order:
        coordinator, interval = self.cluster.coordinator, self.cluster.settings.interval_ms
        now, calm = int(self.world.now), self.calm
        if calm:
            version = max([now, *self._labels()]) + 4 * interval
        elif soon:
            version = now + interval // 2
        else:
            version = now + int(self.chance.choice((-1, 0, 0.5, 2, 2, 3, 4, 4, 9)) * interval)
        if self._by_interval:
            version = (version // interval + 1) * interval
        self._number += 1
        cut = Cut(id=str(self._number), version=max(1, version), folder=f"savepoints/{self._number}")
        behind = -min([0.0, *(container.skew for container in self.cluster.current.values())])
        patience = max(0, version - now) + behind + _PATIENCE_INTERVALS * interval
        self.world.tell("savepoints", f"orders {cut}")
        coordinator.cut(CutOrder(cut=cut))
        return _Order(cut, coordinator.term, self.world.now + patience, calm)

    def _labels(self) -> list[int]:
        """What tasks have announced: some clocks are ahead. One that has committed its end announces nothing else."""
        hosts = (host for container in self.cluster.current.values() for host in container.hosts)
        return [host.machine.label for host in hosts if host.machine.label != END_VERSION]

    def _asked(self, order: _Order) -> CutReport | None:
        """What has come of the cut; None if that can't be known any more."""
        coordinator = self.cluster.coordinator
        if not coordinator.up or coordinator.term != order.term:
            self.world.tell("savepoints", f"cut {order.cut.id} is gone with its driver")
            return None
        return coordinator.cut(CutOrder(ask=True))

    def _note_missed(self, order: _Order, tasks: Sequence[str]) -> None:
        self.world.tell("savepoints", f"cut {order.cut.id} was missed by {tasks}")
        self._missed += order.calm
        if self._missed > _CALM_TRIES_MAX:
            self.cluster.oracle.fail("savepoints", f"{tasks} miss every cut")

    def _check_waiting(self, order: _Order) -> None:
        """Patience is over: nobody who could have kept the cut may be the reason. In calm, the run has no end then."""
        self.world.tell("savepoints", f"cut {order.cut.id} takes too long")
        for container in self.cluster.current.values():
            for host in container.hosts if container.alive and container.holds(order.cut) else ():
                over = host.machine.phase is Phase.OVER and host.machine.version <= order.cut.version
                if over and host.keeper.state != (order.cut.id, "kept"):
                    self.cluster.oracle.fail(host.name, f"has ended, and {host.keeper.state} of cut {order.cut.id}")

    def _complete(self, order: _Order, report: CutReport) -> None:
        folder = Path(order.cut.folder)
        for task in [TaskName.parse(task) for task, state in report.states.items() if state == "over"]:
            last = self.cluster.oracle.ledgers[task].last
            if last is None or not last.ended or last.version > order.cut.version:
                self.world.tell("savepoints", f"{task} is drained, or has ended behind cut {order.cut.id}")
                return
            if not self._copy_ended(task, folder):
                self.world.tell("savepoints", f"{task} has ended, and its state isn't on its disk")
                self.satisfied = self.satisfied or order.calm  # only another start of the app would put it there
                return
        tasks = [TaskName.parse(task) for task in report.states]
        kept = {task: self._kept(folder, task) for task in tasks}
        oracle = self.cluster.oracle
        if (wrong := misfit({task: one.record for task, one in kept.items()}, self._producers())) is not None:
            oracle.judge_misfit(wrong)
            self._note_missed(order, [str(wrong.writer)])
            return
        marks = {task: oracle.ledgers[task].marks.get(kept[task].offset, Mark()) for task in tasks}
        savepoint = Savepoint(folder, order.cut.version, kept, marks, oracle)
        judge(oracle, self.cluster, savepoint)
        self.world.tell("savepoints", f"cut {order.cut.id} is complete")
        self.taken.append(savepoint)
        self.satisfied = self.satisfied or order.calm

    def _producers(self) -> dict[int, TaskName]:
        return {task.producer: task.name for task in self.cluster.tasks}

    def _kept(self, folder: Path, task: TaskName) -> KeptCommit:
        data = self.cluster.files.get(folder / task_folder(task) / COMMIT_FILE)
        if data is None:
            self.cluster.oracle.fail(task, f"says that it has kept its state in {folder}, and has not")
        return KeptCommit.decode(data)

    def _copy_ended(self, task: TaskName, folder: Path) -> bool:
        """Read the local state of a task that has ended, as taking a savepoint does, unless that is lost."""
        offset, record = next(reversed(self.cluster.oracle.ledgers[task].commits.items()))
        scope = self.cluster.scopes[task]
        assert scope.folders is not None
        wanted = LocalCheckpoint(offset, record.generation, record.version).encode()
        for disk in self.cluster.disks:
            found = disk.get(scope.folders.local)
            if found is not None and found.local == wanted:
                here = folder / task_folder(task)
                self.cluster.shared[here / DATABASE_FOLDER] = Folder(dict(found.state), found.local)
                kept = KeptCommit(task=str(task), offset=offset, record=record)
                self.cluster.files[here / COMMIT_FILE] = kept.encode()
                return True
        return False


def judge(oracle: Oracle, cluster: Cluster, savepoint: Savepoint) -> None:
    """What all tasks have kept fits together and was committed."""
    for task, kept in savepoint.kept.items():
        record, ledger = kept.record, oracle.ledgers[task]
        if ledger.commits.get(kept.offset) != record:
            oracle.fail(task, f"has kept a commit that doesn't count: {kept}")
        if record.version != savepoint.version and not (record.ended and record.version < savepoint.version):
            oracle.fail(task, f"has kept version {record.version} of cut {savepoint.version}")
        copy = cluster.shared.get(savepoint.tasks[task] / DATABASE_FOLDER)
        if copy is None:
            oracle.fail(task, f"has kept version {record.version} without its state")
        state = {key: value for key, value in copy.state.items() if key != LOCAL_KEY}
        if wrong := oracle.differs_at(task, savepoint.marks[task], state):
            oracle.fail(task, f"what it has kept of version {record.version}: {wrong}")
    _judge_edges(oracle, savepoint)


def _judge_edges(oracle: Oracle, savepoint: Savepoint) -> None:
    """What each stage has processed of a stream is all that the stages before it have committed there, and no more."""
    sent: dict[str, set[int]] = {ssp.stream.name: set() for ssp in oracle.logs}
    taken: dict[tuple[str, str], set[int]] = {}
    for task, mark in savepoint.marks.items():
        ledger = oracle.ledgers[task]
        for message in ledger.emitted[: mark.emitted]:
            sent[oracle.stream_of(message)].add(message)
        for message in ledger.consumed[: mark.consumed]:
            taken.setdefault((task.stage, oracle.stream_of(message)), set()).add(message)
    for stage in oracle.shape.stages:
        for stream in sent.keys() & set(stage.reads):
            found = taken.get((stage.name, stream), set())
            if found != sent[stream]:
                lost, early = sorted(sent[stream] - found), sorted(found - sent[stream])
                oracle.fail(
                    "savepoints",
                    f"at cut {savepoint.version}, {stage.name} lacks {lost} of {stream}, and has {early} too soon",
                )
