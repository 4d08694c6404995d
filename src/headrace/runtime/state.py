"""The state of one task between commits: which store changed, what waits for its commit, when to write it all.

Every so often a commit is *full*: it begins with a reset and its changes rebuild all stores from nothing, so
the changelog before it can be trimmed. Restoring reads a few times the size of the state at most, and an
ordinary commit writes just what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.checkpoint.record import Change
from headrace.core.errors import CorruptLogError
from headrace.core.ids import SSP
from headrace.stores.base import StateStore

RESET = Change("", b"\x01")
"""The first change of a full commit: all stores are empty now. No store has an empty id."""

FULL_AFTER_BYTES_MIN = 8 << 20


class TaskState:
    """All stores of a task, and the changes that are read back but not known to count yet."""

    def __init__(self, changelog: SSP, stores: Mapping[str, StateStore]) -> None:
        self._changelog = changelog
        self._stores = stores
        self._held: list[Change] = []
        self._since_full = 0
        self._full_size = 0

    # -- a commit being written

    def full_due(self) -> bool:
        """The changelog has grown to a few times the state: the next commit should be full."""
        return self._since_full > max(FULL_AFTER_BYTES_MIN, 2 * self._full_size)

    def changes(self, *, full: bool) -> Iterator[Change]:
        """What the next commit has to say."""
        if full:
            yield RESET
        for id_, store in self._stores.items():
            changes = store.take_changes()
            for change in store.snapshot() if full else changes:
                yield Change(id_, change)

    def wrote(self, size: int, *, full: bool) -> None:
        """A commit with changes of so many bytes counts."""
        if full:
            self._full_size, self._since_full = size, 0
        else:
            self._since_full += size

    # -- a changelog being read

    def hold(self, body: memoryview) -> None:
        """Keep a change until its commit is read."""
        self._held.append(Change.decode(body))

    def forget(self) -> None:
        """What is held never happened."""
        self._held.clear()

    def apply(self) -> None:
        """What is held counts."""
        size = sum(len(change.change) for change in self._held)
        full = bool(self._held) and not self._held[0].store
        for change in self._held:
            if not change.store:
                self.clear()
                continue
            store = self._stores.get(change.store)
            if store is None:
                raise CorruptLogError(
                    f"{self._changelog} holds state of step {change.store!r}, which the app doesn't have any more",
                    hint="give the step its id back, or start the app under another name (its state begins anew)",
                )
            store.apply(bytes(change.change))
        self._held.clear()
        self.wrote(size, full=full)

    def clear(self) -> None:
        """Make all stores empty."""
        for store in self._stores.values():
            store.clear()
