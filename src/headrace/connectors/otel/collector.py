"""Series and versions in OpenTelemetry's own types, and its exporters. Nothing else imports ``opentelemetry``.

Called by one thread, which may wait for as long as OpenTelemetry's timeout is; ``close`` may be called by another one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from opentelemetry import context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from typing_extensions import override

from headrace.connectors.otel.telemetry import VersionTrace, attributes_of, name_of, unit_of
from headrace.coordinator.exposition import by_name, help_of
from headrace.coordinator.messages import CommitParts, Series
from headrace.core.ids import stage_of
from headrace.core.metrics import SECONDS

_SCOPE = InstrumentationScope("headrace", version("headrace"))
_MS = 1_000_000
_About = Mapping[str, int | str]
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.common.http",
)


class Collector:
    """OpenTelemetry's collector, at ``endpoint`` or the address in the environment. ``run`` distinguishes runs."""

    def __init__(
        self, app: str, run: str, started_ms: int, endpoint: str | None = None, *, metrics: bool, traces: bool
    ) -> None:
        self._app = app
        self._run = run
        self._started = started_ms * _MS
        self._resource = _resource(app)
        self._metrics = OTLPMetricExporter(_url(endpoint, "METRICS")) if metrics else None
        self._traces = OTLPSpanExporter(_url(endpoint, "TRACES")) if traces else None
        self._quiet = _Quiet()

    def enter(self) -> None:
        """Make the calling thread the sender: its requests belong to no span, and its failures are counted here."""
        context.attach(context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        self._quiet.begin(threading.get_ident())

    def send_metrics(self, series: Iterable[Series], now_ms: int) -> bool:
        if self._metrics is None:
            return True
        scope = export.ScopeMetrics(_SCOPE, list(_metrics(series, self._started, now_ms * _MS)), "")
        data = export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])
        return self._metrics.export(data) is export.MetricExportResult.SUCCESS

    def send_traces(self, traces: Sequence[VersionTrace]) -> bool:
        if self._traces is None:
            return True
        spans = [span for trace in traces for span in self._spans(trace)]
        return self._traces.export(spans) is SpanExportResult.SUCCESS

    def give_up(self) -> None:
        """Send nothing any more, nor try again what is being sent. From any thread, once."""
        for exporter in (self._metrics, self._traces):
            if exporter is not None:
                exporter.shutdown()

    def close(self) -> None:
        self._quiet.end()

    def _spans(self, trace: VersionTrace) -> Iterator[ReadableSpan]:
        first = min(commit.began_ms for commit in trace.commits.values())
        last = max(commit.began_ms + _length(commit) for commit in trace.commits.values())
        number: _About = {"headrace.version": trace.version}
        root = self._context(trace.version)
        yield self._span("version", root, None, number, first, last)
        for task, commit in sorted(trace.commits.items()):
            about = {**number, "headrace.task": task, "headrace.stage": stage_of(task)}
            mine = self._context(trace.version, task)
            began = commit.began_ms
            yield self._span("commit", mine, root, about, began, began + _length(commit))
            for part, (start, end) in commit.parts.items():
                own = self._context(trace.version, task, part)
                yield self._span(part, own, mine, about, began + start, began + end)

    def _span(
        self, name: str, own: SpanContext, parent: SpanContext | None, about: _About, began_ms: float, ended_ms: float
    ) -> ReadableSpan:
        start, end = round(began_ms * _MS), round(ended_ms * _MS)
        return ReadableSpan(
            name, own, parent, self._resource, dict(about), start_time=start, end_time=end, instrumentation_scope=_SCOPE
        )

    def _context(self, version: int, *where: str) -> SpanContext:
        """Derive ids from their contents, so that repeated transmissions have the same ids."""
        whole = _number(16, self._app, self._run, str(version))
        own = _number(8, self._app, self._run, str(version), *where)
        return SpanContext(whole, own, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _url(endpoint: str | None, signal: str) -> str | None:
    """The address for a signal. None: that of the environment, which may name one for this signal alone."""
    if endpoint is None or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "").strip():
        return None
    return f"{endpoint.rstrip('/')}/v1/{signal.lower()}"


class _Quiet(logging.Filter):
    """Keeps OpenTelemetry from logging each failure of one thread, without affecting other threads."""

    def __init__(self) -> None:
        super().__init__()
        self._thread: int | None = None

    def begin(self, thread: int) -> None:
        self._thread = thread
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def end(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


def _resource(app: str) -> Resource:
    found = Resource.create({"headrace.app": app})
    if str(found.attributes["service.name"]).startswith("unknown_service"):
        return found.merge(Resource({"service.name": app}))
    return found


def _metrics(series: Iterable[Series], started: int, now: int) -> Iterator[export.Metric]:
    for name, found in by_name(series).items():
        yield export.Metric(name_of(name), help_of(found[0]), unit_of(name), _points(found, started, now))


def _points(found: Sequence[Series], started: int, now: int) -> export.Sum | export.Gauge | export.Histogram:
    if found[0].kind == "histogram":
        points = [
            export.HistogramDataPoint(
                attributes=attributes_of(one.name, one.labels),
                start_time_unix_nano=started,
                time_unix_nano=now,
                count=sum(one.buckets),
                sum=float(one.value),
                bucket_counts=one.buckets,
                explicit_bounds=one.bounds or SECONDS,
                min=None,  # type: ignore[arg-type]  # optional in the protocol, and unknown here
                max=None,  # type: ignore[arg-type]
            )
            for one in found
        ]
        return export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
    numbers = [
        export.NumberDataPoint(attributes_of(one.name, one.labels), started, now, float(one.value)) for one in found
    ]
    if found[0].kind == "counter":
        return export.Sum(numbers, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return export.Gauge(numbers)


def _length(commit: CommitParts) -> float:
    return max((end for _, end in commit.parts.values()), default=0.0)


def _number(size: int, *of: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(of).encode()).digest()[:size]) or 1
