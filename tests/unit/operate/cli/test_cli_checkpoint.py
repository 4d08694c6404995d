"""``headrace checkpoint``: what real tasks have committed, read while they run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.core.clock import ManualClock
from headrace.core.errors import UnavailableError
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.life import changelogs as checkpoints
from headrace.life.apps import NAMESPACE, record_systems
from headrace.life.metadata import Generations, SqliteMetadata, existing_metadata
from headrace.plan.planner import plan
from headrace.run.planning import gather_facts, prepare_streams
from headrace.stores.snapshots import object_place
from headrace.stores.transfer import Calls, Sender, SnapshotFile, open_objects
from headrace.systems.log.system import LogSystem
from headrace.systems.startpoints import Grant
from headrace.task.container import Container
from headrace.task.naming import remote_folder
from headrace.task.state import task_state

TASK = TaskName("by-member", 0)
Cli = Callable[..., Any]


def views_app(home: Path, name: str) -> hr.App:
    app = hr.App(name, home=str(home), checkpoint_interval="100ms")
    views = app.input("views", {"member": pl.Int64, "ts": pl.Int64}, event_time="ts")
    counted = (
        views.partition_by("member", id="by-member", partitions=2)
        .window(hr.tumbling("1s"), key="member", id="counted")
        .agg(views=hr.count())
    )
    counted.send_to(app.output(f"{name}-counts", partitions=2))
    return app


def read_checkpoints(home: Path, app: str, task: str | None = None) -> list[checkpoints.TaskCheckpoint]:
    with existing_metadata(home) as metadata:
        return checkpoints.read_checkpoints(home, metadata, app, task)


class Driven:
    """A container of an app, whose turns the test makes."""

    def __init__(self, home: Path, name: str) -> None:
        graph = views_app(home, name).graph()
        planned = plan(graph, gather_facts(graph))
        prepare_streams(planned)
        self.clock = ManualClock(1_000_000)
        self.metadata = SqliteMetadata(home / "metadata.db")
        record_systems(self.metadata, planned)
        generations = Generations(self.metadata, name)
        tasks = [task.name for stage in planned.stages for task in stage.tasks]
        self.plan = planned
        self.container = Container(
            planned, tasks, lambda task: Grant(generation=generations.issue([task])[task]), self.clock
        )
        for host in self.container.hosts:
            host.start()

    def run(self, ms: int) -> None:
        for _ in range(ms // 10):
            self.container.turn()
            self.clock.advance(10)

    def close(self) -> None:
        for host in self.container.hosts:
            host.close()
        self.container.close()
        self.metadata.close()


@pytest.fixture
def running(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    monkeypatch.setattr(task_state, "SNAPSHOT_AFTER_BYTES", 1000)
    hr.streams.create_stream("views", 1, {"member": pl.Int64, "ts": pl.Int64}, home=home)
    driven = Driven(home, "page-views")
    with hr.streams.StreamWriter("views", home=home) as writer:
        for n in range(12):
            writer.write([{"member": member, "ts": n * 700} for member in range(20)])
            driven.run(150)
    yield driven
    driven.close()


def test_the_list_says_what_the_tasks_have_committed(cli: Cli, home: Path, running: Driven) -> None:
    found = cli("checkpoint", "list", "--json").json()
    assert [(one["app"], one["task"]) for one in found] == [
        ("page-views", "by-member/0"),
        ("page-views", "by-member/1"),
        ("page-views", "views/0"),
    ]
    for one, host in zip(found, sorted(running.container.hosts, key=lambda host: host.name), strict=True):
        assert (one["version"], one["generation"], one["currentGeneration"]) == (host.machine.version, 1, 1)
        assert (one["ended"], one["problem"], one["durationMs"]) == (False, None, None)
        assert 0 <= one["ageMs"] < 60_000
        local = host.machine.local
        assert local is not None
        assert one["changelogBytes"] > 0
        assert one["stateBytes"] > 0
    views = found[2]
    (extent,) = LogSystem(home / "streams").admin().extents("views")
    assert views["inputs"] == [
        {"stream": "log.views", "partition": 0, "offset": extent.upcoming, "lag": 0, "shards": {}}
    ]
    counts = found[0]
    assert len(counts["snapshots"]) == 2
    assert {output["stream"] for output in counts["outputs"]} == {"log.page-views-counts"}
    text = cli("checkpoint", "list", "page-views").out
    assert "by-member/0" in text
    assert str(counts["version"]) in text


def test_it_is_the_same_from_a_snapshot_and_from_the_beginning(home: Path, running: Driven) -> None:
    with_snapshots = read_checkpoints(home, "page-views")
    shutil.rmtree(home / "snapshots")
    without = read_checkpoints(home, "page-views")
    assert [one.version for one in without] == [one.version for one in with_snapshots]
    assert [(one.inputs, one.outputs) for one in without] == [(one.inputs, one.outputs) for one in with_snapshots]
    assert [one.snapshots for one in without] == [(), (), ()]


def test_snapshots_in_an_object_store_are_shown_too(cli: Cli, tmp_path: Path, running: Driven) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    url = f"file://{tmp_path}/store"
    store, warnings = open_objects(object_place(url)), list[str]()
    sender = Sender(Calls(store, warnings.append, random.Random(1)), remote_folder("page-views", TASK, 1))
    files = [SnapshotFile("CURRENT", 7, "CURRENT", lambda: iter([b"1234567"]))]
    assert set(sender.send(4711, 1, 30, files, lambda manifest: None)) == {0.0}
    shown = cli("checkpoint", "show", "page-views", "by-member/0", "--snapshots", url).out
    assert "snapshot     version 30 of generation 1, offset 4711, 7 B, in the object store\n" in shown
    (one, *_) = cli("checkpoint", "list", "--json", "--snapshots", url).json()
    assert [snapshot["stored"] for snapshot in one["snapshots"]] == [False, False, True]
    refused = cli("checkpoint", "list", "--snapshots", "bucket/prefix")
    assert (refused.code, "isn't the URL of an object store" in refused.err) == (2, True)


def test_the_object_store_is_known_from_the_last_start(
    cli: Cli, tmp_path: Path, running: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    place = object_place(f"file://{tmp_path}/store")
    graph = running.plan.graph
    moved = replace(graph, settings=replace(graph.settings, snapshots=place))
    running.metadata.delete_if(NAMESPACE, "page-views", running.metadata.scan(NAMESPACE)["page-views"].version)
    record_systems(running.metadata, replace(running.plan, graph=moved))
    store, warnings = open_objects(place), list[str]()
    sender = Sender(Calls(store, warnings.append, random.Random(1)), remote_folder("page-views", TASK, 1))
    files = [SnapshotFile("CURRENT", 7, "CURRENT", lambda: iter([b"1234567"]))]
    assert set(sender.send(4711, 1, 30, files, lambda manifest: None)) == {0.0}
    assert "offset 4711, 7 B, in the object store\n" in cli("checkpoint", "show", "page-views").out
    monkeypatch.setattr(checkpoints, "open_objects", refuse)
    listed = cli("checkpoint", "list")
    assert (listed.code, "by-member/0" in listed.out) == (0, True)
    assert "page-views: snapshots in the object store aren't counted: the store is away" in listed.err


def refuse(place: object) -> None:
    raise UnavailableError("the store is away", hint="wait")


def test_show_prints_everything_about_one_task(cli: Cli, running: Driven) -> None:
    (host,) = (host for host in running.container.hosts if str(host.name) == "by-member/1")
    text = cli("checkpoint", "show", "page-views", "by-member/1").out
    assert text.startswith("page-views  by-member/1\n")
    assert f"version      {host.machine.version}, next {host.machine.label}" in text
    assert "generation   1 committed it, 1 is the newest" in text
    assert "reads        log.page-views-by-member[1] from offset" in text
    assert "has written" in text
    assert text.count("snapshot     version") == 2
    everything = cli("checkpoint", "show", "page-views", "--json").json()
    assert [one["task"] for one in everything] == ["by-member/0", "by-member/1", "views/0"]


def test_a_restart_shows_as_a_newer_generation(home: Path, running: Driven) -> None:
    before = {one.task: one.version for one in read_checkpoints(home, "page-views")}
    for host in running.container.hosts:
        host.close()
    generations = Generations(running.metadata, "page-views")
    again = Container(
        running.plan,
        [TaskName("views", 0)],
        lambda task: Grant(generation=generations.issue([task])[task]),
        running.clock,
    )
    again.hosts[0].start()
    (views,) = read_checkpoints(home, "page-views", "views/0")
    assert (views.generation, views.current_generation) == (1, 2)
    assert views.version == before["views/0"]
    again.hosts[0].close()
    again.close()


def test_apps_and_stages_with_dashes_are_distinguished(home: Path, running: Driven) -> None:
    other = Driven(home, "page")
    try:
        with existing_metadata(home) as metadata:
            assert checkpoints.apps_with_checkpoints(home, metadata) == ["page", "page-views"]
    finally:
        other.close()


def test_a_task_that_has_not_committed(home: Path, cli: Cli) -> None:
    hr.streams.create_stream("views", 1, {"member": pl.Int64, "ts": pl.Int64}, home=home)
    driven = Driven(home, "page-views")
    driven.close()
    one = read_checkpoints(home, "page-views", "views/0")[0]
    assert (one.version, one.generation, one.current_generation, one.problem) == (None, None, 1, None)
    assert "none" in cli("checkpoint", "list").out


def test_a_changelog_that_cannot_be_read_spoils_only_its_own_line(home: Path, cli: Cli, running: Driven) -> None:
    running.run(100)
    path = home / "streams/page-views-by-member-changelog/p00000.log"
    data = bytearray(path.read_bytes())
    for at in range(len(data) - 4000, len(data), 60):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    broken, whole, _ = read_checkpoints(home, "page-views")
    assert broken.problem is not None
    assert whole.problem is None
    listed = cli("checkpoint", "list")
    assert listed.code == 0
    assert "page-views by-member/0: log.page-views-by-member-changelog[0]" in listed.err
    assert "problem" in cli("checkpoint", "show", "page-views", "by-member/0").out


def test_one_that_was_trimmed_by_hand(home: Path, running: Driven) -> None:
    shutil.rmtree(home / "snapshots")
    (host,) = (host for host in running.container.hosts if str(host.name) == "by-member/0")
    local = host.machine.local
    assert local is not None
    LogSystem(home / "streams").admin().trim(SSP(StreamId("log", "page-views-by-member-changelog"), 0), local.offset)
    assert read_checkpoints(home, "page-views", "by-member/0")[0].version == host.machine.version


def test_nothing_there(cli: Cli, home: Path) -> None:
    nothing = cli("checkpoint", "list")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == f"no app has committed anything in {home}\n"
    assert cli("checkpoint", "list", "--json").json() == []
    assert not (home / "metadata.db").exists()
    named = cli("checkpoint", "show", "page-views")
    assert named.code == 2
    assert "app 'page-views' has never run" in named.err


def test_a_task_that_there_is_not(cli: Cli, running: Driven) -> None:
    wrong = cli("checkpoint", "show", "page-views", "views/7")
    assert wrong.code == 2
    assert "no task 'views/7'" in wrong.err
    assert "views/0" in wrong.err
