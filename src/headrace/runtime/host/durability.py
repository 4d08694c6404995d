"""What a commit waits for so that it survives what its app wants to survive.

With ``durability="commit"`` that includes a power cut, after which a file may lack whatever wasn't synced.
Three rules keep what is left of the files consistent:

1. Before the record of a commit is appended, what the task has written is on the disk: else the record could survive
   without the results that it covers.
2. So is all that it has read, whoever wrote it: else the record could name a position that its input doesn't reach
   any more, and what is written there next would be skipped.
3. Before anything follows from a commit (its checkpoint is sent, a version is published, the log is trimmed), its
   record is on the disk. That is for whoever goes by it: a task that starts may find a record that another incarnation
   has appended and that isn't on the disk yet. So what precedes its own abort is on the disk before it reads that.

The end of a task is announced by frames that come after its last commit; they are on the disk before it is over.

On the run-loop thread; blocks for the disk. Tasks of a container that wait at the same time wait together
(``Together``): each file is synced once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from headrace.api.settings import Durability
from headrace.runtime.connections import Connections
from headrace.runtime.inputs.consumers import InputConsumers
from headrace.runtime.pauses import Pause, Steps
from headrace.systems.syncing import Unsynced

T = TypeVar("T")


class Survival:
    """Waits for one task, if its app wants that."""

    def __init__(self, durability: Durability, connections: Connections, inputs: InputConsumers) -> None:
        self._wanted = durability == "commit"
        self._connections = connections
        self._inputs = inputs
        self._waiting = self._reads = False

    def of_what_is_there(self) -> Steps[None]:
        """What was sent is acknowledged; this, and what was read, survives from now on."""
        self._connections.flush_records()
        yield from self._wait(reads=True)

    def of_the_record(self) -> Steps[None]:
        """The record of a commit or an abort, which is acknowledged, survives from now on, with all before it."""
        yield from self._wait(reads=False)

    def _wait(self, *, reads: bool) -> Steps[None]:
        if not self._wanted:
            return
        self._waiting, self._reads = True, reads
        yield Pause.DISK
        if self._waiting:  # nobody has done it for several tasks
            self._connections.sync_records(self.unsynced())
            self.synced()

    def unsynced(self) -> Iterable[Unsynced]:
        """What it waits for, apart from what the container has written."""
        return self._inputs.unsynced() if self._reads else ()

    def synced(self) -> None:
        """All that it waits for is on the disk."""
        self._waiting = False


class Together:
    """Does the work of several tasks one after the other, but has them wait for the disk together."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._waiting: list[tuple[Survival, Steps[Any], Callable[[Any], None]]] = []

    def go_on(self, survival: Survival, work: Steps[T], done: Callable[[T], None] = lambda result: None) -> Steps[bool]:
        """Work for a task until it is ``done``; False: it waits for the disk, and ``wait`` goes on with it."""
        while True:
            try:
                pause = next(work)
            except StopIteration as stop:
                done(stop.value)
                return True
            if pause is Pause.DISK:
                self._waiting.append((survival, work, done))
                return False
            yield pause

    def wait(self) -> Steps[None]:
        """Wait for the disk with all tasks that do, until none does any more."""
        while self._waiting:
            yield Pause.DISK
            waiting, self._waiting = self._waiting, []
            self._connections.sync_records(each for survival, _, _ in waiting for each in survival.unsynced())
            for survival, _, _ in waiting:
                survival.synced()
            for survival, work, done in waiting:
                yield from self.go_on(survival, work, done)
