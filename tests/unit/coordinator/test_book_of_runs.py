"""The book of runs: who finds a running app, who may begin, when a run is gone, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from conversation import new_ledger

from headrace.coordinator import messages, publication
from headrace.coordinator import publication as endings
from headrace.coordinator import publication as runs
from headrace.coordinator.address import Machine, this_machine
from headrace.coordinator.publication import LifeSign
from headrace.coordinator.server import Coordinator
from headrace.core.errors import FencedError, IndeterminateWriteError, InfrastructureError, UnavailableError, UsageError
from headrace.life.metadata import FILE, MemoryMetadata, SqliteMetadata
from headrace.operate.cli.status import ask


@pytest.fixture
def store():
    return MemoryMetadata(place="here")


@pytest.fixture
def coordinator():
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        yield coordinator


def publish(store, coordinator, *stages, app="app"):
    return publication.publish(
        store,
        app,
        coordinator.url,
        coordinator.token,
        stages=stages or ["a", "b"],
        all_stages=not stages,
        started_at=5,
    )


def forge(store, publication, **changes):
    """Change the entry as another process would have written it."""
    key = runs.running_key(publication.address)
    address = msgspec.structs.replace(publication.address, **changes)
    publication.address = address
    publication._version = store.put_if(
        runs.SPACE, key, msgspec.json.encode(address), store.get(runs.SPACE, key).version
    )


def elsewhere(**changes):
    return msgspec.structs.replace(this_machine(), host="elsewhere", boot="another", **changes)


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def ending(state="failed", *stages, at=9):
    shown = [
        messages.StageStatus(name=stage, tasks=1, finished=0, watermark=None, rows_per_second=0.0, lag=None)
        for stage in stages
    ]
    return messages.AppStatus(
        app="app", state=state, started_at=5, ended_at=at, guarantee="", stages=shown, tasks=[], containers=[]
    )


def test_an_app_is_found_while_it_runs(store, coordinator):
    published = publish(store, coordinator)
    found = runs.find(store, "app")
    assert (found.url, found.token, found.pid, found.started_at) == (coordinator.url, coordinator.token, os.getpid(), 5)
    with contextlib.closing(found.client()) as client:
        assert client.status().app == "app"
    published.close()
    published.close()
    assert runs.find_all(store) == []
    assert list(store.scan(runs.SPACE)) == ["app/turn"]
    assert runs.known_apps(store) == ["app"]


def test_only_the_owner_of_a_home_may_read_tokens(tmp_path, coordinator):
    store = SqliteMetadata(tmp_path / FILE)
    publish(store, coordinator)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    store.close()
    assert FILE in modes
    assert set(modes.values()) == {0o600}


def test_the_token_isnt_printed(store, coordinator):
    publish(store, coordinator)
    assert coordinator.token not in repr(runs.find(store, "app"))


def test_an_app_that_isnt_running(store, coordinator):
    with pytest.raises(UnavailableError, match=r"app 'app' isn't running in here; running there: nothing"):
        runs.find(store, "app")
    publish(store, coordinator)
    with pytest.raises(
        UnavailableError, match=r"app 'other' isn't running in here; running there: app with all stages"
    ):
        runs.find(store, "other")


def test_the_same_app_twice_is_refused(store, coordinator):
    publish(store, coordinator)
    before = store.scan(runs.SPACE)
    with pytest.raises(UsageError, match=rf"app 'app' is already running with all stages: pid {os.getpid()} on "):
        publish(store, coordinator)
    assert store.scan(runs.SPACE) == before


def test_apps_whose_names_begin_alike_are_apart(store, coordinator):
    publish(store, coordinator)
    publish(store, coordinator, app="app-2")
    assert [one.address.app for one in runs.all_running(store)] == ["app", "app-2"]
    assert [one.address.app for one in runs.all_running(store, "app")] == ["app"]


def test_different_stages_run_side_by_side(store, coordinator):
    one, _two = publish(store, coordinator, "a"), publish(store, coordinator, "b")
    assert [address.stages for address in runs.find_all(store)] == [["a"], ["b"]]
    assert runs.find(store, "app", "b").stages == ["b"]
    with pytest.raises(UsageError, match="runs as 2 deployments: with stage a; with stage b"):
        runs.find(store, "app")
    with pytest.raises(UnavailableError, match="stage 'c' of app 'app' isn't running in"):
        runs.find(store, "app", "c")
    one.close()
    assert runs.find(store, "app").stages == ["b"]


@pytest.mark.parametrize("stages", [(), ("a",), ("c", "a")])
def test_a_stage_runs_in_one_deployment_only(store, coordinator, stages):
    publish(store, coordinator, "a")
    with pytest.raises(UsageError, match=r"already running with stage a: .*, says here"):
        publish(store, coordinator, *stages)


def test_a_dead_process_is_gone(store, coordinator):
    forge(store, publish(store, coordinator), pid=dead_pid(), seen_at=77)
    assert runs.find_all(store) == []
    (status,) = endings.ended(store)
    assert (status.state, status.ended_at) == ("gone", 77)
    publish(store, coordinator)
    assert runs.find(store, "app").pid == os.getpid()
    assert endings.ended(store) == []


def test_a_number_that_another_process_has_by_now_is_gone(store, coordinator):
    with Coordinator(new_ledger(), MemoryMetadata()) as gone:
        publish(store, gone)
    assert runs.find_all(store) == [], "nothing listens there"
    publish(store, coordinator)
    assert len(runs.find_all(store)) == 1


def test_a_port_that_another_app_has_by_now_is_gone(store, coordinator):
    forge(store, publish(store, coordinator), token="an older one")
    assert runs.find_all(store) == []


def test_what_ran_before_the_machine_started_again_is_gone(store, coordinator):
    here = this_machine()
    forge(store, publish(store, coordinator), machine=msgspec.structs.replace(here, id="m", boot="before"))
    assert len(runs.find_all(store)) == 1, "it may be another machine of that name"
    known = Machine(host=here.host, id="m", boot=here.boot, processes=here.processes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.coordinator.address.this_machine", lambda: known)
        assert runs.find_all(store) == []


# -- drivers on other machines


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", None], ids=["nothing listens", "another app answers"])
def test_a_run_on_another_machine_is_out_of_reach_and_not_gone(store, coordinator, url):
    published = publish(store, coordinator)
    forge(store, published, machine=elsewhere(), pid=dead_pid(), url=url or coordinator.url, token="theirs")
    (address,) = runs.find_all(store)
    assert endings.ended(store) == []
    status = endings.unreachable(address, UnavailableError("no answer"))
    assert (status.state, status.ended_at) == ("unreachable", address.seen_at)
    assert status.error is not None
    assert "it listens only on its own machine, elsewhere: run the command there" in status.error.hint
    found = ask(store, "app")
    assert [one.state for one in found] == ["unreachable"]


@pytest.mark.parametrize(
    ("host", "here", "said"),
    [
        ("localhost", False, "start the app with --listen HOST"),
        ("[::1]", False, "it listens only on its own machine, elsewhere"),
        ("10.0.0.7", False, "start the app with --advertise HOST"),
        ("driver.example.com", False, "it runs on elsewhere and doesn't answer at driver.example.com"),
        ("127.0.0.1", True, "the driver has ended, or is busy or stopped"),
    ],
)
def test_what_to_do_if_a_driver_does_not_answer(store, coordinator, host, here, said):
    forge(
        store,
        published := publish(store, coordinator),
        url=f"http://{host}:1",
        **{} if here else {"machine": elsewhere()},
    )
    assert said in published.address.way
    with contextlib.closing(published.address.client(patience_s=0)) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.create_connection", refused)
        with pytest.raises(UnavailableError) as caught:
            client.status()
    assert said in str(caught.value.hint)


def refused(*_args, **_options):
    raise ConnectionRefusedError


def test_one_that_renews_its_address_is_never_replaced(store, coordinator, monkeypatch):
    monkeypatch.setattr(publication, "_LOOK_S", 0.01)
    theirs = publish(store, coordinator)
    forge(store, theirs, machine=elsewhere(), url="http://127.0.0.1:1")
    done = threading.Event()

    def renew():
        while not done.wait(0.02):
            theirs.touch()

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(UsageError, match=r"already running with all stages: pid .* on elsewhere"):
            publish(store, coordinator)
    finally:
        done.set()
        renewing.join()


def test_one_that_shows_no_life_is_replaced_and_finds_out(store, coordinator, monkeypatch, caplog):
    monkeypatch.setattr(publication, "LOST_S", 0.1)
    monkeypatch.setattr(publication, "_LOOK_S", 0.01)
    theirs = publish(store, coordinator)
    forge(store, theirs, machine=elsewhere(), url="http://127.0.0.1:1")
    mine = publish(store, coordinator)
    assert "waiting for a sign of life" in caplog.text
    monkeypatch.setattr(publication, "TOUCH_S", 0.01)
    ended, heard = threading.Event(), []
    sign = LifeSign(theirs, lambda error: (heard.append(error), ended.set()))
    sign.start()
    assert ended.wait(30)
    sign.close()
    assert isinstance(heard[0], FencedError)
    assert "another run of app 'app' has replaced this one (pid" in str(heard[0])
    theirs.close(ending("failed", "a"))
    assert [one.address.run for one in runs.all_running(store)] == [mine.address.run]
    assert runs.all_ended(store) == [], "it says nothing about the run that has replaced it"


def test_one_that_comes_back_in_the_last_moment_is_not_replaced(store, coordinator, monkeypatch):
    # It renews its address between the look and the write: the write fails, and the next look finds it alive.
    theirs = publish(store, coordinator)
    forge(store, theirs, machine=elsewhere(), url="http://127.0.0.1:1")
    looks = []

    def shows_no_life(metadata, run):
        looks.append(run.version)
        if len(looks) == 1:
            theirs.touch()
            return True
        return False

    monkeypatch.setattr(publication, "_shows_no_life", shows_no_life)
    with pytest.raises(UsageError, match="already running"):
        publish(store, coordinator)
    assert len(looks) == 2


def test_of_two_that_begin_at_once_with_a_common_stage_one_runs(store, coordinator):
    class Slow(MemoryMetadata):
        def write(self, namespace, changes):
            if self.first:
                self.first = False
                publish(self, coordinator, "b", "c")  # begins between the look and the write of the other
            return super().write(namespace, changes)

    store = Slow()
    store.first = True
    with pytest.raises(UsageError, match="already running with stage b, c"):
        publish(store, coordinator, "a", "b")
    assert [address.stages for address in runs.find_all(store)] == [["b", "c"]]


# -- renewing, and how runs end


def test_a_running_driver_renews_its_address(store, coordinator, monkeypatch):
    monkeypatch.setattr(publication, "TOUCH_S", 0.01)
    published = publish(store, coordinator)
    forge(store, published, seen_at=0)
    sign = LifeSign(published, pytest.fail)
    sign.start()
    never, deadline = threading.Event(), time.monotonic() + 30
    while runs.find(store, "app").seen_at == 0 and time.monotonic() < deadline:
        never.wait(0.01)
    sign.close()
    assert abs(runs.find(store, "app").seen_at - time.time() * 1000) < 60_000
    published.close()
    assert runs.find_all(store) == []


class Failing(MemoryMetadata):
    """A store that fails on demand, before or after it has written."""

    fails = ""

    def write(self, namespace, changes):
        if self.fails == "before":
            raise UnavailableError("the store is away")
        versions = super().write(namespace, changes)
        if self.fails == "after":
            raise IndeterminateWriteError("the answer was lost")
        return versions


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_store_that_fails_for_a_while_costs_nothing(coordinator, caplog, fails):
    store = Failing()
    published = publish(store, coordinator)
    store.fails = fails
    published.touch()
    published.touch()
    store.fails = ""
    published.touch()
    published.touch()
    assert len([r for r in caplog.records if "can't note that the app is alive" in r.getMessage()]) == 1
    store.fails = fails
    published.touch()
    store.fails = ""
    published.close(ending("finished", "a", "b"))
    assert runs.all_running(store) == []
    assert [status.state for status in endings.ended(store)] == ["finished"]


def test_how_a_run_ended_is_known_until_its_stages_run_again(store, coordinator):
    publish(store, coordinator, "a").close(ending("failed", "a", at=1))
    publish(store, coordinator, "b").close(ending("finished", "b", at=2))
    assert sorted(status.state for status in endings.ended(store, "app")) == ["failed", "finished"]
    assert endings.ended(store, "other") == []
    publish(store, coordinator, "a", "c")
    assert [status.state for status in endings.ended(store)] == ["finished"]


def test_an_ending_that_cant_be_read_is_passed_over_and_goes_with_the_next_run(store, coordinator, caplog):
    store.put_if(runs.SPACE, "app/ended/x", b"{", None)
    assert endings.ended(store) == []
    assert "unreadable" in caplog.text
    publish(store, coordinator)
    assert runs.all_ended(store) == []


def test_an_ending_that_cant_be_recorded_is_logged(coordinator, caplog):
    store = Failing()
    published = publish(store, coordinator)
    store.fails = "before"
    published.close(ending())
    assert "can't record how the app ended" in caplog.text


@pytest.mark.parametrize(("value", "told"), [(b"{", "is unreadable"), (b'{"format":3}', "is of format 3")])
def test_unreadable_addresses_are_reported(store, coordinator, value, told):
    store.put_if(runs.SPACE, "app/running/x", value, None)
    for use in (lambda: runs.find(store, "app"), lambda: publish(store, coordinator)):
        with pytest.raises(InfrastructureError, match=rf"metadata store here \(runs: app/running/x\) {told}"):
            use()


def test_the_format_of_an_address(store, coordinator):
    published = publish(store, coordinator, "a")
    machine = Machine(host="h", id="i", boot="b", processes="p")
    forge(store, published, run="r", machine=machine, pid=7, seen_at=6, url="http://127.0.0.1:1", token="t")
    assert msgspec.json.encode(published.address) == (
        b'{"format":2,"run":"r","app":"app","stages":["a"],"allStages":false,"url":"http://127.0.0.1:1","token":"t",'
        b'"machine":{"host":"h","id":"i","boot":"b","processes":"p"},"pid":7,"startedAt":5,"seenAt":6}'
    )


# -- processes

DRIVER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from conversation import new_ledger
from headrace.core.errors import UsageError
from headrace.life.metadata import open_metadata
from headrace.coordinator.publication import publish
from headrace.coordinator.server import Coordinator
metadata = open_metadata(Path(sys.argv[3]))
with Coordinator(new_ledger(), metadata) as c:
    try:
        publish(metadata, "app", c.url, c.token, stages=["a"], all_stages=True, started_at=1)
    except UsageError:
        print("refused", flush=True)
    else:
        print("running", flush=True)
        sys.stdin.read()
"""


def start_driver(home):
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(Path(__file__).parents[2]), str(home)],
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
        store = SqliteMetadata(tmp_path / FILE)
        assert runs.find(store, "app").pid == winner.pid
        winner.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        assert runs.find(store, "app").pid == winner.pid, "one that doesn't answer may continue: its place isn't free"
        assert time.monotonic() - begun < 60
        winner.send_signal(signal.SIGKILL)
        winner.wait(60)
        assert runs.find_all(store) == []
        store.close()
        drivers.append(start_driver(tmp_path))
        assert drivers[-1].stdout.readline() == "running\n"
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate(timeout=60)
