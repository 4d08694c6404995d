"""Log lines with fields, the latest warnings, and what helps to look into a running process.

Standard ``logging`` under ``headrace`` is silent until an application or a command turns it on. Modules log through
``logger(__name__)``: a sentence, and what it is about as fields (``task="views/0"``), which are ``extra`` attributes of
the record, so any handler can use them. Containers use ``logging_to`` with the settings that the driver sends them.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal, TextIO

import msgspec
from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.deployment import find
from headrace.core.secrets import hide_passwords

Level = Literal["debug", "info", "warning", "error", "off"]
Format = Literal["text", "json"]
Field = str | int | float | bool | None

REPEAT_S = 60.0
"""What repeats is logged again after this long, however often it has happened."""
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error", "off")
FORMATS: tuple[Format, ...] = ("text", "json")

CLEAR_LINE = "\r\x1b[K"
"""Moves a terminal to the beginning of its line and clears it: removes a progress line before a log line is written."""
ROOT = "headrace"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:+,[]@%#~")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Without any handler, Python would print warnings to stderr. A library leaves that choice to the application.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


class Logger:
    """A standard logger whose methods take fields as keyword arguments. Fields that are None are left out."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: Field) -> None:
        """Details that help to find a fault in Headrace or in an app, up to several a second."""
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Field) -> None:
        """What happens in a healthy app: it starts, restores, drains, ends."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Field) -> None:
        """Something went wrong and was handled; an operator may want to know."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Field) -> None:
        """A failure that Headrace can't handle: a container dies, an app ends."""
        self._log(logging.ERROR, message, fields)

    def _log(self, level: int, message: str, fields: Mapping[str, Field]) -> None:
        if self._logger.isEnabledFor(level):
            extra = {name: value for name, value in fields.items() if value is not None}
            self._logger.log(level, message, extra=extra, stacklevel=3)


def logger(name: str) -> Logger:
    return Logger(name)


class Throttle:
    """Counts what may happen for every message. Logs it at 1 and powers of ten, and a minute after the last time."""

    def __init__(self, log: Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._times: dict[str, int] = {}
        self._logged_s: dict[str, float] = {}

    def warning(self, message: str, *, by: int = 1, **fields: Field) -> bool:
        return self._count(self._log.warning, message, by, fields)

    def info(self, message: str, *, by: int = 1, **fields: Field) -> bool:
        return self._count(self._log.info, message, by, fields)

    def _count(self, write: Callable[..., None], message: str, by: int, fields: Mapping[str, Field]) -> bool:
        if by <= 0:
            return False
        before = self._times.get(message, 0)
        times = self._times[message] = before + by
        now = self._clock()
        due = is_milestone(before, times) or now - self._logged_s.get(message, now) >= REPEAT_S
        if due:
            self._logged_s[message] = now
            write(message, **fields, times=times if times > 1 else None)
        return due


def is_milestone(before: int, now: int) -> bool:
    """Whether a count that rose from ``before`` to ``now`` has reached 1 or passed a power of ten.

    >>> [n for n in range(1, 200) if is_milestone(n - 1, n)]
    [1, 10, 100]
    """
    return now > before and (before == 0 or len(str(now)) > len(str(before)))


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is logged, and how. Containers send the driver foreign records of level ``others``, and ours if ``sent``."""

    level: Level = "off"
    format: Format = "text"
    others: Level = "off"
    sent: bool = False


OFF = LogSettings()
_chosen: list[LogSettings] = []
"""What ``logging_to`` was told, the innermost last; also if that is ``off``."""


@contextmanager
def logging_to(
    settings: LogSettings, stream: TextIO | None = None, fields: Mapping[str, Field] | None = None
) -> Iterator[None]:
    """Write log lines to ``stream`` (default: stderr), not to the root logger's handlers. Not at level ``off``."""
    _chosen.append(settings)
    try:
        with _handling(settings, stream, fields):
            yield
    finally:
        _chosen.pop()


@contextmanager
def logging_as_said() -> Iterator[None]:
    """Log as the deployment says, if it does and neither a command nor the program has decided it."""
    level, form = find("log_level"), find("log_format")
    if _chosen or current_settings().level != "off" or not (level.place or form.place):
        yield
        return
    with logging_to(LogSettings(level.value, form.value)):
        yield


@contextmanager
def _handling(settings: LogSettings, stream: TextIO | None, fields: Mapping[str, Field] | None) -> Iterator[None]:
    if settings.level == "off":
        yield
        return
    root = logging.getLogger(ROOT)
    handler = LineHandler(stream, settings, fields)
    level, propagate = root.level, root.propagate
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    root.propagate = False
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        root.propagate = propagate


def current_settings() -> LogSettings:
    """What this process logs: as ``logging_to`` says, else as an application has configured ``logging``; else off."""
    root = logging.getLogger(ROOT)
    ours = [handler for handler in root.handlers if isinstance(handler, LineHandler)]
    configured = bool(logging.getLogger().handlers)
    theirs = _level(logging.getLogger()) if configured else "warning"  # what Python shows if nothing is configured
    if ours:
        settings = ours[-1].settings
        return replace(settings, others=theirs if configured else settings.level)
    others = [handler for handler in root.handlers if not isinstance(handler, logging.NullHandler)]
    if not others and not (root.propagate and configured):
        return replace(OFF, others=theirs)
    return LogSettings(_level(root), others=theirs)


def _level(of: logging.Logger) -> Level:
    effective, numbers = of.getEffectiveLevel(), logging.getLevelNamesMapping()
    return next((level for level in LEVELS[:-1] if effective <= numbers[level.upper()]), "off")


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class LineHandler(logging.Handler):
    """Writes each record as one line in one call. On a terminal it first clears the line that progress is shown on."""

    def __init__(self, stream: TextIO | None, settings: LogSettings, fields: Mapping[str, Field] | None = None) -> None:
        super().__init__()
        self.settings = settings
        self._stream = stream
        self.setFormatter(LineFormatter(settings.format, fields))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        stream = self._stream or sys.stderr
        try:
            line = self.format(record)
            stream.write(f"{CLEAR_LINE if stream.isatty() else ''}{line}\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # The stream is closed, so the error can't be reported. A lost log line is no reason to fail.
        except Exception:  # noqa: BLE001 - logging's own contract: errors of a handler go to handleError
            self.handleError(record)


class LineFormatter(logging.Formatter):
    """Renders a record as ``time LEVEL logger: message key=value ...`` or as a JSON object; hides passwords in URLs."""

    def __init__(self, kind: Format = "text", fields: Mapping[str, Field] | None = None) -> None:
        super().__init__()
        self._kind = kind
        self._fields = dict(fields or {})

    @override
    def format(self, record: logging.LogRecord) -> str:
        found = self._fields | fields_of(record)
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        line = self._json(record, found, trace) if self._kind == "json" else self._text(record, found, trace)
        return hide_passwords(line)

    def _text(self, record: logging.LogRecord, fields: Mapping[str, object], trace: str) -> str:
        words = [_time(record), record.levelname, f"{record.name}:", _CONTROL.sub(_escaped, record.getMessage())]
        words += [f"{name}={_value(value)}" for name, value in fields.items()]
        return " ".join(words) + (f"\n{trace}" if trace else "")

    def _json(self, record: logging.LogRecord, fields: Mapping[str, object], trace: str) -> str:
        data: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        data |= {name: value for name, value in fields.items() if name not in data}
        if trace:
            data["traceback"] = trace
        return json.dumps(data, default=str, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _escaped(control: re.Match[str]) -> str:
    """Another line of a message is indented, so that it can't pass for a record; other control characters are shown."""
    return "\n  " if control[0] == "\n" else f"\\x{ord(control[0]):02x}"


def _value(value: object) -> str:
    """Return a value without spaces unchanged, and any other in JSON's quotes, so that a line can be split again."""
    text = str(value)
    return text if text and _PLAIN.issuperset(text) else json.dumps(text, ensure_ascii=False)


KEPT = 5


class RecentWarning(msgspec.Struct, frozen=True, rename="camel"):
    """What was wrong, when it last happened (milliseconds since the epoch), and how often it has."""

    message: str
    at_ms: int
    times: int = 1


class RecentWarnings:
    """The latest different messages, the oldest first. Safe from any thread."""

    def __init__(self, clock: Clock, **fields: Field) -> None:
        self._clock = clock
        self._fields = fields
        self._lock = threading.Lock()
        self._kept: dict[str, RecentWarning] = {}
        self._logged_ms: dict[str, int] = {}
        self.total = 0

    def add(self, log: Logger, message: str, **fields: Field) -> None:
        """Count and keep a warning. Log it the 1st, 10th, 100th, ... time, or if that was over a minute ago."""
        with self._lock:
            before = self._kept.pop(message, None)
            times = before.times + 1 if before is not None else 1
            now_ms = self._clock.now_ms()
            self._kept[message] = RecentWarning(message, now_ms, times)
            self.total += 1
            due = is_milestone(times - 1, times) or now_ms - self._logged_ms[message] >= REPEAT_S * 1000
            if due:
                self._logged_ms[message] = now_ms
            while len(self._kept) > KEPT:
                oldest = next(iter(self._kept))
                del self._kept[oldest], self._logged_ms[oldest]
        if due:
            log.warning(message, **self._fields, **fields, times=times if times > 1 else None)

    def latest(self) -> list[RecentWarning]:
        with self._lock:
            return list(self._kept.values())

    def __iter__(self) -> Iterator[str]:
        return iter([one.message for one in self.latest()])

    def __getitem__(self, index: int) -> str:
        return list(self)[index]

    def __len__(self) -> int:
        return len(self._kept)


_alone = threading.Lock()


def thread_stacks() -> dict[int, FrameType]:
    """Return the innermost frame of each thread.

    Meanwhile Python holds a lock that a starting thread waits for without letting others run. If the garbage collector
    called Python code then, another thread might get its turn, and the whole process would wait forever.
    """
    with _alone:  # or one thread could turn the collector on again while another needs it off
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()


@contextmanager
def long_lived() -> Iterator[None]:
    """Have collections leave out everything that exists now. For the process: the first of two to end ends both."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
