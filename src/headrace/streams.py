"""Streams of the embedded log from Python: create them, write rows, read everything back.

For generators, tests and notebooks; apps use ``App.input`` and ``App.output``. Rows become plain user frames,
which no checkpoint governs: they count as soon as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import polars as pl

from headrace.core.errors import StreamNotFoundError
from headrace.core.frame import Header, Kind, body_of, decode_header, encode
from headrace.core.ids import SSP, Offset, StreamId, check_id
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.ipc import concat_rows, decode_rows, encode_rows
from headrace.serdes.schema import Schema
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem


def create_stream(name: str, partitions: int, schema: object = None, *, home: str | Path = ".headrace") -> None:
    """Create a stream; one of the same shape may be there already.

    Raises ``StreamExistsError`` when one of another shape is there.
    """
    check_id("stream", name)
    columns = None if schema is None else dict(Schema.of(schema).columns)
    _log(home).admin().create(name, partitions, columns)


def read_stream(name: str, *, home: str | Path = ".headrace") -> pl.DataFrame:
    """All rows that a stream holds now, in the order of partitions and offsets."""
    system = _log(home)
    admin = system.admin()
    info = admin.describe(name)
    if info is None:
        raise _missing(name, admin.list())
    consumer = system.consumer()
    frames: list[pl.DataFrame] = []
    try:
        for partition, extent in enumerate(admin.extents(name)):
            ssp = SSP(StreamId("log", name), partition)
            consumer.register(ssp, Edge.OLDEST)
            while consumer.position(ssp) < extent.upcoming:
                polled = consumer.poll([ssp], 64 << 20)
                if not polled:
                    break  # what is left is the unfinished end of an append
                for records in polled:
                    if isinstance(records, Records):
                        frames += [
                            decode_rows(body_of(payload))
                            for payload in records.payloads
                            if decode_header(payload).kind is Kind.USER
                        ]
            consumer.unregister(ssp)
    finally:
        consumer.close()
    if not frames:
        return pl.DataFrame(schema=info.columns or {})
    return concat_rows(frames)


class StreamWriter:
    """Writes rows to one stream. A ``write`` has reached the log when it returns."""

    def __init__(self, name: str, *, key: str | Sequence[str] = (), home: str | Path = ".headrace") -> None:
        """With ``key`` columns, rows of one key go to one partition; without, batches go round robin."""
        system = _log(home)
        self._admin = system.admin()
        info = self._admin.describe(name)
        if info is None:
            raise _missing(name, self._admin.list())
        self._name = name
        self._partitions = info.partitions
        self._schema = Schema(info.columns) if info.columns is not None else None
        self._keys = [key] if isinstance(key, str) else list(key)
        self._producer = system.producer()
        self._turn = 0

    def write(self, rows: pl.DataFrame | Iterable[Any]) -> dict[int, Offset]:
        """Append rows (a DataFrame, or dicts); returns the offset behind them in each partition written.

        Raises ``DataError`` when they don't fit the stream's schema: then none of them was written.
        """
        table = rows if isinstance(rows, pl.DataFrame) else self._table(list(rows))
        if self._schema is not None:
            table, mismatch = self._schema.conform(table)
            if mismatch is not None:
                raise mismatch.error()
        if not table.height:
            return {}
        if self._keys:
            parts = split(table, partition_of(table, self._keys, self._partitions), self._partitions)
        else:
            parts = [(self._turn, table)]
            self._turn = (self._turn + 1) % self._partitions
        for partition, part in parts:
            self._producer.send(self._name, partition, encode(Header(Kind.USER), encode_rows(part)))
        return {partition: offset for (_, partition), offset in self._producer.flush().items()}

    def seal(self) -> None:
        """End the stream for good: its readers end too."""
        self._producer.flush()
        self._admin.seal(self._name)

    def close(self) -> None:
        """Release the writer; the stream stays open."""
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _table(self, records: list[Any]) -> pl.DataFrame:
        return self._schema.from_records(records) if self._schema is not None else pl.DataFrame(records)


def _log(home: str | Path) -> LogSystem:
    return LogSystem(Path(home) / "streams")


def _missing(name: str, there: Sequence[str]) -> StreamNotFoundError:
    return StreamNotFoundError(
        f"there is no stream {name!r}" + (f"; there are {', '.join(there)}" if there else ""),
        hint=f"create it: headrace stream create {name} --partitions 4, or hr.create_stream(...)",
    )
