"""With a store of snapshots, tasks need no disk in common: those that start elsewhere fetch theirs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from driven_app import DrivenApp, Orders, check, orders_app, stateful

from headrace.core.calls import Retry
from headrace.core.errors import InfrastructureError, UnavailableError
from headrace.protocol.protocol import Phase
from headrace.run.container import task_status
from headrace.stores import transfer as sending
from headrace.stores.snapshots import SNAPSHOTS_KEPT, Manifest, ObjectStore, manifest_names
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import home_log
from headrace.task.container import Container
from headrace.task.scope import run
from headrace.task.state import task_state
from headrace.task.state.disk import Disk
from simulator.objects import MemoryObjects

TASKS = ("by-member-0", "by-member-1")


class Store(MemoryObjects):
    """A store that a test can take down."""

    down = False
    deaf = False
    """Nothing can be written."""
    copied = 0

    def _ask(self, *, writes: bool = False) -> None:
        if self.down or (writes and self.deaf):
            raise UnavailableError("it is down")

    def create(self, name, data):
        self._ask(writes=True)
        return super().create(name, data)

    def put(self, name, size, chunks):
        self._ask(writes=True)
        super().put(name, size, chunks)

    def copy(self, source, target):
        self._ask(writes=True)
        self.copied += 1
        return super().copy(source, target)

    def list(self, prefix):
        self._ask()
        return super().list(prefix)

    def manifests(self, task: str) -> list[str]:
        folder = f"snapshots/orders/{task}/"
        return manifest_names(name.removeprefix(folder) for name in self.list(folder))


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_state, "SNAPSHOT_AFTER_BYTES", 8000)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()

    def opened(place: object) -> ObjectStore:
        return store

    monkeypatch.setattr("headrace.task.container.open_objects", opened)
    return store


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


@pytest.fixture
def app(tmp_path: Path, store: Store, orders: Orders) -> Iterator[DrivenApp]:
    with DrivenApp(orders_app(tmp_path, snapshots="s3://bucket/orders")) as app:
        yield app


def oldest(home: Path, task: str) -> int:
    stage, number = task.rsplit("-", 1)
    return LogSystem(home / "streams").admin().extents(f"orders-{stage}-changelog")[int(number)].oldest


def sent(app: DrivenApp, store: Store) -> None:
    """Run until the store has snapshots of the tasks with state, and their changelogs are trimmed."""
    app.until(lambda: all(oldest(app.home, task) > 32 for task in TASKS))
    assert all(len(store.manifests(task)) >= SNAPSHOTS_KEPT for task in TASKS)


def ran(app: DrivenApp, orders: Orders, store: Store) -> Container:
    container = app.start()
    for _ in range(12):
        orders.write(200)
        app.run(400)
    sent(app, store)
    return container


def lose_the_machine(app: DrivenApp) -> None:
    for container in list(app.living):
        app.kill(container)
    shutil.rmtree(app.home / "state")
    shutil.rmtree(app.home / "snapshots", ignore_errors=True)


def finished(app: DrivenApp, orders: Orders) -> None:
    orders.write()
    orders.end()
    app.finish()
    check(app, orders)


def test_a_task_begins_elsewhere_with_the_snapshot_that_it_fetches(app: DrivenApp, orders: Orders, store: Store):
    ran(app, orders, store)
    lose_the_machine(app)
    app.start()
    app.until(lambda: all(host.generation for host in app.hosts))
    for host in stateful(app.hosts):
        assert not list(host.state.warnings)
    finished(app, orders)


def test_on_its_own_machine_it_needs_no_store(app: DrivenApp, orders: Orders, store: Store):
    container = ran(app, orders, store)
    app.kill(container)
    store.down = True
    app.start()
    assert all(host.generation for host in app.hosts)
    store.down = False
    finished(app, orders)


def test_nothing_is_trimmed_before_snapshots_have_arrived(app: DrivenApp, orders: Orders, store: Store):
    store.deaf = True
    app.start()
    for _ in range(12):
        orders.write(200)
        app.run(400)
    assert all(oldest(app.home, task) <= 32 for task in TASKS)
    folders = [list((app.home / "snapshots/orders" / task).iterdir()) for task in TASKS]
    assert all(SNAPSHOTS_KEPT <= len(some) <= SNAPSHOTS_KEPT + 1 for some in folders)
    warnings = [warning for host in app.hosts for warning in host.state.warnings]
    assert any("the object store for snapshots doesn't answer: it is down" in warning for warning in warnings)
    finished(app, orders)


def test_other_tasks_go_on_while_one_fetches(app: DrivenApp, orders: Orders, store: Store):
    app.kill(ran(app, orders, store))
    for kind in ("state", "snapshots"):
        shutil.rmtree(app.home / kind / "orders" / "by-member-0")
    store.down = True
    app.start()
    one, other = app.host("by-member/0"), app.host("by-member/1")
    assert (task_status(one, 0.0).state, task_status(other, 0.0).state) == ("restoring", "running")
    before = other.metrics.rows_in
    orders.write(10)
    app.until(lambda: other.metrics.rows_in > before)
    assert one.beginning.fetching
    assert one.generation == 0
    store.down = False
    app.until(lambda: one.generation > 0)
    finished(app, orders)


def test_a_store_that_stays_away_ends_the_container(
    app: DrivenApp, orders: Orders, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sending, "RETRY", Retry(2, 1, 1))
    ran(app, orders, store)
    lose_the_machine(app)
    store.down = True
    with pytest.raises(UnavailableError, match="it is down"):  # at once, or a little later
        app.start()
        app.run(100_000)
    store.down = False
    app.kill(app.living[0])
    app.start()
    finished(app, orders)


def test_without_state_and_snapshots_a_trimmed_changelog_is_not_enough(app: DrivenApp, orders: Orders, store: Store):
    ran(app, orders, store)
    lose_the_machine(app)
    store.objects.clear()
    app.start("by-member")
    with pytest.raises(InfrastructureError, match=r"the state of task by-member/. is lost.*no snapshot"):
        app.run(100_000)


@pytest.mark.parametrize("what", ["a table", "the manifest", "its bytes"])
def test_of_a_damaged_snapshot_the_one_before_is_taken(app: DrivenApp, orders: Orders, store: Store, what: str):
    app.drain(ran(app, orders, store))
    lose_the_machine(app)
    folder = "snapshots/orders/by-member-0/"
    newest, before, *_ = store.manifests("by-member-0")
    if what == "the manifest":
        del store.objects[folder + newest]
    elif what == "its bytes":
        store.objects[folder + newest] = b"damaged"
    else:
        objects = {file.object for file in Manifest.decode(store.objects[folder + newest]).files}
        own = objects - {file.object for file in Manifest.decode(store.objects[folder + before]).files}
        store.objects[folder + min(own)] = bytes(len(store.objects[folder + min(own)]))
    app.start()
    app.until(lambda: all(host.generation for host in app.hosts))
    warned = [warning for warning in app.host("by-member/0").state.warnings if "is damaged" in warning]
    assert bool(warned) == (what != "the manifest")
    finished(app, orders)


def test_a_snapshot_that_comes_between_its_look_and_its_fence_is_found(
    app: DrivenApp, orders: Orders, store: Store, tmp_path: Path
):
    """It looks for one on a machine of its own, and finds none; then one comes, and the changelog is trimmed."""
    before = app.start()
    app.until(lambda: app.host("by-member/0").generation > 0)  # or it would be the newer one
    orders.write()
    app.run(300)
    task = app.host("by-member/0").name
    graph = app.plan.graph
    settings = replace(graph.settings, home=str(tmp_path / "elsewhere"), internal=home_log(str(tmp_path)))
    elsewhere = replace(app.plan, graph=replace(graph, settings=settings))
    slow = Container(elsewhere, [task], app.next_generation, app.clock)
    (host,) = slow.hosts
    assert not store.manifests("by-member-0")
    steps = host.starting()
    while not host.generation:
        if next(steps, None) is None:  # it fetches
            steps = host.performing()
    for _ in range(12):
        orders.write(200)
        app.run(400)
    sent(app, store)
    run(steps)
    app.living.append(slow)
    app.kill(before)
    app.start_tasks([each.name for stage in app.plan.stages for each in stage.tasks if each.name != task])
    app.until(lambda: host.machine.phase is Phase.RUNNING)
    assert (tmp_path / "elsewhere/snapshots/orders/by-member-0").is_dir()
    finished(app, orders)


def test_a_rollback_begins_with_what_is_there(app: DrivenApp, orders: Orders, store: Store):
    ran(app, orders, store)
    store.down = True
    host = app.host("by-member/0")
    before = host.generation
    host.machine.abandon()
    app.turn()
    assert host.generation > before
    store.down = False
    for _ in range(8):
        orders.write(200)
        app.run(400)
    folder = "snapshots/orders/by-member-0/"
    app.until(lambda: f"-{host.generation}-" in store.manifests("by-member-0")[0])
    manifest = Manifest.decode(store.objects[folder + store.manifests("by-member-0")[0]])
    assert {file.object.split("/")[1] for file in manifest.files} == {f"{host.generation:010}"}
    finished(app, orders)


def test_files_cross_the_network_once(app: DrivenApp, orders: Orders, store: Store, tmp_path: Path):
    """What another incarnation finds on its disk is copied in the store."""
    app.drain(ran(app, orders, store))
    app.start()
    for _ in range(6):
        orders.write(200)
        app.run(400)
    app.until(lambda: store.copied > 0)
    finished(app, orders)


def test_a_stale_copy_that_fetches_the_same_snapshot_does_no_harm(tmp_path: Path):
    disk, stale, snapshot = Disk(), Disk(), tmp_path / "snapshots/00000000000000000010-1-100"
    disk.begin_draft(snapshot)
    for start, data in ((0, b"abc"), (3, b"de")):
        for one in (disk, stale):
            one.fill_draft(snapshot, "file", start, data)
    disk.fill_draft(snapshot, "empty", 0, b"")
    disk.complete_draft(snapshot)
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == {"file": b"abcde", "empty": b""}


def test_folders_of_files_are_a_store_too(tmp_path: Path, orders: Orders):
    pytest.importorskip("obstore", reason="obstore is not installed")
    with DrivenApp(orders_app(tmp_path, snapshots=f"file://{tmp_path}/store")) as app:
        app.start()
        for _ in range(12):
            orders.write(200)
            app.run(400)
        app.until(lambda: all(oldest(tmp_path, task) > 32 for task in TASKS))
        lose_the_machine(app)
        app.start()
        finished(app, orders)
