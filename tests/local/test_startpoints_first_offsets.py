"""The test plan of the proposal: log the offset of the first message per task and SSP, for every kind of startpoint.

A real process, which is killed between startpoints, on the real log: an input with several partitions, and a broadcast
one that every task reads.
"""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest
from killed import Killed

import headrace as hr
from chaos.deployment import until
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, StreamId
from headrace.rows.ipc import encode_rows
from headrace.systems.log.system import LogSystem
from running_apps import find_all

COLUMNS = {"partition": pl.Int64, "offset": pl.Int64}
PARTITIONS = {"views": 3, "rates": 2}
COUNT = 4


class World:
    """The home, what was written to it, and what the app has logged."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.admin = LogSystem(home / "streams").admin()
        self.points = hr.startpoints.open_startpoints("first", home=home)
        self.offsets: dict[tuple[str, int], list[int]] = {}
        self._read = 0
        for name, partitions in PARTITIONS.items():
            hr.streams.create_stream(name, partitions, COLUMNS, home=home)
        self.write()

    def write(self) -> None:
        """Append to each partition ``COUNT`` records, each of which knows where it is, at different times."""
        system = LogSystem(self.home / "streams")
        producer = system.producer()
        for _ in range(COUNT):
            for name, partitions in PARTITIONS.items():
                for partition in range(partitions):
                    offset = self.admin.extents(name)[partition].upcoming
                    rows = pl.DataFrame({"partition": [partition], "offset": [offset]}, schema=COLUMNS)
                    producer.send(name, partition, encode(Header(Kind.USER), encode_rows(rows)))
                    producer.flush()
                    self.offsets.setdefault((name, partition), []).append(offset)
            done = time.time_ns() // 1_000_000
            until(lambda done=done: time.time_ns() // 1_000_000 > done + 1, "the clock has moved", 5)
        producer.close()

    def time(self, name: str, partition: int, number: int) -> int:
        """When a record was appended."""
        time_ms = self.admin.time_of(SSP(StreamId("log", name), partition), self.offsets[name, partition][number])
        assert time_ms is not None
        return time_ms

    def firsts(self) -> dict[tuple[str, str, int], int]:
        """The first offset by task, input and partition that was logged since the last call."""
        log = self.home / "first.log"
        lines = log.read_text().splitlines() if log.exists() else []
        new, self._read = lines[self._read :], len(lines)
        found: dict[tuple[str, str, int], int] = {}
        for line in new:
            task, input_, partition, offset = line.split()
            found.setdefault((task, input_, int(partition)), int(offset))
        return found

    def caught_up(self) -> bool:
        """It runs, has committed everything, and has no startpoint left to apply."""
        for address in find_all(self.home, "first"):
            client = address.client()
            try:
                running = client.status().state == "running"
            except hr.errors.UnavailableError:
                running = False  # the one that was killed
            finally:
                client.close()
            if running and not self.points.list():
                return all(one.lag == 0 and one.committed is not None for one in self.points.offsets())
        return False

    def attempt(self, program: Killed) -> dict[tuple[str, str, int], int]:
        """Run the app until it has read everything; then kill it. Return what came first in each task."""
        self.firsts()
        program.kill_when(self.caught_up, lambda: None)
        return self.firsts()

    def expected(self, choose) -> dict[tuple[str, str, int], int]:
        """What each task should take first: task n reads views[n], and all of rates."""
        wanted: dict[tuple[str, str, int], int] = {}
        for n in range(PARTITIONS["views"]):
            for name, partition in (("views", n), *(("rates", p) for p in range(PARTITIONS["rates"]))):
                if (offset := choose(name, partition)) is not None:
                    wanted[f"logging/{n}", name, partition] = offset
        return wanted


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_first_offset_per_task_and_ssp_for_every_kind(world: World) -> None:
    program = Killed("startpoint_program.py", world.home)
    first = world.attempt(program)
    tasks = sorted({task for task, _, _ in first})
    rename = dict(zip(tasks, [f"logging/{n}" for n in range(3)], strict=True))

    def named(found):
        return {(rename[task], input_, partition): offset for (task, input_, partition), offset in found.items()}

    # Without a startpoint: the input's default, then the committed position.
    assert named(first) == world.expected(lambda name, p: world.offsets[name, p][0])
    assert world.attempt(program) == {}

    def moved(choose, *points):
        for name, partitions in PARTITIONS.items():
            for partition in range(partitions):
                for point in points:
                    world.points.set(name, point(name, partition), partition=partition)
        found = named(world.attempt(program))
        assert found == world.expected(choose)

    moved(lambda name, p: world.offsets[name, p][0], lambda name, p: hr.startpoints.oldest())
    assert world.attempt(program) == {}  # it is released, as the others are: the committed position counts again
    moved(lambda name, p: world.offsets[name, p][2], lambda name, p: hr.startpoints.offset(world.offsets[name, p][2]))
    moved(lambda name, p: world.offsets[name, p][3], lambda name, p: hr.startpoints.at(world.time(name, p, 3)))
    moved(
        lambda name, p: world.offsets[name, p][1],
        lambda name, p: hr.startpoints.custom("at-time", {"time_ms": world.time(name, p, 1)}),
    )
    # Upcoming: what is written while it is down is skipped.
    world.write()
    moved(lambda name, p: None, lambda name, p: hr.startpoints.upcoming())
    # A task of its own: only that one reads rates again.
    one = tasks[1]
    world.points.set("rates", hr.startpoints.oldest(), partition=0, task=one)
    assert world.attempt(program) == {(one, "rates", 0): world.offsets["rates", 0][0]}
    states = [state.state for state in world.points.list(done=True)]
    assert set(states) == {"released"}
