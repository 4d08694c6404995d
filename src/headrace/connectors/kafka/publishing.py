"""How one writer publishes versions in Kafka transactions, as a table: states, events and actions. Pure.

A transaction carries a version's rows and, last, the version itself, for the progress topic. The transactional id is
the same in each life of a writer. ``OPEN`` takes it over: Kafka aborts what another life has left open, finishes what
it was committing, and refuses whatever it sends from then on. So what ``FIND`` reads after that is final, and nothing
is sent before it has been read.

``FIND`` proves what it finds: it reads committed records up to the high watermark, which counts the records of open
transactions, too. The end that readers of committed records see isn't enough: that is before the oldest open
transaction of any writer, and may hide a committed version.

A refused writer checks, without taking over the id, whether its version was published, because it may be a stale copy
that wakes up. Only if the version is still missing after some checks does it take over. So an absent owner is replaced,
and two that are alive don't take turns for long: that ends in ``SHARED``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

TIMEOUT_MS, TIMEOUT_MS_MAX = 10_000, 900_000
"""How long a transaction may take; it doubles each time that one takes longer. Brokers allow 15 minutes by default."""
LOOKS, GRACE_MS = 3, 250.0  # looks for a version before a refused writer takes over, and the time between two
TAKEOVERS_MAX, WINDOW_MS = 6, 60_000.0
"""Who has to take over more often in this time isn't alone; nor is who finds its versions there for longer than it."""


class State(Enum):
    """A writer's knowledge and activity. In a *resting* state, it waits for a request for a version."""

    UNOPENED = "has no producer"
    FENCING = "takes the id over"
    OPENED = "has taken over, and doesn't know its position"
    FINDING = "finds its position"
    IDLE = "knows its position, and has no transaction"
    SENDING = "sends a version in a transaction"
    COMMITTING = "commits"
    DOUBTFUL = "doesn't know whether its commit counts"
    LOOKING = "was refused, and looks whether its version is there"
    WAITING = "was refused, and gives the other one time to publish the version"
    REPLACED = "was refused, and has found its version there"
    LOST = "finds less than it has published"
    SHARED = "isn't the only one with this id"


class Event(Enum):
    """Requests to a writer, and results of its actions."""

    WANTED = "a version is wanted that isn't known to be there"
    WANTED_OLD = "a version is wanted that is known to be there, or none"
    OPENED = "the id is taken over"
    THERE = "the version is there"
    MISSING = "the version isn't there"
    OVERDUE = "the version still isn't there after the last look"
    HIDDEN = "open transactions of others hide what is there"
    LESS = "less is there than was published"
    OTHERS = "this version is there with other rows, or the id is taken again and again"
    SENT = "rows and version are in the transaction"
    COMMITTED = "the transaction is committed"
    FENCED = "another process has taken the id over, or the transaction took too long"
    FAILED = "it didn't work"


class Action(Enum):
    """The next action. Each one but ``REST`` is a call that may block."""

    OPEN = "make a producer, and take the id over"
    FIND = "read the position up to the high watermark"
    SEND = "begin a transaction, send the rows, and then the version"
    COMMIT = "commit"
    LOOK = "read the position, without having taken over"
    REST = "nothing"


HOLDING = frozenset({State.OPENED, State.FINDING, State.IDLE, State.SENDING, State.COMMITTING})
"""The states with a producer of use. In the others it is dropped, and what it had begun is left for Kafka to abort."""
Row = tuple[State, Action]
TABLE: Mapping[State, Mapping[Event, Row]] = {
    State.UNOPENED: {Event.WANTED: (State.FENCING, Action.OPEN), Event.WANTED_OLD: (State.UNOPENED, Action.REST)},
    State.FENCING: {
        Event.OPENED: (State.FINDING, Action.FIND),
        Event.FENCED: (State.LOOKING, Action.LOOK),
        Event.FAILED: (State.UNOPENED, Action.REST),
    },
    State.OPENED: {Event.WANTED: (State.FINDING, Action.FIND), Event.WANTED_OLD: (State.OPENED, Action.REST)},
    State.FINDING: {
        Event.THERE: (State.IDLE, Action.REST),
        Event.MISSING: (State.SENDING, Action.SEND),
        Event.HIDDEN: (State.OPENED, Action.REST),
        Event.LESS: (State.LOST, Action.REST),
        Event.OTHERS: (State.SHARED, Action.REST),
        Event.FAILED: (State.OPENED, Action.REST),
    },
    State.IDLE: {
        Event.WANTED: (State.SENDING, Action.SEND),
        Event.WANTED_OLD: (State.IDLE, Action.REST),
        Event.OTHERS: (State.SHARED, Action.REST),
    },
    State.SENDING: {
        Event.SENT: (State.COMMITTING, Action.COMMIT),
        Event.FENCED: (State.LOOKING, Action.LOOK),
        Event.FAILED: (State.UNOPENED, Action.REST),
    },
    State.COMMITTING: {
        Event.COMMITTED: (State.IDLE, Action.REST),
        Event.FENCED: (State.LOOKING, Action.LOOK),
        Event.FAILED: (State.DOUBTFUL, Action.REST),
    },
    State.DOUBTFUL: {Event.WANTED: (State.FENCING, Action.OPEN), Event.WANTED_OLD: (State.DOUBTFUL, Action.REST)},
    State.LOOKING: {
        Event.THERE: (State.REPLACED, Action.REST),
        Event.MISSING: (State.WAITING, Action.REST),
        Event.HIDDEN: (State.WAITING, Action.REST),
        Event.OVERDUE: (State.FENCING, Action.OPEN),
        Event.LESS: (State.LOST, Action.REST),
        Event.OTHERS: (State.SHARED, Action.REST),
        Event.FAILED: (State.WAITING, Action.REST),
    },
    State.WAITING: {Event.WANTED: (State.LOOKING, Action.LOOK), Event.WANTED_OLD: (State.WAITING, Action.REST)},
    State.REPLACED: {
        Event.WANTED: (State.LOOKING, Action.LOOK),
        Event.WANTED_OLD: (State.REPLACED, Action.REST),
        Event.OTHERS: (State.SHARED, Action.REST),
    },
    State.LOST: dict.fromkeys((Event.WANTED, Event.WANTED_OLD), (State.LOST, Action.REST)),
    State.SHARED: dict.fromkeys((Event.WANTED, Event.WANTED_OLD), (State.SHARED, Action.REST)),
}


@dataclass(frozen=True, slots=True)
class WantedVersion:
    """A version to be published. ``rows`` identifies its rows: it is the same whenever the same rows are published."""

    version: int
    rows: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A writer's newest version, and the process that has written it. Without ``rows`` these aren't known."""

    version: int = -1
    rows: str = ""
    by: str = ""


class Publishing:
    """One life of one writer; ``me`` names the process. ``ask`` for a version, perform the action, report the event.

    ``position`` is the newest version known to be published, -1 for none, and None while it is unknown.
    """

    def __init__(self, me: str, table: Mapping[State, Mapping[Event, Row]] = TABLE) -> None:
        self.state = State.UNOPENED
        self.position: int | None = None
        self.timeout_ms = TIMEOUT_MS
        self.other = ""  # the other process that has published as this writer, if it is known
        self._me = me
        self._table = table
        self._floor = -1
        self._wanted: WantedVersion | None = None
        self.last = Progress()  # what was found last, or committed since
        self._looks = 0
        self._takeovers: deque[float] = deque(maxlen=TAKEOVERS_MAX + 1)
        self._behind_since: float | None = None

    @property
    def floor(self) -> int:
        """The newest version that certainly was published, by this life or by what a commit says."""
        return max(self._floor, -1 if self.position is None else self.position)

    @property
    def ready(self) -> bool:
        return self.position is not None and self.state in (State.IDLE, State.REPLACED)

    def trust(self, published: int) -> None:
        """A commit says that this version was published. If less is found, it was lost."""
        self._floor = max(self._floor, published)

    def there(self, version: int) -> bool:
        return self.position is not None and version <= self.position

    def ask(self, wanted: WantedVersion | None, now_ms: float) -> Action:
        self._wanted = wanted
        old = self.ready if wanted is None else self.there(wanted.version)
        if wanted is not None and self._contradicts(self.last, wanted) and Event.OTHERS in self._table[self.state]:
            return self._step(Event.OTHERS)
        since = self._behind_since
        if self.state is State.REPLACED and old and since is not None and now_ms - since >= WINDOW_MS:
            return self._step(Event.OTHERS)
        return self._step(Event.WANTED_OLD if old else Event.WANTED)

    def progress(self) -> Progress:
        return Progress() if self._wanted is None else Progress(self._wanted.version, self._wanted.rows, self._me)

    def opened(self) -> Action:
        return self._step(Event.OPENED)

    def read(self, progress: Progress | None, now_ms: float) -> Action:
        """What ``FIND`` or ``LOOK`` has found, proven; None if it is hidden."""
        looking = self.state is State.LOOKING
        if progress is None:
            event = self._event_of_look(now_ms) if looking else Event.HIDDEN
            return self._step(Event.HIDDEN if event is Event.MISSING else event)
        event = self._judged(progress)
        if event in (Event.THERE, Event.MISSING):
            self.position = progress.version
            if looking:
                self.other = progress.by if progress.by != self._me else self.other
                if event is Event.THERE:
                    self._looks = 0
                    self._behind_since = now_ms if self._behind_since is None else self._behind_since
                else:
                    event = self._event_of_look(now_ms)
        return self._step(event)

    def sent(self) -> Action:
        return self._step(Event.SENT)

    def committed(self) -> Action:
        if self._wanted is not None:
            self.position = self._wanted.version
            self.last = self.progress()
        self._looks = 0
        self._behind_since = None
        return self._step(Event.COMMITTED)

    def fenced(self, elapsed_ms: float) -> Action:
        self._stretch(elapsed_ms)
        return self._step(Event.FENCED)

    def failed(self, elapsed_ms: float = 0.0) -> Action:
        """Whether the action had an effect isn't known. ``elapsed_ms``: its transaction was only too slow."""
        self._stretch(elapsed_ms)
        return self._step(Event.FAILED)

    def _stretch(self, elapsed_ms: float) -> None:
        if elapsed_ms >= self.timeout_ms:
            self.timeout_ms = min(2 * self.timeout_ms, TIMEOUT_MS_MAX)

    def _judged(self, progress: Progress) -> Event:
        self.last = progress
        if progress.version < self.floor:
            return Event.LESS
        wanted = self._wanted
        if wanted is None:
            return Event.THERE
        if self._contradicts(progress, wanted):
            return Event.OTHERS
        return Event.THERE if progress.version >= wanted.version else Event.MISSING

    def _contradicts(self, progress: Progress, wanted: WantedVersion) -> bool:
        """Whether this version was published with other rows. A stale copy would have the same rows."""
        if progress.version != wanted.version or progress.rows in ("", wanted.rows):
            return False
        self.other = progress.by
        return True

    def _event_of_look(self, now_ms: float) -> Event:
        self._looks += 1
        if self._looks < LOOKS:
            return Event.MISSING
        self._looks = 0
        self._takeovers.append(now_ms)
        often = len(self._takeovers) > TAKEOVERS_MAX and now_ms - self._takeovers[0] < WINDOW_MS
        return Event.OTHERS if often else Event.OVERDUE

    def _step(self, event: Event) -> Action:
        self.state, action = self._table[self.state][event]
        return action
