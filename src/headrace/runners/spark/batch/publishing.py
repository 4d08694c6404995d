"""Publishes what a batch run has computed, in portions: each is a version of the writer ``<app>/batch/<output>``.

The results of a run are files that stay as they are, so its portions are always the same. A target knows the last
portion that it has. So publishing a run continues where a former attempt has stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow.dataset as ds
from typing_extensions import override

from headrace.api.specs import StreamSpec
from headrace.plan.model import Plan
from headrace.runtime.connections import Connections
from headrace.serdes.pieces import SCHEMA, TIME, Piece, pieces_in
from headrace.systems.base import Target
from headrace.systems.registry import keeps_rows

PORTION_ROWS = 1 << 20
_PORTIONS_MAX = 1 << 32
"""A run has fewer portions than that. Run and portion make one number, which rises."""


def pieces_of(folder: Path, output: str) -> Iterator[Piece]:
    """The pieces of an output in the results of a run: by partition, in order of time.

    Spark has sorted them, and put those of each partition into one file or several that follow each other by name.
    """
    for file in sorted(folder.glob("*.parquet")):
        for batch in ds.dataset(file, schema=SCHEMA).to_batches(batch_size=8):
            yield from (piece for piece in pieces_in(batch) if piece.stream == output)


def portions(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Pieces, some at a time; of one partition."""
    some: list[Piece] = []
    rows = 0
    for piece in pieces:
        if some and (rows >= PORTION_ROWS or piece.partition != some[0].partition):
            yield some
            some, rows = [], 0
        some.append(piece)
        rows += piece.rows
    if some:
        yield some


class Into(Protocol):
    """Where an output goes. A version that was published before, or a later one, changes nothing."""

    def publish(self, version: int, pieces: Sequence[Piece]) -> object:
        """Publish pieces as a version: all of them or nothing."""
        ...

    def close(self) -> None:
        """Release it. Called once."""
        ...


Open = Callable[[StreamSpec, str], Into]
"""Opens a stream of frames for the writer of this name."""


def publish(plan: Plan, output: str, run: int, folder: Path, open_stream: Open) -> int:
    """Publish the results of a run in one output; return their number. Already published results stay."""
    spec = plan.streams[output].spec
    writer = f"{plan.graph.app}/batch/{output}"
    into = IntoTarget(spec, writer) if keeps_rows(spec.system) else open_stream(spec, writer)
    rows = 0
    try:
        for number, some in enumerate(portions(pieces_of(folder, spec.id))):
            into.publish(run * _PORTIONS_MAX + number, some)
            rows += sum(piece.rows for piece in some)
    finally:
        into.close()
    return rows


class IntoTarget(Into):
    """A target: a foreign system that keeps the writer's position."""

    def __init__(self, spec: StreamSpec, writer: str) -> None:
        self._writer = writer
        self._connections = Connections()
        self._target: Target = self._connections.target(spec.system, spec.stream)
        self._known = self._target.position(writer)

    @override
    def publish(self, version: int, pieces: Sequence[Piece]) -> None:
        if version > self._known:
            rows = [self._target.accept(piece.frame.drop(TIME)) for piece in pieces]
            while (pause_ms := self._target.publish(self._writer, version, rows)) is not None:
                time.sleep(pause_ms / 1000)  # a target without transactions takes it in parts, at its own rate
            self._known = version

    @override
    def close(self) -> None:
        self._connections.close()
