"""The local state of a simulated task: the real ``TaskState`` over a database that is a dict.

What it does with stores, changes and commits is the real thing. What a disk does is simulated: a batch is there or not,
a folder may be lost, locked or damaged, snapshots are copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from headrace.checkpoint.record import LOCAL_KEY, LocalCheckpoint
from headrace.core.clock import WallClock
from headrace.core.errors import FrameError
from headrace.core.ids import SSP, Offset
from headrace.core.recent_warnings import RecentWarnings
from headrace.runtime.naming import StateFolders
from headrace.runtime.state.task_state import TaskState
from headrace.stores.database import Batch, Database
from simulator.storage import Folder, SimSnapshot

_NOWHERE = StateFolders(Path("local"), Path("snapshots"))


class _Journal:
    """Takes down what a batch is told, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes | None, bytes | None]] = []
        """A key and its value (None: deleted); or with a third, the end of a range that goes."""

    def put(self, key: bytes, value: bytes) -> None:
        self.entries.append((key, value, None))

    def delete(self, key: bytes) -> None:
        self.entries.append((key, None, None))

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self.entries.append((start, None, stop))


class SimBatch(Batch):
    """Writes that become visible together."""

    writes: Any

    def __init__(self) -> None:
        self.writes = _Journal()


class SimDatabase(Database):
    """A folder's contents, as RocksDB would keep them."""

    def __init__(self, folder: Folder) -> None:
        self.contents = folder

    @override
    def get(self, key: bytes) -> bytes | None:
        if key == LOCAL_KEY:
            return self.contents.local
        value: bytes | None = self.contents.state.get(key)
        return value

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.contents.state.get(key) for key in keys]

    @override
    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        state = self.contents.state
        found = sorted((key for key in state if start <= key < stop), reverse=reverse)
        return iter([(key, state[key]) for key in found])

    @override
    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        state = self.contents.state
        return iter([(key, state[key]) for key in sorted(state) if key.startswith(prefix)])

    @override
    def batch(self) -> Batch:
        return SimBatch()

    @override
    def write(self, batch: Batch) -> None:
        assert isinstance(batch, SimBatch)
        state = self.contents.state
        for key, value, stop in batch.writes.entries:
            if stop is not None:
                for gone in [known for known in state if key <= known < stop]:
                    del state[gone]
            elif key == LOCAL_KEY:
                self.contents.local = value
            elif value is None:
                state.pop(key, None)
            else:
                state[key] = value

    @override
    def begin_rebuilding(self) -> None:
        return

    @override
    def end_rebuilding(self) -> None:
        return

    @override
    def close(self) -> None:
        return


class SimState(TaskState):
    """The stores of one incarnation, and the folder beneath them."""

    def __init__(self, changelog: SSP, folder: Folder, snapshots: list[SimSnapshot]) -> None:
        super().__init__(changelog, _NOWHERE, RecentWarnings(WallClock()))
        self._contents = folder
        self._copies = snapshots

    @override
    def _open(self, folders: StateFolders) -> Database:
        """A damaged folder is found out when it is opened, as RocksDB's checksums would."""
        if self._contents.local is not None:
            try:
                LocalCheckpoint.decode(self._contents.local)
            except FrameError as error:
                self._warn(f"{error.message}; rebuilding it")
                self._contents.wipe()
        return SimDatabase(self._contents)

    @override
    def _from_snapshot(self) -> LocalCheckpoint | None:
        self._contents.wipe()
        if not self._copies:
            return None
        newest = max(self._copies, key=lambda snapshot: snapshot.local.offset)
        self._contents.state.update(newest.state)
        self._contents.local = newest.local.encode()
        return newest.local

    @override
    def _newest_snapshot(self) -> Offset:
        return max((snapshot.local.offset for snapshot in self._copies), default=0)

    @override
    def _throw_away(self) -> None:
        self._contents.wipe()
