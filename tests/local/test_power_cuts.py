"""After a power cut, files lack what wasn't synced. An app of durability "commit" goes on as if nothing had been lost.

Its process is killed, and then the log's files lose what the process hasn't synced, or some of it. The writer of the
input syncs nothing at all: only what the app has synced of it is safe.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import polars as pl
import pytest
from killed import PATIENCE_S, Killed

import headrace as hr
from chaos.power import Power
from headrace.core.errors import HeadraceError
from headrace.systems.log.layout import stream_names
from headrace.systems.log.segment import FILE_HEADER_SIZE
from headrace.systems.log.system import Findings, inspect_stream, repair_stream

ROWS = 500


class Scene:
    def __init__(self, home: Path, seed: int, durability: str) -> None:
        self.lost = 0
        self._draw = random.Random(seed)
        self._durability = durability
        self._made = 0
        self.move(home)
        hr.streams.create_stream("numbers", 2, {"n": pl.Int64, "ts": pl.Int64}, home=home)

    def move(self, home: Path, lost_results: str = "refuse") -> None:
        """From now on the app's home is this."""
        self.home = home
        self._power = Power(home / "power")
        self.program = Killed("power_cut_program.py", home, self._power.program, self._durability, lost_results)

    def feed(self, batches: int = 200) -> None:
        with hr.streams.StreamWriter("numbers", key="n", home=self.home) as writer:
            for _ in range(batches):
                end = self._made + self._draw.randrange(ROWS)
                writer.write(pl.select(n=pl.int_range(self._made, end), ts=pl.int_range(self._made, end)))
                self._made = end

    def read(self, stream: str) -> pl.DataFrame:
        return hr.streams.read_stream(stream, committed=stream != "numbers", home=self.home)

    def copies(self) -> int:
        try:
            return self.read("copies").height
        except HeadraceError:
            return 0

    def synced(self) -> dict[int, int]:
        return self._power.synced()

    def cut_power(self) -> None:
        self.lost += self._power.cut(self.home, self._draw)

    def leave_holes(self) -> None:
        self.lost += self._power.leave_holes(self.home, self._draw)

    def damaged(self) -> list[Findings]:
        root = self.home / "streams"
        return [found for name in stream_names(root) if (found := inspect_stream(root, name)).damaged]

    def repair(self) -> None:
        for found in self.damaged():
            repair_stream(self.home / "streams", found)

    def run_to_a_kill(self) -> None:
        before = self.copies()
        self.program.kill_when(lambda: self.copies() > before, self.feed, self._draw.random() * 0.1)

    def end(self) -> None:
        self.feed()
        with hr.streams.StreamWriter("numbers", home=self.home) as writer:
            writer.seal()
        self.program.end()

    def wrong(self) -> str:
        """What the app has lost or doubled; empty if nothing."""
        rows = self.read("numbers")
        if sorted(self.read("copies")["n"]) != sorted(rows["n"]):
            return "copies"
        windows = self.read("counts")
        if windows.select("digit", "window_start").is_duplicated().any():
            return "windows appear twice"
        if (windows["n"].sum(), windows["total"].sum()) != (rows.height, rows["n"].sum()):
            return "counts"
        return ""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_nothing_is_lost_or_doubled_when_the_power_is_cut(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path, seed, "commit")
    for _ in range(4):
        scene.run_to_a_kill()
        scene.cut_power()
    scene.end()
    assert scene.lost > 0
    assert scene.wrong() == ""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_holes_that_a_power_cut_leaves_can_be_repaired(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path, seed, "commit")
    for _ in range(4):
        scene.run_to_a_kill()
        scene.feed()
        scene.leave_holes()
        scene.repair()
    scene.end()
    assert scene.lost > 0
    assert scene.wrong() == ""


def test_an_app_notices_that_a_stream_has_lost_what_its_checkpoint_covers(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1, "process")
    scene.run_to_a_kill()
    synced = scene.synced()
    for file in tmp_path.glob("streams/counting-by-digit/p*.log"):
        assert synced[file.stat().st_ino] == FILE_HEADER_SIZE  # as it was created
        os.truncate(file, FILE_HEADER_SIZE)
    with scene.program.running(stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "lost its end in a crash of the machine" in said


def test_an_app_notices_that_an_output_has_lost_what_it_has_committed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1, "process")
    scene.run_to_a_kill()
    for file in tmp_path.glob("streams/copies/p*.log"):
        os.truncate(file, FILE_HEADER_SIZE)
    with scene.program.running(stderr=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "lacks results that this task has committed" in said
    scene.move(tmp_path, lost_results="accept")
    scene.end()  # readers of the whole output refuse it, as before
