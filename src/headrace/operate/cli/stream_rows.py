"""Rows from JSON lines, CSV and Parquet into a stream: their columns, and those that do not fit. Frames as lines.

A pipe is read as it fills. Rows are passed on when nothing more arrives for a moment, at the latest a tenth of a second
after their first byte. A row that doesn't fit either ends the write, after the rows before it were written, or is left
out and counted. If anything ends a write early, the same command with its id writes the rest.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from typing_extensions import override

from headrace.core.errors import (
    DataError,
    DeclarationError,
    FrameError,
    HeadraceError,
    IndeterminateWriteError,
    StorageError,
    UsageError,
)
from headrace.core.files import UNREADABLE, which_readable
from headrace.core.frame import END_VERSION, UNVERSIONED, Kind
from headrace.operate.cli.stream_facts import Place
from headrace.operate.words import counted
from headrace.rows.dtypes import Columns, instantiate, parse_columns
from headrace.rows.given import concat_rows
from headrace.rows.pieces import ROW_BYTES_MAX, BadRow, ParsedRows, last_row_ends, parse_rows
from headrace.rows.schema import Schema, filled_up
from headrace.rows.text import CsvFormat, JsonRows, encode_lines, readable, shown
from headrace.run.coordinated import Interrupt
from headrace.streams.reader import Damaged, Frame, control_of, refuse, rows_of
from headrace.streams.writer import RowWriter, WriteMark, WrittenFrame
from headrace.systems.base import StreamInfo
from headrace.systems.files.consumer import Reader, Wanted, entry_of
from headrace.systems.files.storage import Found, LocalStorage

PARTITION, OFFSET, CONTROL = "@partition", "@offset", "@control"
_CONTROL_KINDS = (Kind.WATERMARK, Kind.END_OF_STREAM, Kind.CHECKPOINT, Kind.RESTORE)


class Lines:
    """Turns frames into at most ``limit`` lines. ``rows`` and ``others`` count the rows and the other frames."""

    def __init__(
        self,
        columns: Mapping[str, pl.DataType] | None = None,
        *,
        control: bool = False,
        offsets: bool = False,
        limit: int | None = None,
        damaged: Damaged = refuse,
    ) -> None:
        """``columns`` are the declared ones; older rows may lack some. ``damaged`` gets what can't be read."""
        self._columns, self._damaged = columns, damaged
        self._control, self._offsets = control, offsets
        self._left = limit
        self.rows = self.others = 0

    @property
    def full(self) -> bool:
        return self._left == 0

    def of(self, frames: Iterable[Frame]) -> bytes:
        lines = bytearray()
        for frame in frames:
            if self.full:
                break
            try:
                lines += self._lines(frame)
            except FrameError as error:
                self._damaged(error)
        return bytes(lines)

    def _lines(self, frame: Frame) -> bytes:
        if frame.header.kind is not Kind.USER:
            self.others += 1
            if not self._control:
                return b""
            line = msgspec.json.encode(_described(frame)) + b"\n"
            self._left = None if self._left is None else self._left - 1
            return line
        rows = self._rows(frame)
        self.rows += rows.height
        self._left = None if self._left is None else self._left - rows.height
        return encode_lines(rows)

    def _rows(self, frame: Frame) -> pl.DataFrame:
        rows = rows_of(frame)
        if self._columns is not None:
            rows = filled_up(rows, self._columns)
        if self._left is not None:
            rows = rows.head(self._left)
        if not self._offsets:
            return rows
        place = [pl.lit(frame.ssp.partition).alias(PARTITION), pl.lit(frame.offset).alias(OFFSET)]
        return rows.select(*place, pl.exclude(PARTITION, OFFSET))


def _described(frame: Frame) -> dict[str, Any]:
    header = frame.header
    versions = {UNVERSIONED: None, END_VERSION: "end"}
    described: dict[str, Any] = {
        CONTROL: header.kind.name.lower(), PARTITION: frame.ssp.partition, OFFSET: frame.offset,
        "producer": header.producer, "generation": header.generation,
        "version": versions.get(header.version, header.version), "seq": header.seq,
    }  # fmt: skip
    if header.kind not in _CONTROL_KINDS:
        return described | {"bytes": len(frame.body)}
    return described | {"message": control_of(frame)}


def infer_columns(data: bytes) -> tuple[dict[str, pl.DataType], list[BadRow]]:
    """Return the columns of these lines, in order of appearance, and the lines that aren't a JSON object."""
    found: dict[str, pl.DataType] = {}
    bad: list[BadRow] = []
    decoder = msgspec.json.Decoder(dict[str, Any])
    for index, line in enumerate(data.split(b"\n")):
        try:
            row = decoder.decode(line) if line.strip() else {}
        except UNREADABLE as error:
            bad.append(BadRow(index, readable(error), line))
            continue
        for name, value in row.items():
            dtype = _dtype_of(value, name)
            found[name] = _widen(found[name], dtype, name) if name in found else dtype
    unknown = [name for name, dtype in found.items() if _has_null(dtype)]
    if unknown:
        raise DataError(
            f"no value shows the type of {', '.join(unknown)}", hint=f'declare it: --schema "{unknown[0]}:str,..."'
        )
    return found, bad


def _dtype_of(value: Any, name: str) -> pl.DataType:
    match value:
        case None:
            return pl.Null()
        case bool():
            return pl.Boolean()
        case int():
            return pl.Int64()
        case float():
            return pl.Float64()
        case str():
            return pl.String()
        case list():
            inner: pl.DataType = pl.Null()
            for item in value:
                inner = _widen(inner, _dtype_of(item, name), name)
            return pl.List(inner)
        case _:
            return pl.Struct({key: _dtype_of(item, f"{name}.{key}") for key, item in value.items()})


def _widen(one: pl.DataType, other: pl.DataType, name: str) -> pl.DataType:
    if one == other or isinstance(other, pl.Null):
        return one
    if isinstance(one, pl.Null):
        return other
    match one, other:
        case (pl.Int64() | pl.Float64(), pl.Int64() | pl.Float64()):
            return pl.Float64()
        case pl.List(), pl.List():
            return pl.List(_widen(instantiate(one.inner), instantiate(other.inner), name))
        case pl.Struct(), pl.Struct():
            fields = {field.name: instantiate(field.dtype) for field in one.fields}
            for field in other.fields:
                dtype = instantiate(field.dtype)
                known = fields.get(field.name)
                fields[field.name] = dtype if known is None else _widen(known, dtype, f"{name}.{field.name}")
            return pl.Struct(fields)
    raise DataError(
        f"the field {name!r} is sometimes {one}, sometimes {other}",
        hint="declare one of them with --schema, and leave the other lines out with --on-error skip",
    )


def _has_null(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_has_null(field.dtype) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _has_null(dtype.inner)
    return isinstance(dtype, pl.Null)


STDIN = "-"
CHUNK_BYTES = 1 << 20
_ONE_OBJECT_A_LINE = (
    "write one JSON object per line, with columns of the stream as fields; --on-error skip leaves out and counts other "
    "lines, --drop-unknown leaves out other fields"
)
_FIX_ROWS = "fix the row; --on-error skip leaves such rows out and counts them"


@dataclass(frozen=True, slots=True)
class WritePatience:
    """How long to wait for more (seconds): until nothing arrives for ``quiet``, at most ``latest`` in all."""

    quiet: float
    latest: float

    def wait(self, first_byte_at: float) -> float:
        return max(0.0, min(self.quiet, first_byte_at + self.latest - time.monotonic()))


PROMPT = WritePatience(0.005, 0.1)
THOROUGH = WritePatience(0.5, 1.0)  # for the first rows, from which columns are inferred: more make a better guess


class RowSource:
    """One file, or stdin. ``infer`` may be called before ``blocks``, but not after it."""

    def __init__(self, name: str, interrupt: Interrupt, drop_unknown: bool) -> None:
        self.name, self._interrupt, self._drop_unknown = name, interrupt, drop_unknown

    def infer(self) -> dict[str, pl.DataType]:
        """Return the columns of the first rows; none if there are no rows."""
        raise NotImplementedError

    def blocks(self, columns: Columns, optional: Collection[str]) -> Iterator[list[ParsedRows]]:
        """Yield all rows with these columns, null if an ``optional`` one is missing. An interrupt ends it early."""
        raise NotImplementedError

    def bad_row(self, number: int, bad: BadRow) -> DataError:
        """Return the error for a bad row; ``number`` counts rows from 0."""
        raise NotImplementedError


class JsonLines(RowSource):
    """JSON lines from a file, or from stdin if ``path`` is None."""

    def __init__(self, path: Path | None, interrupt: Interrupt, drop_unknown: bool) -> None:
        super().__init__(str(path or "stdin"), interrupt, drop_unknown)
        self._path = path
        self._chunks: Iterator[bytes] | None = None
        self._first: bytes | None = None

    @override
    def infer(self) -> dict[str, pl.DataType]:
        self._chunks = self._read(THOROUGH)
        self._first = next(self._chunks, None)  # kept for ``blocks``
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
    def blocks(self, columns: Columns, optional: Collection[str]) -> Iterator[list[ParsedRows]]:
        rows = JsonRows(columns, drop_unknown=self._drop_unknown)
        first = [] if self._first is None else [self._first]
        self._first = None
        for chunk in chain(first, self._chunks or self._read(PROMPT)):
            yield parse_rows(chunk, last_row_ends(chunk, quote=None), rows.parse)

    @override
    def bad_row(self, number: int, bad: BadRow) -> DataError:
        return DataError(f"{self.name}:{number + 1}: {bad.reason}: {shown(bad.raw)}", hint=_ONE_OBJECT_A_LINE)

    def _read(self, at_first: WritePatience) -> Iterator[bytes]:
        if self._path is None:
            yield from read_chunks(0, self.name, self._interrupt, at_first)
            return
        with self._path.open("rb") as file:
            yield from read_chunks(file.fileno(), self.name, self._interrupt, at_first)


class TableFile(RowSource):
    """A Parquet or CSV file. CSV is read as text and then converted to the types of the stream's columns."""

    def __init__(self, path: Path, is_csv: bool, interrupt: Interrupt, drop_unknown: bool) -> None:
        super().__init__(str(path), interrupt, drop_unknown)
        stat = path.stat()
        self._entry = entry_of(Found(str(path), stat.st_size, stat.st_mtime_ns))
        self._is_csv = is_csv
        self._reader = Reader(LocalStorage(), "csv" if is_csv else "parquet", CsvFormat())

    @override
    def infer(self) -> dict[str, pl.DataType]:
        return dict(self._reader.columns(self._entry))

    @override
    def blocks(self, columns: Columns, optional: Collection[str]) -> Iterator[list[ParsedRows]]:
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

    def _fit(self, piece: ParsedRows, schema: Schema, optional: Collection[str]) -> ParsedRows:
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
            return ParsedRows(rows, piece.span, piece.skipped, piece.bad)
        # Only the first misfit's reason is known; later ones are only counted.
        unreadable = {bad.index for bad in piece.bad}
        readable = [index for index in range(piece.span) if index not in unreadable]
        misfits = [BadRow(readable[row], mismatch.reason, b"") for row in mismatch.rows]
        bad = sorted([*piece.bad, *misfits], key=lambda row: row.index)
        return ParsedRows(rows, piece.span, piece.skipped, tuple(bad))


def open_source(name: str, interrupt: Interrupt, drop_unknown: bool) -> RowSource:
    """Open a file by its ending, or stdin for ``-``, and read nothing."""
    if name == STDIN:
        return JsonLines(None, interrupt, drop_unknown)
    path = Path(name)
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"name its files: {path}/*")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} can't be read: permission denied")
    kind = path.suffix.lower()
    if kind in (".parquet", ".pq", ".csv"):
        return TableFile(path, kind == ".csv", interrupt, drop_unknown)
    return JsonLines(path, interrupt, drop_unknown)


def read_chunks(fd: int, name: str, interrupt: Interrupt, at_first: WritePatience = PROMPT) -> Iterator[bytes]:
    """Yield whole lines as they arrive; the last one needs no newline. An interrupt ends it early, between lines."""
    lines, rest = bytearray(), bytearray()
    first_byte_at, patience = 0.0, at_first
    while True:
        ready = which_readable((fd, interrupt.fd), 1000 * patience.wait(first_byte_at) if lines else None)
        data = os.read(fd, CHUNK_BYTES) if fd in ready and not interrupt.requested else None
        if data:
            if not lines:
                first_byte_at = time.monotonic()
            if end := data.rfind(b"\n") + 1:
                lines += rest + data[:end]
                rest.clear()
            rest += data[end:]
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
    id: str | None = None  # the stream may hold rows of earlier attempts at it; without one it gets a random id


class WrittenRows(msgspec.Struct, rename="camel"):
    """The progress and result of a write; with ``--json``, the command prints it."""

    stream: str
    id: str
    created: bool = False
    rows: int = 0
    already: int = 0  # rows that earlier attempts had written
    skipped: int = 0
    first_skipped: str | None = None
    frames: int = 0
    bytes: int = 0
    rows_by_partition: dict[int, int] = {}
    stopped_in: str | None = None  # the file that an interrupt left half written, if any

    def add(self, frames: Sequence[WrittenFrame]) -> None:
        for frame in frames:
            self.rows += frame.rows
            self.frames += 1
            self.bytes += frame.bytes
            self.rows_by_partition[frame.partition] = self.rows_by_partition.get(frame.partition, 0) + frame.rows


class Writing:
    """One run of ``stream write``. ``progress`` is called twice a second."""

    def __init__(self, order: Order, interrupt: Interrupt, progress: Callable[[WrittenRows], None]) -> None:
        self._order, self._interrupt, self._progress = order, interrupt, progress
        self._reported_at = time.monotonic()
        self._inferred = False
        self._mark = WriteMark(order.id if order.id is not None else secrets.token_hex(4))
        self._rows_before = 0
        self.written = WrittenRows(str(order.place.stream), self._mark.id)

    def run(self) -> WrittenRows:
        """Write all rows. An error says how many were written before it."""
        order = self._order
        sources = [open_source(name, self._interrupt, order.drop_unknown) for name in order.files or [STDIN]]
        declared = None if order.schema is None else parse_columns(order.schema)
        info = self._find_stream(declared)
        columns = declared or (info.columns if info else None)
        if not columns:
            self._inferred = True
            columns = next((columns for source in sources if (columns := source.infer())), None)
        if columns is None and info is None:
            raise UsageError(
                f"{order.place.stream} wasn't created: the input has no rows to infer its columns from",
                hint='declare the columns: --schema "member:str,ts:datetime[ms]"',
            )
        if columns is None:
            return self.written
        try:
            Schema.of(columns).require(order.keys, "--key")
        except DeclarationError as error:
            raise UsageError(error.message, hint=error.hint) from error
        if info is None:
            name = order.place.stream.name
            info = order.place.admin().create(name, order.partitions or 0, dict(columns), order.keys)
            self.written.created = True
        elif order.id is not None:
            self._mark.find(order.place.system, order.place.stream, info)
        try:
            writer = RowWriter(order.place.system, order.place.stream, info, order.keys, order.partition)
            with closing(writer):
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

    def _find_stream(self, declared: Columns | None) -> StreamInfo | None:
        """The stream's info, or None if the stream has to be created. Raises if it doesn't match the order."""
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

    def _copy(
        self, sources: Sequence[RowSource], columns: Columns, optional: Collection[str], writer: RowWriter
    ) -> None:
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
                # An interrupt usually ends stdin from a pipe or a terminal.
                endless = source.name == "stdin" and not stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
                self.written.stopped_in = None if endless else source.name
                return

    def _take(self, source: RowSource, number: int, block: Sequence[ParsedRows], writer: RowWriter) -> int:
        """Write the pieces of a block, which begins at this row; return the number of the row after it."""
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

    def _numbers(self, piece: ParsedRows, number: int) -> pl.Series:
        """The number of each good row of a piece in the whole input; the piece begins at row ``number``."""
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
            guessed = "the columns were inferred from the first rows; declare them with --schema."
            error.hint = f"{guessed} Otherwise: {error.hint}"
        return error
