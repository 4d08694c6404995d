"""A container dies, and its replacement starts on the host of its standbys: it fetches nothing, and reads little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from standby_program import COLUMNS, planned

import headrace as hr
from chaos.deployment import until
from headrace.coordinator.ledger import Ledger, StandbyBook
from headrace.coordinator.server import Coordinator
from headrace.life.metadata import SqliteMetadata
from headrace.plan.inventory import keeps_state
from headrace.run.planning import prepare_streams
from headrace.systems.log.system import LogSystem

PATIENCE_S = 120.0
ROWS = 2_000
LITTLE = 5


class Scene:
    """A driver in this process, and containers on hosts: processes that have only the log and the store in common."""

    def __init__(self, shared: Path, metadata: SqliteMetadata) -> None:
        self.shared = shared
        self.log = hr.io.log(shared / "streams")
        hr.streams.create_stream("numbers", 2, COLUMNS, system=self.log)
        plan = planned(shared, shared / "driver")
        prepare_streams(plan)
        stages = {stage.name: [task.name for task in stage.tasks] for stage in plan.stages}
        book = StandbyBook(1, [stage.name for stage in plan.stages if keeps_state(plan.graph, stage)])
        ledger = Ledger("counting", stages, 2, started_at=0, guarantee="exactly_once", heartbeat_ms=200, standbys=book)
        self.coordinator = Coordinator(ledger, metadata)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._attempts = 0
        self.written = 0

    @contextmanager
    def open(self) -> Iterator[Scene]:
        with self.coordinator, hr.streams.StreamWriter("numbers", system=self.log) as self.writer:
            try:
                yield self
            finally:
                for process in self.processes.values():
                    process.kill()
                    process.wait(PATIENCE_S)

    def start(self, number: int, host: str) -> Callable[[], list[dict[str, Any]]]:
        """Start a container, killing the one before; returns what reads the lines of its log."""
        if number in self.processes:
            os.kill(self.processes[number].pid, signal.SIGKILL)
            self.processes[number].wait(PATIENCE_S)
        program = Path(__file__).with_name("standby_program.py")
        address = self.coordinator.url, self.coordinator.token
        command = [sys.executable, program, host, self.shared, *address, str(number), str(self._attempts)]
        path = self.shared / f"log-{number}-{self._attempts}"
        self._attempts += 1
        with path.open("wb") as log:
            self.processes[number] = subprocess.Popen(command, stderr=log)
        return lambda: [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]

    def feed_until(self, done: Callable[[], bool], what: str) -> None:
        """Write numbers until something has happened."""

        def looked() -> bool:
            assert all(process.poll() is None for process in self.processes.values())
            ts = pl.lit(datetime(2026, 1, 1)).cast(COLUMNS["ts"])
            rows = pl.select(n=pl.int_range(self.written, self.written + ROWS), ts=ts)
            self.writer.write(rows.cast(COLUMNS))  # type: ignore[arg-type]
            self.written += ROWS
            return done()

        until(looked, what, PATIENCE_S)

    def followed(self) -> bool:
        """Every task with state has a standby that has all of its changelog, which has been trimmed."""
        standbys = [one for container in self.coordinator.status().containers for one in container.standbys]
        current = {one.task for one in standbys if one.state == "current"}
        extents = LogSystem(self.shared / "streams").admin().extents("counting-by-number-changelog")
        return current == {"by-number/0", "by-number/1"} and all(one.oldest > 32 for one in extents)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    pytest.importorskip("obstore", reason="obstore is not installed")
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as metadata, Scene(tmp_path, metadata).open() as scene:
        yield scene


def begun(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is said of tasks with state that have begun."""
    return [
        line
        for line in lines
        if line["message"] == "the task has its state and reads on" and line["task"].startswith("by-number/")
    ]


def test_a_replacement_on_the_host_of_its_standbys_reads_little(scene: Scene) -> None:
    scene.start(0, "a")
    scene.start(1, "b")
    scene.feed_until(scene.followed, "all standbys are current")

    taken_over = scene.start(0, "b")
    scene.feed_until(lambda: len(begun(taken_over())) == 1, "it has begun")
    messages = [line["message"] for line in taken_over()]
    assert begun(taken_over())[0]["records"] <= LITTLE
    assert "restored a snapshot" not in messages
    assert not any("folder of its own" in message for message in messages)
    scene.feed_until(lambda: not any(one.standbys for one in scene.coordinator.status().containers), "one host is left")

    elsewhere = scene.start(0, "c")
    scene.feed_until(lambda: len(begun(elsewhere())) == 1, "it has begun")
    assert "restored a snapshot" in [line["message"] for line in elsewhere()]
    scene.feed_until(scene.followed, "all standbys are current again")

    scene.writer.seal()
    until(lambda: scene.coordinator.state == "finished", "all is processed", PATIENCE_S)
    counts = hr.streams.read_stream("counts", committed=True, system=scene.log)
    assert counts["times"].unique().to_list() == [1]
    assert sorted(counts["n"].to_list()) == list(range(scene.written))
