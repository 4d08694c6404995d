"""The file that leads to a running app: who may read it, who may write it, when it is stale."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from conversation import new_ledger

from headrace.core.errors import InfrastructureError, StorageError, UsageError
from headrace.metadata.memory import MemoryMetadata
from headrace.runners.coordination import address as a
from headrace.runners.coordination.server import Coordinator


@pytest.fixture
def coordinator():
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        yield coordinator


def publish(home, coordinator, *stages, app="app"):
    return a.publish(
        home,
        app,
        coordinator.url,
        coordinator.token,
        stages=stages or ["a", "b"],
        all_stages=not stages,
        started_at=5,
    )


def forge(publication, **changes):
    """Change the file as another process would have written it."""
    address = a._read(publication.path)
    publication.path.write_bytes(msgspec.json.encode(msgspec.structs.replace(address, **changes)))


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_is_there_while_the_app_runs_and_for_its_owner_alone(tmp_path, coordinator):
    publication = publish(tmp_path, coordinator)
    assert publication.path == tmp_path / "apps" / "app" / "coordinator.json"
    assert stat.S_IMODE(publication.path.stat().st_mode) == 0o600
    found = a.find(tmp_path, "app")
    assert (found.url, found.token, found.pid, found.started_at) == (coordinator.url, coordinator.token, os.getpid(), 5)
    with contextlib.closing(found.client()) as client:
        assert client.status().app == "app"
    publication.close()
    publication.close()
    assert [file.name for file in publication.path.parent.iterdir()] == [".coordinator.lock"]


def test_the_token_isnt_printed(tmp_path, coordinator):
    publish(tmp_path, coordinator)
    assert coordinator.token not in repr(a.find(tmp_path, "app"))


def test_an_app_that_isnt_running(tmp_path, coordinator):
    with pytest.raises(UsageError, match=r"app 'app' isn't running on .*; running there: nothing"):
        a.find(tmp_path, "app")
    publish(tmp_path, coordinator)
    with pytest.raises(UsageError, match=r"app 'other' isn't running on .*; running there: app with all stages"):
        a.find(tmp_path, "other")


def test_the_same_app_twice_is_refused(tmp_path, coordinator):
    publication = publish(tmp_path, coordinator)
    before = publication.path.read_bytes()
    with pytest.raises(UsageError, match=rf"app 'app' is already running with all stages: pid {os.getpid()} on "):
        publish(tmp_path, coordinator)
    assert publication.path.read_bytes() == before


def test_different_stages_run_side_by_side(tmp_path, coordinator):
    one, two = publish(tmp_path, coordinator, "a"), publish(tmp_path, coordinator, "b")
    assert (one.path.name, two.path.name) == ("coordinator-a.json", "coordinator-b.json")
    assert [address.stages for address in a.find_all(tmp_path)] == [["a"], ["b"]]
    assert a.find(tmp_path, "app", "b").stages == ["b"]
    with pytest.raises(UsageError, match="runs as 2 deployments: with stage a; with stage b"):
        a.find(tmp_path, "app")
    with pytest.raises(UsageError, match="stage 'c' of app 'app' isn't running on"):
        a.find(tmp_path, "app", "c")
    one.close()
    assert a.find(tmp_path, "app").stages == ["b"]


@pytest.mark.parametrize("stages", [(), ("a",), ("c", "a")])
def test_a_stage_runs_in_one_deployment_only(tmp_path, coordinator, stages):
    publish(tmp_path, coordinator, "a")
    with pytest.raises(UsageError, match=r"already running with stage a: .*coordinator-a\.json"):
        publish(tmp_path, coordinator, *stages)


def test_stages_may_have_any_name(tmp_path, coordinator):
    publication = publish(tmp_path, coordinator, "x/../y", "z+a")
    assert publication.path.parent == tmp_path / "apps" / "app"
    with pytest.raises(UsageError, match="too long for a file name"):
        publish(tmp_path, coordinator, *[f"stage-{n}" for n in range(60)])


def test_a_dead_process_is_stale(tmp_path, coordinator):
    stale = publish(tmp_path, coordinator)
    forge(stale, pid=dead_pid())
    assert a.find_all(tmp_path) == []
    publish(tmp_path, coordinator)
    assert a.find(tmp_path, "app").pid == os.getpid()


def test_a_number_that_another_process_has_by_now_is_stale(tmp_path, coordinator):
    with Coordinator(new_ledger(), MemoryMetadata()) as gone:
        publish(tmp_path, gone)
    assert a.find_all(tmp_path) == [], "nothing listens there"
    publish(tmp_path, coordinator)
    assert len(a.find_all(tmp_path)) == 1


def test_a_port_that_another_app_has_by_now_is_stale(tmp_path, coordinator):
    publication = publish(tmp_path, coordinator)
    forge(publication, token="an older one")
    assert a.find_all(tmp_path) == []


def test_a_run_on_another_machine_is_never_taken_for_stale(tmp_path, coordinator):
    publication = publish(tmp_path, coordinator)
    forge(publication, host="elsewhere", pid=dead_pid(), url="http://127.0.0.1:1")
    with pytest.raises(
        UsageError, match=r"on elsewhere, says .*coordinator\.json\n.*if you are sure that it is gone, delete"
    ):
        publish(tmp_path, coordinator)


def test_the_file_of_a_later_run_is_left_alone(tmp_path, coordinator):
    first = publish(tmp_path, coordinator)
    forge(first, pid=dead_pid())
    with Coordinator(new_ledger(), MemoryMetadata()) as later:
        publish(tmp_path, later)
        first.close()
        assert a.find(tmp_path, "app").url == later.url


def test_unreadable_files_are_reported(tmp_path, coordinator):
    publication = publish(tmp_path, coordinator)
    publication.path.write_text("{")
    with pytest.raises(InfrastructureError, match=r"can't read the address of a running app in .*coordinator\.json"):
        a.find(tmp_path, "app")
    forge_format = msgspec.json.encode({"version": 2})
    publication.path.write_bytes(forge_format)
    with pytest.raises(InfrastructureError):
        publish(tmp_path, coordinator)


def test_a_home_that_is_a_file(tmp_path, coordinator):
    (tmp_path / "home").write_text("")
    with pytest.raises(StorageError, match="can't use the folder"):
        publish(tmp_path / "home", coordinator)


DRIVER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from conversation import new_ledger
from headrace.core.errors import UsageError
from headrace.metadata.memory import MemoryMetadata
from headrace.runners.coordination.address import publish
from headrace.runners.coordination.server import Coordinator
with Coordinator(new_ledger(), MemoryMetadata()) as c:
    try:
        publish(Path(sys.argv[3]), "app", c.url, c.token, stages=["a"], all_stages=True, started_at=1)
    except UsageError:
        print("refused", flush=True)
    else:
        print("running", flush=True)
        sys.stdin.read()
"""


def start_driver(home):
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(Path(__file__).parents[3]), str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_drivers_that_start_at_once_one_runs_and_a_kill_frees_its_place(tmp_path):
    drivers = [start_driver(tmp_path) for _ in range(3)]
    try:
        said = [driver.stdout.readline().strip() for driver in drivers]
        assert sorted(said) == ["refused", "refused", "running"]
        winner = drivers[said.index("running")]
        assert a.find(tmp_path, "app").pid == winner.pid
        winner.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        assert a.find(tmp_path, "app").pid == winner.pid, "a run that doesn't answer may continue: its place isn't free"
        assert time.monotonic() - begun < 60
        winner.send_signal(signal.SIGKILL)
        winner.wait(60)
        assert a.find_all(tmp_path) == []
        drivers.append(start_driver(tmp_path))
        assert drivers[-1].stdout.readline() == "running\n"
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate(timeout=60)
