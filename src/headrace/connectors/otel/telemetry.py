"""What OpenTelemetry gets of a run, in which words, and the thread that sends it. It never holds the app up.

Heartbeats, which repeat the latest commits of a task, are noted on the threads that bring them, which takes
microseconds. A version is over when nothing new of it was heard for a while: not all tasks commit all versions, and
parts of a commit come after it. One thread sends, and may wait for the collector; meanwhile what is noted is bounded,
and older versions are dropped and counted. At the end of the app it has a few seconds for the last numbers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from typing_extensions import override

from headrace.coordinator.exposition import all_series
from headrace.coordinator.messages import AppStatus, CommitParts, ExportStatus, Heartbeat, TaskStatus
from headrace.coordinator.watchers import WatchedRun, Watcher
from headrace.core.clock import Clock, WallClock
from headrace.core.deployment import setting
from headrace.core.log import Throttle, logger
from headrace.core.metrics import BY_NAME
from headrace.core.worker import WorkerThread
from headrace.plan.model import Plan

if TYPE_CHECKING:
    from headrace.connectors.otel.collector import Collector

_METRICS_EVERY_MS, _TRACES_EVERY_MS = 60_000, 5_000
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which signals to send, and how often. ``problems`` say what was asked for and can't be done."""

    metrics: bool = False
    traces: bool = False
    metrics_every_ms: int = _METRICS_EVERY_MS
    traces_every_ms: int = _TRACES_EVERY_MS
    problems: tuple[str, ...] = ()


def asked(environ: Mapping[str, str]) -> Asked:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Asked()
    problems: list[str] = []
    return Asked(
        metrics=_wants(environ, "METRICS", problems),
        traces=_wants(environ, "TRACES", problems),
        metrics_every_ms=_every(environ, "OTEL_METRIC_EXPORT_INTERVAL", _METRICS_EVERY_MS, problems),
        traces_every_ms=_every(environ, "OTEL_BSP_SCHEDULE_DELAY", _TRACES_EVERY_MS, problems),
        problems=tuple(dict.fromkeys(problems)),
    )


def _wants(environ: Mapping[str, str], signal: str, problems: list[str]) -> bool:
    places = (_ENDPOINT, f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    if not any(environ.get(place, "").strip() for place in places):
        return False
    exporters = environ.get(f"OTEL_{signal}_EXPORTER", "").strip() or "otlp"
    if "otlp" not in [one.strip() for one in exporters.split(",")]:
        return False
    named = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((one for one in named if environ.get(one, "").strip()), None)
    if name is None or environ[name].strip() == "http/protobuf":
        return True
    problems.append(
        f"{name} is {environ[name].strip()!r}, but Headrace sends {signal.lower()} by http/protobuf only, so it "
        "doesn't send them"
    )
    return False


def _every(environ: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdigit() and 0 < int(text) <= 86_400_000:
        return int(text)
    problems.append(f"{name} is {text!r}, which isn't a number of milliseconds up to a day; using {default}")
    return default


QUIET_MS = 2500.0  # containers report at least twice a second, and idle tasks need no report
ROOM = 20_000  # how many commits of tasks wait at most, whichever versions they are of
MOST_TAKEN = 500  # about so many commits are taken at once


@dataclass(frozen=True, slots=True)
class VersionTrace:
    """One version: its commits by task."""

    version: int
    commits: Mapping[str, CommitParts]


@dataclass(slots=True)
class _Open:
    commits: dict[str, CommitParts] = field(default_factory=dict)
    news_ms: float = 0.0


class VersionBook:
    """Versions that aren't sent yet. ``dropped`` is the number of those that found no room."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._open: dict[int, _Open] = {}
        self._held = 0
        self._over: dict[str, int] = {}  # the latest version of each task that was taken or dropped
        self.dropped = 0

    def hear(self, tasks: Iterable[TaskStatus], now_ms: float) -> None:
        for task in tasks:
            for commit in task.commits:
                if commit.version > self._over.get(task.name, -1):
                    self._note(task.name, commit, now_ms)
        while self._held > self._room:
            self._remove(min(self._open))
            self.dropped += 1

    def take(self, now_ms: float, *, rest: bool = False) -> list[VersionTrace]:
        """Remove and return some versions that are over, the oldest first; with ``rest`` also those that may not be."""
        taken: list[VersionTrace] = []
        number = 0
        for version in sorted(self._open):
            if number >= MOST_TAKEN:
                break
            if rest or now_ms - self._open[version].news_ms >= QUIET_MS:
                taken.append(VersionTrace(version, self._remove(version)))
                number += len(taken[-1].commits)
        return taken

    def _note(self, task: str, commit: CommitParts, now_ms: float) -> None:
        found = self._open.setdefault(commit.version, _Open())
        before = found.commits.get(task)
        if before is not None and before.parts.keys() == commit.parts.keys():
            return
        self._held += before is None
        found.commits[task] = commit
        found.news_ms = now_ms

    def _remove(self, version: int) -> Mapping[str, CommitParts]:
        commits = self._open.pop(version).commits
        self._held -= len(commits)
        for task in commits:
            self._over[task] = max(version, self._over.get(task, -1))
        return commits


LAST_S = 3.0  # how long the last numbers may take at the end of the app
LAST_AWAY_S = 0.5  # the same, if the collector hasn't accepted the last transmission
GIVEN_UP_S = 1.0  # how long the thread may take to notice that, or it is abandoned in its request
_log = logger(__name__)


class Telemetry:
    """What is to be sent, and what happened to it. Thread-safe."""

    def __init__(self, wanted: Asked, clock: Clock | None = None) -> None:
        self.wanted = wanted
        self.traced = wanted.traces  # whether heartbeats have to say what tasks have committed
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._book = VersionBook()
        self._throttle = Throttle(_log)
        self._sent = {"metrics": 0, "traces": 0}
        self._failed = {"metrics": 0, "traces": 0}
        self._lost = 0
        self.away = False  # the collector didn't take what was sent last

    def hear(self, heartbeat: Heartbeat) -> None:
        if self.traced:
            with self._lock:
                self._book.hear(heartbeat.tasks, self._clock.monotonic_ms())

    def status(self) -> ExportStatus:
        with self._lock:
            return ExportStatus(
                metrics_sent=self._sent["metrics"],
                metrics_failed=self._failed["metrics"],
                traces_sent=self._sent["traces"],
                traces_failed=self._failed["traces"],
                traces_dropped=self._lost + self._book.dropped,
            )

    def send_metrics(self, collector: Collector, status: AppStatus) -> None:
        now_ms = self._clock.now_ms()
        self._note("metrics", _sent(lambda: collector.send_metrics(all_series(status, now_ms), now_ms)), 0)

    def send_traces(self, collector: Collector, *, rest: bool = False) -> None:
        """Send completed versions, until there are none or the collector doesn't accept them."""
        sent = True
        while sent:
            with self._lock:
                traces = self._book.take(self._clock.monotonic_ms(), rest=rest)
            if not traces:
                return
            sent = _sent(partial(collector.send_traces, traces))
            self._note("traces", sent, len(traces))

    def _note(self, signal: str, sent: bool, traces: int) -> None:
        with self._lock:
            (self._sent if sent else self._failed)[signal] += 1
            self._lost += 0 if sent else traces
            self.away = not sent
        if not sent:
            self._throttle.warning(f"OpenTelemetry's collector doesn't accept {signal}; the app continues without it")


def _sent(send: Callable[[], bool]) -> bool:
    try:
        return send()
    except Exception as error:  # noqa: BLE001 - whatever OpenTelemetry raises, the app goes on
        _log.debug("sending to OpenTelemetry's collector failed", error=repr(error))
        return False


class TelemetryThread(WorkerThread):
    """Sends from ``start`` to ``close``."""

    def __init__(self, telemetry: Telemetry, collector: Collector, status: Callable[[], AppStatus]) -> None:
        super().__init__("headrace-otel")
        self._telemetry = telemetry
        self._collector = collector
        self._status = status

    @override
    def close(self) -> None:
        self.closing.set()
        in_time = self.join(LAST_AWAY_S if self._telemetry.away else LAST_S)
        self._collector.give_up()
        if not in_time:
            _log.warning("OpenTelemetry's collector is slow or away: it doesn't get the last numbers of the app")
            self.join(GIVEN_UP_S)
        self._collector.close()

    @override
    def work(self) -> None:
        self._collector.enter()
        wanted = self._telemetry.wanted
        jobs: list[tuple[float, Callable[[], None]]] = []
        if wanted.metrics:
            jobs.append((wanted.metrics_every_ms / 1000, self._send_metrics))
        if wanted.traces:
            jobs.append((wanted.traces_every_ms / 1000, partial(self._telemetry.send_traces, self._collector)))
        due = [time.monotonic() + every_s for every_s, _ in jobs]
        while not self.closing.wait(max(0.0, min(due) - time.monotonic())):
            number = due.index(min(due))
            every_s, send = jobs[number]
            send()
            due[number] = time.monotonic() + every_s
        if wanted.traces:
            self._telemetry.send_traces(self._collector, rest=True)
        if wanted.metrics:
            self._send_metrics()

    def _send_metrics(self) -> None:
        self._telemetry.send_metrics(self._collector, self._status())


class TelemetryWatcher(Watcher):
    """OpenTelemetry as the coordinator has it: only if the environment or the deployment asks for it."""

    def __init__(self, plan: Plan, token: str) -> None:
        place = setting("otel_endpoint", app=plan.graph.app)
        self._endpoint: str | None = None if os.environ.get(_ENDPOINT, "").strip() else place
        self.hearer = self._telemetry = telemetry_asked_for(os.environ | ({_ENDPOINT: place} if self._endpoint else {}))

    @override
    def threads(self, run: WatchedRun) -> Sequence[TelemetryThread]:
        if self._telemetry is None:
            return []
        from headrace.connectors.otel.collector import Collector

        first, wanted = run.status(), self._telemetry.wanted
        name = f"{first.app}-{first.started_at}"
        try:
            collector = Collector(
                first.app, name, first.started_at, self._endpoint, metrics=wanted.metrics, traces=wanted.traces
            )
        except Exception as error:  # noqa: BLE001 - whatever OpenTelemetry makes of its settings, the app runs
            said = "sending nothing to OpenTelemetry's collector, because its settings are wrong"
            _log.warning(said, error=str(error))
            return []
        return [TelemetryThread(self._telemetry, collector, run.status)]


def telemetry_asked_for(environ: Mapping[str, str] = os.environ) -> Telemetry | None:
    """What the environment asks for; None: nothing, or OpenTelemetry isn't installed, which is then said."""
    wanted = asked(environ)
    for problem in wanted.problems:
        _log.warning(problem)
    if not wanted.metrics and not wanted.traces:
        return None
    try:
        import_module("headrace.connectors.otel.collector")  # which takes a moment, and most apps don't need
    except ImportError:
        said = "OpenTelemetry's endpoint is set, but OpenTelemetry isn't installed here: sending nothing"
        _log.warning(said, hint='pip install "headrace[otel]", or set OTEL_SDK_DISABLED=true')
        return None
    return Telemetry(wanted)


# -- names -------------------------------------------------------------------------------------------
_NAMESPACES = frozenset(
    {"app", "call", "checkpoint", "container", "early", "input", "otel", "output", "query", "state", "step", "task"}
)
_OTHERS: Mapping[str, str] = {
    "headrace_call_seconds_total": "headrace.call.time",
    "headrace_container_cpu_seconds_total": "headrace.container.cpu.time",
    "headrace_early_bytes": "headrace.early.size",
    "headrace_function_seconds_total": "headrace.step.function.time",
    "headrace_input_bytes_total": "headrace.input.io",
    "headrace_output_bytes_total": "headrace.output.io",
    "headrace_state_bytes": "headrace.state.size",
    "headrace_task_bytes_in_total": "headrace.task.io_in",
    "headrace_task_bytes_out_total": "headrace.task.io_out",
}
"""Names of which too little would be left without their units."""
_UNITS = {"seconds": "s", "bytes": "By"}
_COUNTED = {"misses": "{miss}", "queries": "{query}", "retries": "{retry}"} | {
    f"{one}s": f"{{{one}}}"
    for one in (
        "call", "checkpoint", "commit", "export", "failure", "frame", "hit", "key", "message", "offset", "page",
        "restart", "rollback", "timeout", "timer", "trace", "version", "warning", "watermark",
    )
}  # fmt: skip


def name_of(metric: str) -> str:
    """The name of a metric, given that in ``/metrics``; one of a user's own keeps its words."""
    if (known := BY_NAME.get(metric)) is None:
        return metric.removesuffix("_total")
    if metric in _OTHERS:
        return _OTHERS[metric]
    words = metric.removesuffix("_total")
    if known.unit:
        words = words.removesuffix(f"_{known.unit}")
    words = words.removeprefix("headrace_")
    first, _, rest = words.partition("_")
    return f"headrace.{first}.{rest}" if first in _NAMESPACES else f"headrace.{words}"


def unit_of(metric: str) -> str:
    if (known := BY_NAME.get(metric)) is None:
        return ""
    if known.unit:
        return _UNITS[known.unit]
    return next((unit for word, unit in _COUNTED.items() if word in metric.split("_")), "1")


def attributes_of(metric: str, labels: Mapping[str, str]) -> dict[str, str]:
    own = BY_NAME[metric].labels if metric in BY_NAME else ("stage", "task")
    return {f"headrace.{key}" if key in own else key: text for key, text in labels.items() if key != "app"}
