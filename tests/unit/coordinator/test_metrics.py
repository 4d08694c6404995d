"""Metrics: the table, its page, sums over restarts, and what Prometheus reads from a coordinator."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conversation import Process, new_ledger, started, task
from prometheus_client.parser import text_string_to_metric_families

from headrace.coordinator.messages import InputStatus, Series
from headrace.coordinator.progress import holders, summed
from headrace.coordinator.server import Coordinator
from headrace.core.frame import END_VERSION
from headrace.core.metrics import BY_NAME, METRICS, SECONDS
from headrace.life.metadata import MemoryMetadata
from headrace.run.container import OF_COUNTERS, counted
from headrace.task.metrics import COUNTERS, CommitTimes, Histogram, Latency, Shares, TaskMetrics
from tests.metrics_page import redraw

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def get(coordinator: Coordinator, path: str, token: str | None) -> tuple[int, str]:
    parts = urlsplit(coordinator.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


def samples(text: str) -> dict[tuple[str, str], float]:
    """By name and task."""
    return {
        (sample.name, sample.labels.get("task", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -- the table -----------------------------------------------------------------------------------------


def test_the_page_shows_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert redraw(page) == page, "run: python tests/metrics_page.py docs/metrics.md"


def test_names_are_as_prometheus_wants_them():
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("headrace_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not metric.unit or metric.unit in metric.name, metric.name
    assert set(OF_COUNTERS.values()) <= BY_NAME.keys()


def test_what_a_task_counts_is_in_the_table():
    for series in counted(TaskMetrics()):
        assert (BY_NAME[series.name].kind, series.name) == (series.kind, series.name)


def test_every_counter_of_a_task_is_shown():
    counted_otherwise = {"call_ms": "headrace_call_seconds_total", "calls_in_flight": "headrace_calls_in_flight"}
    for counter in COUNTERS:
        metrics = TaskMetrics()
        metrics.count(counter, 3000)
        shown = {series.name: series.value for series in counted(metrics)}
        name = OF_COUNTERS.get(counter) or counted_otherwise[counter]
        assert shown[name] == (3 if counter == "call_ms" else 3000), counter


# -- counting ------------------------------------------------------------------------------------------


def test_a_duration_falls_into_the_first_bucket_that_takes_it():
    histogram = Histogram()
    histogram.observe(0.001)
    histogram.observe(0.0011, 3)
    histogram.observe(99.0)
    assert (histogram.buckets[0], histogram.buckets[1], histogram.buckets[-1]) == (1, 3, 1)
    assert len(histogram.buckets) == len(SECONDS) + 1


def test_latency_counts_each_message_once_and_takes_bounded_memory():
    latency = Latency()
    for n in range(10_000):
        latency.took(n, 2)
        latency.flushed(n + 4)
    assert len(latency._open) <= 2 * Latency._MOST
    latency.commit(10_000)
    latency.commit(10_001)
    assert (sum(latency.sent.buckets), sum(latency.committed.buckets)) == (20_000, 20_000)


def test_messages_of_a_rollback_are_not_counted_as_committed():
    latency = Latency()
    latency.took(0, 5)
    latency.flushed(1)
    latency.forget()
    latency.commit(2)
    assert (sum(latency.sent.buckets), sum(latency.committed.buckets)) == (5, 0)


def commit_all(times: CommitTimes, *versions: int) -> None:
    for version in versions:
        times.took("flush", version, version + 1)
        times.committed(version)


def shown(times: CommitTimes, now_ms: float) -> list[int]:
    return [commit.version for commit in times.latest(now_ms)]


@pytest.mark.parametrize("interval_ms", [1, 7, 30, 70, 99, 100, 101, 1000])
def test_of_short_intervals_the_first_version_of_each_tenth_of_a_second_is_kept(interval_ms):
    times = CommitTimes(interval_ms)
    found = []
    for version in range(0, 20_000, interval_ms):
        commit_all(times, version)
        found += [one for one in shown(times, version) if one not in found[-CommitTimes.MOST :]]
    first = {}
    for version in range(0, 20_000, interval_ms):
        first.setdefault(version // CommitTimes.SLOT_MS, version)
    assert found == list(first.values())
    assert len(found) + times.left_out == len(range(0, 20_000, interval_ms))


def test_a_commit_is_shown_for_a_while_and_again_when_a_part_comes_later():
    times = CommitTimes()
    commit_all(times, 100, 200)
    assert shown(times, 50_000) == shown(times, 50_000 + CommitTimes.SEEN_MS) == [100, 200]
    assert shown(times, 50_001 + CommitTimes.SEEN_MS) == []
    times.took("snapshot", 202, 52_000)
    assert [(one.version, {*one.parts}) for one in times.latest(60_000)] == [(200, {"flush", "snapshot"})]


def test_commits_that_nobody_could_look_at_are_counted():
    times = CommitTimes(20)
    commit_all(times, *range(0, 4_000, 100))
    assert len(shown(times, 4_000)) == CommitTimes.MOST
    assert times.left_out == 40 - CommitTimes.MOST
    commit_all(times, *range(4_000, 5_000, 100), END_VERSION)
    assert times.left_out == 40 - CommitTimes.MOST
    assert shown(times, 5_000)[-1] == END_VERSION


def test_shares_add_up_to_the_time_that_has_passed():
    shares = Shares()
    shares.turned(0, wants=False)
    shares.work(400)
    shares.turned(1000, wants=True)
    shares.turned(3000, wants=False)
    assert (shares.busy, shares.waiting, shares.idle) == (0.4, 0.6, 2.0)


def test_totals_of_former_processes_are_added_and_gauges_are_not():
    before = [Series(name="a", value=3), Series(name="g", kind="gauge", value=7)]
    before += [Series(name="h", kind="histogram", value=1.5, buckets=[1, 0])]
    now = [Series(name="a", value=1), Series(name="a", labels={"x": "1"}, value=9)]
    now += [Series(name="h", kind="histogram", value=2.0, buckets=[0, 2])]
    found = {(one.name, *one.labels.values()): (one.value, one.buckets) for one in summed(before, now)}
    assert found == {("a",): (4, []), ("a", "1"): (9, []), ("h",): (3.5, [1, 2])}


def test_no_counter_goes_back_when_a_container_restarts():
    ledger, zero, _ = started()

    def read() -> float:
        (found,) = (t for t in ledger.status(0).tasks if t.name == "a/0")
        return sum(one.value for one in found.series)

    def beat(process: Process, sent: int, value: int) -> None:
        series = [Series(name="headrace_task_messages_in_total", value=value)]
        ledger.heartbeat(process.heartbeat(sent, task("a/0", series=series), task("b/0")), sent)

    seen = []
    for sent, value in ((1, 10), (2, 25), (2, 99)):  # the last one is late
        beat(zero, sent, value)
        seen.append(read())
    again = Process(0, "u9", 1)
    ledger.register(again.register(), 10)
    seen.append(read())
    for sent, value in ((11, 0), (12, 5)):
        beat(again, sent, value)
        seen.append(read())
    assert seen == [10, 25, 25, 25, 25, 30]
    assert ledger.status(20).containers[0].restarts == 1


def test_each_task_counts_once_on_its_way_to_the_source_that_holds_its_watermark():
    def waits(partition: str, by: str = "") -> dict[str, InputStatus]:
        return {"in[9]": InputStatus(watermark=50), partition: InputStatus(holds=True, held_by=by)}

    tasks = [
        task("a/0", inputs=waits("in[0]")),
        task("a/1", inputs=waits("in[1]")),
        task("b/0", inputs=waits("mid[0]", "a/1")),
        task("c/0", inputs=waits("low[0]", "b/0")),
        task("d/0", inputs=waits("ring[0]", "e/0")),
        task("e/0", inputs=waits("ring[1]", "d/0")),
        task("f/0", inputs=waits("mid[7]", "elsewhere/0")),
    ]
    held = holders(tasks)
    assert {where: number for where, number in held.items() if where[1] != "in[9]"} == {
        ("a/0", "in[0]"): 1,
        ("a/1", "in[1]"): 3,
        ("b/0", "mid[0]"): 2,
        ("c/0", "low[0]"): 1,
        ("d/0", "ring[0]"): 2,
        ("e/0", "ring[1]"): 2,
        ("f/0", "mid[7]"): 1,
    }
    assert {number for where, number in held.items() if where[1] == "in[9]"} == {0}


# -- over HTTP -----------------------------------------------------------------------------------------


@pytest.fixture
def coordinator():
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        yield coordinator


def test_prometheus_reads_what_tasks_have_reported(coordinator):
    zero, one = Process(0, "u0"), Process(1, "u1")
    coordinator.register(zero.register())
    coordinator.register(one.register())
    inputs = {"local.views[3]": InputStatus(lag=12, watermark=1000, holds=True), "local.views[4]": InputStatus()}
    above = {"log.mid[0]": InputStatus(holds=True, held_by="a/0")}
    metrics = TaskMetrics()
    metrics.rows_in = 70
    metrics.commit_parts["whole"].observe(0.02)
    reported = task("a/0", inputs=inputs, series=list(counted(metrics)))
    coordinator.heartbeat(zero.heartbeat(0, reported, task("b/0", inputs=above)))
    status, text = get(coordinator, "/metrics", coordinator.token)
    assert status == 200
    families = list(text_string_to_metric_families(text))
    total = {family.name if family.type != "counter" else f"{family.name}_total": family for family in families}
    assert total.keys() <= BY_NAME.keys()
    for name, family in total.items():
        metric = BY_NAME[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), name
    found = samples(text)
    assert found["headrace_task_messages_in_total", "a/0"] == 70
    assert found["headrace_input_lag_offsets", "a/0"] == 12
    assert found["headrace_checkpoint_duration_seconds_count", "a/0"] == 1
    held = {
        (one.labels["task"], one.labels["input"], one.labels["partition"]): one.value
        for one in total["headrace_input_holds_watermarks"].samples
    }
    assert held == {("a/0", "local.views", "3"): 2, ("a/0", "local.views", "4"): 0, ("b/0", "log.mid", "0"): 1}


@pytest.mark.parametrize("token", [None, "wrong"])
def test_metrics_need_the_token(coordinator, token):
    assert get(coordinator, "/metrics", token)[0] == 401


def test_health_needs_no_token_and_says_little(coordinator):
    assert get(coordinator, "/healthz", None) == (200, "ok\n")
    assert get(coordinator, "/readyz", None) == (503, "starting\n")
    assert get(coordinator, "/readyz", "wrong")[0] == 401
    zero, one = Process(0, "u0"), Process(1, "u1")
    coordinator.register(zero.register())
    coordinator.register(one.register())
    coordinator.heartbeat(zero.heartbeat(0, task("a/0"), task("b/0")))
    coordinator.heartbeat(one.heartbeat(0, task("a/1", "restoring")))
    assert get(coordinator, "/readyz", None)[0] == 503
    coordinator.heartbeat(one.heartbeat(1, task("a/1")))
    assert get(coordinator, "/readyz", None) == (200, "ok\n")
    coordinator.fail(RuntimeError("broken"))
    assert get(coordinator, "/healthz", None) == (503, "failed\n")
