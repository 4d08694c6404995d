"""Snapshots bound the changelog: restoring from them, and what becomes of a task whose changelog begins too late."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_app import DrivenApp, Orders, check, orders_app, stateful

from headrace.core.errors import FencedError, InfrastructureError
from headrace.core.ids import SSP, StreamId
from headrace.protocol.machine import ProtocolMachine
from headrace.systems.log.system import LogSystem
from headrace.task.container import Container
from headrace.task.scope import Steps, run
from headrace.task.state import task_state
from headrace.task.state.changelog import Replay


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_state, "SNAPSHOT_AFTER_BYTES", 8000)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def snapshots(home: Path, task: str) -> list[Path]:
    return sorted((home / "snapshots/orders" / task).glob("0*"))


def sizes(home: Path) -> dict[str, int]:
    """How far each changelog goes; what is trimmed still counts."""
    return {path.name: path.stat().st_size for path in (home / "streams/orders-by-member-changelog").glob("*.log")}


def oldest(home: Path, task: str) -> int:
    stage, _, number = task.rpartition("-")
    extents = LogSystem(home / "streams").admin().extents(f"orders-{stage}-changelog")
    return extents[int(number)].oldest


def ran(app: DrivenApp, orders: Orders) -> None:
    container = app.start()
    for _ in range(12):
        orders.write(200)
        app.run(400)
    app.drain(container)


def finished(app: DrivenApp, orders: Orders) -> None:
    orders.write()
    app.run(600)
    orders.end()
    app.finish()
    check(app, orders)


def test_the_changelog_begins_at_the_last_snapshot_but_one(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        for task in ("by-member-0", "by-member-1"):
            kept = snapshots(tmp_path, task)
            assert len(kept) == task_state.SNAPSHOTS_KEPT
            assert oldest(tmp_path, task) == int(kept[0].name.split("-")[0]) > 32
        app.start()
        finished(app, orders)


def test_a_snapshot_that_a_killed_life_began_goes_away(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        whole = snapshots(tmp_path, "by-member-0")
        draft = whole[-1].with_name(f".{whole[-1].name}9.draft")
        shutil.copytree(whole[-1], draft)
        app.start()
        assert not draft.exists()
        finished(app, orders)


def test_commits_without_changes_bound_the_changelog_too(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        containers = [app.start(stage.name) for stage in app.plan.stages]  # in one they would rest
        orders.write(10)
        for _ in range(60):
            app.run(400)
        for container in containers:
            app.drain(container)
        for task in ("by-member-0", "by-member-1"):
            assert len(snapshots(tmp_path, task)) == task_state.SNAPSHOTS_KEPT
            assert oldest(tmp_path, task) > 32
        app.start()
        finished(app, orders)


def test_lives_that_are_short_do_not_put_snapshots_off(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_state, "SNAPSHOT_AFTER_BYTES", 15_000)
    with DrivenApp(orders_app(tmp_path)) as app:
        for _ in range(15):
            before = sizes(tmp_path)
            container = app.start()
            orders.write(40)
            app.run(200)
            app.drain(container)
            assert max(after - before.get(name, 0) for name, after in sizes(tmp_path).items()) < 15_000
        for task in ("by-member-0", "by-member-1"):
            assert len(snapshots(tmp_path, task)) == task_state.SNAPSHOTS_KEPT
            assert oldest(tmp_path, task) > 32
        app.start()
        finished(app, orders)


@pytest.mark.parametrize("lost", ["nothing", "the newest snapshot", "what is in the newest snapshot"])
def test_a_task_without_its_folder_begins_at_a_snapshot(tmp_path: Path, orders: Orders, lost: str) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        shutil.rmtree(tmp_path / "state")
        _, newest = snapshots(tmp_path, "by-member-0")
        if lost == "the newest snapshot":
            shutil.rmtree(newest)
        elif lost == "what is in the newest snapshot":
            for path in newest.iterdir():
                path.unlink()  # the one before shares some of these files
                path.write_bytes(b"?" * 100)
        app.start()
        assert app.host("by-member/0").replay.records > 2
        assert bool(app.host("by-member/0").state.warnings) == (lost == "what is in the newest snapshot")
        finished(app, orders)


def test_without_folder_and_snapshots_a_trimmed_changelog_is_not_enough(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        shutil.rmtree(tmp_path / "state")
        aside = tmp_path / "aside"
        shutil.move(tmp_path / "snapshots", aside)
        for _ in range(2):
            with pytest.raises(
                InfrastructureError, match=r"the state of task by-member/0 is lost.*no snapshot"
            ) as caught:
                app.start("by-member")
            assert "restore the folder of snapshots" in (caught.value.hint or "")
            app.kill(app.living[0])
        shutil.rmtree(tmp_path / "snapshots", ignore_errors=True)
        shutil.move(aside, tmp_path / "snapshots")
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        app.start()
        finished(app, orders)


def test_a_changelog_trimmed_by_hand_needs_its_local_state(tmp_path: Path, orders: Orders) -> None:
    """Behind every snapshot, but not behind the last commit: good as long as the folder is there."""
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        app.start()
        admin = LogSystem(tmp_path / "streams").admin()
        for host in stateful(app.hosts):
            local = host.machine.local
            assert local is not None
            stage, number = host.name.stage, host.name.number
            admin.trim(SSP(StreamId("log", f"orders-{stage}-changelog"), number), local.offset)
        app.kill(app.living[0])
        app.start()
        assert not [warning for host in app.hosts for warning in host.state.warnings]
        app.kill(app.living[0])
        shutil.rmtree(tmp_path / "state")
        with pytest.raises(InfrastructureError, match="the state of task by-member/0 is lost"):
            app.start("by-member")


def test_snapshots_of_another_life_are_not_taken(tmp_path: Path, orders: Orders) -> None:
    """The streams were thrown away to begin anew; folders of state and snapshots were overlooked."""
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
    orders.close()
    shutil.rmtree(tmp_path / "streams")
    again = Orders(tmp_path, seed=1)
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start()
        warnings = app.host("by-member/0").state.warnings
        assert [warning.split(" doesn't fit")[0].split()[0] for warning in warnings] == [
            "local",
            "snapshot",
            "snapshot",
        ]
        finished(app, again)
    again.close()
    names = [path.name for path in (tmp_path / "snapshots/orders/by-member-0").iterdir()]
    assert sum(name.startswith("unfit-") for name in names) == 2


def test_a_snapshot_under_a_false_name_is_not_taken(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        shutil.rmtree(tmp_path / "state")
        _, newest = snapshots(tmp_path, "by-member-0")
        newest.rename(newest.with_name(f"9{newest.name[1:]}"))
        app.start()
        assert "don't match its name" in app.host("by-member/0").state.warnings[0]
        finished(app, orders)


def test_after_damage_a_snapshot_is_read_through_before_it_is_taken(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots share files with the local state: what was wrong with that may be wrong with them."""
    monkeypatch.setattr(task_state, "SNAPSHOT_AFTER_BYTES", 40_000)  # changes bring one, and not commits alone
    orders.members = 5000
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        for _ in range(3):
            orders.write(5000)
            app.run(600)
        app.drain(container)
        (tmp_path / "state/orders/by-member-0/UNREADABLE").touch()
        older, newest = snapshots(tmp_path, "by-member-0")
        shared = {path.stat().st_ino for path in older.glob("*.blob")}
        own = next(path for path in sorted(newest.glob("*.blob")) if path.stat().st_ino not in shared)
        data = bytearray(own.read_bytes())
        data[len(data) // 2] ^= 0xFF
        own.write_bytes(bytes(data))
        app.start()
        warnings = app.host("by-member/0").state.warnings
        assert "couldn't be read last time" in warnings[0]
        assert warnings[1].startswith(f"snapshot {newest.name}: ")
        orders.members = 50
        finished(app, orders)


@pytest.mark.parametrize("began_at", ["its folder", "a snapshot that is given up meanwhile"])
def test_one_that_was_replaced_while_it_read_leaves_the_snapshots_of_its_replacement_alone(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch, began_at: str
) -> None:
    """What it began from is trimmed meanwhile; the snapshots that are left hold commits behind its own fence."""
    with DrivenApp(orders_app(tmp_path)) as app:
        ran(app, orders)
        task = next(task.name for task in app.plan.stage("by-member").tasks if task.name.number == 0)
        app.start_tasks([each.name for stage in app.plan.stages for each in stage.tasks if each.name != task])
        before = snapshots(tmp_path, "by-member-0")
        if began_at != "its folder":
            shutil.rmtree(tmp_path / "state/orders/by-member-0")
        steps = Replay.steps

        def interrupted(self: Replay, machine: ProtocolMachine, start: int | None, end: int) -> Steps[bool]:
            monkeypatch.setattr(Replay, "steps", steps)
            app.living.remove(slow)
            app.start_tasks([task])
            for _ in range(12):
                orders.write(200)
                app.run(400)
            return steps(self, machine, start, end)

        monkeypatch.setattr(Replay, "steps", interrupted)
        slow = Container(app.plan, [task], app.next_generation, app.clock)
        app.living.append(slow)
        with pytest.raises(FencedError, match="task by-member/0"):
            slow.hosts[0].start()
        kept = snapshots(tmp_path, "by-member-0")
        assert len(kept) == task_state.SNAPSHOTS_KEPT
        assert not set(kept).intersection(before)
        app.living.append(slow)
        app.kill(slow)
        finished(app, orders)


def test_a_snapshot_taken_between_its_start_and_its_fence_is_found(tmp_path: Path, orders: Orders) -> None:
    """The simulator found it (seed 52 of app-late and app-counts): the restart took its state for lost."""
    with DrivenApp(orders_app(tmp_path)) as app:
        before = app.start()
        orders.write()
        app.run(300)
        task = app.host("by-member/0").name
        assert not snapshots(tmp_path, "by-member-0")
        slow = Container(app.plan, [task], app.next_generation, app.clock)
        (host,) = slow.hosts
        starting = host.starting()
        while host.generation == 0:  # now it has looked for a snapshot, and hasn't fenced off the one before
            next(starting)
        for _ in range(12):
            orders.write(200)
            app.run(400)
        assert len(snapshots(tmp_path, "by-member-0")) == task_state.SNAPSHOTS_KEPT
        run(starting)
        app.kill(before)
        app.living.append(slow)
        app.start_tasks([each.name for stage in app.plan.stages for each in stage.tasks if each.name != task])
        finished(app, orders)
