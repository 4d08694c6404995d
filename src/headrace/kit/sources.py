"""The checks that ``check_system`` runs for a source: one function for each promise of the small contract."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import polars as pl

from headrace.core.ids import SSP, StreamId
from headrace.kit.systems import ContractError, expect
from headrace.rows.given import as_polars, as_records
from headrace.systems.small import Batch, Source, SourcePartition

ROWS_MAX = 1000
_AGAIN_MAX = 10
_PAUSE_S = 0.01

Row = tuple[int, dict[str, Any]]


class SourceScene:
    """A source that has rows, and another handle on it, as another process would have."""

    def __init__(self, make_source: Callable[[], Source], wait_s: float) -> None:
        self.source = make_source()
        self.other = make_source()
        self._wait_s = wait_s

    def rows(self, name: str, position: int, source: Source | None = None) -> list[Row]:
        """The rows of a partition from a position on, each with its position, and the position after them."""
        reading = _Reading(source or self.source, name, position)
        try:
            while len(reading.rows) < ROWS_MAX and reading.more(self._wait_s):
                pass
            return reading.rows
        finally:
            reading.partition.close()

    def whole(self) -> dict[str, list[Row]]:
        """The rows of each partition."""
        return {name: self.rows(name, self.source.begin(name)) for name in self.source.partitions()}


class _Reading:
    """An open partition, and what it has returned so far."""

    def __init__(self, source: Source, name: str, position: int) -> None:
        self.source = source
        self.name = name
        self.partition: SourcePartition = source.open(name, position)
        self.rows: list[Row] = []
        self.at = position
        self.ended = False

    def more(self, wait_s: float) -> bool:
        """Read a batch. Return False at the end, or if nothing follows at present."""
        until = time.monotonic() + wait_s
        while True:
            given = self.partition.next_batch()
            after = self.partition.position()
            if given is None:
                expect(after == self.at, f"{self.name}: the end has moved the position from {self.at} to {after}")
                self.ended = True
                return False
            found = _records(given)
            self._take(found, after)
            if found or not self.source.bounded:
                return bool(found)
            expect(time.monotonic() < until, f"{self.name}: bounded, but neither rows nor an end in {wait_s} s")
            time.sleep(_PAUSE_S)

    def _take(self, found: list[dict[str, Any]], after: int) -> None:
        positions = self.partition.row_positions()
        if positions is None:
            moved = after - self.at
            expect(
                moved == len(found),
                f"{self.name}: a batch of {len(found)} rows moves the position by {moved}: define row_positions()",
            )
            positions = range(self.at, after)
        expect(len(positions) == len(found), f"{self.name}: {len(positions)} positions of {len(found)} rows")
        bounds = [self.at - 1, *positions, after]
        rises = all(low < high for low, high in pairwise(bounds))
        expect(
            rises and after >= self.at,
            f"{self.name}: the positions {[*positions][:5]} don't rise from {self.at} on to {after}, after the batch",
        )
        self.rows += zip(positions, found, strict=True)
        self.at = after


def _records(given: Batch) -> list[dict[str, Any]]:
    table = as_polars(given)
    if isinstance(table, pl.DataFrame):
        return table.to_dicts()
    records = as_records(table)
    expect(all(isinstance(record, Mapping) for record in records), "a row is neither in a DataFrame nor a dict")
    return records


def describes_itself(scene: SourceScene) -> None:
    """A source goes to other processes, and means the same input each time."""
    names = list(scene.source.partitions())
    expect(bool(names) and all(isinstance(name, str) and name for name in names), f"{names!r} are no names")
    expect(len(set(names)) == len(names), f"two partitions have the same name: {names}")
    expect(list(scene.other.partitions()) == names, "another handle has other partitions, or another order")
    try:
        pickle.dumps(getattr(scene.source, "__dict__", {}))
    except Exception as error:
        raise ContractError(f"it can't be pickled, so no other process could read it: {error}") from error
    spec = scene.source.system("checked")
    expect(SSP(StreamId(spec.name, "checked"), 0).stream.name == "checked", "its name can't be that of a system")


def has_rows(scene: SourceScene) -> None:
    """Positions rise row by row. The other checks need rows to say anything."""
    found = scene.whole()
    expect(max(map(len, found.values())) >= 3, "no partition has 3 rows: check a source that has some")


def the_same_again(scene: SourceScene) -> None:
    """Whoever opens a partition at the position of a row gets that row and the same ones after it."""
    for name, rows in scene.whole().items():
        for index in range(0, len(rows), max(1, len(rows) // _AGAIN_MAX)):
            position, rest = rows[index][0], rows[index:]
            again = scene.rows(name, position, scene.other)[: len(rest)]
            expect(again == rest, f"{name} opened at {position}: {_brief(again)} instead of {_brief(rest)}")


def between_batches(scene: SourceScene) -> None:
    """A partition that is closed after any batch goes on at its position."""
    for name, rows in scene.whole().items():
        found: list[Row] = []
        at = scene.source.begin(name)
        while len(found) < len(rows):
            reading = _Reading(scene.other, name, at)
            more = reading.more(1.0)
            reading.partition.close()
            expect(more, f"{name} opened at {at}: no rows, though there were more")
            found += reading.rows
            at = reading.at
        expect(found[: len(rows)] == rows, f"{name}: other rows when it is opened again after each batch")


def two_at_once(scene: SourceScene) -> None:
    """Two readers of a partition don't disturb each other."""
    for name, rows in scene.whole().items():
        both = [_Reading(source, name, source.begin(name)) for source in (scene.source, scene.source)]
        for _ in rows:  # by turns
            for reading in both:
                if len(reading.rows) < len(rows):
                    reading.more(1.0)
        for reading in both:
            reading.partition.close()
            expect(reading.rows[: len(rows)] == rows, f"{name}: other rows while another reader reads it")


def the_end(scene: SourceScene) -> None:
    """After the last row there is nothing; a bounded source says so, and ``end`` isn't before it."""
    for name, rows in scene.whole().items():
        last = _Reading(scene.source, name, rows[-1][0] if rows else scene.source.begin(name))
        while last.more(1.0) and len(last.rows) < ROWS_MAX:
            pass
        last.partition.close()
        if len(last.rows) < ROWS_MAX:
            expect(last.ended or not scene.source.bounded, f"{name}: bounded, but has no end")
        end = scene.source.end(name)
        expect(end is None or not rows or end > rows[-1][0], f"{name}: end() is {end}, before the last row")


def _brief(rows: list[Row]) -> str:
    return f"{len(rows)} rows from {rows[0][0]} on" if rows else "no rows"


SOURCE_CHECKS: tuple[Callable[[SourceScene], None], ...] = (
    describes_itself, has_rows, the_same_again, between_batches, two_at_once, the_end,
)  # fmt: skip
