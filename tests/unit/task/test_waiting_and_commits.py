"""Steps that wait for calls, and what comes in between: a rollback, and the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr
from gated_calls import TIME_MAX_S, Gate
from headrace.kit.harness import TestApp
from headrace.protocol.protocol import Phase
from headrace.task.container import Container

ROW = {"n": pl.Int64}


def test_results_that_come_when_a_task_has_to_roll_back_are_forgotten(tmp_path: Path) -> None:
    gate = Gate()
    app = hr.App("two", home=str(tmp_path), intermediate_partitions=1, checkpoint_interval=f"{INTERVAL_MS}ms")
    asked = app.input("numbers", ROW).partition_by("n", id="by-n").map_async(gate, ROW)
    asked.send_to(app.output("out"))
    hr.streams.create_stream("numbers", 1, ROW, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer, DrivenApp(app) as driven:
        first, second = (stage.name for stage in driven.plan.stages)
        above, below = driven.start(first), driven.start(second)
        (host,) = below.hosts
        driven.run(2 * INTERVAL_MS + INTERVAL_MS // 4)
        writer.write(pl.DataFrame({"n": [1, 2]}))
        driven.until(lambda: host.task.chain.holding)
        gate.until_asked(1, 2)
        # What the calls are for was never committed above, and the answers come just when that is found out.
        driven.kill(above)
        above = driven.start(first)
        above.connections.flush_records()
        while host.machine.phase is Phase.RUNNING:
            below.connections.learn()
            host.poll()
            if not host.due:
                host.step(driven.clock.monotonic_ms())
        gate.answer(1)
        gate.answer(2)
        assert below.wakeup.wait(5000)
        assert host.machine.rollbacks == 1
        driven.until(lambda: host.machine.phase is Phase.RUNNING and host.task.chain.holding)
        gate.answer(1)
        gate.answer(2)
        writer.seal()
        driven.finish()
        assert driven.rows("out")["n"].to_list() == [1, 2]
    assert gate.asked == [1, 2, 1, 2]


def turn_until(t: TestApp, true: Callable[[], bool]) -> None:
    """Turn, woken by calls, until something is true."""
    deadline = time.monotonic() + TIME_MAX_S
    while not true():
        assert time.monotonic() < deadline
        t._container.wakeup.wait(20)
        t._container.turn()


class Beat(hr.tasks.Task):
    """Sends something ten times a second, whatever comes."""

    def process(self, message: dict[str, int], out: hr.tasks.Out) -> None:
        out.set_timer("beat", out.now_ms + 100, axis="processing")

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        out.send("beats", {"n": timer.time})
        out.set_timer("beat", timer.time + 100, axis="processing")


def test_what_is_due_by_the_clock_does_not_keep_a_commit_waiting_for_ever() -> None:
    gate = Gate()
    app = hr.App("beats")
    beats = app.task(Beat(), {"numbers": app.input("numbers", ROW)}, {"beats": ROW}, id="beat")["beats"]
    beats.map_async(gate, ROW).send_to(app.output("out"))
    with app.test() as t:
        t.feed("numbers", [{"n": 0}], settle=False)
        (host,) = t._container.hosts
        t._container.turn()
        committed = []
        answered = 0
        for _ in range(50):
            under_way = answered + t.counter("calls_in_flight")
            gate.until(lambda under_way=under_way: len(gate.asked) == under_way)
            t.clock.advance(100)
            t._container.turn()  # the next call begins before the last one is answered
            for number in gate.asked[answered:under_way]:
                gate.answer(number)
            answered = under_way
            # Not until they are counted: that is before they can be taken.
            turn_until(t, lambda answered=answered: t.read("out").height == answered)
            committed.append(host.machine.version)
        assert len(set(committed)) > 3


def test_messages_that_wait_while_a_step_is_full_are_not_silence() -> None:
    """Their partition would be idle, time would go on without it, and they would be late."""
    gate = Gate()
    app = hr.App("full")
    timed = {"n": pl.Int64, "ts": pl.Int64}
    left, right = (app.input(name, timed, event_time="ts", idle_timeout="500ms") for name in ("left", "right"))
    called = left.merge(right).map_async(gate, timed, concurrency=1)
    called.window(hr.tumbling("20ms"), key=None, id="w").agg(n=hr.sum("n")).send_to(app.output("out"))
    with app.test() as t:
        (host,) = t._container.hosts
        t.feed("left", [{"n": 1, "ts": 500}, {"n": 2, "ts": 600}], settle=False)
        t._container.turn()
        gate.until_asked(1)
        assert host.blocked_by is not None
        t.feed("right", [{"n": 4, "ts": 10}], settle=False)
        for _ in range(40):
            t.clock.advance(100)
            t._container.turn()
        for number in (1, 2, 4):
            turn_until(t, lambda number=number: number in gate.asked)
            gate.answer(number)
        t.end()
        assert t.counter("late") == 0
        assert t.read("out", committed=True)["n"].to_list() == [4, 1, 2]


def test_the_time_that_restoring_takes_is_not_silence(tmp_path: Path) -> None:
    app = hr.App("slow", home=str(tmp_path))
    hr.streams.create_stream("numbers", 1, ROW, home=tmp_path)
    app.input("numbers", ROW, event_time="n", idle_timeout="1s").send_to(app.output("out"))
    with DrivenApp(app) as driven:
        tasks = [task.name for stage in driven.plan.stages for task in stage.tasks]
        container = Container(driven.plan, tasks, driven.next_generation, driven.clock)
        driven.living.append(container)
        driven.clock.advance(5000)
        (host,) = container.hosts
        host.start()
        container.turn()
        assert not host.task.progress.idle
        driven.clock.advance(1000)
        container.turn()
        assert host.task.progress.idle
