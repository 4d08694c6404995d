"""Record a container's current call of the app's own code, for other threads and for diagnosis after its death.

The run loop writes, other threads read, without a lock: a record is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

Done = Callable[[], int]
"""Says, from any thread, a number that changes with each message of a batch for which a function has been called."""


def _nothing() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Work:
    """A call of the app's own code: by which task and step, since when (monotonic), on which messages.

    ``place`` is text, and empty if no message is being processed: time alone has led to the call. A function that takes
    single messages is called for each of a batch, and ``done`` shows that it goes on.
    """

    task: str
    step: str
    place: str
    since_ms: float
    done: Done = field(default=_nothing, compare=False)


class AtWork:
    """The call in progress in a container; ``now`` is None between calls."""

    def __init__(
        self, monotonic_ms: Callable[[], float] = lambda: 0.0, keep: Callable[[Work | None], None] = lambda work: None
    ) -> None:
        """``keep`` is given each change, and may keep it where it outlives the process."""
        self.now: Work | None = None
        self.spent: Callable[[str, str, float], None] = lambda task, step, seconds: None
        """Receives the duration of each call of a step."""
        self.entered: Callable[[str], None] = lambda task: None
        """Receives the task for which the app's code works from now on."""
        self._monotonic_ms = monotonic_ms
        self._keep = keep

    def begin(self, task: str, step: str, place: str, done: Done = _nothing) -> None:
        """A call begins."""
        self.entered(task)
        self.now = Work(task, step, place, self._monotonic_ms(), done)
        self._keep(self.now)

    def end(self) -> None:
        """The call has ended."""
        if (work := self.now) is not None:
            self.spent(work.task, work.step, (self._monotonic_ms() - work.since_ms) / 1000)
        self.now = None
        self._keep(None)


class UserCall:
    """A context manager around a call of the app's own code."""

    __slots__ = ("_at_work", "_done", "_place", "_step", "_task")

    def __init__(self, at_work: AtWork, task: str, step: str, place: str, done: Done | None = None) -> None:
        self._at_work, self._task, self._step, self._place = at_work, task, step, place
        self._done = done or _nothing

    def __enter__(self) -> None:
        self._at_work.begin(self._task, self._step, self._place, self._done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._at_work.end()


class Movement:
    """When the call that is under way has last gone on to another message. One thread asks, now and then."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._done = 0
        self._moved_ms = 0.0

    def moved_ms(self, work: Work, now_ms: float) -> float:
        """When (monotonic) this call began, or was first seen to have gone on to where it is."""
        done = work.done()
        if work is not self._work:
            self._work, self._done, self._moved_ms = work, done, work.since_ms
        elif done != self._done:
            self._done, self._moved_ms = done, now_ms
        return self._moved_ms
