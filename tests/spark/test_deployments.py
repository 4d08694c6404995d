"""A whole app as its users start, stop, break and restart it: real drivers, real signals, exact results."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from two_stages import TwoStages, headrace

from chaos.deployment import is_running, until
from chaos.processes import look
from headrace.runners.coordination.messages import AppStatus

END_S = 300.0


def read_all(status: AppStatus) -> bool:
    return is_running(status) and all(stage.lag == 0 for stage in status.stages)


@pytest.mark.parametrize(
    "way",
    [  # others here run an app in the first two ways
        pytest.param(TwoStages.python, marks=pytest.mark.soak),
        pytest.param(TwoStages.headrace_run, marks=pytest.mark.soak),
        TwoStages.spark_submit,
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
    with app.deploy(*app.python()) as run:
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
    with app.deploy(*app.headrace_run()) as run:
        assert run.wait(END_S) == 0, run.errors()
    app.assert_exact()


def pids_by_command(app: TwoStages) -> list[int]:
    """The containers' processes, as ``headrace status`` shows them."""
    (found,) = json.loads(headrace("status", app.app, "--home", str(app.home), "--json").stdout)
    return [container["pid"] for container in found["containers"]]


def test_two_apps_run_at_once_on_one_machine_and_one_home(tmp_path: Path) -> None:
    one = TwoStages(tmp_path, "one")
    two = TwoStages(tmp_path, "two", home=one.home)
    with one.deploy(*one.python("local[1]")) as first, two.deploy(*two.python("local[1]")) as second:
        first.wait_running()
        second.wait_running()
        one.feed(20_000)
        one.seal()
        assert [first.wait(END_S), second.wait(END_S)] == [0, 0], first.errors() + second.errors()
    one.assert_exact()
    two.share_input(one)
    two.assert_exact()


def test_stages_deployed_apart_give_the_same_as_together(tmp_path: Path) -> None:
    app = TwoStages(tmp_path)
    app.feed(20_000)
    sources, totals = app.headrace_run("--stage", "orders"), app.headrace_run("--stage", "by-member")
    with app.deploy(*sources) as first, app.deploy(*totals) as second:
        app.feed(5_000)
        app.seal()
        assert [first.wait(END_S), second.wait(END_S)] == [0, 0], first.errors() + second.errors()
    app.assert_exact()


def test_a_function_that_raises_ends_the_app_with_its_line_and_the_place_of_the_message(tmp_path: Path) -> None:
    app = TwoStages(tmp_path, broken=1234)
    app.feed(5_000)
    with app.deploy(*app.headrace_run()) as run:
        assert run.wait(END_S) == 1
        error = run.errors()
    line = 1 + app.file.read_text().splitlines().index('        raise ValueError("this order is broken")')
    assert f"raised ValueError at {app.file}:{line}: this order is broken" in error
    # Batches go round robin: the second thousand is in partition 1.
    assert re.search(r"on a message of log\.orders\[1\], offset \d+", error)
    assert error.count("this order is broken") == 1, "it was tried once and reported once"


def test_too_few_slots_are_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    app = TwoStages(tmp_path)
    with app.deploy(*app.headrace_run("--containers", "4")) as run:
        assert run.wait(END_S) == 1
        assert "app needs 4 container slots, local[2] has 2" in run.errors()
        assert "--master local[4]" in run.errors()


def test_a_module_that_containers_lack_ends_the_app_and_names_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "only_here.py").write_text("def flag(row):\n    return True\n")
    app = TwoStages(tmp_path)
    app.file.write_text(
        app.file.read_text().replace(
            "if __name__",
            f"sys.path.append({str(elsewhere)!r})\nimport only_here\n"
            "orders.filter(only_here.flag).send_to(app.output('flagged'))\nsys.path.pop()\nif __name__",
        )
    )
    app.feed(1_000)
    with app.deploy(*app.headrace_run()) as run:
        assert run.wait(END_S) == 1
        assert "before it could register" in run.errors()
        assert "No module named 'only_here'" in run.errors()
