"""Commands on an app that reads Kinesis: what they show, startpoints, savepoints, draining."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_thread import Running, running
from killed import Killed
from kinesis_program import end_time, order, put, shop, sums, sums_in

import headrace as hr
from chaos.deployment import until
from chaos.kinesis_server import KinesisServer
from headrace.core.errors import HeadraceError
from headrace.operate.cli.main import main
from servers.kinesis_streams import StreamOnServer

Cli = Callable[..., str]
FILE = """
from pathlib import Path
from kinesis_program import shop
app = shop(Path({home!r}), {stream!r}, endpoint_url={endpoint!r}, partitions={partitions})
"""


@pytest.fixture
def orders(kinesis_local: KinesisServer) -> Iterator[StreamOnServer]:
    stream = StreamOnServer(kinesis_local, 2)
    yield stream
    stream.delete()
    stream.close()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command that must succeed unless ``code`` says otherwise; returns all that it prints, without alignment."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    def run(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        found = main([str(word) for word in words])
        captured = capsys.readouterr()
        assert found == code, captured.err
        return " ".join((captured.out + captured.err).split())

    return run


@pytest.fixture
def file(orders: StreamOnServer, kinesis_local: KinesisServer, tmp_path: Path) -> Path:
    """The file that declares the app."""
    place = {"home": str(tmp_path), "stream": orders.name, "endpoint": kinesis_local.endpoint, "partitions": 2}
    path = tmp_path / "shop.py"
    path.write_text(FILE.format(**place))
    return path


@pytest.fixture
def app(orders: StreamOnServer, kinesis_local: KinesisServer, tmp_path: Path) -> hr.App:
    return shop(tmp_path, orders.name, endpoint_url=kinesis_local.endpoint)


def written(orders: StreamOnServer, numbers: range) -> dict[str, list[int]]:
    """Write orders; return which are in which shard."""
    found: dict[str, list[int]] = {}
    for n, result in zip(numbers, orders.api.put([order(n) for n in numbers]), strict=True):
        found.setdefault(result.shard, []).append(n)
    return found


def shards_of_first_slot(run: Running) -> list[str]:
    """Waits for a heartbeat: a status is up to a second old."""
    found: list[str] = []

    def look() -> bool:
        status = run.status()
        tasks = [] if status is None else [task for task in status.tasks if task.name == "orders/0"]
        found[:] = [shard for task in tasks for slot in task.slots.values() for shard in slot.shards]
        return bool(found)

    run.until(look)
    return found


def test_startpoints_on_an_app_that_runs_and_on_one_that_has_stopped(
    orders: StreamOnServer, app: hr.App, tmp_path: Path, cli: Cli
) -> None:
    with running(app, tmp_path) as run:
        where = written(orders, range(20))
        run.until(lambda: len(run.numbers()) == 20)
        again = [n for shard in shards_of_first_slot(run) for n in where[shard]]
        said = cli("startpoint", "set", "shop", "orders/0", "--oldest", "--apply")
        assert "orders/0 orders/0" in said
        assert "applied at the oldest by generation 2, committed in" in said
        expected = Counter([*range(20), *again])
        run.until(lambda: Counter(run.numbers()) == expected)
        later_ms = time.time_ns() // 1_000_000 + 2
        until(lambda: time.time_ns() // 1_000_000 > later_ms, "the clock has moved", 5)
        moment = time.time_ns() // 1_000_000
        written(orders, range(20, 30))
        run.until(lambda: len(run.numbers()) == expected.total() + 10)
    assert run.errors == []
    said = cli("startpoint", "set", "shop", "orders", "--time", moment)
    assert "it takes effect at the app's next start" in said
    with running(app, tmp_path) as run:
        expected += Counter([*range(20, 30), *range(20, 30)])
        run.until(lambda: Counter(run.numbers()) == expected)
        written(orders, range(30, 40))
        expected += Counter(range(30, 40))
        run.until(lambda: Counter(run.numbers()) == expected)
    assert run.errors == []
    assert cli("startpoint", "list", "shop") == "app 'shop' has no startpoints"


def test_commands_show_where_an_app_is(
    orders: StreamOnServer, app: hr.App, file: Path, tmp_path: Path, cli: Cli
) -> None:
    with running(app, tmp_path) as run:
        where = written(orders, range(20))
        run.until(lambda: len(run.numbers()) == 20)
        (shard,) = shards_of_first_slot(run)
        run.until(lambda: f"orders[0] orders/0 {shard} 49" in cli("status", "shop"))
        assert "slot task shard committed behind" in cli("status", "shop")
        shown = cli("checkpoint", "show", "shop", "orders/0")
        assert f"{shard}: 49" in shown
        (task,) = (json.loads(line) for line in [cli("checkpoint", "show", "shop", "orders/0", "--json")])
        assert task[0]["inputs"][0]["shards"][shard] in shown
    offsets = cli("offsets", file)
    assert f"orders/0 orders/0 {len(where[shard])} - - - - - -" in offsets
    assert "its partitions are slots" in offsets
    first = json.loads(cli("offsets", file, "--json"))[0]
    assert (first["committed"], first["lag"], first["oldest"], first["newest"]) == (len(where[shard]), None, None, None)
    oldest = cli("startpoint", "set", file, "orders/0", "--oldest", "--dry-run")
    assert f"{len(where[shard])} the oldest reads an unknown number of messages again" in oldest
    assert "results of messages that are read again are sent again" in oldest
    by_time = cli("startpoint", "set", file, "orders/0", "--time", "2026-01-01T00:00Z", "--dry-run")
    assert "2026-01-01 00:00:00Z reads from that time on" in by_time
    assert "begin at a time, at oldest" in cli("startpoint", "set", file, "orders/0", "--offset", 3, code=2)
    plan = cli("plan", file)
    assert f"slots that share the shards of {orders.name}" in plan
    assert f"source Kinesis stream {orders.name} 2 partitions outside -> orders" in plan


def test_a_savepoint_is_restored_and_the_stream_between_the_stages_rescaled(
    orders: StreamOnServer, app: hr.App, kinesis_local: KinesisServer, tmp_path: Path, cli: Cli
) -> None:
    with running(app, tmp_path) as run:
        written(orders, range(20))
        run.until(lambda: len(run.numbers()) == 20)
        cli("savepoint", "create", "shop", "one", "--quiet")
        shard = orders.api.shards()[0]
        orders.split(shard.id, (shard.first + shard.last + 1) // 2)
        written(orders, range(20, 40))
        run.until(lambda: len(run.numbers()) == 40)
    assert run.errors == []
    for words in ((), ("--dry-run",)):
        refused = cli("savepoint", "restore", "shop", "one", "--outputs", "silent", *words, code=2)
        assert "can't be read again in the same order, because its shards change" in refused
    restored = cli("savepoint", "restore", "shop", "one", "--partitions", "by-member=3", "--quiet")
    assert "copies, sums: the results of the messages in between will appear a second time" in restored
    assert "--outputs silent" not in restored
    wider = shop(tmp_path, orders.name, endpoint_url=kinesis_local.endpoint, partitions=3)
    with running(wider, tmp_path) as run:
        run.until(lambda: Counter(run.numbers()) == Counter([*range(40), *range(20, 40)]))
        written(orders, range(40, 50))
        end_time(orders.api)
        run.until(lambda: sums_in(run.committed("sums")) == sums(range(50)))
    assert run.errors == []


def test_ctrl_c_drains_it(orders: StreamOnServer, kinesis_local: KinesisServer, tmp_path: Path) -> None:
    def copied() -> int:
        try:
            return hr.streams.read_stream("copies", home=tmp_path).height
        except HeadraceError:
            return 0

    put(orders.api, range(20))
    with Killed("kinesis_program.py", tmp_path, orders.name, kinesis_local.endpoint).running() as process:
        until(lambda: copied() == 20, "all is copied", 120)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
