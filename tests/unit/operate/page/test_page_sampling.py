"""Rates, shares, durations and latencies between two samples."""

from __future__ import annotations

import pytest

from headrace.coordinator.messages import Series
from headrace.core.metrics import SECONDS
from headrace.operate.page.view import Between, Sample, quantile
from page_scene import container, counter, status, task


def histogram(name: str, seconds: float, *buckets: int, **labels: str) -> Series:
    counts = [*buckets, *[0] * (len(SECONDS) + 1 - len(buckets))]
    return Series(name=f"headrace_{name}", kind="histogram", value=seconds, buckets=counts, labels=labels)


def between(before: list[Series], after: list[Series], seconds: float = 2.0) -> Between:
    first, second = (
        Sample.of(status(task("a/0", *series)), at) for series, at in ((before, 0), (after, seconds * 1000))
    )
    return Between(first, second)


def test_counts_become_rates():
    name = "input_messages_total"
    happened = between(
        [counter(name, 100, input="log.a", partition="0"), counter(name, 5, input="log.a", partition="1")],
        [counter(name, 300, input="log.a", partition="0"), counter(name, 25, input="log.a", partition="1")],
    )
    assert happened.task("a/0").rates("inputs") == {"log.a": 110}


def test_times_become_shares():
    name = "task_time_seconds_total"
    after = [counter(name, 1.5, state="busy"), counter(name, 0.5, state="waiting"), counter(name, 2, state="idle")]
    pace = between([], after).task("a/0")
    assert (pace.share("busy"), pace.share("waiting"), pace.share("idle")) == (0.375, 0.125, 0.5)


def test_a_task_that_is_new_or_did_nothing_has_shares_and_rates_of_none():
    happened = between([], [])
    assert happened.task("a/0").share("busy") == 0
    assert happened.task("other/7").rates("inputs") == {}
    assert happened.latency("sent", 0.5) is None
    assert happened.commit_ms() == {}


def test_commits_have_an_average_duration_by_part():
    name = "checkpoint_duration_seconds"
    happened = between(
        [histogram(name, 1.0, 10, part="flush")],
        [histogram(name, 1.3, 15, part="flush"), histogram(name, 0, part="store")],
    )
    assert happened.commit_ms() == {"flush": pytest.approx(60)}


def test_a_latency_is_that_of_the_messages_in_between():
    happened = between([histogram("latency_seconds", 0, 1000, until="sent")],
                       [histogram("latency_seconds", 0, 1000, 0, 10, 10, until="sent")])  # fmt: skip
    assert happened.latency("sent", 0.5) == SECONDS[2]
    assert happened.latency("sent", 0.75) == pytest.approx((SECONDS[2] + SECONDS[3]) / 2)


def test_what_is_longer_than_all_buckets_counts_as_the_longest():
    assert quantile([0] * len(SECONDS) + [3], 0.99) == SECONDS[-1]


def test_restarts_and_rollbacks_are_counted():
    first = Sample.of(status(task("a/0"), containers=[container(0, "a/0", restarts=1)]), 0)
    later = status(task("a/0", counter("rollbacks_total", 2)), containers=[container(0, "a/0", restarts=3)])
    second = Sample.of(later, 1000)
    assert second.restarts - first.restarts == 2
    assert Between(first, second).count("rollbacks") == 2


def test_a_task_that_has_reported_nothing_new_is_not_counted_again():
    still, busy = task("a/0", counter("late_messages_total", 1)), task("a/1", counter("late_messages_total", 1))
    first = Sample.of(status(still, busy), 0)
    later = task("a/1", counter("late_messages_total", 3))
    second = Sample.of(status(still, later), 1000, first)
    assert second.tasks["a/0"] is first.tasks["a/0"]
    assert second.tasks["a/1"] is not first.tasks["a/1"]
    assert Between(first, second).count("late") == 2
