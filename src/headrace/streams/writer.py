"""Streams made and filled from Python.

Rows become plain user frames, which no checkpoint governs: they count as soon as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import polars as pl

from headrace.core.errors import StorageError, UsageError
from headrace.core.home import home_of
from headrace.core.ids import Offset, StreamId, check_id
from headrace.serdes.schema import Schema, as_records
from headrace.streams.place import LOG, open_log, require_stream
from headrace.streams.row_writer import RowWriter


def create_stream(name: str, partitions: int, schema: object = None, *, home: str | Path | None = None) -> None:
    """Create a stream; one of the same shape may be there already.

    Raises ``StreamExistsError`` when one of another shape is there. ``home`` is ``HEADRACE_HOME``, else ``.headrace``,
    unless it is given.

    >>> hr.streams.create_stream("orders", 2, {"member": pl.String, "euros": pl.Float64})
    """
    check_id("stream", name)
    columns = None if schema is None else dict(Schema.of(schema).columns)
    open_log(home_of(home)).admin().create(name, partitions, columns)


class StreamWriter:
    """Writes rows to one stream. A ``write`` has reached the log when it returns.

    >>> with hr.streams.StreamWriter("orders", key="member") as writer:
    ...     ends = writer.write([{"member": "ann", "euros": 5.0}, {"member": "ann", "euros": 2.0}])
    >>> len(ends)  # one key, so one partition
    1
    """

    def __init__(self, name: str, *, key: str | Sequence[str] = (), home: str | Path | None = None) -> None:
        """With ``key`` columns, rows of one key go to one partition; without, batches go round robin."""
        home = home_of(home)
        system, stream = open_log(home), StreamId(LOG, name)
        info = require_stream(system, stream, home)
        self._name = name
        self._admin = system.admin()
        self._schema = Schema(info.columns) if info.columns is not None else None
        keys = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else [key]
        unknown = [name for name in keys if not isinstance(name, str) or (info.columns and name not in info.columns)]
        if unknown:
            there = ", ".join(info.columns or {}) or "columns with names"
            raise UsageError(f"key={key!r}: there is no column {unknown[0]!r} in {stream}", hint=f"it has {there}")
        self._closed = False
        self._writer = RowWriter(system, stream, info, keys)

    def write(self, rows: pl.DataFrame | Iterable[Any]) -> dict[int, Offset]:
        """Append rows (a DataFrame, or dicts); returns the offset behind them in each partition written.

        Raises ``DataError`` when they don't fit the stream's schema: then none of them was written. When the disk is
        full, the rows are kept, and the next write, or ``close``, writes them first.
        """
        if self._closed:
            raise UsageError(f"this writer of {self._name!r} is closed", hint="make another one")
        table = rows if isinstance(rows, pl.DataFrame) else self._table(as_records(rows))
        if self._schema is not None:
            table, mismatch = self._schema.conform(table)
            if mismatch is not None:
                raise mismatch.error()
        if not table.height:
            return {}
        try:
            self._writer.write(table)
        except StorageError as error:
            error.then("then go on: these rows are kept, and the next write, or the close, brings them first")
            raise
        return self._writer.ends

    def seal(self) -> None:
        """End the stream for good: its readers end too."""
        self._writer.flush()
        self._admin.seal(self._name)

    def close(self) -> None:
        """Release the writer; the stream stays open."""
        self._closed = True
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _table(self, records: list[Any]) -> pl.DataFrame:
        return self._schema.from_records(records) if self._schema is not None else pl.DataFrame(records)
