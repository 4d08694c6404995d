"""The sources of rows for ``stream write``: JSON lines, CSV and Parquet, in pieces of bounded size.

A pipe is read as it fills. Rows are passed on when nothing more arrives for a moment, at the latest a tenth of a second
after their first byte, so that ``tail -f | headrace stream write`` keeps up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from typing_extensions import override

from headrace.cli.stream.inference import infer_columns
from headrace.core.errors import DataError, UsageError
from headrace.core.readable import which_readable
from headrace.runners.interrupts import Interrupt
from headrace.serdes.csv_format import CsvFormat
from headrace.serdes.dtypes import Columns
from headrace.serdes.json_rows import JsonRows, shown
from headrace.serdes.row_pieces import ROW_BYTES_MAX, BadRow, Piece, last_row_ends, parse_rows
from headrace.serdes.schema import Schema
from headrace.systems.files.reading import Reader, Wanted, entry_of
from headrace.systems.files.storage import Found, local_storage

STDIN = "-"
CHUNK_BYTES = 1 << 20

_ONE_OBJECT_A_LINE = (
    "write one JSON object per line, with columns of the stream as fields; --on-error skip leaves out and counts other "
    "lines, --drop-unknown leaves out other fields"
)
_FIX_ROWS = "fix the row; --on-error skip leaves such rows out and counts them"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for more (seconds): until nothing arrives for ``quiet``, at most ``latest`` in all."""

    quiet: float
    latest: float

    def wait(self, first_byte_at: float) -> float:
        """Return how long to wait now."""
        return max(0.0, min(self.quiet, first_byte_at + self.latest - time.monotonic()))


PROMPT = Patience(0.005, 0.1)
THOROUGH = Patience(0.5, 1.0)
"""The patience for the first rows, from which columns are inferred: more rows make a better guess."""


class Source:
    """One file, or stdin. ``infer`` may be called before ``blocks``, but not after it."""

    def __init__(self, name: str, interrupt: Interrupt, drop_unknown: bool) -> None:
        self.name = name
        self._interrupt = interrupt
        self._drop_unknown = drop_unknown

    def infer(self) -> dict[str, pl.DataType]:
        """Return the columns of the first rows; none if there are no rows."""
        raise NotImplementedError

    def blocks(self, columns: Columns, optional: Collection[str]) -> Iterator[list[Piece]]:
        """Yield all rows with these columns; an ``optional`` column that is missing is null.

        Ends early, between rows, when interrupted.
        """
        raise NotImplementedError

    def bad_row(self, number: int, bad: BadRow) -> DataError:
        """Return the error for a bad row; ``number`` counts rows from 0."""
        raise NotImplementedError


class JsonLines(Source):
    """JSON lines from a file, or from stdin if ``path`` is None."""

    def __init__(self, path: Path | None, interrupt: Interrupt, drop_unknown: bool) -> None:
        super().__init__(str(path or "stdin"), interrupt, drop_unknown)
        self._path = path
        self._chunks: Iterator[bytes] | None = None
        self._first: bytes | None = None

    @override
    def infer(self) -> dict[str, pl.DataType]:
        """Infer the columns from the first chunk, which is kept for ``blocks``."""
        self._chunks = self._read(THOROUGH)
        self._first = next(self._chunks, None)
        if self._first is None:
            return {}
        try:
            columns, bad = infer_columns(self._first)
        except DataError as error:
            raise DataError(f"{self.name}: {error.message}", hint=error.hint) from error
        if bad and not columns:
            raise self.bad_row(bad[0].index, bad[0])
        return columns

    @override
    def blocks(self, columns: Columns, optional: Collection[str]) -> Iterator[list[Piece]]:
        rows = JsonRows(columns, drop_unknown=self._drop_unknown)
        for chunk in self._all_chunks():
            yield parse_rows(chunk, last_row_ends(chunk, quote=None), rows.parse)

    @override
    def bad_row(self, number: int, bad: BadRow) -> DataError:
        return DataError(f"{self.name}:{number + 1}: {bad.reason}: {shown(bad.raw)}", hint=_ONE_OBJECT_A_LINE)

    def _all_chunks(self) -> Iterator[bytes]:
        if self._first is not None:
            yield self._first
            self._first = None
        yield from self._chunks or self._read(PROMPT)

    def _read(self, at_first: Patience) -> Iterator[bytes]:
        if self._path is None:
            yield from read_chunks(0, self.name, self._interrupt, at_first)
            return
        with self._path.open("rb") as file:
            yield from read_chunks(file.fileno(), self.name, self._interrupt, at_first)


class TableFile(Source):
    """A Parquet or CSV file. CSV is read as text and then converted to the types of the stream's columns."""

    def __init__(self, path: Path, is_csv: bool, interrupt: Interrupt, drop_unknown: bool) -> None:
        super().__init__(str(path), interrupt, drop_unknown)
        stat = path.stat()
        self._entry = entry_of(Found(str(path), stat.st_size, stat.st_mtime_ns))
        self._is_csv = is_csv
        self._reader = Reader(local_storage(), "csv" if is_csv else "parquet", CsvFormat())

    @override
    def infer(self) -> dict[str, pl.DataType]:
        return dict(self._reader.columns(self._entry))

    @override
    def blocks(self, columns: Columns, optional: Collection[str]) -> Iterator[list[Piece]]:
        schema = Schema.of(columns)
        texts = dict.fromkeys(self.infer(), pl.String()) if self._is_csv else None
        with closing(self._reader.open(self._entry, Wanted(typed=texts))) as file:
            while not self._interrupt.requested and (pieces := file.read(CHUNK_BYTES)) is not None:
                yield [self._fit(piece, schema, optional) if piece.span else piece for piece in pieces]

    @override
    def bad_row(self, number: int, bad: BadRow) -> DataError:
        where = f"{self.name}, row {number + 1}"
        if bad.raw:  # a line of CSV with too many or too few fields
            where = f"{self.name}: not a readable CSV file: row {number + 1}"
        return DataError(f"{where}: {bad.reason}", hint=_FIX_ROWS)

    def _fit(self, piece: Piece, schema: Schema, optional: Collection[str]) -> Piece:
        """Return the piece with the columns of the schema. Rows whose values don't fit are added to its bad rows."""
        unknown = [name for name in piece.frame.columns if name not in schema.columns]
        if unknown and not self._drop_unknown:
            raise DataError(
                f"{self.name}: the stream has no column {', '.join(unknown)}; it has {', '.join(schema.columns)}",
                hint="use --drop-unknown to leave such columns out",
            )
        try:
            rows, mismatch = schema.conform(piece.frame, optional)
        except DataError as error:
            raise DataError(f"{self.name}: {error.message}", hint=error.hint) from error
        if mismatch is None:
            return Piece(rows, piece.span, piece.skipped, piece.bad)
        # Only the first misfit's reason is known; later ones are only counted.
        unreadable = {bad.index for bad in piece.bad}
        readable = [index for index in range(piece.span) if index not in unreadable]
        misfits = [BadRow(readable[row], mismatch.reason, b"") for row in mismatch.rows]
        bad = sorted([*piece.bad, *misfits], key=lambda row: row.index)
        return Piece(rows, piece.span, piece.skipped, tuple(bad))


def open_source(name: str, interrupt: Interrupt, drop_unknown: bool) -> Source:
    """Open a file by its ending, or stdin for ``-``, and read nothing. Raises ``UsageError`` if it is unreadable."""
    if name == STDIN:
        return JsonLines(None, interrupt, drop_unknown)
    path = Path(name)
    check_readable(path)
    kind = path.suffix.lower()
    if kind in (".parquet", ".pq", ".csv"):
        return TableFile(path, kind == ".csv", interrupt, drop_unknown)
    return JsonLines(path, interrupt, drop_unknown)


def check_readable(path: Path) -> None:
    """Raise ``UsageError`` unless this is a readable file."""
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"name its files: {path}/*")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} can't be read: permission denied")


def read_chunks(fd: int, name: str, interrupt: Interrupt, at_first: Patience = PROMPT) -> Iterator[bytes]:
    """Yield whole lines as they arrive; the last one needs no newline. Ends early, between lines, when interrupted.

    ``at_first`` is the patience for the first chunk.
    """
    lines, rest = bytearray(), bytearray()
    first_byte_at, patience = 0.0, at_first
    while True:
        ready = which_readable((fd, interrupt.fd), 1000 * patience.wait(first_byte_at) if lines else None)
        data = os.read(fd, CHUNK_BYTES) if fd in ready and not interrupt.requested else None
        if data:
            if not lines:
                first_byte_at = time.monotonic()
            _split_lines(data, lines, rest)
            if len(rest) > ROW_BYTES_MAX:
                raise DataError(f"{name}: a line of more than {ROW_BYTES_MAX >> 20} MiB", hint=_ONE_OBJECT_A_LINE)
        ended = data == b"" or interrupt.requested
        due = ended or not ready or len(lines) >= CHUNK_BYTES or patience.wait(first_byte_at) <= 0
        if lines and due:
            yield bytes(lines)
            lines.clear()
            patience = PROMPT
        if ended:
            # A line without a newline is the last row at the end of a file, but not at an interrupt.
            if rest and not interrupt.requested:
                yield bytes(rest)
            return


def _split_lines(data: bytes, lines: bytearray, rest: bytearray) -> None:
    """Append whole lines to ``lines``; keep a line without a newline in ``rest``."""
    end = data.rfind(b"\n") + 1
    if end:
        lines += rest
        lines += data[:end]
        rest.clear()
    rest += data[end:]
