"""The small contract for sources and sinks of one's own: five methods each; everything else has a default.

A ``Source`` is an input, a ``Sink`` an output. Each is given as ``system=``, without an entry point. It is pickled with
the app, so it holds only what describes it, such as a URL; ``open`` makes the connections. ``small_system`` makes a
whole row system of either. ``headrace.kit.contracts`` checks both: ``check_system`` a source, ``check_target`` a sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Never

import polars as pl

from headrace.core.errors import DeclarationError, UnsupportedPositionError
from headrace.systems.registry import SMALL, SystemSpec

Batch = pl.DataFrame | Sequence[Mapping[str, Any]]
"""The rows of a batch: a DataFrame, or dicts, which are read as JSON objects are."""


class SourcePartition(ABC):
    """A partition of a source that is being read. One thread uses it, which may wait for a server."""

    @abstractmethod
    def next_batch(self) -> Batch | None:
        """Return the next rows: empty if there are none at present, None if the partition has ended.

        A batch, kept in memory as a whole, should have some megabytes at most. For what may pass, raise ``OSError``, as
        sockets and ``urllib`` do: the partition is closed, and opened again at its last position after a pause.
        """

    @abstractmethod
    def position(self) -> int:
        """Return the position after the last batch. Each row counts 1; with gaps, override ``row_positions``, too."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Called once."""

    def row_positions(self) -> Sequence[int] | None:
        """Return the position of each row of the last batch, rising: a checkpoint may have any. None: each counts 1."""
        return None


class Source(ABC):
    """An input of one's own.

    A checkpoint contains the position of each partition, in one transaction with the state and the results. After a
    failure, reading continues there: so each row counts exactly once if a partition that is opened at a position again
    returns the same rows again.

    Examples
    --------
    >>> class Squares(SourcePartition):
    ...     def __init__(self, position):
    ...         self.at = position
    ...
    ...     def next_batch(self):
    ...         rows = [{"n": n, "square": n * n} for n in range(self.at, min(self.at + 2, 5))]
    ...         self.at += len(rows)
    ...         return rows or None
    ...
    ...     def position(self):
    ...         return self.at
    ...
    ...     def close(self):
    ...         pass
    >>> class AllSquares(Source):
    ...     bounded = True
    ...
    ...     def open(self, partition, position):
    ...         return Squares(position)
    >>> part = AllSquares().open("0", 3)
    >>> part.next_batch(), part.position(), part.next_batch()
    ([{'n': 3, 'square': 9}, {'n': 4, 'square': 16}], 5, None)
    >>> squares = app.input("squares", {"n": pl.Int64, "square": pl.Int64}, system=AllSquares())
    """

    bounded: ClassVar[bool] = False
    """Whether each partition ends: the app ends by itself when it has read all of them."""
    retry_on: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """The errors that may pass."""
    look_every_s: ClassVar[float] = 1.0
    """How long to wait after an empty batch."""

    def partitions(self) -> Sequence[str]:
        """Return the names of the partitions: the same ones in the same order in each run."""
        return ("0",)

    @abstractmethod
    def open(self, partition: str, position: int) -> SourcePartition:
        """Return a partition whose first row is at ``position`` or after. ``begin``, by default 0, is the beginning."""

    def begin(self, partition: str) -> int:
        """Return the position of the oldest row that is kept."""
        return 0

    def end(self, partition: str) -> int | None:
        """Return the position after the newest row, cheaply: for ``start="upcoming"`` and lag. None if unknown."""
        return None

    def position_at(self, partition: str, time_ms: int) -> int:
        """Return the position of the first row that was added at ``time_ms`` (since the epoch) or later."""
        what = f"{type(self).__name__} doesn't know when rows were added, so reading can't begin at a time"
        raise UnsupportedPositionError(what, hint="use an offset or oldest")

    def system(self, stream_id: str) -> SystemSpec:
        """Return the system of an input with this id."""
        return _spec(self, stream_id)

    def output_system(self, stream_id: str) -> SystemSpec:
        """Refuse, because a source can't be an output."""
        what = f"{type(self).__name__} is a source, so {stream_id!r} can't be an output of it"
        raise DeclarationError(what, hint="give it a sink")


class SinkWriter(ABC):
    """What one task writes: for each version one or several ``write``, then ``commit``, of seconds at most."""

    @abstractmethod
    def write(self, rows: pl.DataFrame) -> None:
        """Take rows of the next version. They are invisible before ``commit``."""

    @abstractmethod
    def commit(self, version: int) -> None:
        """Make the rows visible and set the position to ``version``, both or neither, durably, before returning.

        Drop the rows if the position is ``version`` or higher already: another copy of the task was quicker. The
        transaction itself must check that. Raise ``OSError`` for what may pass: the writer is closed, and another one
        gets the same rows after a pause.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything, and drop what isn't committed. Called once."""

    def position(self) -> int:
        """Return the highest version that was committed under this writer's name; -1 if there is none."""
        return -1


class Sink(ABC):
    """An output of one's own.

    Each row arrives exactly once if the sink keeps each writer's position in one transaction with the rows.

    Examples
    --------
    >>> class PrintingWriter(SinkWriter):
    ...     def __init__(self):
    ...         self.rows = []
    ...
    ...     def write(self, rows):
    ...         self.rows += rows.rows()
    ...
    ...     def commit(self, version):
    ...         print(self.rows)
    ...         self.rows = []
    ...
    ...     def close(self):
    ...         pass
    >>> class Printing(Sink):
    ...     keeps_positions = False
    ...
    ...     def open(self, writer):
    ...         return PrintingWriter()
    >>> shown = app.output("shown", system=Printing())
    """

    keeps_positions: ClassVar[bool] = True
    """Whether ``position`` is kept. If not, rows may arrive again after a failure, and plans say so."""
    retry_on: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """The errors that may pass."""
    replaces: ClassVar[bool] = False
    """Whether a row may replace an older one."""

    @abstractmethod
    def open(self, writer: str) -> SinkWriter:
        """Return a writer of this name, which contains the app, the stage, the task and the output."""

    def create(self, columns: Mapping[str, pl.DataType] | None) -> None:
        """Make what has to be there before the first row. Called before each run; None: the columns aren't known."""
        return

    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows as ``write`` will get them. Raise ``DataError`` for what can't be written, before the commit."""
        return rows

    def system(self, stream_id: str) -> SystemSpec:
        """Return the system of an output with this id."""
        why = "" if self.keeps_positions else f"{type(self).__name__} keeps no positions"
        return _spec(self, stream_id, why)

    def input_schema(self, schema: object) -> Never:
        """Refuse, because a sink can't be an input."""
        raise DeclarationError(f"{type(self).__name__} is a sink, so it can't be an input", hint="give it a source")

    def input_system(self, stream_id: str, use: object) -> Never:
        """Refuse, for the same reason."""
        self.input_schema(None)


def _spec(made: Source | Sink, stream_id: str, may_repeat: str = "") -> SystemSpec:
    name = f"{type(made).__name__.lower()}-{stream_id}".replace(".", "-")
    return SystemSpec(name, SMALL, {"made": made}, may_repeat=may_repeat)
