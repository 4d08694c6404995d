"""Restarts of real hosts: what is read again, and what becomes of a state folder that can't be trusted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, check, orders_app, stateful

import headrace as hr
from drawn import seeds
from headrace.core.clock import WallClock
from headrace.core.errors import ProtocolError, StateCorruptError
from headrace.task.container import Container

STATE = "state/orders"


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def ran(app: DrivenApp, orders: Orders, batches: int = 6) -> None:
    """It has run for a while, is drained, and has left state behind."""
    container = app.start()
    for _ in range(batches):
        orders.write()
        app.run(300)
    app.drain(container)


def finished(app: DrivenApp, orders: Orders) -> None:
    """It goes on to the end, and all is right."""
    orders.write()
    app.run(600)
    orders.end()
    app.finish()
    check(app, orders)


def test_nothing_goes_wrong(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start()
        finished(app, orders)


def test_a_clean_stop_leaves_nothing_to_read(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        app.start()
        # The commit that the local state corresponds to, and the own abort.
        assert {host.replay.records for host in stateful(app.hosts)} == {2}
        assert any(host.state.entries() for host in stateful(app.hosts))
        assert not [warning for host in app.hosts for warning in host.state.warnings]
        finished(app, orders)


def test_a_kill_leaves_only_the_uncommitted_end(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        for _ in range(10):
            orders.write()
            app.run(500)
        app.kill(container)
        app.start()
        # Killed between turns, when every commit has reached the local state; changes are appended at commits only.
        assert {host.replay.records for host in stateful(app.hosts)} == {2}
        finished(app, orders)


def test_without_its_folder_a_task_reads_everything(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        shutil.rmtree(tmp_path / STATE)
        app.start()
        assert all(host.replay.records > 6 for host in stateful(app.hosts))
        finished(app, orders)


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(max(64, path.stat().st_size)))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 97):
        data[at] ^= 0x55
    path.write_bytes(bytes(data))


DAMAGES = [
    (garbage, "MANIFEST-*"),
    (truncated, "MANIFEST-*"),
    (Path.unlink, "MANIFEST-*"),
    (emptied, "CURRENT"),
    (Path.unlink, "CURRENT"),
    (flipped, "*.sst"),
    (truncated, "*.sst"),
    (Path.unlink, "*.sst"),
    (garbage, "rocksdict-config.json"),
    (garbage, "OPTIONS-*"),
    (garbage, "*"),
    (emptied, "*"),
    (Path.unlink, "*"),
]


@pytest.mark.parametrize(("damage", "pattern"), DAMAGES)
def test_a_damaged_folder_is_rebuilt(
    tmp_path: Path, orders: Orders, damage: Callable[[Path], None], pattern: str
) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        # Twice, since what RocksDB has in its log becomes tables when it is opened again.
        ran(app, orders, 3)
        ran(app, orders, 3)
        files = [path for path in (tmp_path / STATE).glob(f"*/{pattern}") if path.name != "LOCK"]
        assert len(files) >= 4  # the tasks that keep state
        for path in files:
            damage(path)
        app.start()
        finished(app, orders)


@pytest.mark.parametrize("pattern", ["*.sst", "*.blob"])
def test_damage_that_shows_only_when_it_is_read(tmp_path: Path, orders: Orders, pattern: str) -> None:
    orders.members = 20_000
    with DrivenApp(orders_app(tmp_path)) as app:
        for _ in range(2):
            container = app.start()
            orders.write(20_000)
            app.run(600)
            app.drain(container)
        files = list((tmp_path / STATE).glob(f"by-member-*/{pattern}"))
        assert files
        for path in files:
            data = bytearray(path.read_bytes())
            for at in range(200, len(data) - 500, 100):
                data[at] ^= 0xFF
            path.write_bytes(bytes(data))
        failures = 0
        app.start()
        orders.write(100)
        orders.end()
        while app.living:
            try:
                app.finish()
                break
            except StateCorruptError as error:
                assert "the next start rebuilds it" in (error.hint or "")
                failures += 1
                assert failures < 5
                app.kill(app.living[0])
                app.start()
        assert failures or [host for host in app.hosts if host.state.warnings]
        check(app, orders)


def test_one_restart_rebuilds_all_that_is_damaged(tmp_path: Path, orders: Orders) -> None:
    orders.members = 20_000
    with DrivenApp(orders_app(tmp_path)) as app:
        for _ in range(2):
            container = app.start()
            orders.write(20_000)
            app.run(600)
            app.drain(container)
        folders = {path.parent for path in (tmp_path / STATE).glob("by-member-*/*.blob")}  # opening doesn't read them
        assert len(folders) > 1
        for path in (path for folder in folders for path in folder.glob("*.blob")):
            data = bytearray(path.read_bytes())
            for at in range(200, len(data), 100):
                data[at] ^= 0xFF
            path.write_bytes(bytes(data))
        orders.write(100)
        orders.end()
        tasks = [task.name for stage in app.plan.stages for task in stage.tasks]
        lives: list[Exception | None] = []
        while not lives or lives[-1] is not None:
            container = Container(app.plan, tasks, app.next_generation, WallClock())
            with closing(container):
                try:
                    container.run()
                    lives.append(None)
                except StateCorruptError as error:
                    assert len(lives) < 2, "each life rebuilds all"
                    lives.append(error)
        assert len(lives) == 2
        check(app, orders)


def test_another_tasks_folder_is_not_taken(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        state = tmp_path / STATE
        shutil.move(state / "by-member-0", state / "aside")
        shutil.move(state / "by-region-1", state / "by-member-0")
        shutil.move(state / "aside", state / "by-region-1")
        app.start()
        assert "doesn't fit" in app.host("by-member/0").state.warnings[0]
        finished(app, orders)


def test_state_that_is_ahead_of_its_changelog_is_not_taken(tmp_path: Path, orders: Orders) -> None:
    """A machine that crashed may have kept the state folder's end, but not the log's."""
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders, 3)
        logs = sorted((tmp_path / "streams").glob("orders-*-changelog/*.log"))
        sizes = {path: path.stat().st_size for path in logs}
        assert len(logs) == 6
        for path in logs:
            with path.open("r+b") as file:
                file.truncate(sizes[path] // 2)
        app.start("by-region")
        assert all("doesn't fit" in host.state.warnings[0] for host in app.hosts)


def test_a_folder_that_a_zombie_has_open_is_left_alone(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        zombie = app.start()
        for _ in range(4):
            orders.write()
            app.run(300)
        app.living.remove(zombie)  # it hangs
        container = app.start()
        assert all("a folder of its own" in host.state.warnings[0] for host in container.hosts)
        for _ in range(4):
            orders.write()
            app.run(300)
        app.living.append(zombie)
        app.kill(zombie)
        kept = sorted(f"{host.name.stage}-{host.name.number}" for host in stateful(container.hosts))
        app.drain(container)
        assert sorted(path.name for path in (tmp_path / STATE).glob("[!.]*")) == kept
        app.start()
        assert all(host.replay.records > 2 for host in stateful(app.hosts))
        finished(app, orders)


@pytest.mark.parametrize("seed", seeds(range(6), 2))
def test_killed_at_any_moment(tmp_path: Path, orders: Orders, seed: int) -> None:
    chance = random.Random(seed)
    with DrivenApp(orders_app(tmp_path)) as app:
        for _ in range(8):
            for stage in app.plan.stages:
                app.start(stage.name)
            for _ in range(chance.randrange(4)):
                orders.write(chance.randrange(1, 60))
                app.run(chance.randrange(0, 2 * INTERVAL_MS))
            while app.living:
                app.kill(chance.choice(app.living))
                app.run(chance.randrange(0, INTERVAL_MS))
        app.start()
        finished(app, orders)


def test_metadata_that_was_lost_is_noticed_at_the_start(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        orders.write(20)
        app.run(800)
        app.drain(container)
    for path in tmp_path.glob("metadata.db*"):
        path.unlink()
    with (
        DrivenApp(orders_app(tmp_path)) as app,
        pytest.raises(ProtocolError, match=r"generation 1 was (already used|issued twice)") as caught,
    ):
        app.start()
    assert "restore it from a backup" in (caught.value.hint or "")


def test_a_table_that_was_kept_by_another_key_is_refused_at_the_start(tmp_path: Path) -> None:
    def app(key: str) -> hr.App:
        app = hr.App("prices", home=str(tmp_path))
        table = app.table("prices", key=key, schema={"article": pl.String, "shop": pl.String})
        app.input("changes", {"article": pl.String, "shop": pl.String}).send_to(table)
        return app

    hr.streams.create_stream("changes", 1, {"article": pl.String, "shop": pl.String}, home=tmp_path)
    with hr.streams.StreamWriter("changes", home=tmp_path) as writer:
        writer.write(pl.DataFrame({"article": ["lamp"], "shop": ["x"]}))
    with DrivenApp(app("article")) as driven:
        container = driven.start()
        driven.run(800)
        driven.drain(container)
    with DrivenApp(app("shop")) as driven, pytest.raises(hr.errors.DeclarationError, match="has the key article"):
        driven.start()
