"""An app with its snapshots in S3 is killed, and its disk is lost: it goes on, and each row counts once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from killed import Killed

import headrace as hr
from chaos.kafka_server import KfakeServer
from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.systems.log.system import LogSystem
from servers.moto import MotoServer
from servers.s3_buckets import bucket_on, s3_on

ROWS = 40_000


@pytest.fixture(params=["log", pytest.param("kafka", marks=pytest.mark.soak)])
def brokers(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of Kafka for the app's own streams, or none."""
    if request.param == "log":
        yield "none"
        return
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    try:
        server = KfakeServer()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with server:
        yield server.address


class Scene:
    def __init__(self, home: Path, moto: MotoServer, brokers: str) -> None:
        self._home, self._brokers = home, brokers
        self._s3: Any = s3_on(moto)
        self._bucket = bucket_on(moto)
        self.program = Killed("objects_program.py", home, f"s3://{self._bucket}/apps", brokers)
        self._inbox = home / "in"
        self._inbox.mkdir()
        self.made = 0

    def feed(self, files: int = 8) -> None:
        for _ in range(files):
            first = self.made * ROWS
            frame = pl.select(n=pl.int_range(first, first + ROWS), ts=pl.int_range(first, first + ROWS))
            draft = self._inbox / ".draft"
            frame.write_csv(draft)
            draft.rename(self._inbox / f"{self.made}.csv")
            self.made += 1

    def read(self, stream: str) -> pl.DataFrame:
        if self._brokers == "none":
            return hr.streams.read_stream(stream, committed=True, home=self._home)
        log = hr.io.kafka_log(self._brokers, prefix="counting.")
        return hr.streams.read_stream(stream, committed=True, system=log)

    def newest(self) -> str:
        """The newest manifest of a task with state."""
        prefix = "apps/snapshots/counting/by-digit-0/manifests/"
        found = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix).get("Contents", [])
        return max((entry["Key"] for entry in found), default="")

    def trimmed(self) -> bool:
        """The changelog of that task can't be read from its beginning any more."""
        if self._brokers != "none":
            return True
        try:
            return LogSystem(self._home / "streams").admin().extents("counting-by-digit-changelog")[0].oldest > 32
        except HeadraceError:
            return False

    def lose_the_disk(self) -> None:
        for kind in ("state", "snapshots"):
            shutil.rmtree(self._home / kind)

    def check(self) -> None:
        assert sorted(self.read("copies")["n"].to_list()) == list(range(self.made * ROWS))
        for name in ("x", "y"):  # one for each partition: now all windows close
            pl.DataFrame({"n": [0], "ts": [36_000_000]}).write_csv(self._inbox / f"{name}.csv")
        self.program.end()
        windows = self.read("counts")
        assert windows.select("digit", "window_start").is_unique().all()
        assert (windows["n"].sum(), windows["total"].sum()) == (self.made * ROWS, sum(range(self.made * ROWS)))


def test_each_row_counts_once_although_disks_are_lost(
    tmp_path: Path, moto: MotoServer, brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    monkeypatch.setenv("AWS_REGION", moto.region)
    scene = Scene(tmp_path, moto, brokers)
    for _ in range(2):
        before = scene.newest()
        scene.program.kill_when(lambda before=before: scene.newest() > before and scene.trimmed(), scene.feed)
        scene.lose_the_disk()
    scene.program.end()
    scene.check()
