"""Sources of a batch job: read a partition from its beginning to its end, or to an offset that was set before.

Rows are checked as in a live run: the input's policy decides about rows that don't fit. From another app's streams,
only committed frames are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import msgspec
import polars as pl

from headrace.api.specs import Role, StreamSpec
from headrace.checkpoint.record import SourceEntry
from headrace.core.errors import UnavailableError
from headrace.core.ids import SSP, Offset
from headrace.core.readable import readable
from headrace.plan.model import Plan, StreamPlan
from headrace.runtime.batch.notes import Said, note_of, note_of_counts
from headrace.runtime.batch.piece_writer import PieceWriter
from headrace.runtime.connections import Connections
from headrace.runtime.event_time.watermark import FOREVER, NEVER, Progress
from headrace.runtime.inputs.committed_source import CommittedSource
from headrace.runtime.inputs.consumers import POLL_BYTES_MAX, up_to
from headrace.runtime.inputs.intake import DeadLetters, Intake
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.task_scope import placings
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.pieces import TIME, Piece
from headrace.systems.base import Consumer, Edge, Ended, Polled, Records, Rows
from headrace.systems.registry import keeps_rows

WAIT_MS_MAX = 60_000
"""How long a partition may have nothing to read before its end is reached."""


class Reading:
    """Reads source partitions of a plan, each up to its end."""

    def __init__(self, plan: Plan, ends: Mapping[SSP, Offset], connections: Connections) -> None:
        """``ends`` has those that don't end by themselves."""
        self._plan = plan
        self._ends = ends
        self._connections = connections
        self._specs = {ssp: stream.spec for stream in plan.streams.values() for ssp in stream.ssps()}
        self._read: dict[SSP, Said] = {}

    def of(self, ssp: SSP, dead_letters: DeadLetters, metrics: TaskMetrics) -> Iterator[pl.DataFrame]:
        """The rows of a partition that fit."""
        spec = self._specs[ssp]
        intake = self.intake(spec, dead_letters, metrics)
        ended = False
        with closing(self._consumer(spec)) as consumer:
            consumer.register(ssp, Edge.OLDEST)
            source = CommittedSource(ssp, consumer.position(ssp), None, whole=self._is_whole(spec, ssp))
            for polled in self._polled(consumer, ssp):
                match polled:
                    case Rows(frame=frame, offset=offset, bad=bad, place=place):
                        if frame.height or bad:  # else only the position moves
                            yield intake.accept(ssp, frame, offset, bad, place)
                    case Records(offsets=offsets, payloads=payloads, next=after):
                        released = source.receive(offsets, payloads, after)
                        for rows, _ in intake.decode(ssp, released.offsets, released.payloads):
                            yield rows
                    case Ended():
                        ended = True
                        break
            stands = min(consumer.position(ssp), self._ends.get(ssp, FOREVER))
            entry = _entry(ssp, stands) if keeps_rows(spec.system) else source.entry()
        self._read[ssp] = Said(progress=Progress(ended=ended), entry=entry)

    def intake(self, spec: StreamSpec, dead_letters: DeadLetters, metrics: TaskMetrics) -> Intake:
        """What checks the rows of an input."""
        tables = self._plan.graph.tables.values()
        keys = dict.fromkeys(name for table in tables if spec.id in table.side_inputs for name in table.key)
        added = self._plan.streams[spec.id].added
        placing = placings([self._plan.streams[spec.id]]).get(spec.id)
        return Intake(spec, metrics, dead_letters, keys=list(keys), placing=placing, added=added)

    def pieces(self, ssp: SSP, metrics: TaskMetrics) -> Iterator[Piece]:
        """The rows of a partition as pieces, for a stage that needs them in order."""
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
        yield note_of(self.said(ssp, watermark), spec.id, ssp.partition, name)
        if metrics.counters:
            yield note_of_counts(metrics.counters, name)

    def said(self, ssp: SSP, watermark: int) -> Said:
        """What there is to say of a partition that was read. An empty one may be idle, as in a live run."""
        said = self._read[ssp]
        idle = watermark == NEVER and self._specs[ssp].idle_timeout_ms is not None and not said.progress.ended
        return msgspec.structs.replace(said, progress=Progress(watermark, idle, said.progress.ended))

    def _is_whole(self, spec: StreamSpec, ssp: SSP) -> bool:
        """Whether a reader that has begun at the oldest frame begins at the first that there ever was."""
        if keeps_rows(spec.system):
            return False
        return not self._connections.admin(spec.system).extent(ssp).trimmed

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


def _entry(ssp: SSP, offset: Offset) -> SourceEntry:
    return SourceEntry(stream=str(ssp.stream), partition=ssp.partition, offset=offset)


def put_source(
    writer: PieceWriter, stream: StreamPlan, partition: int, rows: pl.DataFrame, key: Sequence[str] = ()
) -> None:
    """Pass rows of a source to a writer of pieces, for this partition, or for those of a key.

    Side inputs come before everything else, as in a live run.
    """
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
