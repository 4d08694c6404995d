"""Streams read from Python: what is committed, or everything.

The output of an exactly-once app is true once a checkpoint covers it; before that a failure may take it back. So
readers wait for that by default. Rows that no checkpoint governs (a ``StreamWriter``'s, those of an app that runs
at least once) are true as soon as they are written, and are shown at once.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl

from headrace.checkpoint.record import ReaderPosition
from headrace.core.errors import DataError, FrameError, UsageError
from headrace.core.frame import Kind
from headrace.core.home import home_of
from headrace.core.ids import SSP, StreamId
from headrace.serdes.ipc import concat_rows, decode_rows
from headrace.streams.frames import UNWATCHED_WAIT_MS, WAIT_MS, CommittedGate, Frame, FrameReader, Gate, OpenGate
from headrace.streams.place import LOG, open_log, require_stream
from headrace.systems.base import Consumer

POSITION_FORMAT = 1


class _Position(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The durable form of a ``StreamReader``'s position: JSON."""

    format: int = POSITION_FORMAT
    stream: str
    committed: bool
    partitions: tuple[ReaderPosition, ...]


def read_stream(name: str, *, committed: bool = True, home: str | Path | None = None) -> pl.DataFrame:
    """All rows that a stream holds now, in the order of partitions and offsets.

    What an exactly-once app has written but not committed yet is left out, and so is what a failure has taken back;
    ``committed=False`` shows that too. ``home`` is ``HEADRACE_HOME``, else ``.headrace``, unless it is given.

    >>> hr.read_stream("orders").rows()
    [('ann', 5.0), ('ann', 2.0)]
    """
    reader = StreamReader(name, committed=committed, home=home)
    tables = [batch for partition in range(reader.partitions) for batch in reader.batches_of(partition)]
    if not tables:
        return pl.DataFrame(schema=reader.columns or {})
    return _together(reader.stream, tables)


class StreamReader:
    """Reads a stream batch by batch, and can go on later from where it was.

    Iterating gives what there is now; iterating again, what has come since. Whoever stores results and
    ``position()`` in one transaction has every row exactly once, whatever fails in between.

    >>> reader = hr.StreamReader("orders")
    >>> for batch in reader:
    ...     print(batch["euros"].sum(), type(reader.position()).__name__)
    7.0 str
    >>> again = hr.StreamReader("orders", from_position=reader.position())
    >>> list(again)
    []
    """

    def __init__(
        self,
        name: str,
        *,
        committed: bool = True,
        start: Literal["oldest", "upcoming"] = "oldest",
        from_position: str | None = None,
        home: str | Path | None = None,
    ) -> None:
        """Begin at ``start``, or at a position that another reader of this stream gave.

        ``committed=False`` shows rows before they are committed, and rows that are taken back later.
        """
        home = home_of(home)
        self._system = open_log(home)
        self.stream = StreamId(LOG, name)
        info = require_stream(self._system, self.stream, home)
        self.partitions = info.partitions
        self.columns = info.columns
        self._committed = committed
        if start not in ("oldest", "upcoming"):
            raise UsageError(f'start is "oldest" or "upcoming", not {start!r}')
        self._positions = self._beginning(start) if from_position is None else self._taken_up(from_position)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """The rows from the position to the present end, many at a time; partitions come side by side."""
        return self._read(list(self._positions))

    def follow(self, timeout: float | None = None) -> Iterator[pl.DataFrame]:
        """The rows as they come. Ends when the stream is sealed, or when no row has come for ``timeout`` seconds.

        >>> hr.StreamReader("orders", start="upcoming").follow(timeout=0.01)  # doctest: +ELLIPSIS
        <generator object ...>
        """
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise UsageError(f"timeout={timeout!r} is not a number of seconds", hint="write timeout=1.5")
        return self._read(list(self._positions), follow=True, timeout=timeout)

    def batches_of(self, partition: int) -> Iterator[pl.DataFrame]:
        """The same as iterating, for one partition: its rows come in their order."""
        return self._read([SSP(self.stream, partition)])

    def position(self) -> str:
        """Behind every batch handed out so far: a text to be kept, and given as ``from_position`` later."""
        partitions = tuple(self._positions.values())
        position = _Position(stream=str(self.stream), committed=self._committed, partitions=partitions)
        return msgspec.json.encode(position).decode()

    # -- inside

    def _beginning(self, start: str) -> dict[SSP, ReaderPosition]:
        extents = self._system.admin().extents(self.stream.name)
        return {
            SSP(self.stream, number): ReaderPosition(offset=extent.oldest if start == "oldest" else extent.upcoming)
            for number, extent in enumerate(extents)
        }

    def _taken_up(self, text: str) -> dict[SSP, ReaderPosition]:
        try:
            position = msgspec.json.decode(text, type=_Position)
        except (msgspec.MsgspecError, TypeError) as error:
            raise UsageError(f"this is no position of a StreamReader: {error}: {text!r:.200}") from error
        if position.format != POSITION_FORMAT:
            raise UsageError(
                f"a position of format {position.format}; this Headrace reads {POSITION_FORMAT}",
                hint="upgrade the reader before the writer",
            )
        found = (position.stream, position.committed, len(position.partitions))
        if found != (str(self.stream), self._committed, self.partitions):
            raise UsageError(
                f"the position is of {found[0]} with {found[2]} partitions, committed={found[1]}; "
                f"the reader is of {self.stream} with {self.partitions}, committed={self._committed}",
                hint="keep a position for each stream, and for each way to read it",
            )
        return {SSP(self.stream, number): each for number, each in enumerate(position.partitions)}

    def _read(
        self, ssps: Sequence[SSP], *, follow: bool = False, timeout: float | None = None
    ) -> Iterator[pl.DataFrame]:
        starts = {ssp: self._positions[ssp] for ssp in ssps}
        gate: Gate = CommittedGate(starts) if self._committed else OpenGate()
        silence = _Silence(timeout)
        reader = FrameReader(self._system, self.stream, gate, silence.wait, follow=follow, enough=silence.too_long)
        offsets = {ssp: position.offset or 0 for ssp, position in starts.items()}
        with closing(reader.read(offsets)) as looks:
            for frames in looks:
                tables = [_rows(frame) for frame in frames if frame.header.kind is Kind.USER]
                batch = _together(self.stream, tables) if tables else None
                # Only now: what could not be read is read again, and fails again.
                self._positions |= {ssp: found for ssp in ssps if (found := gate.position(ssp)) is not None}
                if batch is not None:
                    silence.broken()
                    yield batch
                    silence.broken()


class _Silence:
    """How long no row has come, and waiting for the end of that.

    It begins with a look for rows, not before: however long getting there takes, what is there is read.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._since: float | None = None

    def broken(self) -> None:
        """A row has come."""
        self._since = None

    def too_long(self) -> bool:
        """See ``StreamReader.follow``. Asked before each look."""
        if self._since is None:
            self._since = time.monotonic()
            return False
        return self._timeout is not None and time.monotonic() - self._since >= self._timeout

    def wait(self, consumer: Consumer) -> bool:
        """See ``Wait``."""
        number = consumer.fileno()
        wait_s = (UNWATCHED_WAIT_MS if number is None else WAIT_MS) / 1000
        if self._timeout is not None and self._since is not None:
            wait_s = max(0.0, min(wait_s, self._since + self._timeout - time.monotonic()))
        poll = select.poll()
        if number is not None:
            poll.register(number, select.POLLIN)
        poll.poll(wait_s * 1000)
        return not self.too_long()


def _rows(frame: Frame) -> pl.DataFrame:
    try:
        return decode_rows(frame.body)
    except FrameError as error:
        raise FrameError(f"{frame.where}: {error.message}", hint=error.hint) from error


def _together(stream: StreamId, tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One table; columns that only some have are null in the others (streams without a schema take anything)."""
    if all(table.schema == tables[0].schema for table in tables):
        return concat_rows(tables)
    try:
        return pl.concat(tables, how="diagonal", rechunk=True)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{stream} holds rows whose columns have different types: {str(error).splitlines()[0]}",
            hint="create streams with a schema; what is in this one headrace stream read shows",
        ) from error
