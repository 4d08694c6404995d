"""Tasks that get all of their input at once, in order of event time: the heart of a batch job, without Spark.

**Merging.** Pieces come in the order of their first times, so rows older than the newest piece are complete. They leave
as *runs*: rows of one partition, in the order that the stage needs (``plan.chain_plan.BatchOrder``). Pure.

**Notes.** Pieces without rows that travel among the others: ``Said`` comes before any row of its partition. Tasks
downstream pass on notes for the driver, so it gets only those of attempts whose results count. Pure.

**Seam.** Where a job (a backfill) stops and a live run continues. Tasks don't end there: event time stops at the lowest
of the partitions' watermarks, as in a live task, so open windows stay open.

**Fed task.** The operators of a live task. Watermarks follow from the order, so no message is late and little state is
held. Only a stage that uses another time than its input's stays behind by the lateness of the sources. There is no
changelog: if the process dies, Spark feeds another task from the start. The wall clock stands still at the job's
beginning: work that is due by it happens at the end, or never.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.specs import Graph, Role, StreamSpec
from headrace.core.errors import UnavailableError
from headrace.core.files import readable
from headrace.core.frame import END_VERSION
from headrace.core.ids import SSP, Offset
from headrace.plan.chain_plan import BatchOrder, ranks_of, slack_of, time_written
from headrace.plan.model import Plan, StagePlan, StreamPlan, TaskPlan
from headrace.protocol.record import (
    COMMIT_FILE,
    DATABASE_FOLDER,
    CommitRecord,
    KeptCommit,
    LocalCheckpoint,
    SourceEntry,
)
from headrace.rows.given import concat_rows
from headrace.rows.hashing import partition_of, split
from headrace.rows.ipc import encode_rows
from headrace.rows.pieces import TIME, Piece
from headrace.systems.base import Consumer, Edge, Ended, Polled, Records, Rows
from headrace.systems.registry import keeps_rows
from headrace.task.connections import Connections
from headrace.task.event_time import FOREVER, NEVER, NOTHING, Progress, combined, time_ms
from headrace.task.inputs.consumers import POLL_BYTES_MAX, up_to
from headrace.task.inputs.intake import CommittedSource, DeadLetters, Intake
from headrace.task.metrics import TaskMetrics
from headrace.task.naming import StateFolders, task_folder
from headrace.task.operators.base import Arrival, Port
from headrace.task.operators.windows import START
from headrace.task.scope import TaskScope, placings
from headrace.task.state.task_state import TaskState
from headrace.task.task import task_factory

ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one partition. All rows older than ``complete`` came before them, in all partitions."""

    ssp: SSP
    rows: pl.DataFrame
    complete: int


class Merging:
    """The pieces of one task that have been read and not yet handed out."""

    def __init__(self, order: BatchOrder, ranks: Mapping[SSP, int], enough: int = ROWS_AT_ONCE) -> None:
        """Of rows of equal time, those with the lowest of ``ranks`` come first. ``enough``: rows held at least."""
        self._order = order
        self._ranks = ranks
        self._held: dict[SSP, list[pl.DataFrame]] = {}
        self.held = 0  # how many rows are held
        self._least = self._enough = enough
        self._newest: int | None = None

    def add(self, ssp: SSP, piece: Piece) -> Iterator[Run]:
        if self.held >= self._enough and self._newest is not None and piece.first > self._newest:
            yield from self._until(piece.first)
            self._enough = max(self._least, 2 * self.held)  # else what overlaps would be looked through at each piece
        self._newest = piece.first
        self._held.setdefault(ssp, []).append(piece.frame)
        self.held += piece.rows

    def rest(self) -> Iterator[Run]:
        yield from self._until(FOREVER)

    def _until(self, time: int) -> Iterator[Run]:
        ready: dict[SSP, pl.DataFrame] = {}
        for ssp in sorted(self._held, key=lambda each: (self._ranks[each], each)):
            rows = concat_rows(self._held.pop(ssp)).sort(TIME, maintain_order=True)
            count = rows.height if time == FOREVER else int(rows.get_column(TIME).search_sorted(time, "left"))
            if count:
                ready[ssp] = rows.head(count)
                self.held -= count
            if count < rows.height:
                self._held[ssp] = [rows.slice(count)]
        if ready and (self._order.watched or (self._order.between and len(ready) > 1)):
            yield from _alternating(ready, watched=self._order.watched)
            return
        lowest = min((int(rows.item(0, TIME)) for rows in ready.values()), default=time)
        for ssp, rows in ready.items():
            for part in rows.iter_slices(ROWS_AT_ONCE):
                yield Run(ssp, part.drop(TIME), int(part.item(0, TIME)) if len(ready) == 1 else lowest)


def _alternating(ready: Mapping[SSP, pl.DataFrame], *, watched: bool) -> Iterator[Run]:
    """``watched``: no run has rows of two times."""
    ssps = list(ready)
    times = np.concatenate([rows.get_column(TIME).to_numpy() for rows in ready.values()])
    owner = np.repeat(np.arange(len(ssps)), [rows.height for rows in ready.values()])
    order = np.lexsort((owner, times))  # stable: rows of a partition stay in their order
    owner, times = owner[order], times[order]
    changes = owner[1:] != owner[:-1]
    if watched:
        changes |= times[1:] != times[:-1]
    begins = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(begins[1:], len(owner))
    taken = [0] * len(ssps)
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        which = int(owner[begin])
        rows = ready[ssps[which]].slice(taken[which], end - begin)
        taken[which] += end - begin
        yield Run(ssps[which], rows.drop(TIME), int(times[begin]))


# -- notes -------------------------------------------------------------------------------------------
LEFT, COUNTED = ":left", ":counted"  # in place of a stream (whose id has no colon): a ``Left``, or counters
FOR_DRIVER = (LEFT, COUNTED)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a partition of a source, to read on at ``entry``, or of a stream, from one of ``tasks``."""

    progress: Progress
    entry: SourceEntry | None = None
    task: str = ""
    tasks: int = 0


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a task leaves at a seam: its first commit in the live run. Its state is in ``folder``."""

    task: str
    folder: str
    record: CommitRecord


def note_of_counts(counters: Mapping[str, int], writer: str) -> Piece:
    return _note(COUNTED, 0, writer, counters)


def left_in(piece: Piece) -> Left:
    return _LEFT.decode(piece.body)


def counts_in(piece: Piece) -> Mapping[str, int]:
    return _COUNTED.decode(piece.body)


def _note(stream: str, partition: int, writer: str, content: Said | Left | Mapping[str, int]) -> Piece:
    return Piece(stream, partition, NEVER, NEVER, 0, writer, 0, msgspec.json.encode(content))


_SAID = msgspec.json.Decoder(Said)
_LEFT = msgspec.json.Decoder(Left)
_COUNTED = msgspec.json.Decoder(dict[str, int])


PIECE_ROWS = 1 << 14
HELD_ROWS = 1 << 18  # rows that a writer collects before it cuts pieces: the more, the less do these overlap


class PieceWriter(Port):
    """Cuts results into pieces in order of time; rows without event time keep their order."""

    def __init__(self, graph: Graph, streams: Mapping[str, StreamPlan], writer: str, number: int = 0) -> None:
        """``streams`` are those that may be written. ``number`` is the partition of rows without keys."""
        self._streams = streams
        self._writer = writer
        self._number = number
        self._times = {id_: _time_of(graph, id_) for id_ in streams}
        schemas = {id_: plan.spec.schema for id_, plan in streams.items()}
        self._with_start = {id_ for id_, schema in schemas.items() if schema is not None and START in schema.columns}
        self._held: dict[SSP, list[pl.DataFrame]] = {}
        self._ids = {stream.spec.stream: id_ for id_, stream in streams.items()}
        self._rows = self._cut = 0

    @override
    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        count = self._streams[stream].partitions
        timed = self.timed(stream, rows)
        if not keys or count == 1:
            self.put(stream, self._number % count, timed)
            return
        for partition, part in split(timed, partition_of(rows, keys, count), count):
            if part.height:
                self.put(stream, partition, part)

    def put(self, stream: str, partition: int, timed: pl.DataFrame) -> None:
        self._held.setdefault(SSP(self._streams[stream].spec.stream, partition), []).append(timed)
        self._rows += timed.height

    def timed(self, stream: str, rows: pl.DataFrame) -> pl.DataFrame:
        # Partial results of a window are as old as their slices.
        partial = START in rows.columns and stream not in self._with_start
        return rows.with_columns((pl.col(START) if partial else self._times[stream]).alias(TIME))

    def take(self, *, all_of_it: bool = False) -> Iterator[Piece]:
        if self._rows < HELD_ROWS and not all_of_it:
            return
        held, self._held, self._rows = self._held, {}, 0
        for ssp in sorted(held):
            rows = concat_rows(held.pop(ssp))
            yield from self._pieces(self._ids[ssp.stream], ssp.partition, rows.sort(TIME, maintain_order=True))

    def _pieces(self, stream: str, partition: int, rows: pl.DataFrame) -> Iterator[Piece]:
        for part in rows.iter_slices(PIECE_ROWS):
            first, last = part.item(0, TIME), part.item(-1, TIME)
            self._cut += 1
            yield Piece(stream, partition, first, last, part.height, self._writer, self._cut, encode_rows(part))


def _time_of(graph: Graph, stream: str) -> pl.Expr:
    time = time_written(graph, stream)
    spec = graph.streams.get(stream)
    schema = None if spec is None else spec.schema
    if time is None or schema is None or time.column not in schema.columns:
        return pl.lit(NEVER, pl.Int64)
    return time_ms(time, schema.columns[time.column]).fill_null(NEVER)


WAIT_MS_MAX = 60_000  # how long a partition may have nothing to read before its end is reached


class Reading:
    """Reads source partitions of a plan, each up to its end."""

    def __init__(self, plan: Plan, ends: Mapping[SSP, Offset], connections: Connections) -> None:
        self._plan = plan
        self._ends = ends
        self._connections = connections
        self._specs = {ssp: stream.spec for stream in plan.streams.values() for ssp in stream.ssps()}
        self._read: dict[SSP, Said] = {}

    def of(self, ssp: SSP, dead_letters: DeadLetters, metrics: TaskMetrics) -> Iterator[pl.DataFrame]:
        spec = self._specs[ssp]
        intake = self.intake(spec, dead_letters, metrics)
        ended = False
        with closing(self._consumer(spec)) as consumer:
            consumer.register(ssp, Edge.OLDEST)
            trimmed = keeps_rows(spec.system) or self._connections.admin(spec.system).extent(ssp).trimmed
            source = CommittedSource(ssp, consumer.position(ssp), None, whole=not trimmed)
            for polled in self._polled(consumer, ssp):
                match polled:
                    case Rows(frame=frame, offset=offset, bad=bad, place=place):
                        if frame.height or bad:  # else only the position moves
                            yield intake.accept(ssp, frame, offset, bad, place)
                    case Records(offsets=offsets, payloads=payloads, next=after):
                        for rows, _ in intake.decode(ssp, *source.receive(offsets, payloads, after)):
                            yield rows
                    case Ended():
                        ended = True
                        break
            stands = min(consumer.position(ssp), self._ends.get(ssp, FOREVER))
            entry = SourceEntry.at(ssp, stands) if keeps_rows(spec.system) else source.entry()
        self._read[ssp] = Said(progress=Progress(ended=ended), entry=entry)

    def intake(self, spec: StreamSpec, dead_letters: DeadLetters, metrics: TaskMetrics) -> Intake:
        tables = self._plan.graph.tables.values()
        keys = dict.fromkeys(name for table in tables if spec.id in table.side_inputs for name in table.key)
        added = self._plan.streams[spec.id].added
        placing = placings([self._plan.streams[spec.id]]).get(spec.id)
        return Intake(spec, metrics, dead_letters, keys=list(keys), placing=placing, added=added)

    def pieces(self, ssp: SSP, metrics: TaskMetrics) -> Iterator[Piece]:
        spec = self._specs[ssp]
        name = f"{ssp.stream}/{ssp.partition}"
        writer, newest = PieceWriter(self._plan.graph, self._plan.streams, name), NEVER
        for rows in self.of(ssp, writer.write, metrics):
            if rows.height:
                put_source(writer, self._plan.streams[spec.id], ssp.partition, rows)
            for piece in writer.take():
                newest = max(newest, piece.last)
                yield piece
        for piece in writer.take(all_of_it=True):
            newest = max(newest, piece.last)
            yield piece
        watermark = newest if newest == NEVER else newest - spec.lateness_ms
        yield _note(spec.id, ssp.partition, name, self.said(ssp, watermark))
        if metrics.counters:
            yield note_of_counts(metrics.counters, name)

    def said(self, ssp: SSP, watermark: int) -> Said:
        said = self._read[ssp]
        idle = watermark == NEVER and self._specs[ssp].idle_timeout_ms is not None and not said.progress.ended
        return msgspec.structs.replace(said, progress=Progress(watermark, idle, said.progress.ended))

    def _consumer(self, spec: StreamSpec) -> Consumer:
        columns = None if spec.schema is None else spec.schema.columns
        whole = spec.on_error == "dead_letter" or columns is None
        return self._connections.consumer(spec.system, columns, whole=whole)

    def _polled(self, consumer: Consumer, ssp: SSP) -> Iterator[Polled]:
        end = self._ends.get(ssp)
        while end is None or consumer.position(ssp) < end:
            found = consumer.poll([ssp], POLL_BYTES_MAX)
            if not found:
                _wait(consumer, ssp)
            for polled in found:
                yield polled if end is None else up_to(polled, end)
                if isinstance(polled, Ended):
                    return


def put_source(
    writer: PieceWriter, stream: StreamPlan, partition: int, rows: pl.DataFrame, key: Sequence[str] = ()
) -> None:
    """Pass rows of a source to a writer, for this partition, or for those of a key; side inputs before all else."""
    spec, count = stream.spec, stream.partitions
    early = spec.role is Role.SIDE_INPUT
    timed = rows.with_columns(pl.lit(NEVER, pl.Int64).alias(TIME)) if early else writer.timed(spec.id, rows)
    placed = split(timed, partition_of(rows, key, count), count) if key else [(partition, timed)]
    for number, part in placed:
        if part.height:
            writer.put(spec.id, number, part)


def _wait(consumer: Consumer, ssp: SSP) -> None:
    number = consumer.fileno()
    if number is None or not readable(number, WAIT_MS_MAX):
        raise UnavailableError(
            f"{ssp} has no more records before its end, at offset {consumer.position(ssp)}",
            hint="it may have lost its end; headrace stream describe shows where it is",
        )


@dataclass(frozen=True, slots=True)
class Seam:
    """Where tasks commit ``version`` and leave their state below ``folder``; ``given`` partitions aren't read."""

    version: int
    folder: str
    given: Mapping[SSP, Said] = field(default_factory=dict)

    def before(self, ssp: SSP, spec: StreamSpec, rows: pl.DataFrame) -> pl.DataFrame:
        time, said = spec.event_time, self.given.get(ssp)
        if time is None or spec.schema is None or said is None:
            return rows
        return rows.filter(time_ms(time, spec.schema.columns[time.column]) < said.progress.watermark)


SPILL_ROWS = 1 << 20  # after how many rows state goes from memory to the database
WAIT_S_MAX = 600.0  # how long to wait for a call of the app's that doesn't answer, if it has no timeout of its own


class FedTask:
    """One task of a stage. Use it as a context manager."""

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        task: TaskPlan,
        folder: Path,
        now_ms: int,
        writer: str = "",
        seam: Seam | None = None,
    ) -> None:
        self.scope = TaskScope.of(plan, stage, task)
        self.metrics = TaskMetrics(str(task.name))
        self._woken = threading.Event()
        self._connections = Connections(self._woken.set)
        self._writer = writer or str(task.name)
        self.port = PieceWriter(plan.graph, self.scope.outputs, self._writer, task.name.number)  # dead letters, too
        self.task = task_factory(plan, stage, self.scope)(self.port, self.metrics, self._connections.calls)
        self._now_ms = now_ms
        self._timed = [ssp for ssp, spec in self.scope.inputs.items() if spec.event_time is not None]
        self._untimed = [ssp for ssp in self.scope.inputs if ssp not in self._timed]
        self._reached = NEVER
        self._seam = seam
        given = {} if seam is None else seam.given
        self._said: dict[SSP, list[Said]] = {ssp: [given[ssp]] for ssp in self.scope.specs if ssp in given}
        self._slack = slack_of(plan, stage)
        self.ranks = ranks_of(plan, stage)
        self._fed: dict[SSP, int] = dict.fromkeys(self.scope.specs, 0)
        self._since_spill = 0
        folders = StateFolders(folder / "state", folder / "snapshots")
        self.state = TaskState(SSP(self.scope.changelog[0].stream, task.name.number), folders, self.metrics.warnings)
        self._spills = 0

    def __enter__(self) -> Self:
        stores = {self.scope.store_name(id_): store for id_, store in self.task.stores().items()}
        if stores or self._seam is not None:  # to open a database takes longer than a small piece
            self.state.begin(stores)
        self.task.chain.tell_time(self._now_ms)
        self.task.begin()
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing_all:
            closing_all.callback(self._connections.close)
            closing_all.callback(self.state.close)
            closing_all.callback(self.task.close)

    def map(self, ssp: SSP, tables: Iterable[pl.DataFrame]) -> Iterator[Piece]:
        for rows in tables:
            self._process(Run(ssp, rows, NEVER))
            yield from self.port.take()

    def feed(self, runs: Iterable[Run]) -> Iterator[Piece]:
        for run in runs:
            self._advance(run.complete)
            self._process(run)
            yield from self.port.take()

    def hear(self, ssp: SSP, said: Said) -> None:
        self._said.setdefault(ssp, []).append(said)

    def finish(self) -> Iterator[Piece]:
        if self._seam is not None:
            yield from self._leave(self._seam)
        else:
            for ssp in self.scope.inputs:
                self.task.end(ssp)
            self._end()
            yield from self.port.take(all_of_it=True)
        if self.metrics.counters:
            yield note_of_counts(self.metrics.counters, self._writer)

    def _end(self) -> None:
        self.task.advance()
        self._settle()
        while not self.task.finish():
            self._wait()
            self.task.chain.collect()

    def _process(self, run: Run) -> None:
        offset = self._fed[run.ssp]
        self._fed[run.ssp] = after = offset + run.rows.height
        self.task.rows(Arrival(run.ssp, offset, after, run.rows.height), run.rows)
        self._settle()
        self._since_spill += run.rows.height
        if self._since_spill >= SPILL_ROWS:
            self._since_spill = 0
            self._spills += 1
            for _ in self.state.changes(self._spills):
                pass  # no changelog needs them
            self.state.persist(LocalCheckpoint(self._spills, 1, self._spills))

    def _advance(self, complete: int) -> None:
        if complete <= self._reached:
            return
        self._reached = complete
        for ssp in self._untimed:
            if self._limits[ssp] == FOREVER:
                self.task.end(ssp)
        for ssp in self._timed:
            self.task.times[ssp].advance(min(complete - self._slack, self._limits[ssp]))
        self.task.advance()
        self._settle()

    @cached_property
    def _limits(self) -> Mapping[SSP, int]:
        """All that is said of partitions is said before the first rows."""
        if self._seam is None:
            return dict.fromkeys(self.scope.inputs, FOREVER)
        known = {ssp: combined(said.progress for said in self._said.get(ssp, ())) for ssp in self.scope.inputs}
        return {ssp: FOREVER if p.ended or p.idle else p.watermark for ssp, p in known.items()}

    def _settle(self) -> None:
        chain = self.task.chain
        chain.collect()
        while chain.full is not None:
            self._wait()
            chain.collect()

    def _wait(self) -> None:
        if not self._woken.wait(WAIT_S_MAX):
            raise UnavailableError(
                f"a call of the app hasn't answered for {WAIT_S_MAX:g} s ({self.task.chain.held_by})",
                hint="give the step a timeout=",
            )
        self._woken.clear()

    def _leave(self, seam: Seam) -> Iterator[Piece]:
        for ssp in self.scope.inputs:
            self._take_over_times(ssp)
        self.task.advance()
        self._settle()
        while self.task.chain.holding:  # nothing is on its way at a commit
            self._wait()
            self.task.chain.collect()
        if self.task.ended:
            self._end()
        yield from self.port.take(all_of_it=True)
        record = self._record(seam)
        name = task_folder(self.scope.name)
        folder = Path(seam.folder) / f"{name}-{uuid.uuid4().hex}"  # Spark may run a task more than once
        for _ in self.state.changes(seam.version):
            pass  # the live run writes its changelog itself
        self.state.persist(LocalCheckpoint(0, record.generation, record.version))
        kept = KeptCommit(task=str(self.scope.name), offset=0, record=record)
        self.state.keep(folder / DATABASE_FOLDER, folder / COMMIT_FILE, kept.encode())
        for stream in self.scope.downstream:
            progress = self.task.outputs.get(stream.spec.id, NOTHING)
            said = Said(progress=progress, task=kept.task, tasks=self.scope.task_count)
            for partition in range(stream.partitions):
                yield _note(stream.spec.id, partition, kept.task, said)
        yield _note(LEFT, 0, kept.task, Left(task=kept.task, folder=str(folder), record=record))

    def _take_over_times(self, ssp: SSP) -> None:
        time = self.task.times[ssp]
        for said in self._said.get(ssp, ()):
            watermark, idle, ended, heard, own = said.progress
            if said.task:
                time.on_watermark(said.task, said.tasks, watermark, idle=idle, heard=heard, own=own)
                if ended:
                    time.on_end_of_stream(said.task, said.tasks)
                continue
            time.advance(watermark)
            if ended:
                time.end()
            elif idle:
                time.fall_idle()

    def _record(self, seam: Seam) -> CommitRecord:
        outputs = self.task.outputs
        over = [stream for stream in self.scope.downstream if outputs.get(stream.spec.id, NOTHING).ended]
        names = sorted(str(stream.spec.stream) for stream in over)
        times = msgspec.structs.replace(self.task.save(), ended_streams=names)
        entries = {ssp: said.entry for ssp, all_said in self._said.items() for said in all_said}
        return CommitRecord(
            generation=0,
            version=seam.version,
            next_version=END_VERSION if self.task.finished else seam.version + 1,
            sources=tuple(
                msgspec.structs.replace(entry, stream=self.scope.position_name(ssp))
                for ssp, entry in sorted(entries.items())
                if entry is not None
            ),
            parents_version=seam.version,
            end_of_stream_sent=self.task.finished,
            bookkeeping=msgspec.Raw(msgspec.json.encode(times)),
        )


def fed(run: FedTask, pieces: Iterable[Piece], order: BatchOrder) -> Iterator[Piece]:
    with run:
        ssps = {(spec.id, ssp.partition): ssp for ssp, spec in run.scope.specs.items()}
        merging = Merging(order, {ssp: run.ranks[spec.id] for ssp, spec in run.scope.specs.items()})
        for piece in pieces:
            if (known := ssps.get((piece.stream, piece.partition))) is not None:
                if not piece.rows:
                    run.hear(known, _SAID.decode(piece.body))
                else:
                    yield from run.feed(merging.add(known, piece))
            elif piece.stream in FOR_DRIVER or piece.stream in run.scope.outputs:
                yield piece  # on its way to the driver, or a dead letter of a source
        yield from run.feed(merging.rest())
        yield from run.finish()


def mapped(run: FedTask, ssps: Iterable[SSP], reading: Reading) -> Iterator[Piece]:
    with run:
        for ssp in ssps:
            yield from run.map(ssp, reading.of(ssp, run.port.write, run.metrics))
            run.hear(ssp, reading.said(ssp, run.task.times[ssp].progress.watermark))
        yield from run.finish()
