"""All metrics of an app from its status, for ``/metrics`` and other exporters, and answers to health checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import get_args

import msgspec

from headrace.coordinator import messages
from headrace.coordinator.listener import Response, Route
from headrace.coordinator.progress import holders
from headrace.core.clock import Clock
from headrace.core.ids import stage_of
from headrace.core.metrics import BY_NAME
from headrace.task.standby_status import furthest_behind

_Labels = Mapping[str, str]
_PARTITION = re.compile(r"(?P<stream>.*)\[(?P<number>\d+)\]")


def all_series(status: messages.AppStatus, now_ms: int) -> Iterator[messages.Series]:
    app = {"app": status.app}
    for state in get_args(messages.AppState):
        yield _gauge("headrace_app_up", {**app, "state": state}, status.state == state)
    yield _gauge("headrace_app_start_time_seconds", app, status.started_at / 1000)
    yield _gauge("headrace_query_waiting", app, status.queries.waiting)
    queries = status.queries
    ended = {"answered": queries.answered, "timed_out": queries.timed_out, "refused": queries.refused}
    for outcome, number in ended.items():
        yield _counter("headrace_queries_total", {**app, "outcome": outcome}, number)
    yield _gauge("headrace_pages_watching", app, status.pages.watching)
    yield _counter("headrace_pages_refused_total", app, status.pages.refused)
    if status.export is not None:
        yield from _of_export(status.export, app)
    for container in status.containers:
        yield from _of_container(container, {**app, "container": str(container.id)})
    for task in status.tasks:
        labels = {**app, "stage": stage_of(task.name), "task": task.name}
        yield from _of_task(task, labels, now_ms)
    for (name, partition), number in holders(status.tasks).items():
        labels = {**app, "stage": stage_of(name), "task": name, **_partition(partition)}
        yield _gauge("headrace_input_holds_watermarks", labels, number)
    for held in status.held_up:
        labels = {**app, "stage": stage_of(held.by), "task": held.by}
        yield _gauge("headrace_task_blocks_others_seconds", labels, held.for_ms / 1000)


def _of_export(export: messages.ExportStatus, labels: _Labels) -> Iterator[messages.Series]:
    for signal, outcome, number in (
        ("metrics", "sent", export.metrics_sent),
        ("metrics", "failed", export.metrics_failed),
        ("traces", "sent", export.traces_sent),
        ("traces", "failed", export.traces_failed),
    ):
        yield _counter("headrace_otel_exports_total", {**labels, "signal": signal, "outcome": outcome}, number)
    yield _counter("headrace_otel_dropped_traces_total", labels, export.traces_dropped)


def _of_container(container: messages.ContainerStatus, labels: _Labels) -> Iterator[messages.Series]:
    for state in get_args(messages.ContainerState):
        yield _gauge("headrace_container_up", {**labels, "state": state}, container.state == state)
    yield _counter("headrace_container_restarts_total", labels, container.restarts)
    yield _gauge("headrace_container_failures", labels, container.failures)
    yield _counter("headrace_container_cpu_seconds_total", labels, container.cpu_ms / 1000)
    yield _gauge("headrace_container_memory_bytes", labels, container.rss_bytes)
    if (behind := furthest_behind(container.standbys)) is not None:
        yield _gauge("headrace_container_standby_lag_offsets", labels, behind)
    if container.last_seen_ms is not None:
        yield _gauge("headrace_container_heartbeat_age_seconds", labels, container.last_seen_ms / 1000)


def _of_task(task: messages.TaskStatus, labels: _Labels, now_ms: int) -> Iterator[messages.Series]:
    for one in task.series:
        yield msgspec.structs.replace(one, labels={**labels, **one.labels})
    yield _gauge("headrace_task_generation", labels, task.generation)
    yield _gauge("headrace_task_idle", labels, task.idle)
    yield _gauge("headrace_task_blocked", labels, task.state == "blocked")
    if task.watermark is not None:
        yield _gauge("headrace_task_watermark_seconds", labels, task.watermark / 1000)
        yield _gauge("headrace_task_watermark_behind_seconds", labels, max(0, now_ms - task.watermark) / 1000)
    for holdup in task.holdups:
        for_ms = max(0, now_ms - holdup.since_ms)
        yield _gauge("headrace_task_held_up_seconds", {**labels, "by": holdup.what}, for_ms / 1000)
    if task.checkpoint is not None:
        yield _gauge("headrace_checkpoint_version", labels, task.checkpoint.version)
        yield _gauge("headrace_checkpoint_age_seconds", labels, task.checkpoint.age_ms / 1000)
    yield _gauge("headrace_checkpoint_overdue_seconds", labels, task.overdue_ms / 1000)
    in_memory = task.early_bytes - task.early_stream_bytes
    yield _gauge("headrace_early_bytes", {**labels, "where": "memory"}, in_memory)
    yield _gauge("headrace_early_bytes", {**labels, "where": "stream"}, task.early_stream_bytes)
    for name, input_ in task.inputs.items():
        yield from _of_input(input_, {**labels, **_partition(name)}, now_ms)
    for output, state in task.outputs.items():
        where = {**labels, "output": output}
        yield _gauge("headrace_output_waiting_versions", where, state.waiting)
        yield _gauge("headrace_output_waiting_bytes", where, state.waiting_bytes)
        yield _gauge("headrace_output_failures", where, state.failures)


def _of_input(input_: messages.InputStatus, labels: _Labels, now_ms: int) -> Iterator[messages.Series]:
    if input_.lag is not None:
        yield _gauge("headrace_input_lag_offsets", labels, input_.lag)
    if input_.lag == 0:
        yield _gauge("headrace_input_lag_seconds", labels, 0)
    elif input_.watermark is not None:
        yield _gauge("headrace_input_lag_seconds", labels, max(0, now_ms - input_.watermark) / 1000)


def _partition(ssp: str) -> dict[str, str]:
    matched = _PARTITION.fullmatch(ssp)
    if matched is None:
        return {"input": ssp, "partition": ""}
    return {"input": matched["stream"], "partition": matched["number"]}


def _gauge(name: str, labels: _Labels, value: float) -> messages.Series:
    return messages.Series(name=name, kind="gauge", labels=dict(labels), value=float(value))


def _counter(name: str, labels: _Labels, value: float) -> messages.Series:
    return messages.Series(name=name, kind="counter", labels=dict(labels), value=float(value))


def by_name(series: Iterable[messages.Series]) -> Mapping[str, Sequence[messages.Series]]:
    found: dict[str, list[messages.Series]] = {}
    for one in series:
        found.setdefault(one.name, []).append(one)
    return found


def help_of(one: messages.Series) -> str:
    return BY_NAME[one.name].help if one.name in BY_NAME else one.help


PUBLIC = frozenset({("GET", "/healthz"), ("GET", "/readyz")})
"""These need no token, because they only say whether the app is healthy."""
READ_ONLY = PUBLIC | {("GET", "/metrics"), ("GET", "/status")}
"""These are what the token for metrics opens."""


def watching_routes(status: Callable[[], messages.AppStatus], clock: Clock) -> dict[tuple[str, str], Route]:
    def metrics(_: bytes) -> Response:
        from headrace.coordinator.prometheus import answer

        return answer(all_series(status(), clock.now_ms()))

    return {
        ("GET", "/metrics"): metrics,
        ("GET", "/healthz"): lambda _: healthy(status()),
        ("GET", "/readyz"): lambda _: ready(status()),
    }


def healthy(status: messages.AppStatus) -> Response:
    """Answer 200 if the driver needn't be restarted: it answers, and the app hasn't failed."""
    return _verdict("failed" if status.state == "failed" else "")


def ready(status: messages.AppStatus) -> Response:
    if status.state == "finished":
        return _verdict("")
    if status.state not in ("running", "draining"):
        return _verdict(status.state)
    if any(container.state not in ("running", "finished") for container in status.containers):
        return _verdict("a container is away")
    if any(task.state in ("starting", "restoring") for task in status.tasks):
        return _verdict("a task is restored")
    return _verdict("")


def _verdict(trouble: str) -> Response:
    status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
    return Response(f"{trouble or 'ok'}\n".encode(), "text/plain; charset=utf-8", status)
