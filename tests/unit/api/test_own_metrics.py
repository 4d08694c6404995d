"""Metrics of users' own code: where they count, in which series, and what is refused."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.coordinator.prometheus import render
from headrace.core.errors import DeclarationError, UsageError, UserFunctionError
from headrace.core.metrics import SERIES_MAX, UserMetrics, enter
from headrace.run.container import of_users
from headrace.task.host.task_host import TaskHost
from headrace.task.metrics import TaskMetrics

NUMBERS = {"n": pl.Int64}
SEEN = hr.metrics.counter("seen", "Numbers that were seen.")
SIZES = hr.metrics.histogram("sizes", buckets=[1, 10])


@pytest.fixture
def task() -> TaskMetrics:
    """What is counted in this thread from now on, as in a task."""
    metrics = TaskMetrics("numbers/0")
    enter(metrics.user)
    return metrics


@pytest.fixture(autouse=True)
def nothing_is_counted_afterwards() -> object:
    yield
    enter(UserMetrics())


def count(row: dict[str, int]) -> dict[str, int]:
    SEEN.add(parity="odd" if row["n"] % 2 else "even")
    SIZES.observe(row["n"])
    return row


@pytest.mark.parametrize("disturbed", [False, True])
def test_functions_count_in_the_task_that_calls_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disturbed: bool
) -> None:
    """Also when the run loop has turned to another task meanwhile, as while it waits for the disk."""
    collect, step = TaskHost.collect, TaskHost.step

    def collect_for_others(host: TaskHost) -> None:
        enter(UserMetrics())
        collect(host)

    def step_for_others(host: TaskHost, now_ms: float) -> bool:
        enter(UserMetrics())
        return step(host, now_ms)

    if disturbed:
        monkeypatch.setattr(TaskHost, "collect", collect_for_others)
        monkeypatch.setattr(TaskHost, "step", step_for_others)
    hr.streams.create_stream("numbers", 2, NUMBERS, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        for numbers in ([1, 2, 3], [20]):  # one partition after the other
            writer.write([{"n": n} for n in numbers])
        writer.seal()
    app = hr.App("counting", home=tmp_path)
    numbers = app.input("numbers", NUMBERS)
    plain = hr.metrics.counter("calls")

    def call(row: dict[str, int]) -> dict[str, int]:
        plain.add()
        return row

    async def call_too(row: dict[str, int]) -> dict[str, int]:
        plain.add()
        return row

    counted = numbers.map(count, schema=NUMBERS).map_async(call, schema=NUMBERS, id="in-threads")
    counted.map_async(call_too, schema=NUMBERS, id="in-the-loop").send_to(app.output("copies"))
    run = app.start(local=True, progress=False)
    run.wait(timeout="60s")
    found = run.metrics()
    seen = found.filter(pl.col("name") == "seen_total").sort("task", "parity")
    assert seen.select("stage", "task", "parity", "value").rows() == [
        ("numbers", "numbers/0", "even", 1.0),
        ("numbers", "numbers/0", "odd", 2.0),
        ("numbers", "numbers/1", "even", 1.0),
    ]
    sizes = found.filter(pl.col("name") == "sizes").sort("task")
    assert sizes.select("value", "buckets").rows() == [(6.0, [1, 2, 0]), (20.0, [0, 0, 1])]
    calls = found.filter(pl.col("name") == "calls_total").sort("task")
    assert calls.select("task", "value").rows() == [("numbers/0", 6.0), ("numbers/1", 2.0)]


def test_they_are_exposed_with_their_help_and_buckets(task: TaskMetrics) -> None:
    SEEN.add(2, parity="odd")
    hr.metrics.gauge("level").set(-1.5)
    SIZES.observe(5)
    text = render(of_users(task)).decode()
    assert "# HELP seen_total Numbers that were seen.\n# TYPE seen_total counter\n" in text
    assert 'seen_total{parity="odd"} 2.0\n' in text
    assert "level -1.5\n" in text
    assert 'sizes_bucket{le="1"} 0.0\nsizes_bucket{le="10"} 1.0\nsizes_bucket{le="+Inf"} 1.0\n' in text


def test_what_is_pickled_counts_under_its_name(task: TaskMetrics) -> None:
    for one in (SEEN, pickle.loads(pickle.dumps(SEEN)), hr.metrics.counter("seen")):
        one.add()
    assert [(cell.name, cell.value) for cell in task.user.cells()] == [("seen_total", 3)]


def test_outside_of_an_app_nothing_is_counted() -> None:
    counted = UserMetrics()
    enter(counted)
    thread = threading.Thread(target=SEEN.add)
    thread.start()
    thread.join()
    assert counted.cells() == []


def test_series_are_bounded_and_the_task_warns(task: TaskMetrics) -> None:
    for number in range(SERIES_MAX + 5):
        SEEN.add(member=number)
    SEEN.add(member=0)
    assert len(task.user.cells()) == SERIES_MAX
    assert task.user.cells()[0].value == 2
    (warning,) = task.warnings.latest()
    assert "more than 100 series in one task" in warning.message
    assert warning.times == 5


def test_mistakes_in_a_function_end_the_app_as_any_other() -> None:
    app = hr.App("counting")
    app.input("numbers", NUMBERS).map(lambda row: SEEN.add(-1) or row, schema=NUMBERS).send_to(app.output("copies"))
    with (
        app.test() as t,
        pytest.raises(UserFunctionError, match="a counter only grows, so it can't be increased by -1"),
    ):
        t.feed("numbers", [{"n": 1}])


def test_kinds_and_labels_are_checked(task: TaskMetrics) -> None:
    SEEN.add()
    with pytest.raises(UsageError, match="'seen_total' is a counter here, but a gauge elsewhere"):
        hr.metrics.gauge("seen_total").set(1)
    with pytest.raises(UsageError, match="the labels stage, task have a meaning of their own"):
        SEEN.add(task="mine", stage="mine")


@pytest.mark.parametrize("name", ["", "two words", "headrace_seen", "9", "x" * 101, None])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(DeclarationError, match="is not a valid metric name"):
        hr.metrics.counter(name)


@pytest.mark.parametrize("buckets", [[], [2, 1], [1, float("inf")], range(51)])
def test_buckets_are_checked(buckets: list[float]) -> None:
    with pytest.raises(DeclarationError, match="aren't rising numbers"):
        hr.metrics.histogram("sizes", buckets=buckets)
