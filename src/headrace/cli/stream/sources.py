"""Where ``stream write`` takes rows from: JSON lines, CSV and Parquet, a bounded piece at a time.

A pipe is read as it fills: what came is handed on once nothing more follows for a moment, and at the
latest a tenth of a second after its first byte, so that ``tail -f | headrace stream write`` keeps up.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import polars as pl
from typing_extensions import override

from headrace.cli.interrupt import Interrupt
from headrace.cli.stream.json_rows import JsonRows, infer_columns
from headrace.core.errors import DataError, UsageError
from headrace.serdes.dtypes import Columns
from headrace.serdes.schema import Schema

T = TypeVar("T")

STDIN = "-"
PIECE_BYTES = 1 << 20
PIECE_ROWS = 1 << 16
LINE_BYTES_MAX = 64 << 20

_INFER_ROWS = 10_000
_ONE_OBJECT_A_LINE = (
    "each line is one JSON object with fields as the columns; --on-error skip leaves such lines out and counts them,"
    " --drop-unknown leaves out fields that are no columns"
)
_MEND_ROWS = "mend the row; --on-error skip leaves such rows out and counts them"


@dataclass(frozen=True, slots=True)
class Patience:
    """When what came is handed on: after a silence, and at the latest so long after its first byte (seconds)."""

    quiet: float
    latest: float

    def wait(self, first_byte_at: float) -> float:
        """How long to wait for more."""
        return max(0.0, min(self.quiet, first_byte_at + self.latest - time.monotonic()))


PROMPT = Patience(0.005, 0.1)
THOROUGH = Patience(0.5, 1.0)
"""For the rows that the columns are inferred from: a few more of them make a better guess."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that can't be written: where it stands, why, and how many good rows of its piece come before it."""

    where: str
    reason: str
    rows_before: int
    remedy: str

    def error(self) -> DataError:
        """The error to raise when the policy is to fail."""
        return DataError(f"{self.where}: {self.reason}", hint=self.remedy)


@dataclass(slots=True)
class Piece:
    """Some rows in their order, and what stood between them and is no row."""

    rows: pl.DataFrame
    bad: list[BadRow] = field(default_factory=list)


class Source:
    """One file, or stdin. ``columns`` may be asked for before the rows are read; then they are inferred."""

    def __init__(self, name: str, interrupt: Interrupt, drop_unknown: bool) -> None:
        self.name = name
        self._interrupt = interrupt
        self._drop_unknown = drop_unknown

    def infer(self) -> dict[str, pl.DataType]:
        """The columns that the first rows have; none when there are no rows."""
        raise NotImplementedError

    def pieces(self, columns: Columns) -> Iterator[Piece]:
        """All rows, as these columns."""
        raise NotImplementedError


class JsonLines(Source):
    """JSON lines from a file, or from stdin where there is no ``path``."""

    def __init__(self, path: Path | None, interrupt: Interrupt, drop_unknown: bool) -> None:
        super().__init__(str(path or "stdin"), interrupt, drop_unknown)
        self._path = path
        self._chunks: Iterator[bytes] | None = None
        self._first: bytes | None = None

    @override
    def infer(self) -> dict[str, pl.DataType]:
        """See ``Source``: from the first chunk, which is kept."""
        self._chunks = self._read(THOROUGH)
        self._first = next(self._chunks, None)
        if self._first is None:
            return {}
        try:
            columns, bad = infer_columns(self._first)
        except DataError as error:
            raise DataError(f"{self.name}: {error.message}", hint=error.hint) from error
        if bad and not columns:
            line = bad[0]
            raise DataError(f"{self.name}:{line.index + 1}: {line.reason}", hint=_ONE_OBJECT_A_LINE)
        return columns

    @override
    def pieces(self, columns: Columns) -> Iterator[Piece]:
        rows = JsonRows(columns, drop_unknown=self._drop_unknown)
        line = 1
        for chunk in self._all_chunks():
            frame, bad = rows.decode(chunk)
            misfits = [
                BadRow(f"{self.name}:{line + one.index}", one.reason, one.rows_before, _ONE_OBJECT_A_LINE)
                for one in bad
            ]
            yield Piece(frame, misfits)
            line += chunk.count(b"\n")

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
    """A Parquet or CSV file. CSV is read as text and converted by the stream's columns, so no type is guessed."""

    def __init__(self, path: Path, is_csv: bool, interrupt: Interrupt, drop_unknown: bool) -> None:
        super().__init__(str(path), interrupt, drop_unknown)
        self._path = path
        self._is_csv = is_csv

    @override
    def infer(self) -> dict[str, pl.DataType]:
        """See ``Source``: a Parquet file says it; of a CSV file the first rows are looked at."""
        if self._is_csv:
            return self._guarded(
                lambda: dict(pl.read_csv(self._path, n_rows=_INFER_ROWS, infer_schema_length=None, glob=False).schema)
            )
        return self._guarded(lambda: dict(pl.read_parquet_schema(self._path)))

    @override
    def pieces(self, columns: Columns) -> Iterator[Piece]:
        schema = Schema.of(columns)
        read = 0
        lazy = (
            pl.scan_csv(self._path, infer_schema=False, glob=False)
            if self._is_csv
            else pl.scan_parquet(self._path, glob=False)
        )
        batches = self._guarded(lambda: iter(lazy.collect_batches(chunk_size=PIECE_ROWS)))
        while not self._interrupt.requested:
            batch = self._guarded(lambda: next(batches, None))
            if batch is None:
                return
            yield self._fit(batch, schema, read)
            read += batch.height

    def _fit(self, batch: pl.DataFrame, schema: Schema, read: int) -> Piece:
        unknown = [name for name in batch.columns if name not in schema.columns]
        if unknown and not self._drop_unknown:
            raise DataError(
                f"{self.name}: the stream has no column {', '.join(unknown)}; it has {', '.join(schema.columns)}",
                hint="--drop-unknown leaves such columns out",
            )
        try:
            rows, mismatch = schema.conform(batch)
        except DataError as error:
            raise DataError(f"{self.name}: {error.message}", hint=error.hint) from error
        if mismatch is None:
            return Piece(rows)
        reason = f"column {mismatch.column!r} should be {mismatch.expected}, not {mismatch.sample}"
        bad = [
            # Only the first misfit's reason is known; the later ones are counted.
            BadRow(f"{self.name}, row {read + row + 1}", reason, row - before, _MEND_ROWS)
            for before, row in enumerate(mismatch.rows)
        ]
        return Piece(rows, bad)

    def _guarded(self, read: Callable[[], T]) -> T:
        """What a damaged or missing file makes Polars raise, as our errors."""
        try:
            return read()
        except pl.exceptions.NoDataError as error:
            raise DataError(f"{self.name}: the file is empty", hint="a CSV file begins with its header") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            kind = "CSV" if self._is_csv else "Parquet"
            reason = str(error).splitlines()[0]
            raise DataError(f"{self.name}: not a readable {kind} file: {reason}") from error


def open_source(name: str, interrupt: Interrupt, drop_unknown: bool) -> Source:
    """A file by its ending, or stdin for ``-``. Nothing is read yet; a file that can't be is a ``UsageError``."""
    if name == STDIN:
        return JsonLines(None, interrupt, drop_unknown)
    path = Path(name)
    check_readable(path)
    kind = path.suffix.lower()
    if kind in (".parquet", ".pq", ".csv"):
        return TableFile(path, kind == ".csv", interrupt, drop_unknown)
    return JsonLines(path, interrupt, drop_unknown)


def check_readable(path: Path) -> None:
    """Raise ``UsageError`` unless this is a file that can be read."""
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"name its files: {path}/*")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} can't be read: permission denied")


def read_chunks(fd: int, name: str, interrupt: Interrupt, at_first: Patience = PROMPT) -> Iterator[bytes]:
    """Whole lines as they come; the last one needs no newline. Ends early, between lines, when interrupted.

    ``at_first`` is the patience for the first piece.
    """
    lines, rest = bytearray(), bytearray()
    first_byte_at, patience = 0.0, at_first
    while True:
        timeout = patience.wait(first_byte_at) if lines else None
        ready, _, _ = select.select([fd, interrupt.fd], [], [], timeout)
        data = os.read(fd, PIECE_BYTES) if fd in ready and not interrupt.requested else None
        if data:
            if not lines:
                first_byte_at = time.monotonic()
            _split_lines(data, lines, rest)
            if len(rest) > LINE_BYTES_MAX:
                raise DataError(f"{name}: a line of more than {LINE_BYTES_MAX >> 20} MiB", hint=_ONE_OBJECT_A_LINE)
        ended = data == b"" or interrupt.requested
        due = ended or not ready or len(lines) >= PIECE_BYTES or patience.wait(first_byte_at) <= 0
        if lines and due:
            yield bytes(lines)
            lines.clear()
            patience = PROMPT
        if ended:
            # Half a line that an interrupt left is not a row yet; at the end of a file it is the last one.
            if rest and not interrupt.requested:
                yield bytes(rest)
            return


def _split_lines(data: bytes, lines: bytearray, rest: bytearray) -> None:
    """Append what is whole to ``lines``; keep in ``rest`` what has no newline yet."""
    end = data.rfind(b"\n") + 1
    if end:
        lines += rest
        lines += data[:end]
        rest.clear()
    rest += data[end:]
