"""The entry of messages into a task: frames and tables become rows of the declared schema, or a policy handles them.

Nothing is dropped without being counted. This app has written the frames of intermediate streams itself, so anything
wrong with them is an error. A source partition is read committed: another app's frames are released once their commit
is known. Frames of plain writers pass at once, and so do bytes that can't be decoded as a frame, for the policy. On a
detour (``protocol.record``), frames behind its end only say what was committed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import polars as pl
from msgspec import UNSET

from headrace.api.specs import DEAD_LETTER_COLUMNS, Role, StreamSpec
from headrace.core.errors import DataError, FrameError, ProtocolError
from headrace.core.frame import Header, Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.protocol.read_committed import ReadCommitted
from headrace.protocol.record import ReaderPosition, SourceEntry
from headrace.rows.given import concat_rows
from headrace.rows.ipc import decode_rows, decode_runs, encode_rows
from headrace.rows.schema import Schema
from headrace.systems.base import BadRecord, Rows
from headrace.task.event_time import looks_like_seconds, not_times, time_ms, why_no_times
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import Arrival
from headrace.task.scope import Placing
from headrace.task.task import Task

_CHANGELOG = (Kind.CHANGE, Kind.COMMIT, Kind.ABORT)
_log = logger(__name__)
Decoded = list[tuple[pl.DataFrame, list[int]]]  # tables with the rows of each frame; several only of partial results
DeadLetters = Callable[[str, pl.DataFrame], None]  # writes rows of ``DEAD_LETTER_COLUMNS`` to the stream of that id


class Intake:
    """Decodes and checks one input stream of one task."""

    def __init__(
        self,
        spec: StreamSpec,
        metrics: TaskMetrics,
        dead_letters: DeadLetters,
        *,
        keys: Sequence[str] = (),
        placing: Placing | None = None,
        added: Collection[str] = frozenset(),
        partial: bool = False,
    ) -> None:
        """No row may have a null in ``keys``. ``added``: columns that older frames lack."""
        self.partial = partial
        self.since_ms: int | None = None  # what is older was in the tables of a backfill, and is left out
        self._spec = spec
        self._schema = spec.schema if spec.schema is not None else Schema.of(None)
        self._metrics = metrics
        self._dead_letters = dead_letters
        self._keys = keys
        self._placing = placing
        # Whatever this app writes to its own streams has the columns that it declared then: it may have declared fewer.
        self._optional = self._schema.columns.keys() if spec.role is Role.INTERMEDIATE else frozenset(added)
        self._throttle = Throttle(_log)
        self._place = ""
        self._time = spec.event_time.column if spec.event_time and spec.role is not Role.INTERMEDIATE else None
        self._unit_is_assumed = not isinstance(self._schema.columns.get(self._time or ""), pl.Datetime)

    def decode(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes]) -> Decoded:
        size = sum(map(len, payloads))
        self._metrics.bytes_in += size
        self._metrics.bytes_of[ssp] += size
        if len(payloads) > 1 and (runs := self._at_once(ssp, payloads)) is not None:
            return runs
        read = self._own if self._spec.role is Role.INTERMEDIATE else self._foreign
        tables = [read(ssp, offset, payload) for offset, payload in zip(offsets, payloads, strict=True)]
        ends = [place for place in range(1, len(tables)) if tables[place].schema != tables[place - 1].schema]
        alike = [tables[first:last] for first, last in pairwise(sorted({0, *ends, len(tables)}))]
        return [(concat_rows(some), [table.height for table in some]) for some in alike]

    def _at_once(self, ssp: SSP, payloads: Sequence[bytes]) -> Decoded | None:
        own = self._spec.role is Role.INTERMEDIATE
        try:
            if not own and any(decode_header(payload).kind is not Kind.USER for payload in payloads):
                return None
            runs = decode_runs([body_of(payload) for payload in payloads], checked=own)
            if self.partial:
                return runs
            fitting = [self._schema.conform(rows, self._optional) for rows, _ in runs]
        except DataError:
            return None
        if any(mismatch is not None or not (own or self._is_in_order(ssp, rows)) for rows, mismatch in fitting):
            return None
        return [(concat_rows([rows for rows, _ in fitting]), [height for _, heights in runs for height in heights])]

    def _is_in_order(self, ssp: SSP, rows: pl.DataFrame) -> bool:
        """Whether ``accept`` would return exactly these rows and note nothing."""
        if self.since_ms is not None or any(rows[key].null_count() for key in self._keys):
            return False
        if self._placing is not None and self._placing.misplaced(rows, ssp.partition) is not None:
            return False
        return self._time is None or (not self._unit_is_assumed and not_times(rows[self._time]) is None)

    def accept(
        self, ssp: SSP, rows: pl.DataFrame, offset: Offset, bad: Sequence[BadRecord] = (), place: str = ""
    ) -> pl.DataFrame:
        """``place`` says in reasons where the rows are from, if the offset doesn't tell the user."""
        self._place = f"{place}: " if place else ""
        for record in bad:
            self._refuse(ssp, record.offset, record.reason, record.raw)
        try:
            fitting, mismatch = self._schema.conform(rows, self._optional)
        except DataError as error:
            self._refuse_rows(ssp, offset, error.message, rows, error.hint)
            return self._schema.empty()
        if mismatch is not None:
            reason = mismatch.error()
            self._refuse_rows(ssp, offset, reason.message, rows[mismatch.rows], reason.hint)
        for key in self._keys:
            fitting = self._keyed(ssp, fitting, offset, key)
        if self._placing is not None:
            fitting = self._placed(ssp, fitting, offset, self._placing)
        if self._time is not None:
            fitting = self._timed(ssp, fitting, offset, self._time)
            if self.since_ms is not None and self._spec.event_time is not None:
                time = time_ms(self._spec.event_time, self._schema.columns[self._spec.event_time.column])
                recent = fitting.filter(time >= self.since_ms)  # the backfill has had the others
                self._metrics.count("backfilled", fitting.height - recent.height)
                return recent
        return fitting

    def _keyed(self, ssp: SSP, rows: pl.DataFrame, offset: Offset, column: str) -> pl.DataFrame:
        missing = rows.get_column(column).is_null()
        if not missing.any():
            return rows
        reason = f"{missing.sum()} rows have no key; the first is row {missing.arg_max()}: {column!r} is null"
        self._refuse_rows(ssp, offset, reason, rows.filter(missing), None)
        return rows.filter(~missing)

    def _placed(self, ssp: SSP, rows: pl.DataFrame, offset: Offset, placing: Placing) -> pl.DataFrame:
        wrong = placing.misplaced(rows, ssp.partition)
        if wrong is None:
            return rows
        misplaced = rows.filter(wrong)
        self._refuse_rows(ssp, offset, placing.complaint(misplaced), misplaced, placing.remedy)
        return rows.filter(~wrong)

    def _timed(self, ssp: SSP, rows: pl.DataFrame, offset: Offset, column: str) -> pl.DataFrame:
        times = rows.get_column(column)
        missing = not_times(times)
        if missing is not None:
            why = why_no_times(times, missing)
            reason = f"{missing.sum()} rows have no event time; the first is row {missing.arg_max()}: {why}"
            self._refuse_rows(ssp, offset, reason, rows.filter(missing), None)
            rows = rows.filter(~missing)
        if self._unit_is_assumed and rows.height:
            self._unit_is_assumed = False
            if warning := looks_like_seconds(rows.get_column(column)):
                self._metrics.warnings.add(_log, f"input {self._spec.id!r}: {warning}")
        return rows

    def _own(self, ssp: SSP, offset: Offset, payload: bytes) -> pl.DataFrame:
        try:
            rows = decode_rows(body_of(payload), checked=True)
            if self.partial:
                return rows
            fitting, mismatch = self._schema.conform(rows, self._optional)
        except DataError as error:
            raise self._misplaced(ssp, offset, error) from error
        if mismatch is not None:
            raise self._misplaced(ssp, offset, mismatch.error())
        return fitting

    def _misplaced(self, ssp: SSP, offset: Offset, error: DataError) -> DataError:
        return DataError(
            f"{ssp} at offset {offset}: {error.message}",
            hint="an intermediate stream has messages of another version of the app; drain the app before "
            "changing the stream's columns, or give the step a new id",
        )

    def _foreign(self, ssp: SSP, offset: Offset, payload: bytes) -> pl.DataFrame:
        try:
            header = decode_header(payload)
            if header.kind in _CHANGELOG:
                raise FrameError(f"a frame of kind {header.kind.name}", hint="this stream is the changelog of an app")
            if header.kind is not Kind.USER:
                return self._schema.empty()  # control messages of another app aren't data
            rows = decode_rows(body_of(payload))
        except DataError as error:
            self._refuse(ssp, offset, error.message, payload, error.hint)
            return self._schema.empty()
        return self.accept(ssp, rows, offset)

    def _refuse_rows(self, ssp: SSP, offset: Offset, reason: str, rows: pl.DataFrame, hint: str | None) -> None:
        self._refuse(ssp, offset, self._place + reason, rows, hint, count=rows.height)

    def _refuse(
        self,
        ssp: SSP,
        offset: Offset,
        reason: str,
        raw: bytes | pl.DataFrame,
        hint: str | None = None,
        *,
        count: int = 1,
    ) -> None:
        match self._spec.on_error:
            case "skip":
                self._metrics.count("skipped", count)
                self._throttle.warning("messages skipped", by=count, input=str(ssp), offset=offset, reason=reason)
            case "dead_letter" if self._spec.dead_letter is not None:
                self._metrics.count("dead_lettered", count)
                self._throttle.warning("messages dead-lettered", by=count, input=str(ssp), offset=offset, reason=reason)
                body = encode_rows(raw) if isinstance(raw, pl.DataFrame) else raw
                letter = [[str(ssp.stream)], [ssp.partition], [offset], [reason], [body]]
                columns = dict(zip(DEAD_LETTER_COLUMNS, letter, strict=True))
                self._dead_letters(self._spec.dead_letter, pl.DataFrame(columns, schema=DEAD_LETTER_COLUMNS))
            case _:
                raise DataError(
                    f"{ssp} at offset {offset}: {reason}",
                    hint=hint
                    or f'fix the data, or give input {self._spec.id!r} on_error="skip" (counts such messages) '
                    'or on_error="dead_letter" (sets them aside in a stream)',
                )


class Intakes:
    """The intakes of one attempt: everything that the task processes comes through here."""

    def __init__(self, task: Task, dead_letters: DeadLetters, metrics: TaskMetrics) -> None:
        self._task = task
        self._metrics = metrics
        tables, partial = task.chain.tables, task.scope.partial
        self._intakes = {
            ssp: Intake(
                spec,
                metrics,
                dead_letters,
                keys=tables.keys_of(spec.id),
                placing=task.scope.placing.get(spec.id),
                added=task.scope.added.get(spec.id, ()),
                partial=spec.id in partial,
            )
            for ssp, spec in task.specs.items()
        }

    def begin_at(self, ssp: SSP, since_ms: int) -> None:
        self._intakes[ssp].since_ms = since_ms

    def frames(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes], after: Offset) -> None:
        begin = 0
        for rows, heights in self._intakes[ssp].decode(ssp, offsets, payloads):
            each = list(offsets[begin : begin + len(heights)])
            begin += len(heights)
            end = after if begin == len(offsets) else offsets[begin]
            self._task.rows(Arrival(ssp, each[0], end, rows.height, each, heights), rows)

    def table(self, table: Rows) -> None:
        for unread in table.unread:
            self._metrics.count(unread.counter, unread.count)
            self._metrics.warnings.add(_log, f"{table.ssp}: {unread.warning}", shard=table.shard or None)
        if not table.frame.height and not table.bad:
            return  # only the position moves
        accepted = self._intakes[table.ssp].accept(table.ssp, table.frame, table.offset, table.bad, table.place)
        self._metrics.bytes_in += table.bytes
        self._metrics.bytes_of[table.ssp] += table.bytes
        offsets = table.offsets if accepted.height == table.frame.height else None
        arrival = Arrival(table.ssp, table.offset, table.next, accepted.height, shard=table.shard, each=offsets)
        self._task.rows(arrival, accepted)


_PLAIN = Header(Kind.USER)


class CommittedSource:
    """One source partition of a record system."""

    def __init__(self, ssp: SSP, start: Offset, saved: SourceEntry | None, *, whole: bool = False) -> None:
        self._ssp = ssp
        position = ReaderPosition(offset=start, whole=whole)
        self._until: Offset | None = None
        if saved is not None:
            self._until = None if saved.detour is UNSET else saved.detour.until
            position = saved.reader_at(start)
        self._reader: ReadCommitted[bytes] = ReadCommitted(position)

    def receive(self, offsets: list[Offset], payloads: list[bytes], after: Offset) -> tuple[list[Offset], list[bytes]]:
        released: tuple[list[Offset], list[bytes]] = [], []
        afters = [*offsets[1:], after] if offsets else []
        for offset, payload, follows in zip(offsets, payloads, afters, strict=True):
            try:
                header = decode_header(payload)
                control = None
                if header.kind in (Kind.CHECKPOINT, Kind.RESTORE):
                    control = decode_control(header.kind, body_of(payload))
            except FrameError:
                header, control = _PLAIN, None
            try:
                for held in self._reader.receive(offset, follows, header, control, payload):
                    if self._until is None or held.offset < self._until:
                        released[0].append(held.offset)
                        released[1].append(held.frame)
            except ProtocolError as error:
                raise ProtocolError(f"{self._ssp}: {error.message}", hint=error.hint) from error
        return released

    @property
    def undecided(self) -> bool:
        return self._reader.undecided

    def undecided_before(self, offset: Offset) -> bool:
        return self._reader.undecided_before(offset)

    def entry(self) -> SourceEntry:
        return SourceEntry.at(self._ssp, self._reader.position())
