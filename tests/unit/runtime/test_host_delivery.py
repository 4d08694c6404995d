"""Real hosts over a producer that sends again what it has no acknowledgement of, and whose frames land late.

The embedded log neither doubles nor delays what is appended. Other systems may; and what a dying process had under way
may land long after its replacement has taken over. So here a wrapper around the log's producer does both, tasks die at
any instruction of the protocol, and some run on a slow node.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, check, orders_app

from headrace.checkpoint.instructions import Instruction
from headrace.core.ids import Offset
from headrace.runtime.connections import Connections
from headrace.runtime.container import Container
from headrace.runtime.host import TaskHost
from headrace.systems.base import Producer
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import SystemSpec

Flying = dict[tuple[str, int], list[bytes]]


class Retrying:
    """A producer whose acknowledgements get lost: then everything since the last one goes out once more."""

    def __init__(self, real: Producer, chance: random.Random) -> None:
        self._real = real
        self._chance = chance
        self.flying: Flying = defaultdict(list)
        self.repeated = 0

    def send(self, stream: str, partition: int, payload: bytes) -> None:
        self.flying[stream, partition].append(payload)

    def flush(self) -> dict[tuple[str, int], Offset]:
        for key, payloads in self.flying.items():
            while self._chance.random() < 0.3:
                landed = payloads[: self._chance.randint(0, len(payloads))]
                self.repeated += len(landed)
                self._land(key, landed)
            self._land(key, payloads)
        self.flying.clear()
        return self._real.flush()

    def close(self) -> None:
        self._real.close()

    def _land(self, key: tuple[str, int], payloads: list[bytes]) -> None:
        for payload in payloads:
            self._real.send(*key, payload)


class Death(Exception):
    """Of one container."""


class Scene:
    """An app whose containers are made to die, and its wires."""

    def __init__(self, home: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.home = home
        self.producers: dict[Connections, Retrying] = {}
        self.late: list[Flying] = []
        self.fuse = 10**9
        self.repeated = 0
        real, perform = Connections.record_producer, TaskHost._perform

        def producer(connections: Connections, spec: SystemSpec) -> Retrying:
            if connections not in self.producers:
                self.producers[connections] = Retrying(real(connections, spec), self.chance)
            return self.producers[connections]

        def flush(connections: Connections) -> None:
            if connections in self.producers:
                self.producers[connections].flush()

        def mortal(host: TaskHost, instruction: Instruction) -> None:
            for act in (lambda: None, lambda: perform(host, instruction)):
                act()
                self.fuse -= 1
                if self.fuse == 0:
                    raise Death

        monkeypatch.setattr(Connections, "record_producer", producer)
        monkeypatch.setattr(Connections, "flush_records", flush)
        monkeypatch.setattr(TaskHost, "_perform", mortal)

    def die(self, app: DrivenApp, container: Container) -> list[str]:
        """Its frames in flight land in part: some at once, some when it has been replaced. Returns its stages."""
        producer = self.producers.pop(container.connections, None)
        stages = sorted({host.name.stage for host in container.hosts})
        app.kill(container)
        if producer is not None:
            self.repeated += producer.repeated
            landing = {key: frames[: self.chance.randint(0, len(frames))] for key, frames in producer.flying.items()}
            if self.chance.random() < 0.5:
                self._land(landing)
            else:
                self.late.append(landing)
        return stages

    def land_late(self) -> None:
        """What was under way arrives."""
        for landing in self.late:
            self._land(landing)
        self.late.clear()

    def _land(self, landing: Flying) -> None:
        producer = LogSystem(self.home / "streams").producer()
        for (stream, partition), frames in landing.items():
            for frame in frames:
                producer.send(stream, partition, frame)
        producer.close()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def turn(app: DrivenApp, scene: Scene, slow: Container | None = None) -> None:
    """A turn of each container; who dies is replaced, also when it dies in its start."""
    for container in list(app.living):
        if container is slow and scene.chance.random() < 0.95:
            continue
        try:
            container.turn()
        except Death:
            replace(app, scene, container)
    app.clock.advance(20)


def replace(app: DrivenApp, scene: Scene, container: Container) -> None:
    stages = scene.die(app, container)
    while True:
        if scene.chance.random() < 0.3:
            scene.fuse = scene.chance.randint(1, 60)
        known = set(app.living)
        try:
            app.start(*stages)
        except Death:
            (half_started,) = set(app.living) - known
            scene.die(app, half_started)
        else:
            scene.land_late()
            return


@pytest.mark.parametrize("seed", range(4))
def test_what_is_delivered_twice_or_late_counts_once_and_tasks_may_die_at_any_instruction(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    scene = Scene(tmp_path, seed, monkeypatch)
    with DrivenApp(orders_app(tmp_path)) as app:
        for stage in app.plan.stages:
            app.start(stage.name)
        deaths = 0
        for _ in range(12):
            orders.write(scene.chance.randrange(1, 60))
            scene.fuse = scene.chance.randint(1, 150)
            for _ in range(scene.chance.randrange(2, 2 * INTERVAL_MS // 20)):
                turn(app, scene)
            deaths += scene.fuse <= 0
        assert deaths > 1
        scene.fuse = 10**9
        orders.end()
        for _ in range(40 * INTERVAL_MS // 20):
            turn(app, scene)
            if all(host.finished for host in app.hosts):
                break
        repeated = scene.repeated + sum(producer.repeated for producer in scene.producers.values())
        assert repeated > 100
        assert sum(host.metrics.counters.get("duplicates", 0) for host in app.hosts) > 0
        check(app, orders)


@pytest.mark.parametrize("stage", ["orders", "by-member", "by-region"])
def test_a_slow_node_holds_others_up_and_nothing_more(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """One task gets a turn where the others get twenty; a version takes as long as its slowest task."""
    scene = Scene(tmp_path, 1, monkeypatch)
    with DrivenApp(orders_app(tmp_path)) as app:
        slow_task = app.plan.stage(stage).tasks[0].name
        app.start_tasks([task.name for each in app.plan.stages for task in each.tasks if task.name != slow_task])
        slow = app.start_tasks([slow_task])
        for _ in range(15):
            orders.write()
            for _ in range(INTERVAL_MS // 20):
                turn(app, scene, slow)
        orders.end()
        for _ in range(2000):
            if all(host.finished for host in app.hosts):
                break
            turn(app, scene, slow)
        check(app, orders)
