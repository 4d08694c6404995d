"""``headrace status`` against a real coordinator in this process."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.coordinator.client import CoordinatorClient
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.messages import Heartbeat, Register, TaskStatus
from headrace.coordinator.publication import SPACE, all_running, publish
from headrace.coordinator.server import Coordinator
from headrace.core.files import readable
from headrace.core.ids import TaskName
from headrace.life.metadata import FILE, SqliteMetadata
from headrace.task.standby_status import StandbyStatus

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]
TASKS = [TaskName("views", 0), TaskName("views", 1)]


@pytest.fixture
def running(home: Path) -> Iterator[CoordinatorClient]:
    """An app with a container that has reported once."""
    ledger = Ledger("page-views", {"views": TASKS}, 1, started_at=1_700_000_000_000, guarantee="at_least_once")
    with closing(SqliteMetadata(home / FILE)) as metadata, Coordinator(ledger, metadata) as coordinator:
        published = publish(
            metadata,
            "page-views",
            coordinator.url,
            coordinator.token,
            stages=["views"],
            all_stages=True,
            started_at=1_700_000_000_000,
        )
        client = CoordinatorClient(coordinator.url, coordinator.token)
        client.register(Register(container=0, attempt=1, host="worker-a", pid=4711, incarnation="one"))
        tasks = [TaskStatus(name=str(name), state="running", lag=7) for name in TASKS]
        client.heartbeat(Heartbeat(container=0, incarnation="one", sent_ms=1.0, tasks=tasks))
        try:
            yield client
        finally:
            client.close()
            published.close()


def test_nothing_runs(cli: Cli, home: Path) -> None:
    nothing = cli("status")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", f"no app is running in {home}\n")
    assert cli("status", "--json").json() == []
    named = cli("status", "page-views")
    assert named.code == 1
    assert "app 'page-views' isn't running" in named.err


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("name", [(), ("page-views",)])
def test_a_running_app_is_shown(cli: Cli, name: tuple[str, ...]) -> None:
    shown = cli("status", *name)
    assert shown.code == 0, shown.err
    assert shown.out.startswith("page-views  running  since 2023-11-14 22:13:20 UTC")
    assert "worker-a" in shown.out
    assert "4711" in shown.out


def test_standbys_are_shown_with_what_keeps_them_back(cli: Cli, running: CoordinatorClient) -> None:
    assert "standbys" not in cli("status").out
    standbys = [
        StandbyStatus(task="views/2", state="current", behind=0),
        StandbyStatus(task="views/3", state="reading", behind=4_711),
        StandbyStatus(task="views/4", state="waiting", trouble="its folder is open"),
    ]
    running.heartbeat(Heartbeat(container=0, incarnation="one", sent_ms=2.0, standbys=standbys))
    shown = cli("status").out
    row = shown.split("standbys in container", 1)[1].splitlines()[2]
    assert row.split() == ["0", "3", "1", "0", "4,711"]
    assert "container 0 on worker-a can't keep the standby of task views/4 current: its folder is open" in shown
    (status,) = cli("status", "--json").json()
    assert status["containers"][0]["standbys"][1]["behind"] == 4_711


@pytest.mark.usefixtures("running")
def test_as_json_it_is_the_coordinators_own_status(cli: Cli) -> None:
    (status,) = cli("status", "--json").json()
    assert (status["app"], status["state"]) == ("page-views", "running")
    assert status["stages"] == [
        {"name": "views", "tasks": 2, "finished": 0, "watermark": None, "idle": 0, "rowsPerSecond": 0.0, "lag": 14}
    ]
    (container,) = status["containers"]
    assert (container["host"], container["pid"], container["tasks"]) == ("worker-a", 4711, ["views/0", "views/1"])


@pytest.mark.usefixtures("running")
def test_another_app_is_not_there(cli: Cli) -> None:
    missing = cli("status", "page-view")
    assert missing.code == 1
    assert "running there: page-views" in missing.err


def watched(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    assert readable(process.stdout.fileno(), 120_000), "nothing arrived"
    return json.loads(process.stdout.readline())


@pytest.mark.usefixtures("running")
def test_watching_ends_with_ctrl_c(spawn: Spawn) -> None:
    watch = spawn("status", "page-views", "--watch", "--json")
    assert watched(watch)[0]["state"] == "running"
    assert watched(watch)[0]["state"] == "running"
    watch.send_signal(signal.SIGINT)
    assert watch.wait(120) == 0
    assert watch.stderr is not None
    assert watch.stderr.read() == b""


def test_watching_ends_with_the_app(spawn: Spawn, running: CoordinatorClient, home: Path) -> None:
    watch = spawn("status", "page-views", "--watch", "--json")
    assert watched(watch)[0]["state"] == "running"
    with closing(SqliteMetadata(home / FILE)) as metadata:
        (entry,) = all_running(metadata)
        assert metadata.delete_if(SPACE, entry.key, entry.version)
    assert watch.wait(120) == 0
    assert watch.stderr is not None
    assert watch.stderr.read() == b"the app has ended\n"
