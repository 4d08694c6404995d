"""Collect the rows that a task of a batch job writes, by partition, and cut them into pieces in order of time.

Rows of streams without event time keep the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl
from typing_extensions import override

from headrace.api.specs import Graph
from headrace.core.ids import SSP
from headrace.plan.batch import time_written
from headrace.plan.model import StreamPlan
from headrace.runtime.event_time.columns import time_ms
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import Port
from headrace.runtime.operators.windows.base import START
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.ipc import encode_rows
from headrace.serdes.pieces import TIME, Piece
from headrace.serdes.rows import concat_rows

PIECE_ROWS = 1 << 14
HELD_ROWS = 1 << 18
"""How many rows a writer collects before it cuts pieces. The more, the less do pieces overlap."""


class PieceWriter(Port):
    """Where the results of a task leave it in a batch job. ``take`` returns the pieces that are complete.

    Rows of a sink leave in the same way: who runs the job publishes them when all is done.
    """

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
        self._rows = 0
        self._cut = 0

    @override
    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        count = self._streams[stream].partitions
        timed = rows.with_columns(self._time(stream, rows).alias(TIME))
        if not keys or count == 1:
            self.put(stream, self._number % count, timed)
            return
        for partition, part in split(timed, partition_of(rows, keys, count), count):
            if part.height:
                self.put(stream, partition, part)

    def put(self, stream: str, partition: int, timed: pl.DataFrame) -> None:
        """Take rows of a partition, which have their times."""
        self._held.setdefault(SSP(self._streams[stream].spec.stream, partition), []).append(timed)
        self._rows += timed.height

    def timed(self, stream: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of a stream with their times."""
        return rows.with_columns(self._time(stream, rows).alias(TIME))

    def take(self, *, all_of_it: bool = False) -> Iterator[Piece]:
        """Cut what has been collected, if it is enough."""
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

    def _time(self, stream: str, rows: pl.DataFrame) -> pl.Expr:
        if START in rows.columns and stream not in self._with_start:
            # Partial results of a window: each is as old as its slice.
            return pl.col(START)
        return self._times[stream]


def _time_of(graph: Graph, stream: str) -> pl.Expr:
    time = time_written(graph, stream)
    spec = graph.streams.get(stream)
    schema = None if spec is None else spec.schema
    if time is None or schema is None or time.column not in schema.columns:
        return pl.lit(NEVER, pl.Int64)
    return time_ms(time, schema.columns[time.column]).fill_null(NEVER)
