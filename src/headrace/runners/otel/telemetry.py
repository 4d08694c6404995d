"""What the coordinator gives OpenTelemetry, and the thread that sends it. It never holds the app up.

Heartbeats are noted on the threads that bring them, which takes microseconds. One thread sends, and may wait for the
collector; meanwhile what is noted is bounded, and older versions are dropped and counted. At the end of the app it has
a few seconds for the last numbers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.log import Throttle, logger
from headrace.plan.model import Plan
from headrace.runners.coordination.driver_status import ExportStatus
from headrace.runners.coordination.exposition import all_series
from headrace.runners.coordination.messages import AppStatus, Heartbeat
from headrace.runners.coordination.watchers import Watched, Watcher
from headrace.runners.otel.settings import Asked, asked
from headrace.runners.otel.version_book import VersionBook

if TYPE_CHECKING:
    from headrace.runners.otel.collector import Collector

LAST_S = 3.0
"""How long the last numbers may take at the end of the app."""

LAST_AWAY_S = 0.5
"""The same, if the collector hasn't accepted the last transmission."""

GIVEN_UP_S = 1.0
"""How long the thread may take to notice that it must stop. It is abandoned if a request hangs for longer."""

_log = logger(__name__)


class Telemetry:
    """What is to be sent, and what happened to it. Thread-safe."""

    def __init__(self, wanted: Asked, clock: Clock | None = None) -> None:
        self.wanted = wanted
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._book = VersionBook()
        self._throttle = Throttle(_log)
        self._sent = {"metrics": 0, "traces": 0}
        self._failed = {"metrics": 0, "traces": 0}
        self._lost = 0
        self.away = False
        """The collector didn't take what was sent last."""

    @property
    def traced(self) -> bool:
        """Whether heartbeats have to say what tasks have committed."""
        return self.wanted.traces

    def hear(self, heartbeat: Heartbeat) -> None:
        """Note what a container says of its tasks' commits."""
        if self.traced:
            with self._lock:
                self._book.hear(heartbeat.tasks, self._clock.monotonic_ms())

    def status(self) -> ExportStatus:
        """What happened to all that was to be sent."""
        with self._lock:
            return ExportStatus(
                metrics_sent=self._sent["metrics"],
                metrics_failed=self._failed["metrics"],
                traces_sent=self._sent["traces"],
                traces_failed=self._failed["traces"],
                traces_dropped=self._lost + self._book.dropped,
            )

    def send_metrics(self, collector: Collector, status: AppStatus) -> None:
        """Send all metrics of this status."""
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


class TelemetryThread:
    """Sends from ``start`` to ``close``."""

    def __init__(self, telemetry: Telemetry, collector: Collector, status: Callable[[], AppStatus]) -> None:
        self._telemetry = telemetry
        self._collector = collector
        self._status = status
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-otel", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Let the thread send the last numbers, for some seconds, and end it."""
        self._closing.set()
        self._thread.join(LAST_AWAY_S if self._telemetry.away else LAST_S)
        late = self._thread.is_alive()
        self._collector.give_up()
        if late:
            _log.warning("OpenTelemetry's collector is slow or away: it doesn't get the last numbers of the app")
            self._thread.join(GIVEN_UP_S)
        self._collector.close()

    def _run(self) -> None:
        self._collector.enter()
        wanted = self._telemetry.wanted
        jobs: list[tuple[float, Callable[[], None]]] = []
        if wanted.metrics:
            jobs.append((wanted.metrics_every_ms / 1000, self._send_metrics))
        if wanted.traces:
            jobs.append((wanted.traces_every_ms / 1000, self._send_traces))
        due = [time.monotonic() + every_s for every_s, _ in jobs]
        while not self._closing.wait(max(0.0, min(due) - time.monotonic())):
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

    def _send_traces(self) -> None:
        self._telemetry.send_traces(self._collector)


class TelemetryWatcher(Watcher):
    """OpenTelemetry as the coordinator has it: only if the environment asks for it."""

    def __init__(self, plan: Plan, token: str) -> None:
        del plan, token
        self.hearer = self._telemetry = telemetry_asked_for()

    @override
    def threads(self, run: Watched) -> Sequence[TelemetryThread]:
        return telemetry_threads(self._telemetry, run.status)


def telemetry_asked_for(environ: Mapping[str, str] = os.environ) -> Telemetry | None:
    """What the environment asks for; None: nothing, or OpenTelemetry isn't installed, which is then said."""
    wanted = asked(environ)
    for problem in wanted.problems:
        _log.warning(problem)
    if not wanted.metrics and not wanted.traces:
        return None
    try:
        import_module("headrace.runners.otel.collector")  # which takes a moment, and most apps don't need
    except ImportError:
        _log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry isn't installed here: sending nothing",
            hint='pip install "headrace[otel]", or set OTEL_SDK_DISABLED=true',
        )
        return None
    return Telemetry(wanted)


def telemetry_threads(telemetry: Telemetry | None, status: Callable[[], AppStatus]) -> list[TelemetryThread]:
    """The thread that sends the numbers of a run; none if nothing is asked for, or can't be sent."""
    if telemetry is None:
        return []
    from headrace.runners.otel.collector import Collector

    first, wanted = status(), telemetry.wanted
    run = f"{first.app}-{first.started_at}"
    try:
        collector = Collector(first.app, run, first.started_at, metrics=wanted.metrics, traces=wanted.traces)
    except Exception as error:  # noqa: BLE001 - whatever OpenTelemetry makes of its settings, the app runs
        _log.warning("sending nothing to OpenTelemetry's collector, because its settings are wrong", error=str(error))
        return []
    return [TelemetryThread(telemetry, collector, status)]
