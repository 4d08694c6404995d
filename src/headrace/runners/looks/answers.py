"""The container's side of looks. A question begins one, or asks how far it is; none of them waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import polars as pl

from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError, UsageError
from headrace.runners.coordination.query_messages import Look
from headrace.runners.looks.results import COLUMNS_MAX, ROWS_MAX, VALUE_CHARS_MAX, Peeked
from headrace.runners.looks.sampler import Sampler
from headrace.runtime.host.task_host import TaskHost
from headrace.runtime.operators.tap import Tap

KEPT = 8
"""How many peeks of a task are remembered; older ones are over."""

PEEK_MS = 10_000.0
"""How long a peek waits for rows."""


class Looks:
    """The looks at some tasks, and at the process that they are in. Called by one thread."""

    def __init__(self, hosts: Sequence[TaskHost], clock: Clock) -> None:
        self._hosts = {str(host.name): host for host in hosts}
        self._clock = clock
        self._taps: dict[tuple[str, str], tuple[Tap, float]] = {}
        """By task and look, with the time until which it waits."""
        self._profile: tuple[str, Sampler] | None = None

    def answer(self, look: Look, task: str) -> bytes:
        """What was found so far, as JSON."""
        return msgspec.json.encode(self._peek(look, task) if look.kind == "peek" else self._profiled(look))

    def close(self) -> None:
        """End a profile that is being made."""
        if self._profile is not None:
            self._profile[1].close()

    def _peek(self, look: Look, task: str) -> Peeked:
        host = self._hosts[task]
        if not host.scope.settings.peek:
            raise UsageError(
                "this app doesn't allow its messages to be shown",
                hint="declare it with hr.App(..., peek=True); everyone who can open its live page can then see them",
            )
        taking = host.task.chain.taking(look.step)
        if not taking:
            raise UsageError(f"task {task} has no step {look.step!r}")
        now_ms = self._clock.monotonic_ms()
        key = task, look.id
        if key not in self._taps:
            mine = [one for one in self._taps if one[0] == task]
            for old in mine[: max(0, len(mine) - KEPT + 1)]:
                del self._taps[old]
            self._taps[key] = Tap(ROWS_MAX, now_ms + PEEK_MS, self._clock.monotonic_ms), now_ms + PEEK_MS
        tap, until_ms = self._taps[key]
        over = tap.missing <= 0 or now_ms >= until_ms
        for operator in taking:  # each time: after a rollback the operators are others
            if not over:
                operator.tap = tap
            elif operator.tap is tap:
                operator.tap = None
        return as_peeked(tap.taken, over=over)

    def _profiled(self, look: Look) -> object:
        known = self._profile
        if known is None or known[0] != look.id:
            if known is not None and known[1].running:
                raise UnavailableError(
                    "this container is being profiled already", hint="wait some seconds, and try again"
                )
            known = self._profile = look.id, Sampler(look.seconds)
        return known[1].result()


def as_peeked(taken: Iterable[pl.DataFrame], *, over: bool) -> Peeked:
    """Rows as text: values are cut, and Headrace's own columns left out."""
    columns: list[str] = []
    rows: list[list[str]] = []
    for batch in taken:
        columns = [name for name in batch.columns if not name.startswith("__")][:COLUMNS_MAX]
        rows += [[_text(value) for value in row] for row in batch.select(columns).rows()]
    return Peeked(columns=columns, rows=rows, over=over)


def _text(value: object) -> str:
    """A value on one line: what a terminal would obey is escaped."""
    text = "null" if value is None else str(value)
    if len(text) > VALUE_CHARS_MAX:
        text = f"{text[:VALUE_CHARS_MAX]}…"
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
