"""What state machines over runs share: a store on disk, a copy that gets only its changes, and restarts."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from stored_values import Disk, in_small_pieces

from headrace.stores.runs import Runs


class PersistedRuns(RuleBasedStateMachine):
    """Runs in pieces of a few rows, few of which stay in memory, and slices of one row; a restart reads the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = in_small_pieces()
        self.store, self.copy, self.disk = self.new_store(), self.new_store(), Disk()
        self.store.attach(self.disk)

    def new_store(self) -> Runs:
        """A new, empty store."""
        raise NotImplementedError

    def all_rows(self) -> Iterable[pl.DataFrame]:
        """What the store holds, in a form that can be added to another store."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.patch.undo()

    @rule()
    def commit(self) -> None:
        for change in self.store.take_changes(1):
            self.copy.apply(change)
        self.store.persist(self.disk)

    @rule()
    def restart(self) -> None:
        self.commit()
        self.store = self.new_store()
        self.store.attach(self.disk)

    @rule()
    def restore(self) -> None:
        """Lose the local state: an empty store is rebuilt from the changelog."""
        self.commit()
        self.store, self.copy, self.disk = self.copy, self.new_store(), Disk()
        for rows in self.all_rows():
            self.copy.add(rows)
        self.copy.take_changes(1)

    @invariant()
    def nothing_is_left_on_disk(self) -> None:
        if not self.store.entries():
            self.store.persist(self.disk)
            assert [key for key in self.disk.values if key != b"manifest"] == []
