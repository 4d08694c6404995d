"""A standby follows a live task; whenever it is stopped, a task begins from its folder with what was committed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from driven_app import INTERVAL_MS, STEP_MS, DrivenApp, Orders, check, orders_app
from polars.testing import assert_frame_equal

from drawn import seeds
from headrace.core.errors import InfrastructureError
from headrace.core.ids import TaskName
from headrace.core.log import RecentWarnings
from headrace.plan.model import Plan
from headrace.protocol.protocol import Phase
from headrace.protocol.record import LOCAL_KEY, LocalCheckpoint
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import home_log
from headrace.task.connections import Connections
from headrace.task.container import Container
from headrace.task.host import ports
from headrace.task.scope import run
from headrace.task.standby import Standby
from headrace.task.state import task_state
from headrace.task.state.depot import LiveDepot
from headrace.task.state.disk import Disk
from simulator.objects import MemoryObjects

TASK = TaskName("by-member", 0)
WAITS_MAX = 1000
FAULTS = ("stop", "roll back", "die", "die halfway", "come late", "begin")


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_state, "SNAPSHOT_AFTER_BYTES", 8000)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> MemoryObjects:
    objects = MemoryObjects()
    monkeypatch.setattr("headrace.task.container.open_objects", lambda place: objects)
    return objects


class HalfwayError(Exception):
    """A task has died between the changes of a commit and its record."""


class Scene:
    """An app on one host, and standbys of one of its tasks on others."""

    def __init__(self, home: Path, objects: MemoryObjects, seed: int = 0) -> None:
        self.home = home
        self.objects = objects
        self.orders = Orders(home, seed)
        self.app = DrivenApp(orders_app(home, snapshots="s3://bucket/orders", standby=1))
        self.warnings = RecentWarnings(self.app.clock)
        self._standbys: list[Standby] = []

    @contextmanager
    def open(self) -> Iterator[Scene]:
        with self.app, closing(self.orders):
            self._connections = Connections()
            self._depot = LiveDepot(self.objects, lambda: None, self.app.clock, None)
            with closing(self._connections), closing(self._depot):
                yield self
                for one in self._standbys:
                    one.close()

    def on(self, host: str) -> Plan:
        """The plan as a container on another host sees it."""
        graph = self.app.plan.graph
        settings = replace(graph.settings, home=str(self.home / host), internal=home_log(str(self.home)))
        return replace(self.app.plan, graph=replace(graph, settings=settings))

    def standby(self, host: str = "b") -> Standby:
        plan = self.on(host)
        stage = plan.stage(TASK.stage)
        task = stage.tasks[TASK.number]
        made = Standby(plan, stage, task, self._connections, self._depot, self.app.clock, self.warnings)
        self._standbys.append(made)
        return made

    def stop(self, standby: Standby) -> None:
        self._standbys.remove(standby)
        standby.close()

    def work(self, rows: int = 40) -> None:
        self.orders.write(rows)
        self.app.run(400)

    def catch_up(self, standby: Standby) -> None:
        self.app.until(lambda: not standby.advance() and standby.behind == 0)

    def begin(self, host: str) -> Container:
        """The task begins on that host, without any other one, and has processed nothing yet."""
        container = Container(self.on(host), [TASK], self.app.next_generation, self.app.clock)
        self.app.living.append(container)
        (begun,) = container.hosts
        begun.start()
        for _ in range(WAITS_MAX):
            if begun.machine.phase is Phase.RUNNING:
                return container
            container.wakeup.wait(STEP_MS)  # for a snapshot
            self.app.clock.advance(STEP_MS)
            run(begun.performing())
        raise AssertionError("it didn't begin")

    def state(self, host: str) -> dict[str, pl.DataFrame]:
        """What the task has when it begins there; then it is gone again."""
        container = self.begin(host)
        (begun,) = container.hosts
        stores = begun.attempt.stores()
        found = {id_: list(store.frames()) for id_, store in stores.items()}
        self.app.kill(container)
        return {id_: pl.concat(frames).sort(pl.all()) for id_, frames in found.items() if frames}

    def records(self, host: str) -> int:
        """How many records of its changelog the task reads when it begins there."""
        container = self.begin(host)
        read = container.hosts[0].replay.records
        self.app.kill(container)
        return read

    def oldest(self) -> int:
        return LogSystem(self.home / "streams").admin().extents("orders-by-member-changelog")[TASK.number].oldest

    def half_a_commit(self) -> Container:
        """Run until the task has changes to append and no commit record for them; its container does nothing more."""
        host = self.app.host(str(TASK))
        (container,) = (one for one in self.app.living if host in one.hosts)

        def dies(*_: object) -> Iterator[None]:
            raise HalfwayError

        host._commits.append_record = dies  # type: ignore[method-assign, assignment]
        self.orders.write()
        with pytest.raises(HalfwayError):
            self.app.run(100 * INTERVAL_MS)
        return container

    def die_halfway(self) -> None:
        """The changes of a commit are in the changelog, and the commit isn't."""
        self.half_a_commit().connections.flush_records()
        self.kill_all()
        self.app.start()

    def come_late(self) -> None:
        """A stale copy of the task appends changes after its replacement has begun."""
        stale = self.half_a_commit()
        self.app.living.remove(stale)
        self.kill_all()
        for host in stale.hosts:
            host.state.close()
        self.app.start()
        stale.connections.flush_records()
        self.app.living.append(stale)
        self.app.kill(stale)

    def kill_all(self) -> None:
        for container in list(self.app.living):
            self.app.kill(container)

    def finish(self, host: str) -> None:
        """The task goes on there to the end, and all is right."""
        names = [task.name for stage in self.app.plan.stages for task in stage.tasks if task.name != TASK]
        self.app.start_tasks(names)
        container = Container(self.on(host), [TASK], self.app.next_generation, self.app.clock)
        self.app.living.append(container)
        container.hosts[0].start()
        self.orders.write()
        self.orders.end()
        self.app.finish()
        check(self.app, self.orders)


@pytest.fixture
def scene(tmp_path: Path, objects: MemoryObjects) -> Iterator[Scene]:
    with Scene(tmp_path, objects).open() as scene:
        yield scene


def same(found: dict[str, pl.DataFrame], wanted: dict[str, pl.DataFrame]) -> None:
    assert found.keys() == wanted.keys()
    for id_, rows in wanted.items():
        assert_frame_equal(found[id_], rows)


def test_a_task_that_begins_from_it_reads_next_to_nothing(scene: Scene) -> None:
    scene.app.start()
    standby = scene.standby()
    for _ in range(6):
        scene.work()
        standby.advance()
    scene.catch_up(standby)
    scene.stop(standby)
    scene.kill_all()
    assert scene.records("b") <= 3  # the commit that the folder holds, perhaps one more, and its own abort
    assert scene.records("c") > 3
    assert not list(scene.warnings)
    scene.finish("b")


@pytest.mark.parametrize("seed", seeds(range(2, 7), 2))
def test_it_is_always_as_of_a_commit(tmp_path: Path, objects: MemoryObjects, seed: int) -> None:
    """It is stopped at random moments, while the task commits, rolls back, dies, and has its changelog trimmed."""
    rng = random.Random(seed)
    with Scene(tmp_path, objects, seed).open() as scene:
        scene.app.start()
        standby: Standby | None = None
        for _ in range(30):
            match rng.choice(["work", "work", "follow", "follow", "follow", *FAULTS]):
                case "work":
                    scene.work(rng.choice([5, 40, 200]))
                case "follow":
                    standby = standby or scene.standby()
                    for _ in range(rng.randrange(1, 6)):
                        standby.advance()
                        scene.app.turn()
                case "stop" if standby is not None:
                    scene.stop(standby)
                    standby = None
                case "roll back":
                    scene.app.host(str(TASK)).machine.abandon()
                    scene.app.run(100)
                case "die":
                    scene.kill_all()
                    scene.app.start()
                case "die halfway":
                    scene.die_halfway()
                case "come late":
                    scene.come_late()
                case "begin":
                    if standby is not None:
                        scene.stop(standby)
                        standby = None
                    scene.kill_all()
                    same(scene.state("b"), scene.state(f"fresh-{rng.random()}"))
                    scene.app.start()
        if standby is not None:
            scene.stop(standby)
        scene.kill_all()
        same(scene.state("b"), scene.state("fresh"))
        scene.finish("b")


def test_what_was_trimmed_is_fetched(scene: Scene) -> None:
    scene.app.start()
    standby = scene.standby()
    scene.work()
    scene.catch_up(standby)
    before = scene.oldest()
    while scene.oldest() <= before + 8000:
        scene.work(200)
    scene.catch_up(standby)
    assert any("doesn't fit the changelog" in warning for warning in scene.warnings)
    scene.work(200)
    scene.catch_up(standby)
    assert not list((scene.home / "b/snapshots/orders/by-member-0").glob("[0-9]*"))  # it needs none any more
    assert not list((scene.home / "b/snapshots/orders/by-member-0").glob("unfit-*"))
    scene.stop(standby)
    scene.kill_all()
    objects, scene.objects.objects = dict(scene.objects.objects), {}
    assert scene.records("b") <= 3
    scene.objects.objects = objects
    same(scene.state("b"), scene.state("fresh"))
    scene.finish("b")


def test_it_begins_with_what_an_earlier_task_has_left(scene: Scene) -> None:
    scene.app.start()
    scene.work(200)
    scene.kill_all()
    shutil.copytree(scene.home / "state", scene.home / "b/state")
    scene.app.start()
    scene.work()
    standby = scene.standby()
    scene.catch_up(standby)
    assert standby.records < 20
    scene.stop(standby)
    scene.kill_all()
    same(scene.state("b"), scene.state("fresh"))


def test_what_isnt_of_this_changelog_is_rebuilt(scene: Scene) -> None:
    scene.app.start()
    for _ in range(4):
        scene.work()
    scene.kill_all()
    shutil.copytree(scene.home / "state/orders/by-member-1", scene.home / "b/state/orders/by-member-0")
    scene.app.start()
    scene.work()
    standby = scene.standby()
    scene.catch_up(standby)
    assert any("local state doesn't fit the changelog" in warning for warning in scene.warnings)
    scene.stop(standby)
    scene.kill_all()
    same(scene.state("b"), scene.state("fresh"))


def test_another_commit_at_its_place_is_no_base(scene: Scene) -> None:
    scene.app.start()
    for _ in range(4):
        scene.work()
    standby = scene.standby()
    scene.catch_up(standby)
    scene.stop(standby)
    with closing(Disk().open(scene.home / "b/state/orders/by-member-0")) as database:
        local = LocalCheckpoint.decode(database.get(LOCAL_KEY) or b"")
        batch = database.batch()
        batch.put(LOCAL_KEY, LocalCheckpoint(local.offset, local.generation, local.version + 1).encode())
        database.write(batch)
    standby = scene.standby()
    scene.catch_up(standby)
    assert "local state doesn't fit the changelog" in next(iter(scene.warnings))
    scene.stop(standby)
    scene.kill_all()
    same(scene.state("b"), scene.state("fresh"))


def test_it_takes_nothing_from_a_task_that_has_the_folder(scene: Scene) -> None:
    scene.app.start()
    scene.work()
    scene.kill_all()
    container = scene.begin("b")
    standby = scene.standby()
    assert not standby.advance()
    assert standby.locked_out
    assert not list((scene.home / "b/state/orders").glob("by-member-0.*"))
    scene.app.kill(container)
    scene.catch_up(standby)


def test_a_task_waits_for_it_to_let_go(scene: Scene) -> None:
    scene.app.start()
    scene.work(200)
    standby = scene.standby()
    scene.catch_up(standby)
    scene.kill_all()
    container = Container(scene.on("b"), [TASK], scene.app.next_generation, scene.app.clock)
    scene.app.living.append(container)
    (begun,) = container.hosts
    begun.start()
    scene.app.run(1000)
    assert begun.beginning.fetching
    assert begun.generation == 0
    scene.stop(standby)
    scene.app.run(400)
    assert begun.generation > 0
    assert begun.replay.records <= 3
    assert not list(begun.state.warnings)


def test_a_task_doesnt_wait_forever(scene: Scene) -> None:
    scene.app.start()
    scene.work(200)
    standby = scene.standby()
    scene.catch_up(standby)
    scene.kill_all()
    container = Container(scene.on("b"), [TASK], scene.app.next_generation, scene.app.clock)
    scene.app.living.append(container)
    (begun,) = container.hosts
    begun.start()
    scene.app.run(round(ports.LETS_GO_MS) + 1000)
    scene.app.until(lambda: begun.generation > 0)
    assert "a folder of its own" in begun.state.warnings[0]
    scene.work()
    scene.catch_up(standby)  # which goes on as if nothing had happened
    scene.kill_all()
    scene.stop(standby)
    same(scene.state("b"), scene.state("fresh"))


def test_without_a_beginning_it_fails(scene: Scene) -> None:
    scene.app.start()
    while scene.oldest() <= 32:
        scene.work(200)
    scene.objects.objects.clear()
    standby = scene.standby()
    with pytest.raises(InfrastructureError, match=r"can't be followed.*no snapshot"):
        scene.catch_up(standby)
