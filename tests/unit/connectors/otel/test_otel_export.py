"""What a real receiver of OTLP gets: the numbers of ``/metrics``, and a trace for each version. The app never waits."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace as hr
from headrace.connectors.otel.telemetry import (
    Asked,
    Telemetry,
    TelemetryThread,
    attributes_of,
    name_of,
    telemetry_asked_for,
)
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.messages import CommitParts, Heartbeat, InputStatus, Register, Series, TaskStatus
from headrace.coordinator.server import Coordinator
from headrace.core.clock import ManualClock
from headrace.core.ids import TaskName
from headrace.life.metadata import MemoryMetadata
from headrace.run.container import counted, of_users
from headrace.task.metrics import CommitTimes, TaskMetrics

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry isn't installed: pip install 'headrace[otel]'")

from headrace.connectors.otel.collector import Collector
from tests.servers.otlp_collector import OtlpCollector, attributes, otlp_collector

NUMBERS = {"n": pl.Int64}
SLOW = hr.metrics.counter("slow_numbers", "Numbers that are slow.")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpCollector]:
    with otlp_collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        yield found


def prometheus(coordinator: Coordinator) -> dict[tuple[str, tuple[tuple[str, str], ...]], Any]:
    """All samples of ``/metrics`` by what they are called in OpenTelemetry; of a histogram the counts and the sum."""
    parts = urlsplit(coordinator.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {coordinator.token}"})
    text = connection.getresponse().read().decode()
    connection.close()
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
    for family in text_string_to_metric_families(text):
        metric = family.name + ("_total" if family.type == "counter" else "")
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            key = name_of(metric), tuple(sorted(attributes_of(metric, labels).items()))
            if family.type != "histogram":
                found[key] = sample.value
            elif sample.name.endswith("_bucket"):
                found.setdefault(key, []).append(sample.value)
            elif sample.name.endswith("_sum"):
                found[key] = (found[key], sample.value)
    return found


def received(collector: OtlpCollector) -> dict[tuple[str, tuple[tuple[str, str], ...]], Any]:
    """The same of what has come last."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
    for metric in collector.last_metrics().values():
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            key = metric.name, tuple(sorted(attributes(point).items()))
            if metric.WhichOneof("data") == "histogram":
                totals = [float(sum(point.bucket_counts[: end + 1])) for end in range(len(point.bucket_counts))]
                found[key] = (totals, point.sum)
            else:
                found[key] = point.as_double
    return found


def test_it_gets_the_numbers_of_the_page_of_metrics(collector: OtlpCollector) -> None:
    clock = ManualClock(5_000)
    telemetry = Telemetry(Asked(metrics=True), clock)
    ledger = Ledger("shop", {"views": [TaskName("views", 0)]}, 1, started_at=1_000, guarantee="exactly-once")
    metrics = TaskMetrics("views/0")
    metrics.rows_in = 70
    for seconds in (0.02, 0.3, 99.0):
        metrics.commit_parts["whole"].observe(seconds)
    own = Series(name="view_bytes", kind="histogram", value=9.0, buckets=[1, 2], bounds=[5.0], labels={"x": "y"})
    task = TaskStatus(
        name="views/0",
        state="running",
        inputs={"local.views[3]": InputStatus(lag=12, watermark=1000, holds=True)},
        series=[*counted(metrics), *of_users(metrics), own],
    )
    with Coordinator(ledger, MemoryMetadata(), clock=clock, telemetry=telemetry) as coordinator:
        coordinator.register(Register(container=0, attempt=0, host="box", pid=1, incarnation="u"))
        coordinator.heartbeat(Heartbeat(container=0, incarnation="u", sent_ms=1, tasks=[task]))
        sender = Collector("shop", "shop-1000", 1_000, metrics=True, traces=False)
        shown = prometheus(coordinator)
        telemetry.send_metrics(sender, coordinator.status())
        assert received(collector) == shown
        sender.give_up()
        assert telemetry.status().metrics_sent == 1
    sent = collector.last_metrics()
    total = sent["headrace.task.messages_in"]
    assert (total.unit, total.sum.is_monotonic, total.sum.aggregation_temporality) == ("{message}", True, 2)
    (point,) = total.sum.data_points
    assert (point.start_time_unix_nano, point.time_unix_nano) == (1_000_000_000, 5_000_000_000)
    (resource,) = collector.metrics[-1].resource_metrics
    about = attributes(resource.resource)
    assert (about["service.name"], about["headrace.app"]) == ("shop", "shop")


def run_app(home: Path, numbers: int = 200, interval: str = "100ms") -> hr.runs.Run:
    hr.streams.create_stream("numbers", 1, NUMBERS, home=home)
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.write([{"n": n} for n in range(numbers)])
        writer.seal()
    app = hr.App("copies", home=home, checkpoint_interval=interval)

    def slow(row: dict[str, int]) -> dict[str, int]:
        SLOW.add(parity="odd" if row["n"] % 2 else "even")
        return row

    app.input("numbers", NUMBERS).map(slow, schema=NUMBERS).partition_by("n", id="by-n").send_to(app.output("copied"))
    run = app.start(local=True, progress=False)
    run.wait(timeout="60s")
    return run


def test_a_run_sends_its_last_numbers_and_a_trace_for_each_version(
    collector: OtlpCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "copies-in-production")
    run = run_app(tmp_path)
    assert run.status().state == "finished"
    mine = {
        (row["name"], row["task"]): row["value"]
        for row in run.metrics().iter_rows(named=True)
        if row["name"] in ("headrace_task_messages_in_total", "headrace_checkpoints_total")
    }
    found = received(collector)
    for (metric, task), value in mine.items():
        stage = task.rpartition("/")[0]
        assert found[name_of(metric), (("headrace.stage", stage), ("headrace.task", task))] == value > 0
    assert {dict(key[1])["parity"]: value for key, value in found.items() if key[0] == "slow_numbers"} == {
        "even": 100,
        "odd": 100,
    }
    assert {headers["api-key"] for headers in collector.headers} == {"secret"}
    (resource,) = collector.traces[-1].resource_spans
    assert attributes(resource.resource)["service.name"] == "copies-in-production"
    check_traces(collector.spans(), {task for _, task in mine})


def check_traces(spans: list[Any], tasks: set[str]) -> None:
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    roots = [span for span in spans if not span.parent_span_id]
    assert {span.name for span in roots} == {"version"}
    assert len({span.trace_id for span in spans}) == len(roots) > 0
    commits = [span for span in spans if span.name == "commit"]
    assert {attributes(span)["headrace.task"] for span in commits} == tasks
    parts = [span for span in spans if span.name not in ("version", "commit")]
    assert {"flush", "changelog", "store"} <= {span.name for span in parts}
    now = time.time_ns()
    for span in commits + parts:
        parent = by_id[span.parent_span_id]
        assert parent.name == ("version" if span.name == "commit" else "commit")
        assert parent.trace_id == span.trace_id
        assert attributes(parent)["headrace.version"] == attributes(span)["headrace.version"]
        assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= parent.end_time_unix_nano
        assert now - 60_000_000_000 < span.start_time_unix_nano <= now


@pytest.mark.parametrize(
    ("interval_ms", "some_left_out"),
    [
        (100, False),
        pytest.param(120, False, marks=pytest.mark.soak),
        pytest.param(20, True, marks=pytest.mark.soak),
        (7, True),
    ],
)
def test_each_version_is_traced_or_counted_as_left_out(
    collector: OtlpCollector, tmp_path: Path, interval_ms: int, some_left_out: bool
) -> None:
    hr.streams.create_stream("numbers", 1, NUMBERS, home=tmp_path)
    app = hr.App("copies", home=tmp_path, checkpoint_interval=f"{interval_ms}ms")
    app.input("numbers", NUMBERS).partition_by("n", id="by-n").send_to(app.output("copied"))
    run = app.start(local=True, progress=False)

    def counted(metric: str) -> dict[str, float]:
        rows = run.metrics().iter_rows(named=True)
        return {row["task"]: row["value"] for row in rows if row["name"] == f"headrace_{metric}_total"}

    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:

        def enough() -> bool:
            writer.write([{"n": 1}])
            # On a busy machine, commits may take so long that at first none is left out, or all but one.
            commits, left_out = counted("checkpoints"), counted("otel_untraced_commits")
            as_wanted = not some_left_out or all(0 < left_out.get(task, 0) < n - 1 for task, n in commits.items())
            return as_wanted and min(commits.values(), default=0) >= 40

        until(enough)
        writer.seal()
    run.wait(timeout="60s")
    traced: dict[str, set[int]] = {task: set() for task in counted("checkpoints")}
    for span in collector.spans():
        if span.name == "commit":
            about = attributes(span)
            traced[about["headrace.task"]].add(about["headrace.version"])
    left_out = counted("otel_untraced_commits")
    assert {task: len(found) + left_out[task] for task, found in traced.items()} == counted("checkpoints")
    assert all((number > 0) == some_left_out for number in left_out.values())
    if some_left_out:
        tenths = [version // CommitTimes.SLOT_MS for version in traced["by-n/0"]]
        assert len({*tenths}) == len(tenths) > 1


def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("trouble", ["nobody listens", "refuses", "never answers"])
def test_the_app_goes_on_while_the_collector_is_away(
    trouble: str, collector: OtlpCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "nobody listens":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed_port())
    elif trouble == "refuses":
        collector.status = 400
    else:
        collector.open.clear()
    began = time.monotonic()
    run = run_app(tmp_path)
    assert run.status().state == "finished"
    assert time.monotonic() - began < 30
    collector.open.set()


def until(happens: Callable[[], bool]) -> None:
    deadline, never = time.monotonic() + 30, threading.Event()
    while not happens():
        assert time.monotonic() < deadline
        never.wait(0.01)


def test_what_is_dropped_is_counted(collector: OtlpCollector) -> None:
    collector.status = 400
    telemetry = Telemetry(Asked(metrics=True, traces=True, metrics_every_ms=10, traces_every_ms=10), ManualClock(0))
    ledger = Ledger("shop", {"views": [TaskName("views", 0)]}, 1, started_at=0, guarantee="exactly-once")
    with Coordinator(ledger, MemoryMetadata(), telemetry=telemetry) as coordinator:
        coordinator.register(Register(container=0, attempt=0, host="box", pid=1, incarnation="u"))
        thread = TelemetryThread(
            telemetry, Collector("shop", "shop-0", 0, metrics=True, traces=True), coordinator.status
        )
        thread.start()
        until(lambda: telemetry.status().metrics_failed >= 2)
        commit = CommitParts(version=7, began_ms=1.0, parts={"flush": (0.0, 1.0)})
        status = TaskStatus(name="views/0", state="running", commits=[commit])
        coordinator.heartbeat(Heartbeat(container=0, incarnation="u", sent_ms=1, tasks=[status]))
        thread.close()
        found = coordinator.status().export
        assert found is not None
        assert (found.traces_dropped, found.traces_failed, found.traces_sent, found.metrics_sent) == (1, 1, 0, 0)


def test_settings_that_make_no_sense_are_said_and_the_app_runs(
    collector: OtlpCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "nobody")
    assert run_app(tmp_path).status().state == "finished"
    assert "sending nothing to OpenTelemetry's collector, because its settings are wrong" in caplog.text
    assert collector.metrics == []


def test_the_deployment_names_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_collector() as mine, otlp_collector() as of_metrics:
        monkeypatch.setenv("HEADRACE_OTEL_ENDPOINT", f"{mine.endpoint}/")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{of_metrics.endpoint}/v1/metrics")
        assert run_app(tmp_path).status().state == "finished"
        assert (bool(mine.traces), bool(mine.metrics)) == (True, False)
        assert (bool(of_metrics.traces), bool(of_metrics.metrics)) == (False, True)


def test_without_an_endpoint_nothing_is_sent() -> None:
    assert telemetry_asked_for({}) is None


def test_without_the_extra_the_app_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "headrace.connectors.otel.collector", None)
    assert telemetry_asked_for({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) is None
    assert "OpenTelemetry isn't installed" in caplog.text
