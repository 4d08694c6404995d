"""What a container is doing in the app's own code, for other threads and for whoever finds the container dead.

The run loop writes, other threads read, without a lock: a record is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Work:
    """A call of the app's own code: by which task and step, since when (monotonic), on which messages.

    ``place`` is text, and empty if no message is being processed: time alone has led to the call.
    """

    task: str
    step: str
    place: str
    since_ms: float


class AtWork:
    """The call that is under way in a container; ``now`` is None while there is none."""

    def __init__(
        self, monotonic_ms: Callable[[], float] = lambda: 0.0, keep: Callable[[Work | None], None] = lambda work: None
    ) -> None:
        """``keep`` is given each change, and may keep it where it outlives the process."""
        self.now: Work | None = None
        self._monotonic_ms = monotonic_ms
        self._keep = keep

    def begin(self, task: str, step: str, place: str) -> None:
        """A call begins."""
        self.now = Work(task, step, place, self._monotonic_ms())
        self._keep(self.now)

    def end(self) -> None:
        """The call has ended."""
        self.now = None
        self._keep(None)


class UserCall:
    """A context manager around a call of the app's own code."""

    __slots__ = ("_at_work", "_place", "_step", "_task")

    def __init__(self, at_work: AtWork, task: str, step: str, place: str) -> None:
        self._at_work, self._task, self._step, self._place = at_work, task, step, place

    def __enter__(self) -> None:
        self._at_work.begin(self._task, self._step, self._place)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._at_work.end()
