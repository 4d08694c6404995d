"""With its streams and changelogs in Kafka, an app that is killed goes on where it was; so does one whose broker is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from killed import Killed

import headrace as hr
from chaos.kafka_server import Broker, KafkaServer, KfakeServer
from headrace.core.errors import HeadraceError, InfrastructureError

ROWS = 40_000


@pytest.fixture(params=[KfakeServer, pytest.param(KafkaServer, marks=pytest.mark.soak)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    try:
        server: Broker = request.param()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with server:
        yield server


class Scene:
    def __init__(self, home: Path, broker: Broker) -> None:
        self.broker = broker
        self.program = Killed("kafka_log_program.py", home, broker.address)
        self._inbox = home / "in"
        self._inbox.mkdir()
        self.made = 0

    def feed(self, files: int = 3) -> None:
        for _ in range(files):
            first = self.made * ROWS
            frame = pl.select(n=pl.int_range(first, first + ROWS), ts=pl.int_range(first, first + ROWS))
            draft = self._inbox / ".draft"
            frame.write_csv(draft)
            draft.rename(self._inbox / f"{self.made}.csv")
            self.made += 1

    def read(self, stream: str) -> pl.DataFrame:
        log = hr.io.kafka_log(self.broker.address, prefix="counting.")
        return hr.streams.read_stream(stream, committed=True, system=log)

    def copies(self) -> int:
        try:
            return self.read("copies").height
        except HeadraceError:
            return 0

    def check(self) -> None:
        assert sorted(self.read("copies")["n"].to_list()) == list(range(self.made * ROWS))
        for name in ("x", "y"):  # one for each partition: now all windows close
            pl.DataFrame({"n": [0], "ts": [36_000_000]}).write_csv(self._inbox / f"{name}.csv")
        self.program.end()
        windows = self.read("counts")
        assert windows.select("digit", "window_start").is_unique().all()
        assert (windows["n"].sum(), windows["total"].sum()) == (self.made * ROWS, sum(range(self.made * ROWS)))


def test_each_row_counts_once_although_the_app_is_killed(tmp_path: Path, broker: Broker) -> None:
    scene = Scene(tmp_path, broker)
    scene.feed()
    for later_s in (0.0, 0.01, 0.03):
        before = scene.copies()
        scene.program.kill_when(lambda before=before: scene.copies() > before, scene.feed, later_s, tries=5)
    scene.program.end()
    scene.check()


def test_each_row_counts_once_although_the_broker_is_killed(tmp_path: Path, broker: Broker) -> None:
    scene = Scene(tmp_path, broker)
    scene.feed(12)
    with scene.program.running() as process:
        for _ in range(2):
            before = scene.copies()
            while scene.copies() == before and process.poll() is None:
                threading.Event().wait(0.02)
            broker.stop()
            broker.start()
        process.wait(120)
        assert process.returncode == 0
    scene.program.end()
    scene.check()
