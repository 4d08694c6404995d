"""Write rows into a stream: find or create it, choose its columns, and deal with rows that don't fit.

A row that doesn't fit either ends the write, after the rows before it were written, or is left out and counted. If
anything ends a write early, the same command with its id writes the rest.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass

import msgspec
import polars as pl

from headrace.cli.console import counted
from headrace.cli.place import Place
from headrace.cli.stream.sources import STDIN, Source, open_source
from headrace.core.errors import (
    DataError,
    DeclarationError,
    HeadraceError,
    IndeterminateWriteError,
    StorageError,
    UsageError,
)
from headrace.runners.interrupts import Interrupt
from headrace.serdes.dtypes import Columns, parse_columns
from headrace.serdes.row_pieces import Piece
from headrace.serdes.rows import concat_rows
from headrace.serdes.schema import Schema
from headrace.streams.marks import WriteMark
from headrace.streams.row_writer import RowWriter, WrittenFrame
from headrace.systems.base import StreamInfo

_PROGRESS_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The arguments of ``stream write``."""

    place: Place
    files: Sequence[str] = ()
    keys: Sequence[str] = ()
    partition: int | None = None
    create: bool = False
    partitions: int | None = None
    schema: str | None = None
    skip_bad: bool = False
    drop_unknown: bool = False
    id: str | None = None
    """The write's id; the stream may hold rows of earlier attempts at it. Without one it gets a random id."""


class Written(msgspec.Struct, rename="camel"):
    """The progress and result of a write; with ``--json``, the command prints it."""

    stream: str
    id: str
    created: bool = False
    rows: int = 0
    already: int = 0
    """How many rows earlier attempts had written."""
    skipped: int = 0
    first_skipped: str | None = None
    frames: int = 0
    bytes: int = 0
    rows_by_partition: dict[int, int] = {}
    stopped_in: str | None = None
    """The file that an interrupt left half written; None if nothing is missing."""

    def add(self, frames: Sequence[WrittenFrame]) -> None:
        """Count acknowledged frames."""
        for frame in frames:
            self.rows += frame.rows
            self.frames += 1
            self.bytes += frame.bytes
            self.rows_by_partition[frame.partition] = self.rows_by_partition.get(frame.partition, 0) + frame.rows


class Writing:
    """One run of ``stream write``. ``progress`` is called twice a second."""

    def __init__(self, order: Order, interrupt: Interrupt, progress: Callable[[Written], None]) -> None:
        self._order = order
        self._interrupt = interrupt
        self._progress = progress
        self._reported_at = time.monotonic()
        self._inferred = False
        self._mark = WriteMark(order.id if order.id is not None else secrets.token_hex(4))
        self._rows_before = 0
        self.written = Written(str(order.place.stream), self._mark.id)

    def run(self) -> Written:
        """Write all rows. An error says how many were written before it."""
        order = self._order
        sources = [open_source(name, self._interrupt, order.drop_unknown) for name in order.files or [STDIN]]
        declared = None if order.schema is None else parse_columns(order.schema)
        info = self._find_stream(declared)
        columns = declared or (info.columns if info else None) or self._infer(sources)
        if columns is None:
            return self._nothing(info)
        self._check_keys(columns)
        if info is None:
            info = self._create(columns)
        elif order.id is not None:
            self._mark.find(order.place.system, order.place.stream, info)
        try:
            with closing(
                RowWriter(order.place.system, order.place.stream, info, order.keys, order.partition)
            ) as writer:
                self._copy(sources, columns, info.added, writer)
        except HeadraceError as error:
            self._say_how_to_continue(error)
            raise
        return self.written

    def _say_how_to_continue(self, error: HeadraceError) -> None:
        unsure = isinstance(error, StorageError | IndeterminateWriteError)
        there = self.written.rows + self.written.already
        if there or unsure:
            error.message += f"\n  written before that: {'at least ' if unsure else ''}{counted(there, 'row')}"
        if unsure or (there and isinstance(error, DataError)):
            rest = f"then repeat the command with --id {self._mark.id}: it writes the rest of the same input"
            error.hint = f"{error.hint or 'check the disk'}; {rest}"

    # -- the stream and its columns ----------------------------------------------------------------------

    def _find_stream(self, declared: Columns | None) -> StreamInfo | None:
        """Return the stream's info, or None if the stream has to be created. Raises if it doesn't match the order."""
        order = self._order
        info = order.place.find() if order.create else order.place.require()
        partitions = order.partitions
        if info is None and partitions is None:
            raise UsageError(
                f"there is no {order.place.stream} yet, and --create needs its partition count",
                hint="add --partitions N, the largest number of tasks that should ever share the work, such as 4",
            )
        if info is not None:
            # This creates nothing here, but raises if the stream has another shape.
            wanted = None if declared is None or info.columns is None else dict(declared)
            partitions = info.partitions if partitions is None else partitions
            order.place.admin().create(order.place.stream.name, partitions, wanted)
        if order.partition is not None and not 0 <= order.partition < (partitions or 0):
            raise UsageError(
                f"{order.place.stream} has no partition {order.partition}",
                hint=f"its partitions are 0 to {(partitions or 0) - 1}",
            )
        return info

    def _infer(self, sources: Sequence[Source]) -> Columns | None:
        self._inferred = True
        return next((columns for source in sources if (columns := source.infer())), None)

    def _check_keys(self, columns: Columns) -> None:
        try:
            Schema.of(columns).require(self._order.keys, "--key")
        except DeclarationError as error:
            raise UsageError(error.message, hint=error.hint) from error

    def _create(self, columns: Columns) -> StreamInfo:
        order = self._order
        info = order.place.admin().create(order.place.stream.name, order.partitions or 0, dict(columns), order.keys)
        self.written.created = True
        return info

    def _nothing(self, info: StreamInfo | None) -> Written:
        if info is None:
            raise UsageError(
                f"{self._order.place.stream} wasn't created: the input has no rows to infer its columns from",
                hint='declare the columns: --schema "member:str,ts:datetime[ms]"',
            )
        return self.written

    # -- the rows ------------------------------------------------------------------------------------------

    def _copy(self, sources: Sequence[Source], columns: Columns, optional: Collection[str], writer: RowWriter) -> None:
        for source in sources:
            number = 0
            for block in source.blocks(columns, optional):
                number = self._take(source, number, block, writer)
                now = time.monotonic()
                if now - self._reported_at >= _PROGRESS_S:
                    self._reported_at = now
                    self._progress(self.written)
            self._rows_before += number
            if self._interrupt.requested:
                self.written.stopped_in = None if is_endless(source.name) else source.name
                return

    def _take(self, source: Source, number: int, block: Sequence[Piece], writer: RowWriter) -> int:
        """Write the pieces of a block, which begins at this row; returns the number of the row after it."""
        good: list[tuple[pl.DataFrame, pl.Series]] = []
        for piece in block:
            number += piece.skipped
            numbers = self._numbers(piece, number)
            if piece.bad and not self._order.skip_bad:
                first = piece.bad[0]
                self._write([*good, (piece.frame.head(first.index), numbers.head(first.index))], writer)
                raise self._explain(source.bad_row(number + first.index, first))
            if piece.bad and self.written.first_skipped is None:
                self.written.first_skipped = source.bad_row(number + piece.bad[0].index, piece.bad[0]).message
            self.written.skipped += len(piece.bad)
            good.append((piece.frame, numbers))
            number += piece.span
        self._write(good, writer)
        return number

    def _numbers(self, piece: Piece, number: int) -> pl.Series:
        """Return the number of each good row of a piece in the whole input; the piece begins at row ``first``."""
        begin = self._rows_before + number
        numbers = pl.int_range(begin, begin + piece.span, eager=True)
        if not piece.bad:
            return numbers
        return numbers.filter(~numbers.is_in([begin + bad.index for bad in piece.bad]))

    def _write(self, pieces: Sequence[tuple[pl.DataFrame, pl.Series]], writer: RowWriter) -> None:
        filled = [(frame, numbers) for frame, numbers in pieces if frame.height]
        if filled:
            rows = concat_rows([frame for frame, _ in filled])
            frames = writer.write_numbered(rows, pl.concat([numbers for _, numbers in filled]), self._mark)
            self.written.add(frames)
            self.written.already += rows.height - sum(frame.rows for frame in frames)

    def _explain(self, error: DataError) -> DataError:
        if self._inferred:
            error.hint = (
                f"the columns were inferred from the first rows; declare them with --schema. Otherwise: {error.hint}"
            )
        return error


def is_endless(name: str) -> bool:
    """Return whether this is stdin from a pipe or a terminal, which an interrupt usually ends."""
    return name == "stdin" and not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
