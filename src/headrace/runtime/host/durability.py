"""Wait before and after a commit, so that it survives the failures that its app wants to survive.

With ``durability="commit"``, these include a power cut, after which a file may lack everything that wasn't synced.
Three rules keep the remaining files consistent:

1. Before a commit record is appended, the task's writes are on the disk. Otherwise the record could survive without
   the results that it covers.
2. So is everything that the task has read, whoever wrote it. Otherwise the record could name a position that its
   input no longer reaches, and the task would skip records written there later.
3. Before a commit has any consequence (its checkpoint is sent, a version is published, the log is trimmed), its record
   is on the disk. This also protects other incarnations: a starting task may find a record that another incarnation
   has appended but not synced. So everything before its own abort is on the disk before it reads the abort.

Frames after its last commit announce the end of a task; they are on the disk before the task is finished.

Runs on the run-loop thread and blocks for the disk. Tasks of a container that wait at the same time wait together
(``Together``), so that each file is synced once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from headrace.api.settings import Durability
from headrace.runtime.connections import Connections
from headrace.runtime.inputs.consumers import InputConsumers
from headrace.runtime.pauses import Pause, Steps
from headrace.systems.syncing import Unsynced

TASKS_AT_ONCE = 512
"""How many tasks wait together at most: until then, the files that they have written stay open."""

T = TypeVar("T")


class Survival:
    """Waits for one task, if its app's durability requires it."""

    def __init__(self, durability: Durability, connections: Connections, inputs: InputConsumers) -> None:
        self._wanted = durability == "commit"
        self._connections = connections
        self._inputs = inputs
        self._waiting = self._reads = False

    def of_what_is_there(self, flushed: Callable[[], None]) -> Steps[None]:
        """Wait until the acknowledged writes and everything that was read are on the disk.

        Calls ``flushed`` when all of it is there, and nothing else yet.
        """
        self._connections.flush_records()
        flushed()
        yield from self._wait(reads=True)

    def of_the_record(self) -> Steps[None]:
        """Wait until the acknowledged record of a commit or abort is on the disk, with everything before it."""
        yield from self._wait(reads=False)

    def _wait(self, *, reads: bool) -> Steps[None]:
        if not self._wanted:
            self._connections.waive_sync(self._inputs.unsynced() if reads else ())
            return
        self._waiting, self._reads = True, reads
        yield Pause.DISK
        if self._waiting:  # ``Together`` hasn't synced for several tasks
            self._connections.sync_records(self.unsynced())
            self.synced()

    def unsynced(self) -> Iterable[Unsynced]:
        """Return the files to wait for that the container hasn't written itself."""
        return self._inputs.unsynced() if self._reads else ()

    def synced(self) -> None:
        """Note that everything it waits for is on the disk."""
        self._waiting = False


class Together:
    """Does the work of several tasks one after the other, but makes them wait for the disk together."""

    def __init__(self, connections: Connections, at_once: int = TASKS_AT_ONCE) -> None:
        self._connections = connections
        self._at_once = at_once
        self._waiting: list[tuple[Survival, Steps[Any], Callable[[Any], None]]] = []

    def go_on(self, survival: Survival, work: Steps[T], done: Callable[[T], None] = lambda result: None) -> Steps[bool]:
        """Work for a task until it is ``done``. Return False if it waits for the disk; ``wait`` then continues it."""
        while True:
            try:
                pause = next(work)
            except StopIteration as stop:
                done(stop.value)
                return True
            if pause is Pause.DISK:
                self._waiting.append((survival, work, done))
                if len(self._waiting) >= self._at_once:
                    yield from self.wait()
                return False
            yield pause

    def wait(self) -> Steps[None]:
        """Wait for the disk with all waiting tasks, until none waits any more."""
        while self._waiting:
            yield Pause.DISK
            waiting, self._waiting = self._waiting, []
            self._connections.sync_records(each for survival, _, _ in waiting for each in survival.unsynced())
            for survival, _, _ in waiting:
                survival.synced()
            for survival, work, done in waiting:
                yield from self.go_on(survival, work, done)
