"""Startpoints of an app in two containers on real Spark: a kind of the app's own, applied while it runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from chaos.deployment import until

PROGRAM = Path(__file__).parents[1] / "local" / "startpoint_program.py"
COLUMNS = {"partition": pl.Int64, "offset": pl.Int64}


@pytest.mark.spark
@pytest.mark.slow
def test_only_the_tasks_concerned_read_again(tmp_path: Path) -> None:
    for name, partitions in (("views", 2), ("rates", 1)):
        hr.streams.create_stream(name, partitions, COLUMNS, home=tmp_path)
        with hr.streams.StreamWriter(name, home=tmp_path) as writer:
            for n in range(20):  # they are dealt out in turn
                writer.write([{"partition": 0, "offset": n}])
    points = hr.startpoints.open_startpoints("first", home=tmp_path)
    log = tmp_path / "first.log"

    def caught_up() -> bool:
        assert process.poll() is None, f"it ended with {process.returncode}"
        try:
            return not points.list() and all(one.lag == 0 and one.committed for one in points.offsets())
        except hr.errors.UsageError:  # it hasn't recorded its inputs yet
            return False

    with subprocess.Popen([sys.executable, str(PROGRAM), str(tmp_path), "local[2]"], cwd=tmp_path) as process:
        try:
            until(caught_up, "it has read everything", 200)
            before = log.read_text().splitlines()
            answer = points.set("views", hr.startpoints.custom("at-time", {"time_ms": 0}), partition=1, apply=True)
            until(caught_up, "the startpoint is released", 60)
            after = log.read_text().splitlines()
            end = next(one for one in points.offsets() if (one.input, one.partition) == ("views", 1))
            with hr.streams.StreamWriter("views", home=tmp_path) as writer:
                for n in (20, 21):
                    writer.write([{"partition": 0, "offset": n}])
            until(caught_up, "it has read more", 60)
            firsts = []
            for point in (
                hr.startpoints.oldest(),
                hr.startpoints.upcoming(),
                hr.startpoints.offset(end.newest),
                hr.startpoints.at(end.oldest_ms),
            ):
                known = len(log.read_text().splitlines())
                points.set("views", point, partition=1, apply=True)
                until(caught_up, "the startpoint is released", 60)
                firsts.append([int(line.split()[3]) for line in log.read_text().splitlines()[known:]])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    (task,) = answer.restarted
    (move,) = answer.moves
    assert (move.task, move.direction) == (task, "back")
    new = [line.split() for line in after[len(before) :]]
    assert new
    assert {(name, input_) for name, input_, *_ in new} == {(task, "views")}
    oldest = int(new[0][3])
    assert firsts == [[oldest], [], [20 + oldest], [oldest]]
    state, *others = points.list(done=True)
    assert {one.state for one in others} == {"released"}
    assert (state.state, state.offset, state.task) == ("released", 32, task)
