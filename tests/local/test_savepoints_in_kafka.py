"""Savepoints of an app whose streams are in Kafka: taken, restored, taken back, with other partition counts, deleted.

It also writes to a topic with transactions, whose readers see each result as often as it was written.
"""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from in_thread import running

import headrace as hr
from chaos.kafka_plain import create_topic, read_topic
from chaos.kafka_server import Broker, KafkaServer, KfakeServer
from headrace.core.errors import HeadraceError, PlanError
from headrace.operate.cli.main import main
from headrace.systems.registry import open_system

NUMBERS = {"n": pl.Int64, "ts": pl.Int64}
MEMBERS = 7


class Scene:
    """Numbers by member, summed in windows of ten; all streams but one topic in a log of their own in Kafka."""

    def __init__(self, home: Path, broker: Broker) -> None:
        self.home = home
        self.broker = broker.address
        self.name = f"sums-{uuid.uuid4().hex[:8]}"  # writers of one name would continue each other's work in the topic
        self.log = hr.io.kafka_log(self.broker, prefix=f"{uuid.uuid4().hex[:8]}.")
        self.topic = create_topic(self.broker, 2)
        hr.streams.create_stream("numbers", 2, NUMBERS, system=self.log)
        self.made = 0

    def app(self, **settings: object) -> hr.App:
        given = {"home": str(self.home), "checkpoint_interval": "50ms", "system": self.log} | settings
        app = hr.App(self.name, **given)  # type: ignore[arg-type]
        numbers = app.input("numbers", NUMBERS, event_time="ts", lateness="1h")
        by_member = numbers.with_columns(member=pl.col("n") % MEMBERS).partition_by("member", id="by-member")
        sums = by_member.window(hr.tumbling("10ms"), key="member", id="per-ten").agg(n=hr.count(), total=hr.sum("n"))
        sums.send_to(app.output("sums"))
        by_member.select("n").send_to(app.output("copies"))
        by_member.select("n").send_to(app.output("plain", system=hr.io.kafka(self.topic, brokers=self.broker)))
        return app

    def put(self, count: int = 100) -> None:
        with hr.streams.StreamWriter("numbers", system=self.log) as writer:
            for first in range(self.made, self.made + count, 10):
                writer.write([{"n": n, "ts": n} for n in range(first, first + 10)])
        self.made += count

    def copies(self) -> Counter[int]:
        try:
            return Counter(hr.streams.read_stream("copies", system=self.log)["n"].to_list())
        except HeadraceError:  # it isn't there yet
            return Counter()

    def plain(self) -> Counter[int]:
        values = [record.value or b"" for record in read_topic(self.broker, self.topic)]
        return Counter(pl.read_ndjson(b"\n".join(values))["n"].to_list()) if values else Counter()

    def run_until(self, copies: int, savepoint: str = "") -> None:
        """Run it until so many rows are in both outputs; then take a savepoint, if it has a name."""
        with running(self.app(), self.home) as run:
            run.until(lambda: self.copies().total() >= copies and self.plain().total() >= copies)
            if savepoint:
                self.savepoint("create", savepoint)
        assert run.errors == []
        assert self.copies().total() == copies

    def end(self) -> pl.DataFrame:
        """Seal the input, run the app to its end, and return its sums."""
        with hr.streams.StreamWriter("numbers", system=self.log) as writer:
            writer.seal()
        self.app().run(local=True, progress=False)
        sums = hr.streams.read_stream("sums", system=self.log)
        assert sums.select("member", "window_start").is_unique().all()
        assert (sums["n"].sum(), sums["total"].sum()) == (self.made, sum(range(self.made)))
        return sums

    def savepoint(self, verb: str, *words: object, code: int = 0) -> None:
        quiet = ("--quiet",) if verb in ("create", "restore") else ()
        assert main(["savepoint", verb, self.name, *map(str, words), *quiet, "--home", str(self.home)]) == code

    def check_written(self, *times: tuple[range, int]) -> None:
        """Each number was written as often as it is said, in both outputs."""
        wanted = Counter({n: often for numbers, often in times for n in numbers})
        assert self.copies() == wanted
        assert self.plain() == wanted


@pytest.fixture
def scene(tmp_path: Path, kfake: KfakeServer) -> Scene:
    return Scene(tmp_path / "home", kfake)


def check_back_and_on(scene: Scene) -> None:
    """Back to a savepoint, and on with more tasks."""
    scene.put()
    scene.run_until(100, savepoint="one")
    scene.put()
    scene.run_until(200)
    scene.savepoint("restore", "one")
    scene.run_until(300, savepoint="two")
    scene.check_written((range(100), 1), (range(100, 200), 2))
    scene.savepoint("restore", "two", "--partitions", "by-member=5")
    scene.put()
    scene.run_until(400)
    scene.end()
    scene.check_written((range(100), 1), (range(100, 200), 2), (range(200, 300), 1))


def test_back_and_on_in_kfake(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    check_back_and_on(scene)


@pytest.mark.soak
def test_back_and_on_in_kafka(tmp_path: Path, kafka_broker: KafkaServer, capsys: pytest.CaptureFixture[str]) -> None:
    check_back_and_on(Scene(tmp_path / "home", kafka_broker))


def test_in_silence(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.put()
    scene.run_until(100, savepoint="one")
    scene.put()
    with running(scene.app(), scene.home) as run:
        run.until(lambda: scene.copies().total() >= 200 and scene.plain().total() >= 200)
        scene.savepoint("create", "two")  # it ends in a savepoint's cut or later: nothing waits between the stages
    scene.savepoint("restore", "one", "--outputs", "silent")
    assert "sums would" not in capsys.readouterr().out
    scene.put()
    scene.run_until(300)
    scene.end()
    scene.check_written((range(300), 1))


def test_a_restore_is_taken_back(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.put()
    scene.run_until(100, savepoint="one")
    scene.put()
    scene.run_until(200)
    scene.savepoint("restore", "one")
    scene.savepoint("undo")
    scene.put()
    scene.run_until(300)
    scene.savepoint("restore", "one")
    scene.run_until(500)
    scene.savepoint("undo", code=2)
    assert f"app {scene.name!r} has run since the savepoint was restored" in capsys.readouterr().err


def test_a_timeline_is_deleted(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.put()
    scene.run_until(100, savepoint="one")
    scene.savepoint("restore", "one")
    scene.put()
    scene.run_until(200)
    admin = open_system(scene.log.system("")).admin()
    old = [name for name in admin.list() if "changelog" in name and not name.endswith(".2")]
    assert len(old) == 2
    assert any(extent.upcoming > extent.oldest for name in old for extent in admin.extents(name))
    scene.savepoint("timelines", "--delete", 1)
    assert all(extent.upcoming == extent.oldest for name in old for extent in admin.extents(name))
    scene.end()
    scene.check_written((range(200), 1))


def test_a_restored_app_keeps_its_streams_where_it_was_restored(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.put()
    scene.run_until(100, savepoint="one")
    scene.savepoint("restore", "one")
    hr.streams.create_stream("numbers", 2, NUMBERS, home=scene.home)
    with pytest.raises(PlanError, match=r"savepoint 'one' of app 'sums-.*' was restored for streams in 'kafka'"):
        scene.app(system=None).run(local=True, progress=False)


def test_a_first_load(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"article": pl.String, "euros": pl.Int64}
    hr.streams.create_stream("changes", 1, columns, system=scene.log)
    app = hr.App("prices", home=scene.home, system=scene.log, checkpoint_interval="50ms")
    prices = app.table("prices", "article", columns)
    app.input("changes", columns).partition_by("article", id="by-article").send_to(prices)
    hr.write_savepoint(app, "opening", {"prices": [{"article": "lamp", "euros": 1}, {"article": "desk", "euros": 2}]})
    assert main(["savepoint", "restore", "prices", "opening", "--quiet", "--home", str(scene.home)]) == 0

    def loaded() -> bool:
        try:
            with hr.tables.open_table("prices", "prices", home=scene.home) as table:
                return table.scan(limit=None).height == 2
        except HeadraceError as error:
            if not error.retry:
                raise
            return False

    with running(app, scene.home) as run:
        run.until(lambda: run.status() is not None)
        run.until(loaded)
    assert run.errors == []
