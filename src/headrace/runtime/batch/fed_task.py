"""A task of a batch job: the operators of a live task, fed with runs in order of event time until there are no more.

Watermarks follow from the order: everything older than the next run has arrived. So no message is late, windows close
as soon as they are over, and little state is held at a time. Only a stage that uses another time than its input's stays
behind by the lateness of the sources, like a live one. State that doesn't fit into memory goes to a database in its own
folder, as in a live task. There is no changelog: if the process dies, Spark feeds another task from the start.

The wall clock stands still at the job's beginning. Work that is due by it happens at the end, or never.

With a ``Seam``, the inputs don't end where the job stops: the task leaves its state and a commit, from which a live
task continues.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

import msgspec
import polars as pl

from headrace.checkpoint.founding import COMMIT_FILE, DATABASE_FOLDER, KeptCommit
from headrace.checkpoint.record import CommitRecord, LocalCheckpoint
from headrace.core.errors import UnavailableError
from headrace.core.frame import END_VERSION
from headrace.core.ids import SSP
from headrace.plan.batch import Order, ranks_of, slack_of
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.runtime.batch.merging import Merging, Run
from headrace.runtime.batch.notes import (
    FOR_DRIVER,
    Left,
    Said,
    is_note,
    note_of,
    note_of_counts,
    note_of_left,
    said_in,
)
from headrace.runtime.batch.piece_writer import PieceWriter
from headrace.runtime.batch.reading import Reading
from headrace.runtime.batch.seam import Seam
from headrace.runtime.connections import Connections
from headrace.runtime.event_time.watermark import FOREVER, NEVER, NOTHING, combined
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.naming import StateFolders, task_folder
from headrace.runtime.operators.provenance import Arrival
from headrace.runtime.state.task_state import TaskState
from headrace.runtime.task import task_factory
from headrace.runtime.task_scope import TaskScope
from headrace.serdes.pieces import Piece
from headrace.stores.base import StateStore

SPILL_ROWS = 1 << 20
"""After how many rows state goes from memory to the database."""

WAIT_S_MAX = 600.0
"""How long to wait for a call of the app's that doesn't answer, if it has no timeout of its own."""


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
        """``folder`` is for its state; ``now_ms`` is the wall clock. ``writer`` is its name in its pieces."""
        self.scope = TaskScope.of(plan, stage, task)
        self.metrics = TaskMetrics(str(task.name))
        self._woken = threading.Event()
        self._connections = Connections(self._woken.set)
        self._writer = writer or str(task.name)
        self._port = PieceWriter(plan.graph, self.scope.outputs, self._writer, task.name.number)
        self.task = task_factory(plan, stage, self.scope)(self._port, self.metrics, self._connections.calls)
        self._now_ms = now_ms
        self._timed = [ssp for ssp, spec in self.scope.inputs.items() if spec.event_time is not None]
        self._untimed = [ssp for ssp in self.scope.inputs if ssp not in self._timed]
        self._reached = NEVER
        self._seam = seam
        given = {} if seam is None else seam.given
        self._said: dict[SSP, list[Said]] = {ssp: [given[ssp]] for ssp in self.scope.specs if ssp in given}
        self._slack = slack_of(plan, stage)
        self._fed: dict[SSP, int] = dict.fromkeys(self.scope.specs, 0)
        self._since_spill = 0
        folders = StateFolders(folder / "state", folder / "snapshots")
        changelog = SSP(self.scope.changelog[0].stream, task.name.number)
        self.state = TaskState(changelog, folders, self.metrics.warnings)
        self._spills = 0

    def __enter__(self) -> Self:
        stores = self._stores()
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
        """Process rows that need no order; yields what the task writes, as it becomes enough for pieces."""
        for rows in tables:
            self._process(Run(ssp, rows, NEVER))
            yield from self._port.take()

    @property
    def port(self) -> PieceWriter:
        """Where its results leave; dead letters, too."""
        return self._port

    def feed(self, runs: Iterable[Run]) -> Iterator[Piece]:
        """Process runs in their order; yields what the task writes, as it becomes enough for pieces."""
        for run in runs:
            self._advance(run.complete)
            self._process(run)
            yield from self._port.take()

    def hear(self, ssp: SSP, said: Said) -> None:
        """Learn how far an input partition comes, from its reader or from one of its writers, before its rows."""
        self._said.setdefault(ssp, []).append(said)

    def finish(self) -> Iterator[Piece]:
        """All rows have been fed. Emit what is open, or leave it to a live run."""
        if self._seam is not None:
            yield from self._leave(self._seam)
        else:
            for ssp in self.scope.inputs:
                self.task.end(ssp)
            self._end()
            yield from self._port.take(all_of_it=True)
        if self.metrics.counters:
            yield note_of_counts(self.metrics.counters, self._writer)

    def _end(self) -> None:
        """All inputs have ended."""
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
            self._spill()

    def _advance(self, complete: int) -> None:
        """Note that no older rows follow. Inputs without event time have been read by now."""
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
        """Up to where event time may come in each partition: what hasn't ended at the seam goes on.

        All that is to be said of them has been said before the first rows.
        """
        if self._seam is None:
            return dict.fromkeys(self.scope.inputs, FOREVER)
        known = {ssp: combined(said.progress for said in self._said.get(ssp, ())) for ssp in self.scope.inputs}
        return {ssp: FOREVER if p.ended or p.idle else p.watermark for ssp, p in known.items()}

    def _settle(self) -> None:
        """Let steps that wait for answers emit results, until they take more rows."""
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

    # -- the seam

    def _leave(self, seam: Seam) -> Iterator[Piece]:
        """Stop as a live task would at a commit, and leave state and commit behind."""
        for ssp in self.scope.inputs:
            self._take_over_times(ssp)
        self.task.advance()
        self._settle()
        while self.task.chain.holding:  # nothing is on its way at a commit
            self._wait()
            self.task.chain.collect()
        if self.task.ended:
            self._end()
        yield from self._port.take(all_of_it=True)
        record = self._record(seam)
        name = task_folder(self.scope.name)
        folder = Path(seam.folder) / f"{name}-{uuid.uuid4().hex}"  # Spark may run a task more than once
        for _ in self.state.changes(seam.version):
            pass  # the live run writes its changelog itself
        self.state.persist(LocalCheckpoint(0, record.generation, record.version))
        kept = KeptCommit(task=str(self.scope.name), offset=0, record=record)
        self.state.keep(folder / DATABASE_FOLDER, folder / COMMIT_FILE, kept.encode())
        yield from self._notes()
        yield note_of_left(Left(task=str(self.scope.name), folder=str(folder), record=record))

    def _take_over_times(self, ssp: SSP) -> None:
        """Let an input partition be as far as was said."""
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
        """What a live task in this state would commit."""
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

    def _notes(self) -> Iterator[Piece]:
        """Return the progress of the task's output streams, for each of their readers."""
        name, count = str(self.scope.name), self.scope.task_count
        for stream in self.scope.downstream:
            said = Said(progress=self.task.outputs.get(stream.spec.id, NOTHING), task=name, tasks=count)
            for partition in range(stream.partitions):
                yield note_of(said, stream.spec.id, partition, name)

    # -- state

    def _stores(self) -> Mapping[str, StateStore]:
        return {self.scope.store_name(id_): store for id_, store in self.task.stores().items()}

    def _spill(self) -> None:
        """Move what the stores keep in memory to the database."""
        self._since_spill = 0
        self._spills += 1
        for _ in self.state.changes(self._spills):
            pass  # no changelog needs them
        self.state.persist(LocalCheckpoint(self._spills, 1, self._spills))


def fed(
    plan: Plan,
    stage: StagePlan,
    task: TaskPlan,
    pieces: Iterable[Piece],
    order: Order,
    folder: Path,
    now_ms: int,
    seam: Seam | None = None,
) -> Iterator[Piece]:
    """Run one task over the pieces of its inputs, which are sorted; yields the pieces that it writes."""
    with FedTask(plan, stage, task, folder, now_ms, seam=seam) as run:
        ssps = {(spec.id, ssp.partition): ssp for ssp, spec in run.scope.specs.items()}
        ranks = ranks_of(plan, stage)
        merging = Merging(order, {ssp: ranks[spec.id] for ssp, spec in run.scope.specs.items()})
        for piece in pieces:
            if (known := ssps.get((piece.stream, piece.partition))) is not None:
                if is_note(piece):
                    run.hear(known, said_in(piece))
                else:
                    yield from run.feed(merging.add(known, piece))
            elif piece.stream in FOR_DRIVER or piece.stream in run.scope.outputs:
                yield piece  # on its way to the driver, or a dead letter of a source
        yield from run.feed(merging.rest())
        yield from run.finish()


def mapped(
    plan: Plan,
    stage: StagePlan,
    task: TaskPlan,
    ssps: Iterable[SSP],
    reading: Reading,
    folder: Path,
    now_ms: int,
    seam: Seam | None = None,
) -> Iterator[Piece]:
    """Run a stage that needs no order over some partitions of its sources, as they are read."""
    with FedTask(plan, stage, task, folder, now_ms, seam=seam) as run:
        for ssp in ssps:
            yield from run.map(ssp, reading.of(ssp, run.port.write, run.metrics))
            run.hear(ssp, reading.said(ssp, run.task.times[ssp].progress.watermark))
        yield from run.finish()
