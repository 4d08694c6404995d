"""A writer of the protocol without an app: what one task of an exactly-once app writes into a stream of numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from headrace.core.frame import Checkpoint, Header, Kind, Restore, encode, encode_control
from headrace.rows.ipc import encode_rows
from headrace.systems.log.system import LogSystem


class AppTask:
    """What one task of an exactly-once app writes into a partition."""

    def __init__(self, home: Path, producer: int = 7, partition: int = 0) -> None:
        self._producer = LogSystem(home / "streams").producer()
        self._id, self._partition = producer, partition
        self.generation, self.seq = 0, 0
        self._committed, self._committed_by = 0, 0

    def start(self) -> None:
        """Start (again) from what was committed."""
        self.generation += 1
        self.seq = self._committed
        committed = Restore(
            task_name="a/0", task_count=1, committed_by=self._committed_by, seq=self._committed, next_version=1
        )
        self._control(Kind.RESTORE, committed)

    def rows(self, *numbers: int) -> None:
        self._send(encode(self._header(Kind.USER), encode_rows(pl.DataFrame({"n": numbers}))))

    def commit(self) -> None:
        self._committed, self._committed_by = self.seq, self.generation
        self._control(Kind.CHECKPOINT, Checkpoint(task_name="a/0", task_count=1, next_version=2))

    def _header(self, kind: Kind) -> Header:
        self.seq += 1
        return Header(kind, self._id, self.generation, 1, self.seq)

    def _control(self, kind: Kind, message: Checkpoint | Restore) -> None:
        self._send(encode_control(self._header(kind), message))

    def _send(self, frame: bytes) -> None:
        self._producer.send("numbers", self._partition, frame)
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()
