"""A whole app as its users start, stop, break and restart it: real drivers, real signals, exact results."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from two_stages import TwoStages, headrace

from chaos.deployment import is_running, until
from chaos.processes import look
from headrace.coordinator.messages import AppStatus

END_S = 300.0


def read_all(status: AppStatus) -> bool:
    return is_running(status) and all(stage.lag == 0 for stage in status.stages)


@pytest.mark.parametrize(
    "way",
    [  # others here run an app in the first two ways, and `test_driver_end.py` in the third
        pytest.param(TwoStages.python, marks=pytest.mark.soak),
        pytest.param(TwoStages.headrace_run, marks=pytest.mark.soak),
        pytest.param(TwoStages.spark_submit, marks=pytest.mark.soak),
    ],
)
def test_three_ways_to_run_a_bounded_app_give_the_same(tmp_path: Path, way: Callable[[TwoStages], list[str]]) -> None:
    app = TwoStages(tmp_path)
    app.feed(20_000)
    app.seal()
    with app.deploy(*way(app)) as run:
        assert run.wait(END_S) == 0, run.errors()
        until(lambda: not run.processes(), "nothing is left of it", END_S)
    app.assert_exact()


@pytest.mark.soak  # `test_chaos.py` freezes an executor of a cluster, which is replaced
def test_on_a_cluster_a_killed_executor_costs_nothing(tmp_path: Path) -> None:
    app = TwoStages(tmp_path)
    app.feed(20_000)
    with app.deploy(*app.python("local-cluster[2,1,1024]")) as run:
        status = run.wait_for("all is read", read_all)
        assert len(status.containers) == 2, "both executors are used, though they register one after the other"
        victim = run.executors()[0].pid
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(run.executors()) == 2 and look(victim) is None, "another executor is there", END_S)
        app.feed(5_000)
        app.seal()
        assert run.wait(END_S) == 0, run.errors()
    app.assert_exact()


def test_an_interrupt_drains_and_the_next_start_continues(tmp_path: Path) -> None:
    app = TwoStages(tmp_path)
    app.feed(20_000)
    with app.deploy(*app.python()) as run:
        run.wait_for("all is read", read_all)
        with app.deploy(*app.python("local[1]")) as second:
            assert second.wait(END_S) == 1
            assert f"is already running with all stages: pid {run.pid}" in second.errors()
        run.interrupt()
        assert run.wait(END_S) == 0, run.errors()
        assert "Traceback" not in run.errors()
    app.feed(5_000)
    app.seal()
    with app.deploy(*app.without_spark()) as run:
        assert run.wait(END_S) == 0, run.errors()
    app.assert_exact()


def test_a_killed_container_is_back_and_a_killed_driver_can_be_started_again(tmp_path: Path) -> None:
    app = TwoStages(tmp_path)
    app.feed(20_000)
    with app.deploy(*app.headrace_run()) as run:
        run.wait_for("all is read", read_all)
        victim = pids_by_command(app)[0]
        os.kill(victim, signal.SIGKILL)
        run.wait_for("another process has its place", lambda s: is_running(s) and s.containers[0].pid != victim)
        app.feed(5_000)
        run.wait_for("all is read", read_all)
        run.kill()
        until(lambda: not [p for p in run.processes() if p.is_python_side], "its containers are gone", END_S)
    app.feed(5_000)
    app.seal()
    with app.deploy(*app.without_spark()) as run:
        assert run.wait(END_S) == 0, run.errors()
    app.assert_exact()


def pids_by_command(app: TwoStages) -> list[int]:
    """The containers' processes, as ``headrace status`` shows them."""
    (found,) = json.loads(headrace("status", app.app, "--home", str(app.home), "--json").stdout)
    return [container["pid"] for container in found["containers"]]


ON_SPARK_IN_SOAK = pytest.mark.parametrize(
    "way", [TwoStages.without_spark, pytest.param(TwoStages.headrace_run, marks=pytest.mark.soak)]
)
"""What processes with coordinators of their own say to each other doesn't depend on Spark."""


@ON_SPARK_IN_SOAK
def test_two_apps_run_at_once_on_one_machine_and_one_home(
    tmp_path: Path, way: Callable[[TwoStages], list[str]]
) -> None:
    one = TwoStages(tmp_path, "one")
    two = TwoStages(tmp_path, "two", home=one.home)
    with one.deploy(*way(one)) as first, two.deploy(*way(two)) as second:
        first.wait_running()
        second.wait_running()
        one.feed(20_000)
        one.seal()
        assert [first.wait(END_S), second.wait(END_S)] == [0, 0], first.errors() + second.errors()
    one.assert_exact()
    two.share_input(one)
    two.assert_exact()


@ON_SPARK_IN_SOAK
def test_stages_deployed_apart_give_the_same_as_together(tmp_path: Path, way: Callable[..., list[str]]) -> None:
    app = TwoStages(tmp_path)
    app.feed(20_000)
    sources, totals = way(app, "--stage", "orders"), way(app, "--stage", "by-member")
    with app.deploy(*sources) as first, app.deploy(*totals) as second:
        app.feed(5_000)
        app.seal()
        assert [first.wait(END_S), second.wait(END_S)] == [0, 0], first.errors() + second.errors()
    app.assert_exact()
