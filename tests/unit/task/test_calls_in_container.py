"""A real container, with its own run loop and the machine's clock, whose steps wait for calls: waking up, draining."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from gated_calls import TIME_MAX_S, Gate
from headrace.core.clock import WallClock
from headrace.core.ids import TaskName
from headrace.life.metadata import Generations, SqliteMetadata
from headrace.run.planning import prepare_streams
from headrace.systems.startpoints import Grant
from headrace.task.container import Container

ROW = {"n": pl.Int64}


def asking(home: Path, gate: Gate) -> hr.App:
    app = hr.App("asking", home=str(home), checkpoint_interval="1h")
    app.input("numbers", ROW).map_async(gate, ROW).send_to(app.output("out"))
    return app


def written(home: Path, *numbers: int, seal: bool = False) -> None:
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.write(pl.DataFrame({"n": numbers}, schema=ROW))
        if seal:
            writer.seal()


@contextmanager
def running(home: Path, gate: Gate) -> Iterator[tuple[Container, threading.Thread]]:
    plan = asking(home, gate).plan()
    prepare_streams(plan)
    metadata = SqliteMetadata(home / "metadata.db")
    generations = Generations(metadata, "asking")
    names = [task.name for stage in plan.stages for task in stage.tasks]

    def next_generation(task: TaskName) -> Grant:
        return Grant(generation=generations.issue([task])[task])

    container = Container(plan, names, next_generation, WallClock())
    thread = threading.Thread(target=container.run)
    thread.start()
    try:
        yield container, thread
    finally:
        container.stop()
        thread.join(TIME_MAX_S)
        container.close()
        metadata.close()
    assert not thread.is_alive()


def out(home: Path) -> list[int]:
    return hr.streams.read_stream("out", home=home)["n"].to_list()


def test_it_ends_when_the_last_call_is_answered(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 1, ROW, home=tmp_path)
    written(tmp_path, 1, 2, seal=True)
    gate = Gate()
    with running(tmp_path, gate) as (_, thread):
        gate.answer(2)
        gate.answer(1)
        thread.join(TIME_MAX_S)
        assert not thread.is_alive()
    assert out(tmp_path) == [1, 2]


def test_a_drain_gives_calls_a_moment_and_commits_their_results(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 1, ROW, home=tmp_path)
    written(tmp_path, 1)
    gate = Gate()
    with running(tmp_path, gate) as (container, thread):
        gate.until_asked(1)
        container.drain()
        gate.answer(1)
        thread.join(TIME_MAX_S)
        assert not thread.is_alive()
    assert out(tmp_path) == [1]


def test_a_drain_does_not_wait_for_calls_for_ever_and_the_next_run_makes_them_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="headrace.task.run_loop")
    hr.streams.create_stream("numbers", 1, ROW, home=tmp_path)
    written(tmp_path, 1)
    gate = Gate()
    with running(tmp_path, gate) as (container, thread):
        gate.until_asked(1)
        container.drain()
        thread.join(TIME_MAX_S)
        assert not thread.is_alive()
    gate.until(lambda: gate.cancelled == 1)
    (record,) = (record for record in caplog.records if record.name == "headrace.task.run_loop")
    assert record.getMessage() == "drained before its last version was committed and published"
    written(tmp_path, 2, seal=True)
    with running(tmp_path, gate) as (_, thread):
        gate.answer(2)
        gate.answer(1)
        thread.join(TIME_MAX_S)
    assert (out(tmp_path), gate.asked) == ([1, 2], [1, 1, 2])
