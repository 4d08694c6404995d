"""Log the log lines of containers again in the driver, with the same loggers, and with app, container and task."""

from __future__ import annotations

import logging
import threading

from headrace.core.log import ROOT, LineHandler, Throttle, logger
from headrace.runners.coordination.messages import Heartbeat, LogLine

_log = logger(__name__)


class Relay:
    """Logs the lines in heartbeats, on the threads of connections."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._throttle = Throttle(_log)
        self._lock = threading.Lock()
        self._last: dict[int, tuple[str, int]] = {}
        """The incarnation of each container, and the number of its last line."""

    def log(self, heartbeat: Heartbeat) -> None:
        """Log the lines of a valid heartbeat, except those that have arrived before."""
        with self._lock:  # the last heartbeats of a container may arrive on two connections
            incarnation, last = self._last.get(heartbeat.container, ("", 0))
            last = last if incarnation == heartbeat.incarnation else 0
            fresh = [line for line in heartbeat.logs if line.number > last]
            if fresh:
                self._last[heartbeat.container] = heartbeat.incarnation, fresh[-1].number
        for line in fresh:
            self._log(line, heartbeat.container)
        self._throttle.warning(
            "log lines of a container were left out: it writes more than are sent",
            by=heartbeat.logs_dropped,
            app=self._app,
            container=heartbeat.container,
        )

    def _log(self, line: LogLine, container: int) -> None:
        record = logging.makeLogRecord(
            {
                "name": line.logger,
                "levelno": line.level,
                "levelname": logging.getLevelName(line.level),
                "msg": line.message,
                "created": line.at_ms / 1000,
                "msecs": line.at_ms % 1000,
                "app": self._app,
                "container": container,
                **{name: value for name, value in line.fields.items() if name not in ("app", "container")},
            }
        )
        target = _target(line.logger)
        if target.isEnabledFor(line.level):
            target.handle(record)


def _target(name: str) -> logging.Logger:
    """Return the logger of that name; for an app's logger without a handler, the one whose lines the command shows."""
    named, ours = logging.getLogger(name), logging.getLogger(ROOT)
    shown = any(isinstance(handler, LineHandler) for handler in ours.handlers)
    return ours if shown and not named.hasHandlers() else named
