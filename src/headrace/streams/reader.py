"""Streams read from Python, row by row or frame by frame: what is committed, or everything.

The output of an exactly-once app is final once a checkpoint covers it; before that a failure may take it back. So
readers wait for the checkpoint by default. Rows that no checkpoint governs are shown at once. Without ``follow``
reading ends where the stream ended when reading began. Only the caller's way to wait blocks.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, overload

import msgspec
import polars as pl
from typing_extensions import override

from headrace.api.descriptors import SystemLike
from headrace.core.clock import Duration, to_ms
from headrace.core.deployment import home_of
from headrace.core.errors import DataError, FrameError, ProtocolError, UnavailableError, UsageError
from headrace.core.files import UNREADABLE, readable
from headrace.core.frame import ControlMessage, Header, Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset, StreamId
from headrace.core.log import is_milestone
from headrace.core.plug_ins import loaded, plug_in
from headrace.protocol.read_committed import ReadCommitted
from headrace.protocol.record import ReaderPosition
from headrace.rows.dtypes import Columns
from headrace.rows.given import concat_rows
from headrace.rows.ipc import WRITER_HINT, decode_rows
from headrace.rows.schema import filled_up
from headrace.streams.committed_writer import opened
from headrace.systems.base import Consumer, Ended, Position, Records, System
from headrace.systems.registry import LOG, require_stream

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_MS = 500
UNWATCHED_WAIT_MS = 50  # the longest wait (ms), and the one for systems whose consumers have no descriptor to wait on
EMPTY_POLLS_MAX = 20
_DAMAGED_HINT = "an app wrote the frame, so it was damaged later: headrace stream verify checks the files of a log"
_CONTROL = (Kind.WATERMARK, Kind.END_OF_STREAM, Kind.CHECKPOINT, Kind.RESTORE)
T = TypeVar("T")
Wait = Callable[[Consumer], bool]  # wait for a consumer to have more, but not for long; False: stop reading
Damaged = Callable[[FrameError], None]
"""Called for each record that can't be read. Raises the error, or returns if the record is to be left out."""


def refuse(error: FrameError) -> None:
    """Raise the error: every record is needed."""
    raise error


def wait_for_more(consumer: Consumer) -> bool:
    """Wait for a consumer to have more, but not for long."""
    number = consumer.fileno()
    readable(number, UNWATCHED_WAIT_MS if number is None else WAIT_MS)
    return True


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame and its place."""

    ssp: SSP
    offset: Offset
    after: Offset
    header: Header
    body: memoryview

    @property
    def where(self) -> str:
        """Its place, for errors."""
        return f"{self.ssp}, offset {self.offset}"


def rows_of(frame: Frame) -> pl.DataFrame:
    """The frame's rows; raises ``FrameError`` with its place, and with what its header says of its writer."""
    try:
        return decode_rows(frame.body)
    except FrameError as error:
        header, writer, hint = frame.header, "a writer outside of apps", error.hint
        if header.seq:  # only apps number their frames
            writer = f"a task of an app (producer {header.producer}, generation {header.generation})"
            hint = _DAMAGED_HINT if hint == WRITER_HINT else hint
        raise FrameError(f"{frame.where}, in a frame of {writer}: {error.message}", hint=hint) from error


def control_of(frame: Frame) -> ControlMessage:
    """The frame's control message; raises ``FrameError`` with its place."""
    try:
        return decode_control(frame.header.kind, frame.body)
    except FrameError as error:
        raise FrameError(f"{frame.where}: {error.message}", hint=error.hint) from error


def frames_of(records: Records, damaged: Damaged = refuse, before: Offset | None = None) -> Iterator[Frame]:
    """The frames of records, or of those before an offset."""
    afters = [*records.offsets[1:], records.next]
    for offset, after, payload in zip(records.offsets, afters, records.payloads, strict=True):
        if before is not None and offset >= before:
            return
        try:
            header = decode_header(payload)
        except FrameError as error:
            damaged(FrameError(f"{records.ssp}, offset {offset}: {error.message}", hint=error.hint))
            continue
        yield Frame(records.ssp, offset, after, header, body_of(payload))


def receive(partition: ReadCommitted[T], frame: Frame, kept: T) -> list[T]:
    """Give a committed reader a frame of its partition, of which it keeps this. Returns what is to be shown now."""
    control = control_of(frame) if frame.header.kind in _CONTROL else None
    try:
        released = partition.receive(frame.offset, frame.after, frame.header, control, kept)
    except ProtocolError as error:
        raise ProtocolError(f"{frame.ssp}: {error.message}", hint=error.hint) from error
    return [each.frame for each in released]


class Gate(Protocol):
    """Decides which frames are shown. A frame may be held until that is known."""

    @property
    def held(self) -> int:
        """How many frames are held."""

    def admit(self, frame: Frame) -> Sequence[Frame]:
        """Take a frame; return the frames to show now: none, this one, or some that were held until now."""

    def position(self, ssp: SSP) -> ReaderPosition | None:
        """Where to resume once everything shown so far is processed; None if nothing has arrived."""


class OpenGate(Gate):
    """Shows every frame as it comes."""

    held = 0

    def __init__(self) -> None:
        self._after: dict[SSP, Offset] = {}

    @override
    def admit(self, frame: Frame) -> Sequence[Frame]:
        self._after[frame.ssp] = frame.after
        return (frame,)

    @override
    def position(self, ssp: SSP) -> ReaderPosition | None:
        return ReaderPosition(offset=self._after[ssp]) if ssp in self._after else None


class CommittedGate(Gate):
    """Shows a frame once its checkpoint is committed; drops frames that were taken back."""

    def __init__(self, positions: Mapping[SSP, ReaderPosition] | None = None) -> None:
        """``positions`` are an earlier gate's, from which to resume."""
        self._partitions: dict[SSP, ReadCommitted[Frame]] = {
            ssp: ReadCommitted(position) for ssp, position in (positions or {}).items()
        }

    @property
    @override
    def held(self) -> int:
        return sum(partition.held for partition in self._partitions.values())

    @override
    def admit(self, frame: Frame) -> Sequence[Frame]:
        partition = self._partitions.get(frame.ssp)
        if partition is None:
            partition = self._partitions[frame.ssp] = ReadCommitted()
        return receive(partition, frame, frame)

    @override
    def position(self, ssp: SSP) -> ReaderPosition | None:
        partition = self._partitions.get(ssp)
        return None if partition is None else partition.position()


@dataclass(slots=True)
class FrameReader:
    """Reads the frames of one stream. ``enough`` ends it before a look; ``damaged`` gets errors of records."""

    system: System
    stream: StreamId
    gate: Gate
    wait: Wait
    follow: bool = field(default=False, kw_only=True)
    enough: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    damaged: Damaged = field(default=refuse, kw_only=True)
    _ended: set[SSP] = field(default_factory=set, init=False)

    def read(self, starts: Mapping[SSP, Position]) -> Generator[list[Frame]]:
        """For each poll that finds something the frames to show: none if all are held."""
        extents = self.system.admin().extents(self.stream.name)
        ends = {ssp: extents[ssp.partition].upcoming for ssp in starts}
        with closing(self.system.consumer()) as consumer:
            for ssp, position in starts.items():
                consumer.register(ssp, position)
            yield from self._poll_to_the_end(consumer, ends)

    def _poll_to_the_end(self, consumer: Consumer, ends: Mapping[SSP, Offset]) -> Iterator[list[Frame]]:
        empty_polls = 0
        while not self.enough():
            unread = [ssp for ssp in ends if not self._is_over(ssp, consumer, ends[ssp])]
            if not unread:
                return
            polled = consumer.poll(unread)
            frames: list[Frame] = []
            for item in polled:
                if isinstance(item, Ended):
                    self._ended.add(item.ssp)
                elif isinstance(item, Records):
                    for frame in frames_of(item, self.damaged):
                        frames += self.gate.admit(frame)
                else:
                    raise UsageError(f"{self.stream} consists of rows, not of frames: read its files instead")
            if polled:
                yield frames
            empty_polls = 0 if polled else empty_polls + 1
            if empty_polls > EMPTY_POLLS_MAX and not self.follow:
                what = f"{unread[0]}: no record arrives, though the stream continues to offset {ends[unread[0]]}"
                raise UnavailableError(what)
            if not polled and not self.wait(consumer):
                return

    def _is_over(self, ssp: SSP, consumer: Consumer, end: Offset) -> bool:
        return ssp in self._ended or (not self.follow and consumer.position(ssp) >= end)


POSITION_FORMAT = 1
READERS = "headrace.readers"  # the group of entry points of functions that read a stream with another library
_WARNINGS_MAX = 10
"""After so many records that can't be read, there is a warning only when their number passes a power of ten."""


class _Position(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The durable form of a ``StreamReader``'s position: JSON."""

    format: int = POSITION_FORMAT
    stream: str
    committed: bool
    partitions: tuple[ReaderPosition, ...]


Library = Literal["polars", "arrow", "pandas", "spark"]
OnDamage = Literal["skip", "fail"]


@overload
def read_stream(
    name: str,
    *,
    committed: bool = ...,
    on_damage: OnDamage = ...,
    home: str | Path | None = ...,
    system: SystemLike | None = ...,
    as_: Literal["polars"] = ...,
) -> pl.DataFrame: ...


@overload
def read_stream(
    name: str,
    *,
    committed: bool = ...,
    on_damage: OnDamage = ...,
    home: str | Path | None = ...,
    system: SystemLike | None = ...,
    as_: Literal["arrow"],
) -> pa.Table: ...


@overload
def read_stream(
    name: str,
    *,
    committed: bool = ...,
    on_damage: OnDamage = ...,
    home: str | Path | None = ...,
    system: SystemLike | None = ...,
    as_: Literal["pandas", "spark"],
) -> Any: ...


def read_stream(
    name: str,
    *,
    committed: bool = True,
    on_damage: OnDamage = "skip",
    home: str | Path | None = None,
    system: SystemLike | None = None,
    as_: Library = "polars",
) -> Any:
    """Return all rows that a stream holds now, in the order of partitions and offsets.

    Parameters
    ----------
    name
        The stream.
    committed
        Whether to leave out rows of an exactly-once app that no checkpoint covers yet, and rows that a failure has
        taken back.
    on_damage
        What to do about a record that can't be read: ``"skip"`` leaves it out and warns (``warnings.warn``) with its
        place, ``"fail"`` raises ``FrameError``. Spark always fails.
    home
        The folder of the log. By default the deployment's (see the page "Settings"), or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.
    as_
        What to return: a DataFrame of ``"polars"``, ``"pandas"`` or ``"spark"``, or a table of ``"arrow"``. Spark's is
        of the active session, or of a new one, and Spark reads the rows itself when it is used.

    Returns
    -------
    polars.DataFrame, pyarrow.Table, pandas.DataFrame or pyspark.sql.DataFrame

    Examples
    --------
    >>> hr.streams.read_stream("orders").rows()
    [('ann', 5.0), ('ann', 2.0)]
    >>> hr.streams.read_stream("orders", as_="arrow").column("euros").to_pylist()
    [5.0, 2.0]
    """
    if as_ == "spark":
        return _spark_frame(name, committed, home, system)
    if as_ in get_args(Library):
        reader = StreamReader(name, committed=committed, on_damage=on_damage, home=home, system=system)
        tables = [batch for partition in range(reader.partitions) for batch in reader.batches_of(partition)]
        if not tables:
            return _converted(pl.DataFrame(schema=reader.columns or {}), as_)
        return _converted(_together(reader.stream, tables, reader.columns), as_)
    what = f"read_stream: as_={as_!r} is unknown"
    raise UsageError(what, hint=f"there are {', '.join(map(repr, get_args(Library)))}")


def _converted(rows: pl.DataFrame, library: Library) -> Any:
    if library == "arrow":
        return rows.to_arrow()
    if library == "pandas":
        try:
            return rows.to_pandas()
        except ImportError as error:
            raise UsageError(f'as_="pandas" needs pandas: {error}', hint="pip install pandas") from error
    return rows


def _spark_frame(name: str, committed: bool, home: str | Path | None, system: SystemLike | None) -> Any:
    if system is not None:
        what = 'as_="spark" reads streams of the embedded log only, and system= names another one'
        raise UsageError(what, hint='read it here: spark.createDataFrame(read_stream(..., as_="arrow"))')
    home = home_of(home)
    _, log = opened(None, home)
    require_stream(log, StreamId(LOG, name), home)
    read_frame = plug_in(READERS, "spark")
    if read_frame is None:
        said = 'as_="spark": no installed package reads streams with Spark'
        raise UsageError(said, hint="reinstall headrace as a whole")
    return loaded(read_frame)(name, committed=committed, home=home)


class StreamReader:
    """Reads a stream batch by batch, and can resume later from where it was.

    Iterating yields the stream's present rows; iterating again yields newer ones. A program that stores results and
    ``position()`` in one transaction has every row exactly once, whatever fails in between.

    Parameters
    ----------
    name
        The stream.
    committed
        Whether to leave out rows of an exactly-once app that no checkpoint covers yet, and rows that a failure has
        taken back.
    start
        ``"oldest"``, or ``"upcoming"`` for rows that come from now on.
    from_position
        What ``position()`` of another reader of this stream returned; it goes before ``start``.
    on_damage
        What to do about a record that can't be read: ``"skip"`` leaves it out and warns (``warnings.warn``) with its
        place, ``"fail"`` raises ``FrameError``.
    home
        The folder of the log. By default the deployment's (see the page "Settings"), or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.

    Examples
    --------
    >>> reader = hr.streams.StreamReader("orders")
    >>> for batch in reader:
    ...     print(batch["euros"].sum(), type(reader.position()).__name__)
    7.0 str
    >>> again = hr.streams.StreamReader("orders", from_position=reader.position())
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
        on_damage: OnDamage = "skip",
        home: str | Path | None = None,
        system: SystemLike | None = None,
    ) -> None:
        home = home_of(home)
        system_name, self._system = opened(system, home)
        self.stream = StreamId(system_name, name)
        info = require_stream(self._system, self.stream, home)
        self.partitions = info.partitions
        self.columns = info.columns
        self._committed = committed
        self.damaged = 0
        """How many records could not be read, and were left out."""
        if on_damage not in get_args(OnDamage):
            raise UsageError(f'on_damage is "skip" or "fail", not {on_damage!r}')
        self._fails = on_damage == "fail"
        if start not in ("oldest", "upcoming"):
            raise UsageError(f'start is "oldest" or "upcoming", not {start!r}')
        self._positions = self._beginning(start) if from_position is None else self._taken_up(from_position)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """Yield the rows from the position to the present end, many at a time; partitions are interleaved."""
        return self._read(list(self._positions))

    def follow(self, timeout: Duration | None = None) -> Iterator[pl.DataFrame]:
        """Yield rows as they come, until the stream is sealed.

        Parameters
        ----------
        timeout
            Also end when no row has arrived for this long.

        Returns
        -------
        Iterator of polars.DataFrame

        Examples
        --------
        >>> hr.streams.StreamReader("orders", start="upcoming").follow(timeout="10ms")  # doctest: +ELLIPSIS
        <generator object ...>
        """
        timeout_s = None if timeout is None else to_ms(timeout, "timeout", error=UsageError) / 1000
        return self._read(list(self._positions), follow=True, timeout_s=timeout_s)

    def batches_of(self, partition: int) -> Iterator[pl.DataFrame]:
        """Yield the rows of one partition in their order, to the present end.

        Parameters
        ----------
        partition
            The partition's number.

        Returns
        -------
        Iterator of polars.DataFrame
        """
        return self._read([SSP(self.stream, partition)])

    def position(self) -> str:
        """Return the position after every batch that was yielded so far.

        Returns
        -------
        str
            A text to store, and to give to a later reader as ``from_position``.
        """
        partitions = tuple(self._positions.values())
        position = _Position(stream=str(self.stream), committed=self._committed, partitions=partitions)
        return msgspec.json.encode(position).decode()

    def _beginning(self, start: str) -> dict[SSP, ReaderPosition]:
        extents = self._system.admin().extents(self.stream.name)
        return {
            SSP(self.stream, number): ReaderPosition(offset=extent.oldest, whole=not extent.trimmed)
            if start == "oldest"
            else ReaderPosition(offset=extent.upcoming)
            for number, extent in enumerate(extents)
        }

    def _taken_up(self, text: str) -> dict[SSP, ReaderPosition]:
        try:
            position = msgspec.json.decode(text, type=_Position)
        except (*UNREADABLE, TypeError) as error:
            raise UsageError(f"this is not a position of a StreamReader: {error}: {text!r:.200}") from error
        if position.format != POSITION_FORMAT:
            what = f"a position of format {position.format}; this version of Headrace reads {POSITION_FORMAT}"
            raise UsageError(what, hint="upgrade the reader before the writer")
        found = (position.stream, position.committed, len(position.partitions))
        if found != (str(self.stream), self._committed, self.partitions):
            raise UsageError(
                f"the position is of {found[0]} with {found[2]} partitions, committed={found[1]}; "
                f"the reader is of {self.stream} with {self.partitions}, committed={self._committed}",
                hint="keep a position for each stream, and for each way to read it",
            )
        return {SSP(self.stream, number): each for number, each in enumerate(position.partitions)}

    def _read(
        self, ssps: Sequence[SSP], *, follow: bool = False, timeout_s: float | None = None
    ) -> Iterator[pl.DataFrame]:
        starts = {ssp: self._positions[ssp] for ssp in ssps}
        gate: Gate = CommittedGate(starts) if self._committed else OpenGate()
        idleness = _Idleness(timeout_s)
        reader = FrameReader(
            self._system, self.stream, gate, idleness.wait, follow=follow, enough=idleness.too_long,
            damaged=self._meet_damage,
        )  # fmt: skip
        offsets = {ssp: position.offset or 0 for ssp, position in starts.items()}
        with closing(reader.read(offsets)) as looks:
            for frames in looks:
                tables = self._tables(frames)
                batch = _together(self.stream, tables, self.columns) if tables else None
                # Only now: what could not be read is read again, and fails again.
                self._positions |= {ssp: found for ssp in ssps if (found := gate.position(ssp)) is not None}
                if batch is not None:
                    idleness.broken()
                    yield batch
                    idleness.broken()

    def _tables(self, frames: Sequence[Frame]) -> list[pl.DataFrame]:
        tables = []
        for frame in frames:
            if frame.header.kind is Kind.USER:
                try:
                    tables.append(rows_of(frame))
                except FrameError as error:
                    self._meet_damage(error)
        return tables

    def _meet_damage(self, error: FrameError) -> None:
        if self._fails:
            refuse(error)
        self.damaged += 1
        if self.damaged <= _WARNINGS_MAX or is_milestone(self.damaged - 1, self.damaged):
            warnings.warn(
                f"left out record number {self.damaged} that can't be read: {error.message}\n"
                f'  hint: {error.hint or "headrace stream read NAME shows where"}; on_damage="fail" raises an error',
                stacklevel=2,
            )


class _Idleness:
    """Measures how long no row has arrived, from the first look for rows on: what is there is read in any case."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout = timeout_s
        self._since: float | None = None

    def broken(self) -> None:
        self._since = None

    def too_long(self) -> bool:
        """The timeout of ``StreamReader.follow`` is over. Asked before each look for rows."""
        if self._since is None:
            self._since = time.monotonic()
            return False
        return self._timeout is not None and time.monotonic() - self._since >= self._timeout

    def wait(self, consumer: Consumer) -> bool:
        number = consumer.fileno()
        wait_s = (UNWATCHED_WAIT_MS if number is None else WAIT_MS) / 1000
        if self._timeout is not None and self._since is not None:
            wait_s = max(0.0, min(wait_s, self._since + self._timeout - time.monotonic()))
        readable(number, wait_s * 1000)
        return not self.too_long()


def _together(stream: StreamId, tables: Sequence[pl.DataFrame], columns: Columns | None) -> pl.DataFrame:
    """One table; a column that only some have, or that was added to the stream later, is null elsewhere."""
    try:
        if all(table.schema == tables[0].schema for table in tables):
            together = concat_rows(tables)
        else:
            together = pl.concat(tables, how="diagonal", rechunk=True)
        return together if columns is None else filled_up(together, columns)
    except pl.exceptions.PolarsError as error:
        what = f"{stream} holds rows whose columns have different types: {str(error).splitlines()[0]}"
        hint = "create streams with a schema; headrace stream read shows what is in this one"
        raise DataError(what, hint=hint) from error
