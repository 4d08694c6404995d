"""The first rows of a flow: a test run of the steps up to there, over the first rows of the app's inputs.

Nothing of it is durable, and inputs are only read. Rows are read where that leaves no trace: in logs, files and
DataFrames of Spark. Of other inputs the caller gives some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any, cast

import polars as pl

from headrace.api.cutting import cut_behind
from headrace.api.draft import Draft
from headrace.api.specs import Role, StreamSpec
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.ids import SSP
from headrace.runtime.connections import Connections
from headrace.serdes.given_rows import Rows, as_polars
from headrace.streams.reader import StreamReader
from headrace.systems.base import Edge, Ended
from headrace.systems.base import Rows as Polled
from headrace.testing.harness import TestApp

ROWS_MAX = 1_000_000
"""How many rows of an input a test run may have: they are in memory."""

_POLL_BYTES = 1 << 20
_POLLS_MAX = 10_000
_LOGS = ("log", "kafka-log")


def head(draft: Draft, node: str, rows: int, sample: int | Mapping[str, Rows]) -> pl.DataFrame:
    """The first results of a step. ``sample``: how many rows of each input, or rows by the ids of inputs."""
    if type(rows) is not int or rows < 0:
        raise UsageError(f"head: {rows!r} isn't a number of rows")
    output = next(name for number in count() if (name := f"head-{number}") not in draft.streams | draft.nodes)
    graph = cut_behind(draft, node, output)
    inputs = {s.id: s for s in graph.streams.values() if s.role in (Role.SOURCE, Role.SIDE_INPUT)}
    samples = _samples(inputs, sample)
    with TestApp(graph) as test:
        # Side inputs are read first by the app, whatever the order here.
        for id_, found in samples.items():
            test.feed(id_, found, settle=False)
        test.end()
        return test.read(output).head(rows)


def _samples(inputs: Mapping[str, StreamSpec], sample: int | Mapping[str, Rows]) -> dict[str, Rows]:
    if isinstance(sample, Mapping):
        if unknown := sorted(sample.keys() - inputs.keys()):
            raise UsageError(
                f"head: sample= names {unknown[0]!r}, which isn't an input of the steps up to here",
                hint=f"their inputs: {', '.join(sorted(inputs))}",
            )
        return dict(sample)
    if type(sample) is not int or not 0 < sample <= ROWS_MAX:
        raise UsageError(
            f"head: sample={sample!r} isn't a number of rows up to {ROWS_MAX:,}",
            hint='write sample=1000, or pass your own rows by input: sample={"views": [...]}',
        )
    return {id_: _first(spec, sample) for id_, spec in inputs.items()}


def _first(spec: StreamSpec, rows: int) -> pl.DataFrame:
    """The first rows of an input, with the columns that it declares."""
    where = f"head: input {spec.id!r} ({spec.location})"
    try:
        if spec.system.held is not None:
            found = as_polars(cast("Any", spec.system.held).limit(rows))
            batches = iter([cast("pl.DataFrame", found)])
        elif spec.system.kind in _LOGS:
            batches = iter(StreamReader(spec.stream.name, system=spec.system))
        elif spec.system.kind == "files":
            batches = _of_files(spec)
        else:
            raise UsageError(
                f"rows of a system of kind {spec.system.kind!r} aren't read for a sample",
                hint=f'pass some: head(sample={{"{spec.id}": [...]}})',
            )
        taken: list[pl.DataFrame] = []
        left = rows
        for batch in batches:
            taken.append(batch.head(left))
            left -= taken[-1].height
            if left == 0:
                break
    except HeadraceError as error:
        error.message = f"{where}: {error.message}"
        raise
    columns = {} if spec.schema is None else spec.schema.columns
    if not taken:
        return pl.DataFrame(schema=columns)
    together = pl.concat(taken, how="diagonal_relaxed")
    return together.select(name for name in columns if name in together.columns)


def _of_files(spec: StreamSpec) -> Iterator[pl.DataFrame]:
    """The rows of files, one partition after another. The list in which an app remembers its files isn't touched."""
    options = {name: value for name, value in spec.system.options.items() if name not in ("list_file", "new_files")}
    system = replace(spec.system, options=options)
    with closing(Connections()) as connections:
        columns = None if spec.schema is None else dict(spec.schema.columns)
        partitions = len(connections.admin(system).extents(spec.stream.name))
        with closing(connections.consumer(system, columns)) as consumer:
            for ssp in (SSP(spec.stream, number) for number in range(partitions)):
                consumer.register(ssp, Edge.OLDEST)
                for _ in range(_POLLS_MAX):
                    polled = list(consumer.poll([ssp], _POLL_BYTES))
                    yield from (one.frame for one in polled if isinstance(one, Polled))
                    if any(isinstance(one, Ended) for one in polled):
                        break
