"""A batch job in this process, stage by stage, with its pieces in memory.

On Spark the same functions run in executors, and Spark sorts and shuffles the pieces (``spark.batch``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from headrace.api.specs import Graph
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.plan.chain_plan import batch_order_of as order_of
from headrace.plan.chain_plan import ranks_of, readers_of
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.rows.given import concat_rows
from headrace.rows.pieces import TIME, Piece
from headrace.systems.registry import SystemSpec
from headrace.task.batch import COUNTED, LEFT, FedTask, Left, Reading, Seam, counts_in, fed, left_in, mapped
from headrace.task.connections import Connections
from headrace.task.metrics import TaskMetrics


def in_order(pieces: Iterable[Piece], ranks: Mapping[str, int]) -> list[Piece]:
    """Pieces of one task as it takes them."""

    def place(piece: Piece) -> tuple[int, int, str, int]:
        return piece.first, ranks.get(piece.stream, 1) if piece.rows else -1, piece.writer, piece.number

    return sorted(pieces, key=place)


def in_memory(graph: Graph, memory: SystemSpec) -> Graph:
    """The same app with its streams in a memory system."""
    streams = {
        id_: spec if id_ in graph.tables else replace(spec, system=memory, stream=StreamId(memory.name, spec.id))
        for id_, spec in graph.streams.items()
    }
    return replace(graph, streams=streams, settings=replace(graph.settings, internal=memory))


class InProcess:
    """All stages of a plan, one after the other."""

    def __init__(
        self, plan: Plan, ends: Mapping[SSP, Offset], folder: Path, now_ms: int, seam: Seam | None = None
    ) -> None:
        """``ends``: up to where sources are read that don't end. ``folder`` is for state."""
        self._plan = plan
        self._folder = folder
        self._now_ms = now_ms
        self._seam = seam
        self.left: dict[TaskName, Left] = {}
        """What each task has left at the seam."""
        self.counters: Counter[str] = Counter()
        self._connections = Connections()
        self._reading = Reading(plan, ends, self._connections)
        self._readers = readers_of(plan)
        self._streams = {ssp: id_ for id_, stream in plan.streams.items() for ssp in stream.ssps()}
        self._pieces: dict[str, list[Piece]] = {id_: [] for id_ in plan.streams}

    def run(self) -> dict[str, list[Piece]]:
        """The pieces of every stream that a stage has written."""
        try:
            for stage in self._plan.stages:
                self._run(stage)
        finally:
            self._connections.close()
        return self._pieces

    def leave(self, stage: StagePlan, task: TaskPlan) -> None:
        """Have a task whose sources come from elsewhere leave what it has without them."""
        folder = self._folder / f"{task.name.stage}-{task.name.number}"
        run = FedTask(self._plan, stage, task, folder, self._now_ms, seam=self._seam)
        for piece in mapped(run, (), self._reading):
            if piece.stream == LEFT:
                self.left[task.name] = left_in(piece)

    def _run(self, stage: StagePlan) -> None:
        order, ranks = order_of(self._plan, stage), ranks_of(self._plan, stage)
        for task in stage.tasks:
            folder = self._folder / f"{task.name.stage}-{task.name.number}"
            run = FedTask(self._plan, stage, task, folder, self._now_ms, seam=self._seam)
            sources = [ssp for ssp in task.inputs if not self._plan.streams[self._streams[ssp]].writers]
            if not order.timed and len(sources) == len(task.inputs):
                written = mapped(run, sources, self._reading)
            else:
                pieces = in_order([*self._between(task.name, stage), *self._read(sources)], ranks)
                written = fed(run, pieces, order)
            for piece in written:
                if piece.stream == LEFT:
                    self.left[task.name] = left_in(piece)
                elif piece.stream == COUNTED:
                    self.counters.update(counts_in(piece))
                else:
                    self._pieces[piece.stream].append(piece)

    def _read(self, sources: Iterable[SSP]) -> list[Piece]:
        return [piece for ssp in sources for piece in self._reading.pieces(ssp, TaskMetrics())]

    def _between(self, task: TaskName, stage: StagePlan) -> list[Piece]:
        """The pieces of intermediate streams for a task."""
        written = (piece for id_ in (*stage.inputs, *stage.side_inputs) for piece in self._pieces[id_])
        place = self._plan.streams
        return [
            piece
            for piece in written
            if task in self._readers.get(SSP(place[piece.stream].spec.stream, piece.partition), ())
        ]


def rows_of(pieces: Iterable[Piece], empty: pl.DataFrame) -> pl.DataFrame:
    """The rows of pieces, without their times."""
    tables = [piece.frame.drop(TIME) for piece in pieces if piece.rows]
    return concat_rows(tables) if tables else empty
