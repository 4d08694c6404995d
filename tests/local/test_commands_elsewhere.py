"""An app whose streams are in Kafka: commands on a machine that has nothing of its home, only what is in the metadata.

The other machine is a folder with a copy of the metadata store.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from in_thread import Running, running

import headrace as hr
from chaos.kafka_server import KafkaServer, KfakeServer
from headrace.core.errors import HeadraceError, PlanError
from headrace.operate.cli.main import main
from servers.kafka_topics import Topic

VIEWS = {"member": pl.String, "ts": pl.Int64}


class Machine:
    """One on which commands are given."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def say(self, *words: object, code: int = 0) -> str:
        """What a command prints, without alignment."""
        self._capsys.readouterr()
        found = main([*map(str, words), "--home", str(self.home)])
        captured = self._capsys.readouterr()
        assert found == code, captured.err
        return " ".join((captured.out + captured.err).split())

    def json(self, *words: object) -> Any:
        self._capsys.readouterr()
        assert main([*map(str, words), "--home", str(self.home), "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def lines(self, *words: object) -> list[Any]:
        self._capsys.readouterr()
        assert main([*map(str, words), "--home", str(self.home)]) == 0
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]


class Views:
    """Views by member, counted; all streams in a log of their own in Kafka."""

    def __init__(self, home: Path, broker: str, app: str = "views") -> None:
        self.home = home
        self.log = hr.io.kafka_log(broker, prefix=f"{uuid.uuid4().hex[:8]}.")
        self.name = app
        hr.streams.create_stream("views", 1, VIEWS, system=self.log)
        self.put(*range(100))

    def put(self, *times: int) -> None:
        with hr.streams.StreamWriter("views", system=self.log) as writer:
            writer.write([{"member": str(ts % 10), "ts": ts} for ts in times])

    def app(self, **settings: Any) -> hr.App:
        app = hr.App(
            self.name, **{"home": str(self.home), "checkpoint_interval": "50ms", "system": self.log} | settings
        )
        counts = app.table("counts", key="member", schema={"member": pl.String, "n": pl.UInt32})
        views = app.input("views", VIEWS).partition_by("member", id="by-member", partitions=2)
        views.select("member", n=pl.col("ts").cast(pl.UInt32)).send_to(counts)
        views.select("member", "ts").send_to(app.output("seen"))
        return app

    def seen(self) -> int:
        try:
            return hr.streams.read_stream("seen", system=self.log).height
        except HeadraceError:  # it isn't there yet
            return 0

    def run_until(self, rows: int, also: Callable[[Running], None] = lambda run: None) -> None:
        with running(self.app(), self.home) as run:
            run.until(lambda: self.seen() >= rows)
            also(run)
        assert run.errors == []


@pytest.fixture
def views(tmp_path: Path, kfake: KfakeServer) -> Views:
    return Views(tmp_path / "home", kfake.address)


def elsewhere(home: Path, capsys: pytest.CaptureFixture[str]) -> Machine:
    """A machine that knows the metadata of this home as it is now."""
    machine = Machine(home.with_name(f"elsewhere-{uuid.uuid4().hex[:8]}"), capsys)
    machine.home.mkdir()
    with (
        closing(sqlite3.connect(home / "metadata.db")) as source,
        closing(sqlite3.connect(machine.home / "metadata.db")) as copy,
    ):
        source.backup(copy)
    return machine


def check_commands(views: Views, capsys: pytest.CaptureFixture[str]) -> None:
    def while_it_runs(run: Running) -> None:
        there = elsewhere(views.home, capsys)
        assert there.json("status", "views")[0]["state"] == "running"
        assert there.json("table", "list", "views")[0]["table"] == "counts"

    views.run_until(100, while_it_runs)
    there = elsewhere(views.home, capsys)
    names = {one["stream"]: one["frames"] for one in there.json("stream", "list")}
    assert {"kafka.views", "kafka.seen", "kafka.views-by-member", "kafka.views-views-changelog"} <= names.keys()
    assert names["kafka.views"] == 1
    assert len(there.lines("stream", "read", "kafka.seen", "--committed")) == 100
    assert len(there.lines("stream", "read", "seen", "--app", "views")) == 100
    described = there.json("stream", "describe", "kafka.views")
    assert [(one["group"], one["lag"]) for one in described["readers"]] in ([], [("views", 0)])

    tasks = {one["task"]: one for one in there.json("checkpoint", "list")}
    assert tasks.keys() == {"views/0", "by-member/0", "by-member/1"}
    assert {one["problem"] for one in tasks.values()} == {None}
    assert all(one["version"] and one["changelogBytes"] and 0 <= one["ageMs"] < 600_000 for one in tasks.values())
    (end,) = (one["upcoming"] for one in described["extents"])
    assert [(one["stream"], one["offset"]) for one in tasks["views/0"]["inputs"]] == [("kafka.views", end)]
    assert "changelog kafka.views-views-changelog[0]" in there.say("checkpoint", "show", "views", "views/0")

    views.put(100, 101)
    (offsets,) = there.json("offsets", "views")
    assert (offsets["committed"], offsets["lag"], offsets["problem"]) == (end, 2, None)
    assert "reads 100 messages again" in there.say("startpoint", "set", "views", "views", "--oldest", "--dry-run")
    there.say("startpoint", "set", "views", "views", "--oldest")
    assert there.json("startpoint", "list", "views")[0]["stream"] == "kafka.views"
    assert sorted(path.name for path in there.home.iterdir() if not path.name.startswith("metadata.db")) == []


def test_commands_on_kfake(views: Views, capsys: pytest.CaptureFixture[str]) -> None:
    check_commands(views, capsys)


@pytest.mark.slow
@pytest.mark.soak
def test_commands_on_kafka(tmp_path: Path, kafka_broker: KafkaServer, capsys: pytest.CaptureFixture[str]) -> None:
    check_commands(Views(tmp_path / "home", kafka_broker.address), capsys)


def test_streams_are_made_written_and_ended_from_elsewhere(views: Views, capsys: pytest.CaptureFixture[str]) -> None:
    views.run_until(100)
    there = elsewhere(views.home, capsys)
    rows = there.home.with_name("rows.jsonl")
    rows.write_text('{"member":"ann","ts":1}\n{"member":"bob","ts":2}\n')
    there.say("stream", "create", "kafka.more", "--partitions", 2, "--schema", "member:str")
    there.say("stream", "add-column", "kafka.more", "ts:int")
    assert there.json("stream", "write", "kafka.more", rows, "--key", "member", "--id", "first")["rows"] == 2
    again = there.json("stream", "write", "kafka.more", rows, "--key", "member", "--id", "first")
    assert (again["rows"], again["already"]) == (0, 2)
    assert "permanently delete 1 frame of kafka.views" in there.say(
        "stream", "trim", "kafka.views", "--before", "upcoming", code=2
    )
    there.say("stream", "trim", "kafka.views", "--before", "upcoming", "--yes")
    there.say("stream", "seal", "kafka.more")
    assert there.json("stream", "describe", "kafka.more")["sealed"]
    assert "did you mean kafka.more?" in there.say("stream", "read", "kafka.mroe", code=1)


def test_two_apps_may_call_different_logs_alike(
    views: Views, tmp_path: Path, kfake: KfakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    views.run_until(100)
    other = Views(views.home, kfake.address, "others")
    other.put(1, 2)
    other.run_until(102)
    there = elsewhere(views.home, capsys)
    said = there.say("stream", "read", "kafka.seen", code=2)
    assert "apps 'others' and 'views' use different systems named 'kafka'" in said
    assert "--app others" in said
    assert len(there.lines("stream", "read", "kafka.seen", "--app", "others")) == 102
    assert len(there.lines("stream", "read", "seen", "--app", "views")) == 100
    assert "app 'nobody' has never run" in there.say("stream", "read", "seen", "--app", "nobody", code=2)


def test_a_log_that_does_not_answer(views: Views, capsys: pytest.CaptureFixture[str]) -> None:
    views.run_until(100)
    there = elsewhere(views.home, capsys)
    with closing(sqlite3.connect(there.home / "metadata.db")) as store:
        address = views.log.log.settings.brokers
        store.execute(
            "update entries set value = cast(replace(cast(value as text), ?, '127.0.0.1:1') as blob)"
            " where namespace = 'systems'",
            (address,),
        )
        store.commit()
    assert "can't list the streams of 'kafka': " in there.say("stream", "list")
    problems = {one["problem"] for one in there.json("checkpoint", "list")}
    assert len(problems) == 1, "the other tasks aren't waited for"
    assert "127.0.0.1:1" in problems.pop()


def test_a_log_that_only_the_program_can_open(views: Views, capsys: pytest.CaptureFixture[str]) -> None:
    views.run_until(100)
    there = elsewhere(views.home, capsys)
    with closing(sqlite3.connect(there.home / "metadata.db")) as store:
        record = b'{"format":2,"own":"ours","systems":{"ours":{"kind":"of-a-plug-in"}}}'
        store.execute("update entries set value = ? where namespace = 'systems'", (record,))
        store.commit()
    said = "app 'views' keeps its own streams in 'ours', of kind 'of-a-plug-in', which only the app itself can open"
    assert {one["problem"] for one in there.json("checkpoint", "list")} == {said}
    assert there.json("stream", "list") == []
    assert "has streams in a system 'ours'" in there.say("stream", "read", "ours.views", code=2)


def test_own_streams_cannot_go_elsewhere(views: Views) -> None:
    views.run_until(100)
    hr.streams.create_stream("views", 1, VIEWS, home=views.home)
    with pytest.raises(PlanError, match="app 'views' has kept its own streams in 'kafka', of kind 'kafka-log'"):
        views.app(system=None).run(local=True, progress=False)


def test_topics_that_an_app_reads_are_known(
    tmp_path: Path, kfake: KfakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic(kfake, 2, name=f"t-{uuid.uuid4().hex[:8]}")
    topic.put([b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'])
    app = hr.App("plain", home=tmp_path / "home", checkpoint_interval="50ms")
    orders = hr.io.kafka(topic.name, brokers=kfake.address, record_columns={"at": "timestamp"})
    app.input("orders", {"n": pl.Int64}, system=orders, event_time="at").send_to(app.output("copies"))
    with running(app, tmp_path / "home") as run:
        run.until(lambda: len(run.numbers()) == 3)
    assert run.errors == []
    there = elsewhere(tmp_path / "home", capsys)
    offsets = there.json("offsets", "plain")
    assert {one["problem"] for one in offsets} == {None}
    assert sum(one["newest"] for one in offsets) == 3
    assert "skips 3 messages" in there.say("startpoint", "set", "plain", "orders", "--upcoming", "--dry-run")
    assert "has streams in a system 'kafka-orders'" in there.say("stream", "read", "kafka-orders.orders", code=2)
