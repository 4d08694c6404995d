"""One line about a running app. On a terminal and in a notebook it is rewritten, elsewhere printed now and then.

Used by the thread that watches the app. Nothing here blocks, starts a thread or sets a timer.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, TextIO

from typing_extensions import override

from headrace.coordinator.messages import AppStatus, StageStatus

PLAIN_INTERVAL_S = 5.0
TERMINAL_INTERVAL_S = 0.2
NOTEBOOK_INTERVAL_S = 0.5
_CLEAR = "\r\x1b[K"
Progress = Callable[[AppStatus], None]


class ProgressLine:
    """Takes snapshots at any rate and prints one when it is time. ``close`` leaves the last line where it is."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._interval_s = TERMINAL_INTERVAL_S if self._terminal else PLAIN_INTERVAL_S
        self._clock = clock
        self._printed_at: float | None = None
        self._last: AppStatus | None = None
        self._shown: AppStatus | None = None
        self._open = False  # whether the cursor of the terminal is in the line

    def __call__(self, status: AppStatus) -> None:
        now = self._clock()
        changed = self._last is None or self._last.state != status.state
        self._last = status
        if changed or self._printed_at is None or now - self._printed_at >= self._interval_s:
            self._printed_at = now
            self._shown = status
            self._show(describe(status))

    def say(self, text: str) -> None:
        now = self._clock()
        if self._printed_at is None or now - self._printed_at >= self._interval_s:
            self._printed_at = now
            self._show(text)

    def tell(self, text: str) -> None:
        self._write(f"{_CLEAR if self._open else ''}{text}\n")
        self._open = False

    def close(self) -> None:
        """Print the last snapshot, unless it has been, and end the line."""
        if self._last is not None and self._last is not self._shown:
            self._shown = self._last
            self._show(describe(self._last))
        if self._open:
            self._write("\n")

    def end(self, text: str) -> None:
        self.close()
        self._write(text + "\n")

    def _show(self, line: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(_CLEAR + (line if len(line) <= width else line[: width - 1] + "…"))
            self._open = True
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal has closed, so there is nowhere to report that. The app continues without progress.
            self._terminal, self._interval_s = False, float("inf")


class NotebookLine(ProgressLine):
    """The line in the output of a notebook's cell: the one that is executed when this is made."""

    def __init__(self) -> None:
        super().__init__()
        self._terminal, self._interval_s = False, NOTEBOOK_INTERVAL_S
        display = import_module("IPython.display").display
        self._display: Any = display({"text/plain": ""}, raw=True, display_id=True)
        self._below = ""

    @override
    def tell(self, text: str) -> None:  # it stays below the line until the app has ended
        self._below += f"\n{text}"

    @override
    def end(self, text: str) -> None:
        self._below = ""
        self._show(text)

    @override
    def _show(self, line: str) -> None:
        self._display.update({"text/plain": line + self._below}, raw=True)


def in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def progress_line(*, beside: bool = False) -> ProgressLine | None:
    """What shows the progress of a run. None for one ``beside`` a prompt, where it would be in the way."""
    if in_notebook():
        return NotebookLine()
    return None if beside and hasattr(sys, "ps1") else ProgressLine()


def say(text: str, progress: Progress | None) -> None:
    if isinstance(progress, ProgressLine):
        progress.say(text)


def announce(text: str, progress: Progress | None) -> None:
    """Say something once, where the progress is, as where the live page of a run is."""
    if isinstance(progress, ProgressLine):
        progress.tell(text)
        return
    with suppress(OSError, ValueError):  # the terminal has closed, and the app continues without one
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def describe(status: AppStatus) -> str:
    """Return ``page-views running  52,310 msg/s  views 12:00:07 lag 1,024  per-10s 12:00:05 lag 0``."""
    if status.drained and status.state == "finished":  # its tasks have ended; its streams may not have
        return f"{status.app} drained"
    total = sum(stage.rows_per_second for stage in status.stages)
    lacking = sum(bool(container.lacks) for container in status.containers)
    missing = [f"{lacking} of {len(status.containers)} containers without a slot"] if lacking else []
    return "  ".join([f"{status.app} {status.state}", *missing, f"{total:,.0f} msg/s", *map(_stage, status.stages)])


def time_of(watermark: int | None) -> str:
    """Return a watermark as a time of day (UTC), ``-`` before the first one, ``end`` after the last one."""
    if watermark is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(watermark / 1000, UTC):%H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return "end" if watermark > 0 else "-"


def lag_of(lag: int | None) -> str:
    return "?" if lag is None else f"{lag:,}"


def _stage(stage: StageStatus) -> str:
    if stage.finished == stage.tasks:
        return f"{stage.name} done"
    return f"{stage.name} {time_of(stage.watermark)} lag {lag_of(stage.lag)}"


SET_ASIDE = {
    "backfilled": "of the history left out",
    "skipped": "skipped",
    "failed_skipped": "skipped as a function raised",
    "dead_lettered": "sent to dead letters",
    "late": "too late",
    "lost": "deleted before they were read",
    "misplaced": "aggregated for another shard",
}


def set_aside(counters: Mapping[str, int]) -> str:
    counts = {words: counters.get(counter, 0) for counter, words in SET_ASIDE.items()}
    return ", ".join(f"{count:,} {words}" for words, count in counts.items() if count)


def how_it_ended(app: str, status: AppStatus, seconds: float) -> str:
    words = set_aside(sum((Counter(task.counters) for task in status.tasks), Counter()))
    how = "stopped" if status.state == "stopped" else "drained" if status.drained else "ended"
    aside = f"; messages {words}" if words else ""
    return f"{app} {how} after {seconds:.1f} s{aside}"
