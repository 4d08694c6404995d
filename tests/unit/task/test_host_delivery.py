"""Real hosts over a producer that sends again what it has no acknowledgement of, and whose frames land late.

The embedded log neither doubles nor delays what is appended. Other systems may; and what a dying process had under way
may land long after its replacement has taken over. So here a wrapper around the log's producer does both, tasks die at
any instruction of the protocol, and some run on a slow node.
"""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, check, orders_app

from drawn import seeds
from headrace.core.errors import FencedError, InfrastructureError
from headrace.core.ids import Offset, TaskName
from headrace.protocol.instructions import Instruction
from headrace.systems.base import Producer
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import SystemSpec
from headrace.systems.startpoints import Grant
from headrace.task.connections import Connections
from headrace.task.container import Container
from headrace.task.host.task_host import TaskHost
from headrace.task.scope import Steps
from headrace.task.state import task_state

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

    def landmark(self, stream: str, partition: int) -> str:
        return self._real.landmark(stream, partition)

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
        self.zombies: list[Container] = []
        self.current: dict[TaskName, object] = {}
        real, perform = Connections.record_producer, TaskHost._perform

        def producer(connections: Connections, spec: SystemSpec) -> Retrying:
            if connections not in self.producers:
                self.producers[connections] = Retrying(real(connections, spec), self.chance)
            return self.producers[connections]

        def flush(connections: Connections) -> None:
            if connections in self.producers:
                self.producers[connections].flush()

        def mortal(host: TaskHost, instruction: Instruction) -> Steps[None]:
            for act in (lambda: (), lambda: perform(host, instruction)):
                yield from act()
                self.fuse -= 1
                if self.fuse == 0:
                    raise Death

        monkeypatch.setattr(Connections, "record_producer", producer)
        monkeypatch.setattr(Connections, "flush_records", flush)
        monkeypatch.setattr(TaskHost, "_perform", mortal)

    def start(self, app: DrivenApp, *stages: str) -> Container:
        """As the coordinator has it: generations are for the container that began last."""
        tasks = [task.name for stage in app.plan.stages if stage.name in stages for task in stage.tasks]
        me = object()
        self.current |= dict.fromkeys(tasks, me)

        def next_generation(task: TaskName) -> Grant:
            if self.current[task] is not me:
                raise FencedError(f"task {task}: another container has it")
            return app.next_generation(task)

        container = Container(app.plan, tasks, next_generation, app.clock)
        app.living.append(container)
        for host in container.hosts:
            host.start()
        return container

    def believe_dead(self, app: DrivenApp, container: Container) -> None:
        """It lives on, beside its replacement."""
        app.living.remove(container)
        self.zombies.append(container)
        replace(app, self, container)

    def let_zombies_act(self, app: DrivenApp) -> int:
        """Some take a turn; how many found out that they were replaced."""
        found_out = 0
        for zombie in [zombie for zombie in self.zombies if self.chance.random() < 0.2]:
            try:
                zombie.turn()
            except (FencedError, Death) as error:
                found_out += isinstance(error, FencedError)
                self.zombies.remove(zombie)
                app.living.append(zombie)
                self.die(app, zombie)
        return found_out

    def die(self, app: DrivenApp, container: Container) -> None:
        """Its frames in flight land in part: some at once, some when it has been replaced."""
        producer = self.producers.pop(container.connections, None)
        app.kill(container)
        if producer is not None:
            self.repeated += producer.repeated
            landing = {key: frames[: self.chance.randint(0, len(frames))] for key, frames in producer.flying.items()}
            if self.chance.random() < 0.5:
                self._land(landing)
            else:
                self.late.append(landing)

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
    """Start another one in its place."""
    stages = sorted({host.name.stage for host in container.hosts})
    if container in app.living:
        scene.die(app, container)
    while True:
        if scene.chance.random() < 0.3:
            scene.fuse = scene.chance.randint(1, 60)
        known = set(app.living)
        try:
            scene.start(app, *stages)
        except Death:
            (half_started,) = set(app.living) - known
            scene.die(app, half_started)
        else:
            scene.land_late()
            return


@pytest.mark.parametrize("seed", seeds(range(4), 2))
def test_what_is_delivered_twice_or_late_counts_once_and_tasks_may_die_at_any_instruction(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    scene = Scene(tmp_path, seed, monkeypatch)
    with DrivenApp(orders_app(tmp_path)) as app:
        for stage in app.plan.stages:
            scene.start(app, stage.name)
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


@pytest.mark.parametrize("seed", seeds(range(3), 1))
def test_zombies_live_on_beside_their_replacements_with_folders_lost_and_changelogs_trimmed(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(task_state, "SNAPSHOT_AFTER_BYTES", 6000)
    scene = Scene(tmp_path, 1000 + seed, monkeypatch)
    with DrivenApp(orders_app(tmp_path)) as app:
        for stage in app.plan.stages:
            scene.start(app, stage.name)
        fenced = 0
        for _ in range(15):
            orders.write(scene.chance.randrange(50, 200))
            if scene.chance.random() < 0.5:
                scene.fuse = scene.chance.randint(1, 150)
            for _ in range(scene.chance.randrange(2, 2 * INTERVAL_MS // 20)):
                turn(app, scene)
                fenced += scene.let_zombies_act(app)
            victim = scene.chance.choice(app.living)
            if scene.chance.random() < 0.4:
                for host in victim.hosts:
                    if scene.chance.random() < 0.5:
                        shutil.rmtree(
                            tmp_path / f"state/orders/{host.name.stage}-{host.name.number}", ignore_errors=True
                        )
                turn_out(app, scene, victim)
            elif len(scene.zombies) < 3:
                scene.believe_dead(app, victim)
        scene.fuse = 10**9
        for _ in range(100):
            fenced += scene.let_zombies_act(app)
            turn(app, scene)
        assert fenced
        for zombie in list(scene.zombies):
            scene.zombies.remove(zombie)
            app.living.append(zombie)
            scene.die(app, zombie)
        scene.land_late()
        orders.end()
        for _ in range(60 * INTERVAL_MS // 20):
            turn(app, scene)
            if all(host.finished for host in app.hosts):
                break
        check(app, orders)


def turn_out(app: DrivenApp, scene: Scene, container: Container) -> None:
    """Its folders were deleted while it ran: it goes on without noticing, or dies of it, and is replaced."""
    with suppress(InfrastructureError, Death):
        container.turn()
    replace(app, scene, container)


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
