"""Fetches shards from a position on: what to ask next, when, and in which thread.

``Feed.fetch`` calls Kinesis; ``take_in`` says what follows from the answer, and is pure. Between the two nothing of the
feed changes, so one thread can fetch while another empties the buffer.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from math import inf

from typing_extensions import override

from headrace.connectors.kinesis.api import (
    DAY_H,
    HASH_END,
    LOOK_MS,
    POLL_MS,
    READ_RECORDS,
    Expiry,
    IteratorExpired,
    KinesisApi,
    KinesisRecord,
    Position,
    Shard,
)
from headrace.connectors.kinesis.records import Buffer, Fetched, unpacked
from headrace.core.calls import Retry
from headrace.core.clock import Clock, utc_text
from headrace.core.errors import HeadraceError, StreamNotFoundError, TrimmedOffsetError
from headrace.core.files import Bell
from headrace.core.log import Throttle, logger
from headrace.systems.base import Unread

_MISSES_MAX = 5  # how often in a row Kinesis must say that a shard doesn't exist before it is believed
_RETRY = Retry(None, 250, 10_000)
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a shard is read: all its readers together get 5 reads and 2 MB a second. At its end, pauses grow."""

    busy_ms: float = POLL_MS
    idle_ms: float = 1000
    records: int = READ_RECORDS
    bytes_per_s: float = 2 << 20
    retry: Retry = _RETRY


@dataclass(slots=True)
class Room:
    """How much may be fetched before it is handed out, apart from one page more, which can be 10 MB."""

    bytes: int = 64 << 20
    feed_bytes_max: int = 4 << 20
    feeds: int = 0

    @property
    def feed_bytes(self) -> int:
        return min(self.feed_bytes_max, self.bytes // max(1, self.feeds))


@dataclass(slots=True)
class Common:
    """What all feeds of one stream share. ``skip_lost``: where records may have expired unread, go on and say so."""

    stream: str
    pace: Pace = Pace()
    room: Room = field(default_factory=Room)
    skip_lost: bool = False
    _kept_h: int = DAY_H
    _asked_ms: int | None = None

    def kept_h(self, api: KinesisApi, now_ms: int) -> int:
        if self._asked_ms is None or now_ms - self._asked_ms >= LOOK_MS:
            self._kept_h, self._asked_ms = api.describe().kept_h, now_ms
        return self._kept_h


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a fetch. ``checked``: it was decided whether there is a gap. ``read_ms``: all before was read."""

    fetched: Fetched | None = None
    iterator: str | None = None
    behind_ms: int | None = None
    again: str = ""
    ended: bool = False
    gone: bool = False
    error: Exception | None = None
    checked: bool = False
    read_ms: int | None = None


class Feed:
    """The reading of one shard. A shard that is released and taken again gets another feed, and forgets this one."""

    def __init__(self, common: Common, shard: str, position: Position) -> None:
        self.shard = shard
        self.buffer = Buffer()
        self.behind_ms: int | None = None
        self.due_ms = 0.0  # when to fetch again, on the monotonic clock
        self.ended = False  # all of the closed shard was fetched
        self.error: Exception | None = None
        self.closed = False
        self._common = common
        self._position = position
        self._pace = common.pace
        self._room = common.room
        self._room.feeds += 1
        self._pause_ms = self._pace.busy_ms
        self._iterator: str | None = None
        self._expiry = Expiry(position)
        self._checking = False  # the iterator begins with the record at the position, to show that none has expired
        self._checked = False  # the iterator has shown it, and goes on from there
        self._range: tuple[int, int] | None = None
        self._failures = 0
        self._misses = 0
        self._mean_bytes = 1024.0
        self._rows_per_ms = 0.0
        self._throttle = Throttle(_log)

    @property
    def hungry(self) -> bool:
        over = self.closed or self.ended or self.error is not None
        return not over and self.buffer.bytes < self._room.feed_bytes

    @property
    def finished(self) -> bool:
        return self.ended and not self.buffer

    def close(self) -> None:
        self.closed = True
        self._room.feeds -= 1

    def waiting(self) -> int | None:
        """How many rows weren't handed out yet, estimated if not all were fetched; None if it can't be."""
        if self.ended or self.behind_ms == 0:
            return self.buffer.rows
        if self.behind_ms is None or not self._rows_per_ms:
            return None
        return self.buffer.rows + max(1, round(self.behind_ms * self._rows_per_ms))

    def late_ms(self, now_ms: int) -> int | None:
        oldest_ms = self.buffer.oldest_ms
        return self.behind_ms if oldest_ms is None else max(0, now_ms - oldest_ms)

    # -- calling Kinesis

    def fetch(self, api: KinesisApi, clock: Clock) -> Answer:
        """Fetch once. May block; never raises."""
        try:
            try:
                return self._fetch(api, clock)
            except StreamNotFoundError:
                return self._missing(api)
        except IteratorExpired:
            return Answer(again="its iterator expired")
        except HeadraceError as error:
            if error.retry:
                return Answer(iterator=self._iterator, again=error.message)
            return Answer(error=error)
        except Exception as error:  # noqa: BLE001 - it is raised where the records would be handed out
            return Answer(error=error)

    def _fetch(self, api: KinesisApi, clock: Clock) -> Answer:
        now_ms = clock.now_ms()
        self._checked &= self._iterator is not None
        whole = self._checking or self._checked or self._expiry.whole(now_ms, lambda: self._common.kept_h(api, now_ms))
        if not whole:
            self._checking, self._iterator = True, None
        if self._iterator is None:
            at = self._position
            if self._checking and at.sequence is not None and at.sub is None:
                at = Position(at.sequence, 0)  # with the record there, which is to show whether there is a gap
            self._iterator = api.iterator(self.shard, at)
        room = self._room.feed_bytes - self.buffer.bytes
        page = api.records(self._iterator, min(self._pace.records, max(100, int(room / self._mean_bytes))))
        ended = page.iterator is None
        open_ = ended and ((listed := self._listed(api)) is None or not listed.closed)
        again = "Kinesis returned no iterator, but the shard is open" if open_ else ""
        at_tip = not (page.records or page.behind_ms or ended)
        checked = self._checking and (bool(page.records) or at_tip or (ended and not again))
        # Records after the position may be gone if the one there is, or if there was none.
        sequence = self._position.sequence
        gap = checked and (sequence is None or not page.records or page.records[0].sequence > sequence)
        if gap and not self._common.skip_lost:
            return Answer(error=self._lost(self._why()))
        fetched = self._unpacked(page.records, api) if page.records else None
        read_ms = page.records[-1].arrived_ms if page.records else None
        if at_tip and (gap or self._expiry.due(now_ms)):
            fetched = _nothing(self._position.at_tip(now_ms, self._common.kept_h(api, now_ms)))
        if gap:
            fetched = _nothing(self._position) if fetched is None else fetched
            fetched.unread = [*fetched.unread, self._gap(self._why())]
        over = ended and not again
        return Answer(fetched, page.iterator, page.behind_ms, again, over, checked=checked, read_ms=read_ms)

    def _unpacked(self, records: Sequence[KinesisRecord], api: KinesisApi) -> Fetched | None:
        fetched, misplaced = unpacked(records, self._position, lambda: self._hashes(api))
        if misplaced:
            why = "the KPL had aggregated them for another shard; as a rule it writes them again"
            fetched.unread = [Unread("misplaced", misplaced, f"records were left out, because {why}")]
        return None if fetched.end == self._position else fetched

    def _hashes(self, api: KinesisApi) -> tuple[int, int]:
        if self._range is None and (listed := self._listed(api)) is not None:
            self._range = listed.first, listed.last
        return self._range or (0, HASH_END - 1)

    def _why(self) -> str:
        gone = "the shard was empty" if self._position.sequence is None else "the record there has expired"
        read_ms = self._expiry.read_ms
        if read_ms is None:
            return f"{gone}, and it isn't known when the app had last read everything"
        return f"{gone}, and the app had last read everything at {utc_text(read_ms)}"

    def _missing(self, api: KinesisApi) -> Answer:
        try:
            if self._listed(api) is not None:
                return Answer(again="Kinesis lists the shard, but can't read it")
            return Answer(gone=True, again="Kinesis doesn't find the shard")
        except StreamNotFoundError:
            error = StreamNotFoundError(
                f"the Kinesis stream {self._common.stream!r} doesn't exist any more; {self.shard} was not read to its "
                "end",
                hint="the stream was deleted while the app was reading it. To read a new stream of that name, start "
                "the app under another name",
            )
            return Answer(error=error, again=error.message)

    def _listed(self, api: KinesisApi) -> Shard | None:
        return next((shard for shard in api.shards() if shard.id == self.shard), None)

    # -- what follows from an answer

    def take_in(self, answer: Answer, now_ms: float, chance: float) -> bool:
        """Note an answer; return whether there is something to hand out. ``chance`` is a random number from [0, 1)."""
        if self.closed:
            return False
        self._iterator = answer.iterator
        if answer.read_ms is not None:
            self._expiry.read(answer.read_ms)
        if answer.fetched is not None:
            self._add(answer.fetched)
        elif answer.checked:
            self._checked = True
        self._checking &= not answer.checked
        if answer.behind_ms is not None:
            self.behind_ms = answer.behind_ms
        if answer.again:
            self._fail(answer, now_ms, chance)
        else:
            self._failures = self._misses = 0
            self.error = answer.error
            self.ended = answer.ended
            self.due_ms = now_ms + self._pause(answer)
        return answer.fetched is not None or self.ended or self.error is not None

    def _add(self, fetched: Fetched) -> None:
        before = self.buffer.bytes
        self.buffer.add(fetched)
        if fetched.data:
            self._mean_bytes = (self.buffer.bytes - before) / len(fetched.data) or 1.0
            span_ms = fetched.arrived_ms[-1] - fetched.arrived_ms[0]
            if span_ms > 0:
                self._rows_per_ms = len(fetched.data) / span_ms
        self._checked = False
        self._position = fetched.end
        if fetched.end.tip_ms is not None:
            self._expiry.read(fetched.end.tip_ms, fetched.end.kept_h)

    def _pause(self, answer: Answer) -> float:
        if answer.fetched is not None:
            self._pause_ms = self._pace.busy_ms
            return max(self._pause_ms, 1000 * self._mean_bytes * len(answer.fetched.data) / self._pace.bytes_per_s)
        if answer.behind_ms:
            return self._pace.busy_ms
        self._pause_ms = min(self._pace.idle_ms, self._pause_ms * 1.5)
        return self._pause_ms

    def _fail(self, answer: Answer, now_ms: float, chance: float) -> None:
        self._failures += 1
        missing = answer.gone or answer.error is not None
        self._misses = self._misses + 1 if missing else 0
        if self._misses < _MISSES_MAX:
            if self._failures > 1:
                self._throttle.warning("can't read a shard; trying again", shard=self.shard, why=answer.again)
            self.due_ms = now_ms + (self._pace.retry.pause_ms(self._failures, chance) or 0)
        elif answer.error is not None:
            self.error = answer.error
        else:
            self._expired()

    def _expired(self) -> None:
        unread = self._position.sequence is None and self._position.tip_ms is None
        if not (unread or self._common.skip_lost):
            self.error = self._lost("the shard has expired")
            return
        fetched = _nothing(self._position)
        fetched.unread = [self._gap("the shard has expired")]
        self.buffer.add(fetched)
        self.ended = True

    def _gap(self, why: str) -> Unread:
        return Unread("gaps", 1, f"records after {self._position.place} of {self.shard} may be lost: {why}")

    def _lost(self, why: str) -> TrimmedOffsetError:
        return TrimmedOffsetError(
            f"the Kinesis stream {self._common.stream!r} may have deleted records after {self._position.place} of "
            f"{self.shard} before the app read them: {why}",
            hint="the app was stopped, or behind, for longer than the stream keeps records. To continue with the "
            'remaining ones, set lost="skip" in hr.io.kinesis(...); to read all that is left again, run headrace '
            "startpoint set APP INPUT --oldest",
        )


def _nothing(end: Position) -> Fetched:
    return Fetched([], [], [], [], end)


Chance = Callable[[], float]  # a random number from [0, 1)


class Fetching:
    """Fetches a stream's shards into feeds, on the thread that looks, by the clock: for simulations and tests."""

    def __init__(self, api: KinesisApi, clock: Clock, common: Common, chance: Chance = lambda: 0.5) -> None:
        self._api = api
        self._clock = clock
        self._common = common
        self._chance = chance

    def begin(self, shard: str, position: Position) -> Feed:
        return Feed(self._common, shard, position)

    def end(self, feed: Feed) -> None:
        feed.close()

    def look(self, feeds: Iterable[Feed]) -> None:
        """Clear the descriptor. Without background threads, fetch what is due in these feeds."""
        for feed in feeds:
            if feed.hungry and feed.due_ms <= self._clock.monotonic_ms():
                answer = feed.fetch(self._api, self._clock)
                feed.take_in(answer, self._clock.monotonic_ms(), self._chance())

    def emptying(self) -> AbstractContextManager[object]:
        return nullcontext()

    def emptied(self, feed: Feed) -> None:
        """There may be room in a feed again. Only while ``emptying``."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when feeds have something new; None: look by the clock."""
        return None

    def close(self) -> None:
        self._api.close()


class FetchingByThreads(Fetching):
    """Fetches in the background, with as many threads as there are shards, up to a limit; a pipe says what is new.

    A feed is in one place at a time: in the queue, with the thread that fetches it, or *resting* because it has enough
    that wasn't handed out. The lock guards the queue and the feeds; no thread holds it while it waits for Kinesis.
    """

    def __init__(self, api: KinesisApi, clock: Clock, common: Common, threads_max: int = 16) -> None:
        super().__init__(api, clock, common, random.random)
        self._threads_max = threads_max
        self._lock = threading.Condition()
        self._queue: list[tuple[float, int, Feed]] = []
        self._order = count()
        self._alarm_ms = inf  # when the first of the threads that wait wakes up by itself
        self._resting: set[Feed] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._bell = Bell()

    @override
    def begin(self, shard: str, position: Position) -> Feed:
        with self._lock:
            feed = Feed(self._common, shard, position)
            self._enqueue(feed)
            if len(self._threads) < min(self._common.room.feeds, self._threads_max):
                name = f"kinesis-{self._common.stream}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return feed

    @override
    def end(self, feed: Feed) -> None:
        with self._lock:
            feed.close()
            self._resting.discard(feed)

    @override
    def look(self, feeds: Iterable[Feed]) -> None:
        with self._lock:
            self._bell.clear()

    @override
    def emptying(self) -> AbstractContextManager[object]:
        return self._lock

    @override
    def emptied(self, feed: Feed) -> None:
        if feed in self._resting and feed.hungry:
            self._resting.remove(feed)
            self._enqueue(feed)

    @override
    def fileno(self) -> int | None:
        return self._bell.fileno()

    @override
    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._lock.notify_all()
            self._bell.close()
        self._api.close()

    def _enqueue(self, feed: Feed) -> None:
        heapq.heappush(self._queue, (feed.due_ms, next(self._order), feed))
        self._lock.notify()

    def _work(self) -> None:
        while (feed := self._next()) is not None:
            answer = feed.fetch(self._api, self._clock)
            with self._lock:
                if self._closed:
                    return
                if feed.take_in(answer, self._clock.monotonic_ms(), self._chance()):
                    self._bell.ring()
                if feed.hungry:
                    self._enqueue(feed)
                elif not feed.closed:
                    self._resting.add(feed)

    def _next(self) -> Feed | None:
        """Wait for a feed that is due: one thread does by the clock, the others until there is more to do."""
        with self._lock:
            while not self._closed:
                due_ms = self._queue[0][0] if self._queue else inf
                wait_ms = due_ms - self._clock.monotonic_ms()
                if wait_ms <= 0:
                    feed = heapq.heappop(self._queue)[2]
                    if not feed.closed:
                        self._lock.notify()  # another thread handles the next one
                        return feed
                elif due_ms < self._alarm_ms:
                    self._alarm_ms = due_ms
                    self._lock.wait(wait_ms / 1000)
                    if self._alarm_ms == due_ms:
                        self._alarm_ms = inf
                else:
                    self._lock.wait()
            return None
