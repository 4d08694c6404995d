"""Streams made and filled from Python.

Rows become plain user frames, which no checkpoint governs: they are final as soon as they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from headrace.api.system_descriptor import SystemDescriptor
from headrace.core.errors import StorageError, UsageError
from headrace.core.home import home_of
from headrace.core.ids import Offset, StreamId, check_id
from headrace.serdes.given_rows import Rows, given_rows
from headrace.serdes.schema import Schema
from headrace.streams.place import opened
from headrace.streams.row_writer import RowWriter
from headrace.systems.finding import require_stream
from headrace.systems.registry import SystemSpec


def create_stream(
    name: str,
    partitions: int,
    schema: object = None,
    *,
    key: str | Sequence[str] = (),
    home: str | Path | None = None,
    system: SystemDescriptor | SystemSpec | None = None,
) -> None:
    """Create a stream. Succeeds if one of the same shape exists.

    Parameters
    ----------
    name
        The stream.
    partitions
        How many partitions it has. The count can't be changed later.
    schema
        Its columns: a dict of Polars types, or a dataclass. By default it takes any.
    key
        One column or several, by which all writers choose the partition of a row. Apps that read the stream can keep
        state by this key without ``partition_by``. By default each writer may have a key of its own.
    home
        The folder of the log. By default the environment variable ``HEADRACE_HOME``, or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.

    Raises
    ------
    StreamExistsError
        If a stream of this name has another number of partitions, other columns or another key.

    Examples
    --------
    >>> hr.streams.create_stream("orders", 2, {"member": pl.String, "euros": pl.Float64})
    >>> hr.streams.create_stream("orders-by-member", 2, {"member": pl.String, "euros": pl.Float64}, key="member")
    """
    check_id("stream", name)
    columns = None if schema is None else dict(Schema.of(schema).columns)
    _, keeper = opened(system, home_of(home))
    keeper.admin().create(name, partitions, columns, (key,) if isinstance(key, str) else tuple(key))


def add_columns(
    name: str,
    schema: object,
    *,
    home: str | Path | None = None,
    system: SystemDescriptor | SystemSpec | None = None,
) -> None:
    """Add columns to a stream. Succeeds if they exist already.

    In rows that were written before, and in rows of writers that don't know the column, it is null. A column can't be
    removed, and its type can't be changed.

    Parameters
    ----------
    name
        The stream.
    schema
        The columns to add: a dict of Polars types, or a dataclass. Columns that the stream has already may be among
        them.
    home
        The folder of the log. By default the environment variable ``HEADRACE_HOME``, or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.

    Raises
    ------
    StreamExistsError
        If the stream has a column of that name and another type.

    Examples
    --------
    >>> hr.streams.create_stream("orders", 2, {"member": pl.String, "euros": pl.Float64})
    >>> hr.streams.add_columns("orders", {"voucher": pl.String})
    >>> hr.streams.read_stream("orders").columns
    ['member', 'euros', 'voucher']
    """
    home = home_of(home)
    system_name, keeper = opened(system, home)
    require_stream(keeper, StreamId(system_name, name), home)
    keeper.admin().add_columns(name, dict(Schema.of(schema).columns))


class StreamWriter:
    """Writes rows to one stream. When ``write`` returns, the rows are in the log.

    Parameters
    ----------
    name
        The stream.
    key
        One column or several: rows of one key go to one partition. By default the key with which the stream was
        created; without one, batches go to the partitions in turn.
    home
        The folder of the log. By default the environment variable ``HEADRACE_HOME``, or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.

    Examples
    --------
    >>> with hr.streams.StreamWriter("orders", key="member") as writer:
    ...     ends = writer.write([{"member": "ann", "euros": 5.0}, {"member": "ann", "euros": 2.0}])
    >>> len(ends)  # one key, so one partition
    1
    """

    def __init__(
        self,
        name: str,
        *,
        key: str | Sequence[str] = (),
        home: str | Path | None = None,
        system: SystemDescriptor | SystemSpec | None = None,
    ) -> None:
        home = home_of(home)
        system_name, keeper = opened(system, home)
        stream = StreamId(system_name, name)
        info = require_stream(keeper, stream, home)
        self._name = name
        self._admin = keeper.admin()
        self._schema = Schema(info.columns) if info.columns is not None else None
        self._added = info.added
        keys = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else [key]
        unknown = [name for name in keys if not isinstance(name, str) or (info.columns and name not in info.columns)]
        if unknown:
            there = ", ".join(info.columns or {}) or "columns with names"
            raise UsageError(f"key={key!r}: there is no column {unknown[0]!r} in {stream}", hint=f"it has {there}")
        self._closed = False
        self._writer = RowWriter(keeper, stream, info, keys)

    def write(self, rows: Rows) -> dict[int, Offset]:
        """Append rows.

        If the disk is full, the rows are kept in memory, and the next ``write``, or ``close``, writes them first.

        Parameters
        ----------
        rows
            A DataFrame (of Polars, pandas, Spark or Arrow), dicts, or instances of a dataclass. Columns that were added
            to the stream may be missing.

        Returns
        -------
        dict
            For each partition written, the offset after the rows.

        Raises
        ------
        DataError
            If a row doesn't fit the stream's schema, or has a column that the stream doesn't have. None of the rows is
            written then.
        """
        if self._closed:
            raise UsageError(f"this writer of {self._name!r} is closed", hint="open another one")
        table = given_rows(rows, self._schema, self._name, self._added)
        if self._schema is not None:
            table, mismatch = self._schema.conform(table, self._added)
            if mismatch is not None:
                raise mismatch.error()
        if not table.height:
            return {}
        try:
            self._writer.write(table)
        except StorageError as error:
            error.then("then continue: these rows are kept, and the next write, or close, writes them first")
            raise
        return self._writer.ends

    def seal(self) -> None:
        """End the stream: nothing can be written to it any more, and its readers end with its last row."""
        self._writer.flush()
        self._admin.seal(self._name)

    def close(self) -> None:
        """Release the writer. The stream stays open for others."""
        self._closed = True
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
