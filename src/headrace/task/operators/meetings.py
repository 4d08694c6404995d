"""Meetings at run time: messages of one batch that went several ways come back into the order of arrival.

Each entry of a meeting (``plan.order``) is a ``Gate``, which keeps what it gets until everything before the meeting has
processed the batch. What a meeting emits meanwhile may be out of order, so it waits at an exit until the meeting has
taken everything.

A message's *place* is a row of numbers: its own in the batch, and then for each step on its way that has several
branches, its number among the results of the step and the branch taken. Two messages compare as if each had gone all
its ways before the next one began. Places aren't carried along: a gate asks the passages on the stack (``provenance``)
from which rows its own have come. A chain without meetings has none of this.

Everything runs on the run loop's thread, within one call of ``Chain.process`` or one emission by time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.plan.order import Meeting
from headrace.rows.given import concat_rows
from headrace.task.operators.base import Operator, Passage, Provenance

Places = npt.NDArray[np.int64]  # the place of each row; one row of numbers each
Indexes = npt.NDArray[np.int64]
_UNKNOWN = -(1 << 40)  # from here on count rows of which it isn't known which message they are from; below all others


class TracedPassage(Passage):
    """A passage that knows which way rows go on from it."""

    __slots__ = ("apart", "before", "branch", "branches", "part", "places", "serial", "unknown")

    def __init__(self, rows: pl.DataFrame, serial: int, places: Places | None = None) -> None:
        """``serial`` counts passages. ``places``: those of ``rows``, if the order begins here."""
        super().__init__(rows)
        self.serial = serial
        self.places = places
        self.branches = 0  # how many ways lead on; 0 for one, if places of rows are those of its results
        self.unknown = False  # its results can't have the place of a row
        self.apart = False  # some ways take side outputs, which are handed on by themselves
        self.branch = 0  # the way taken now
        self.before = 0  # how many results were handed on before
        self.part = 0  # the number of the first row handed on now, among those emitted together

    @override
    def origin(self, row: int, handed_on: int) -> int | None:
        found = self.places[:, 0] if self.places is not None else self.found()
        if found is None or len(found) <= row + self.part:
            return 0 if self.rows.height == 1 else None
        number = int(found[row + self.part])
        return None if number < 0 else number

    def found(self) -> Indexes | None:
        if self.cached is None and self.origins is not None:
            found = self.origins()
            self.cached = found.to_numpy() if isinstance(found, pl.Series) else np.asarray(found, np.int64)
        return self.cached  # type: ignore[return-value]


class TracedProvenance(Provenance):
    """The provenance of a task with meetings."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    @property
    def innermost(self) -> TracedPassage | None:
        return self._passages[-1] if self._passages else None  # type: ignore[return-value]

    @override
    def enter(self, rows: pl.DataFrame) -> None:
        self._at_work.entered(self._task)
        self._count += 1
        self._passages.append(TracedPassage(rows, self._count))

    def begin(self, rows: pl.DataFrame, places: Places) -> TracedPassage:
        self._count += 1
        passage = TracedPassage(rows, self._count, places)
        self._passages.append(passage)
        return passage

    def places(self, height: int) -> Places:
        index: Indexes = np.arange(height)
        levels: list[Indexes] = []
        for passage in reversed(self._passages):
            assert isinstance(passage, TracedPassage), "a traced provenance has traced passages"
            index = index + passage.part
            if passage.branches:
                levels.append((index + passage.before) * passage.branches + passage.branch)
            if passage.places is not None:
                return np.column_stack([passage.places[index], *reversed(levels)])
            found = passage.found()
            if found is None and (passage.unknown or passage.rows.height > 1):
                # Nothing that came another way from above here meets these rows: see ``plan.order``.
                return np.column_stack([np.full(height, _UNKNOWN + passage.serial), *reversed(levels)])
            index = np.zeros(height, np.int64) if found is None else found[index]
            if passage.apart:
                levels.append(index)
        raise ValueError("rows without a beginning")


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    entry: int
    rows: pl.DataFrame
    places: Places


class Gate(Operator):
    """Where rows wait, on the way to ``target``, for the others of a meeting."""

    def __init__(self, target: Operator, provenance: TracedProvenance, into: list[_Chunk], entry: int) -> None:
        super().__init__(target.node)
        self.after.append(target)
        self._traced = provenance
        self._into = into
        self._entry = entry

    @override
    def receive(self, rows: pl.DataFrame) -> None:
        self._into.append(_Chunk(self._entry, rows, self._traced.places(rows.height)))


class MeetingPoint:
    """One meeting of a task."""

    def __init__(self, meeting: Meeting, meetings: Meetings) -> None:
        self._meeting = meeting
        self._meetings = meetings
        self._targets: dict[int, Operator] = {}
        self._ordered = meeting.pace not in ("merged", "sides")
        self._entered: list[_Chunk] = []
        self._exits: list[tuple[Operator, list[_Chunk]]] = []

    def way(self, before: str, node: str, number: int, target: Operator) -> Operator:
        provenance = self._meetings.provenance
        for entry, way in enumerate(self._meeting.entries):
            if (way.before, way.node, way.number) == (before, node, number):
                self._targets[entry] = target
                return Gate(target, provenance, self._entered, entry)
        if before in self._meeting.nodes and node not in self._meeting.nodes and self._ordered:
            left: list[_Chunk] = []
            self._exits.append((target, left))
            return Gate(target, provenance, left, 0)
        return target

    def settle(self) -> None:
        if self._entered:
            chunks = self._entered[:]
            self._entered.clear()
            self._take(chunks)
        for target, left in self._exits:
            if left:
                rows, places = _sorted(left)
                left.clear()
                self._meetings.hand_over(target, rows, places)

    def _take(self, chunks: list[_Chunk]) -> None:
        if self._meeting.pace == "merged":
            self._take_merged(chunks)
            return
        entries = _by_entry(chunks)
        if self._meeting.pace == "sides" or (len(entries) == 1 and self._meeting.pace in ("runs", "last")):
            for number, (rows, places) in entries.items():
                self._meetings.hand_over(self._targets[number], rows, places)
            return
        if self._meeting.pace == "paired":
            self._take_paired(entries)
            return
        for number, first, after in self._portions(entries):
            rows, places = entries[number]
            part = rows if after - first == rows.height else rows[first:after]
            self._meetings.hand_over(self._targets[number], part, places[first:after])

    def _take_merged(self, chunks: list[_Chunk]) -> None:
        rows, places = _sorted(chunks)
        targets = list(dict.fromkeys(self._targets[chunk.entry] for chunk in chunks))
        if len(targets) > 1:
            # All write the same stream in the same way. Each counts its own messages, and the first one writes all.
            for chunk in chunks:
                self._targets[chunk.entry].rows += chunk.rows.height
            targets[0].rows -= rows.height
        self._meetings.hand_over(targets[0], rows, places)

    def _take_paired(self, entries: Mapping[int, tuple[pl.DataFrame, Places]]) -> None:
        order, owner = _order([places for _, places in entries.values()])
        together = np.concatenate([places for _, places in entries.values()])[order]
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        sides = [self._targets[number] for number in entries]
        for which, (side, (rows, _)) in enumerate(zip(sides, entries.values(), strict=True)):
            side.rank(ranks[owner == which])
            self._meetings.hand_over(side, rows, together)
        for side in sides:
            side.rank(None)

    def _portions(self, entries: dict[int, tuple[pl.DataFrame, Places]]) -> Iterator[tuple[int, int, int]]:
        """(entry, first row, row after the last); may reorder an entry's rows, or drop some."""
        order, owner = _order([places for _, places in entries.values()])
        match self._meeting.pace:
            case "single":
                numbers, place = list(entries), [0] * len(entries)
                for which in owner[order]:
                    first = place[which]
                    place[which] += 1
                    yield numbers[which], first, first + 1
            case "runs":
                yield from _runs(list(entries), owner[order])
            case _:
                yield from self._rounds(entries, order, owner)

    def _rounds(
        self, entries: dict[int, tuple[pl.DataFrame, Places]], order: Indexes, owner: Indexes
    ) -> Iterator[tuple[int, int, int]]:
        keys = self._keys(entries)[order]
        last = self._meeting.pace == "last"
        rounds = np.empty(keys.height, np.int64)
        rounds[order] = _not_last(keys) if last else _times_before(keys)
        bounds: list[tuple[int, Indexes]] = []
        for which, entry in enumerate(list(entries)):
            rows, places = entries[entry]
            mine = rounds[owner == which]
            # Among the rows that are written, none affects another.
            chosen = np.flatnonzero(mine == 0) if last else np.argsort(mine, kind="stable")
            self._targets[entry].rows += rows.height - len(chosen)
            entries[entry] = rows[chosen], places[chosen]
            ends = np.cumsum(np.bincount(mine[chosen], minlength=1))
            bounds.append((entry, np.concatenate([[0], ends])))
        for turn in range(max(len(ends) for _, ends in bounds) - 1):
            for entry, ends in bounds:
                if turn + 1 < len(ends) and ends[turn] < ends[turn + 1]:
                    yield entry, int(ends[turn]), int(ends[turn + 1])

    def _keys(self, entries: Mapping[int, tuple[pl.DataFrame, Places]]) -> pl.DataFrame:
        frames = [
            rows.select(pl.col(name).alias(str(n)) for n, name in enumerate(self._meeting.entries[number].keys))
            for number, (rows, _) in entries.items()
        ]
        return pl.concat(frames, how="vertical_relaxed")


class Meetings:
    """The meetings of a task, and the ways through its operators."""

    def __init__(self, provenance: TracedProvenance, meetings: Sequence[Meeting]) -> None:
        self.provenance = provenance
        self._points = [MeetingPoint(meeting, self) for meeting in meetings]

    def way(self, before: str, node: str, number: int, target: Operator) -> Operator:
        for point in reversed(self._points):  # an exit of one meeting may lead to the entry of a later one
            target = point.way(before, node, number, target)
        return target

    def process(self, rows: pl.DataFrame, inputs: Sequence[Operator]) -> None:
        passage = self.provenance.begin(rows, np.arange(rows.height)[:, None])
        try:
            self._hand_on(passage, len(inputs), rows, inputs, 0)
        finally:
            self.provenance.leave()
        self.settle()

    def hand_on(self, operator: Operator, rows: pl.DataFrame, after: Sequence[Operator], first: int) -> None:
        passage = self.provenance.innermost
        if passage is not None:
            passage.apart = bool(operator.aside)
            placed = operator.node.operator.places_results
            passage.unknown = not placed and not operator.takes_single
            self._hand_on(passage, operator.branches, rows, after, first, single=operator.emits_single, placed=placed)
            return
        passage = self.provenance.begin(rows, np.arange(rows.height)[:, None])
        try:
            self._hand_on(passage, operator.branches, rows, after, first, single=operator.emits_single)
        finally:
            self.provenance.leave()
        self.settle()

    def hand_over(self, target: Operator, rows: pl.DataFrame, places: Places) -> None:
        passage = self.provenance.begin(rows, places)
        try:
            self._hand_on(passage, 1, rows, (target,), 0)
        finally:
            self.provenance.leave()

    def settle(self) -> None:
        for point in self._points:
            point.settle()

    def _hand_on(
        self,
        passage: TracedPassage,
        branches: int,
        rows: pl.DataFrame,
        after: Sequence[Operator],
        first: int,
        *,
        single: bool = False,
        placed: bool = True,
    ) -> None:
        passage.branches = branches if branches > 1 or not placed else 0
        if single and rows.height > 1:
            for passage.part, row in enumerate(rows.iter_slices(1)):
                for passage.branch, operator in enumerate(after, first):
                    operator.receive(row)
        else:
            for passage.branch, operator in enumerate(after, first):
                if operator.takes_single and rows.height > 1:
                    for passage.part, row in enumerate(rows.iter_slices(1)):
                        operator.receive(row)
                    passage.part = 0
                else:
                    operator.receive(rows)
        passage.part = 0
        passage.before += rows.height
        passage.origins = passage.cached = None  # the next results are others


def _not_last(keys: pl.DataFrame) -> Indexes:
    numbers = keys.with_row_index("__number").unique(keys.columns, keep="last")["__number"].to_numpy()
    later = np.ones(keys.height, np.int64)
    later[numbers] = 0
    return later


def _times_before(keys: pl.DataFrame) -> Indexes:
    """For each row how often its key has come before. Keys whose hashes are equal by chance count as one."""
    hashes = keys.hash_rows().to_numpy()
    order = np.argsort(hashes, kind="stable")
    numbers = np.arange(len(order))
    begins = np.append(True, hashes[order[1:]] != hashes[order[:-1]])
    times = np.empty(len(order), np.int64)
    times[order] = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    return times


def _by_entry(chunks: Sequence[_Chunk]) -> dict[int, tuple[pl.DataFrame, Places]]:
    width = max(chunk.places.shape[1] for chunk in chunks)
    found: dict[int, tuple[pl.DataFrame, Places]] = {}
    for number in sorted({chunk.entry for chunk in chunks}):
        mine = [chunk for chunk in chunks if chunk.entry == number]
        found[number] = concat_rows([chunk.rows for chunk in mine]), _joined([chunk.places for chunk in mine], width)
    return found


def _sorted(chunks: Sequence[_Chunk]) -> tuple[pl.DataFrame, Places]:
    if len(chunks) == 1:
        return chunks[0].rows, chunks[0].places
    common = [name for name in chunks[0].rows.columns if all(name in chunk.rows.columns for chunk in chunks)]
    rows = concat_rows([chunk.rows.select(common) for chunk in chunks])
    places = _joined([chunk.places for chunk in chunks], max(chunk.places.shape[1] for chunk in chunks))
    order, _ = _order([places])
    return (rows[order], places[order]) if (order[1:] < order[:-1]).any() else (rows, places)


def _joined(places: Sequence[Places], width: int) -> Places:
    wide = [np.pad(some, ((0, 0), (0, width - some.shape[1]))) for some in places]
    return wide[0] if len(wide) == 1 else np.concatenate(wide)


def _order(places: Sequence[Places]) -> tuple[Indexes, Indexes]:
    """The numbers of all rows in the order of their places, and for each row the number of the array that it is in."""
    owner = np.repeat(np.arange(len(places)), [len(some) for some in places])
    together = places[0] if len(places) == 1 else np.concatenate(places)
    differing = [column for column in together.T if len(column) and (column != column[0]).any()]
    if len(differing) <= 1:
        order = np.argsort(differing[0], kind="stable") if differing else np.arange(len(together))
    else:
        order = np.lexsort(differing[::-1])
    return order, owner


def _runs(entries: Sequence[int], owners: Indexes) -> Iterator[tuple[int, int, int]]:
    ends = np.append(np.flatnonzero(owners[1:] != owners[:-1]) + 1, len(owners))
    place = [0] * len(entries)
    start = 0
    for end in ends:
        which = int(owners[start])
        yield entries[which], place[which], place[which] + int(end - start)
        place[which] += int(end - start)
        start = int(end)
