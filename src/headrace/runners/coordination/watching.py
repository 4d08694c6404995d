"""Metrics and health checks, for monitoring."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from headrace.core.clock import Clock
from headrace.runners.coordination.exposition import all_series
from headrace.runners.coordination.listener import Answer, Route
from headrace.runners.coordination.messages import AppStatus

PUBLIC = frozenset({("GET", "/healthz"), ("GET", "/readyz")})
"""These need no token, because they only say whether the app is healthy."""


def watching_routes(status: Callable[[], AppStatus], clock: Clock) -> dict[tuple[str, str], Route]:
    """The routes of ``/metrics``, ``/healthz`` and ``/readyz``."""

    def metrics(_: bytes) -> Answer:
        from headrace.runners.coordination.prometheus import CONTENT_TYPE, render

        return Answer(render(all_series(status(), clock.now_ms())), CONTENT_TYPE)

    return {
        ("GET", "/metrics"): metrics,
        ("GET", "/healthz"): lambda _: healthy(status()),
        ("GET", "/readyz"): lambda _: ready(status()),
    }


def healthy(status: AppStatus) -> Answer:
    """Answer 200 if the driver needn't be restarted: it answers, and the app hasn't failed."""
    return _verdict("failed" if status.state == "failed" else "")


def ready(status: AppStatus) -> Answer:
    """Answer 200 if all tasks work: each container is running, and no task is starting or restoring."""
    if status.state == "finished":
        return _verdict("")
    if status.state not in ("running", "draining"):
        return _verdict(status.state)
    if any(container.state not in ("running", "finished") for container in status.containers):
        return _verdict("a container is away")
    if any(task.state in ("starting", "restoring") for task in status.tasks):
        return _verdict("a task is restored")
    return _verdict("")


def _verdict(trouble: str) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
    return Answer(f"{trouble or 'ok'}\n".encode(), "text/plain; charset=utf-8", status)
