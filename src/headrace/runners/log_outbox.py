"""Log records of a container on their way to the driver: a bounded number waits for the next heartbeat.

The app's own loggers come with the task that the code works for. Lines above the limits are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from typing_extensions import override

from headrace.core.ids import stage_of
from headrace.core.log import ROOT, LogSettings, fields_of
from headrace.core.url import hide_passwords
from headrace.core.user_metrics import entered
from headrace.runners.coordination.messages import LogLine

WAITING_MAX = 200
"""How many lines wait; more come from nowhere but a loop."""

BATCH_MAX = 50
"""How many lines a heartbeat takes along: of a container about 100 a second."""

CHARS_MAX = 4000
FIELDS_MAX = 20
FIELD_CHARS_MAX = 200

_TRACEBACKS = logging.Formatter()


class LogOutbox(logging.Handler):
    """Takes records on any thread. ``take`` is called by the thread that sends heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._waiting: deque[LogLine] = deque()
        self._taken: list[LogLine] = []
        """Those of the last heartbeat, which may not have arrived."""
        self._dropped = self._numbers = 0
        self.takes_own = False
        """Whether it takes Headrace's own lines."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if _is_own(record) and not self.takes_own:
            return
        try:
            line = _line(record)
        except Exception:  # noqa: BLE001 - logging's own contract: errors of a handler go to handleError
            self.handleError(record)
            return
        with self._guard:
            if len(self._waiting) < WAITING_MAX:
                self._numbers += 1
                self._waiting.append(msgspec.structs.replace(line, number=self._numbers))
            else:
                self._dropped += 1

    def take(self, *, again: bool = False) -> tuple[list[LogLine], int]:
        """Return the next lines, and how many were dropped since the last call. ``again`` repeats the last lines."""
        with self._guard:
            lines = self._taken if again else []
            lines = lines + [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            self._taken = lines
            dropped, self._dropped = self._dropped, 0
        return lines, dropped

    def arrived(self) -> None:
        """What was taken last has arrived in the driver."""
        with self._guard:
            self._taken = []

    @property
    def empty(self) -> bool:
        """Whether no line waits, or may still be on its way."""
        return not self._waiting and not self._taken and not self._dropped


@contextmanager
def sending_logs(outbox: LogOutbox, settings: LogSettings) -> Iterator[None]:
    """Have records of this process go into the outbox: of the app's loggers, and of Headrace's if they are wanted."""
    loggers = [logging.getLogger()] if settings.others != "off" else []
    outbox.takes_own = settings.sent and settings.level != "off"
    if outbox.takes_own:  # they don't reach the root logger: see ``logging_to``
        loggers.append(logging.getLogger(ROOT))
    before = logging.getLogger().level
    if settings.others != "off":
        logging.getLogger().setLevel(settings.others.upper())
    for one in loggers:
        one.addHandler(outbox)
    try:
        yield
    finally:
        for one in loggers:
            one.removeHandler(outbox)
        logging.getLogger().setLevel(before)


def _is_own(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == ROOT


def _line(record: logging.LogRecord) -> LogLine:
    fields = {name: str(value)[:FIELD_CHARS_MAX] for name, value in list(fields_of(record).items())[:FIELDS_MAX]}
    if not _is_own(record) and (metrics := entered()) is not None and metrics.task:
        fields = {"stage": stage_of(metrics.task), "task": metrics.task, **fields}
    text = record.getMessage()
    if record.exc_info:
        text = f"{text}\n{_TRACEBACKS.formatException(record.exc_info)}"
    if len(text) > CHARS_MAX:
        text = f"{text[:CHARS_MAX]}…"
    fields = {name: hide_passwords(value) for name, value in fields.items()}
    return LogLine(
        number=0,
        at_ms=int(record.created * 1000),
        level=record.levelno,
        logger=record.name,
        message=hide_passwords(text),
        fields=fields,
    )
