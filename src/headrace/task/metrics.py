"""Counters and warnings of one task: the run loop adds to them and status pages read them, without a lock."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field

from headrace.core.clock import Clock, WallClock
from headrace.core.frame import END_VERSION
from headrace.core.ids import SSP
from headrace.core.log import RecentWarnings, Throttle, logger
from headrace.core.metrics import SECONDS, UserMetrics

_log = logger(__name__)

_LOGGED = {  # because nothing else reports these events
    "late": "messages came too late and had no effect",
    "missing": "rows that were to be taken away weren't there",
    "rollbacks": "the task rolls back to its last commit, because a task upstream did, or stays away",
    "timers_dropped": "timers that were set while the app ended will not fire",
}

COUNTERS = frozenset(
    {
        "backfilled", "cache_hits", "cache_misses", "call_failures", "call_ms", "call_retries", "call_timeouts",
        "calls", "calls_in_flight", "commits_asked_for", "dead_lettered", "duplicates", "failed_skipped", "gaps",
        "late", "lost", "misplaced", "missing", "rollbacks", "silenced", "skipped", "timers_dropped", "timers_fired",
    }
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Histogram:
    """How often durations fell into which bucket of ``SECONDS``, and their sum; the last bucket is for longer ones."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.buckets[bisect_left(SECONDS, seconds)] += times
        self.seconds += seconds * times


class Latency:
    """How long messages, counted in batches, take until their results are sent, and until they are committed."""

    _MOST = 256

    def __init__(self) -> None:
        self.sent = Histogram()
        self.committed = Histogram()
        self._taken: list[tuple[float, int]] = []
        self._open: list[tuple[float, int]] = []

    def took(self, arrived_ms: float, messages: int) -> None:
        if messages:
            self._taken.append((arrived_ms, messages))

    def flushed(self, now_ms: float) -> None:
        if not self._taken:
            return
        for arrived_ms, messages in self._taken:
            self.sent.observe(max(0.0, now_ms - arrived_ms) / 1000, messages)
        self._open += self._taken
        self._taken = []
        if len(self._open) > self._MOST:
            # Neighbours arrived at nearly the same time: one of each two speaks for both.
            pairs = zip(self._open[::2], self._open[1::2], strict=False)
            odd = self._open[-1:] if len(self._open) % 2 else []
            self._open = [(first[0], first[1] + second[1]) for first, second in pairs] + odd

    def commit(self, now_ms: float) -> None:
        self.flushed(now_ms)
        for arrived_ms, messages in self._open:
            self.committed.observe(max(0.0, now_ms - arrived_ms) / 1000, messages)
        self._open.clear()

    def forget(self) -> None:
        self._taken.clear()
        self._open.clear()


@dataclass(slots=True, eq=False)
class CommitTime:
    """When the parts of one commit began and ended, and when they were first looked at as they are now."""

    version: int = 0
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    seen_ms: float | None = None


class CommitTimes:
    """At most ten versions a second are kept: the first of each slot, which are the same for all tasks, because the
    clock numbers versions. ``left_out`` counts the others, and those dropped before a heartbeat took them."""

    SLOT_MS = 100
    MOST = 32
    SEEN_MS = 2000.0  # for how long a commit is shown: what is sent of it may be lost

    def __init__(self, interval_ms: int = SLOT_MS) -> None:
        self.left_out = 0
        self._interval_ms = interval_ms
        self._slot = -1
        self._open = CommitTime()
        self._latest: deque[CommitTime] = deque()

    def took(self, part: str, began_ms: float, ended_ms: float) -> None:
        """A part of a commit is over; one that comes in pieces took from the first to the last. ``flush`` is first."""
        if part == "flush":
            self._open = CommitTime()
        first_ms, _ = self._open.parts.get(part, (began_ms, ended_ms))
        self._open.parts[part] = first_ms, ended_ms
        self._open.seen_ms = None

    def committed(self, version: int) -> None:
        slot, into_slot = divmod(version, self.SLOT_MS)
        first = into_slot < self._interval_ms and slot != self._slot
        if self._interval_ms < self.SLOT_MS and not first and version != END_VERSION:
            self.left_out += 1
            return
        self._slot = slot
        if len(self._latest) == self.MOST and self._latest.popleft().seen_ms is None:
            self.left_out += 1
        self._open.version = version
        self._latest.append(self._open)

    def latest(self, now_ms: float) -> list[CommitTime]:
        found = []
        for commit in self._latest:
            if commit.seen_ms is None:
                commit.seen_ms = now_ms
            if now_ms - commit.seen_ms <= self.SEEN_MS:
                found.append(commit)
        return found


@dataclass(slots=True, eq=False)
class Shares:
    """What a task does with its time, in seconds: it is busy, it waits although there is something to do, or idle."""

    busy: float = 0.0
    waiting: float = 0.0
    idle: float = 0.0
    _at_ms: float | None = None
    _busy_ms: float = 0.0

    def work(self, ms: float) -> None:
        self._busy_ms += ms

    def turned(self, now_ms: float, *, wants: bool) -> None:
        if self._at_ms is not None:
            busy = min(self._busy_ms, now_ms - self._at_ms)
            rest = now_ms - self._at_ms - busy
            self.busy += busy / 1000
            if wants:
                self.waiting += rest / 1000
            else:
                self.idle += rest / 1000
        self._at_ms = now_ms
        self._busy_ms = 0.0


class TaskMetrics:
    """What a task has done since it started. ``interval_ms`` is its checkpoint interval."""

    def __init__(self, task: str | None = None, clock: Clock | None = None, interval_ms: int = 1000) -> None:
        self.rows_in = self.rows_out = self.bytes_in = self.bytes_out = self.batches = 0
        self.rows_of: defaultdict[SSP, int] = defaultdict(int)
        self.bytes_of: defaultdict[SSP, int] = defaultdict(int)
        self.rows_to: defaultdict[str, int] = defaultdict(int)
        self.bytes_to: defaultdict[str, int] = defaultdict(int)
        self.rows_into: dict[str, int] = {}  # what each step had taken when the task was last closed
        self.latency = Latency()
        self.shares = Shares()
        self.commits = 0
        self.commit_parts: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.commit_times = CommitTimes(interval_ms)
        self.function_seconds: defaultdict[str, float] = defaultdict(float)  # time in functions of the app, by step
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.warnings = RecentWarnings(clock or WallClock(), task=task)
        self.user = UserMetrics(task, lambda message: self.warnings.add(_log, message))
        self._task = task
        self._throttle = Throttle(_log)

    def spent(self, step: str, seconds: float) -> None:
        self.function_seconds[step] += seconds

    def count(self, name: str, by: int = 1) -> None:
        if by:
            self.counters[name] += by
            if name in _LOGGED:
                self._throttle.info(_LOGGED[name], by=by, task=self._task)
