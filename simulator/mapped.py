"""An app of plain functions, on which some messages make them raise: row by row, batch by batch, and in threads.

Each message has all of its effects or none, and those that a function raises on are skipped or written about, once,
however often they are processed. The invariants:

- What comes of ``map``, ``flat_map``, ``filter`` and calls in threads are the results of exactly the messages on which
  they don't raise. Of a message that raised half-way there is no result.
- About each other message there is one letter, with the step and the row; for a step that reads a source with the very
  partition, offset and place of the message, though a batch may have been of many frames.
- A batch function concerns its whole batch: each message is in its result or in one letter, and in a letter only if one
  that made it raise was processed at the same moment.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any

import polars as pl

from headrace.api import aggregates
from headrace.api.remote import retry
from headrace.api.windows import tumbling
from headrace.app import App
from headrace.core.errors import DataError
from simulator.case import COLUMNS, AppCase, read, ticks
from simulator.expected import Message, Outputs, Row, Sources, columns, differ, start_of
from simulator.lives import Lives
from simulator.storage import STEP

_COLUMNS: dict[str, pl.DataType] = {**COLUMNS, "part": pl.Int64()}


def _no_double(id_: int) -> bool:
    return id_ % 7 == 3


def _stuck(id_: int) -> bool:
    return id_ % 5 == 2


def _unknown(id_: int) -> bool:
    return id_ % 11 == 4


def _spoils(id_: int) -> bool:
    return id_ % 13 == 6


def _doubled(row: dict[str, int]) -> dict[str, int]:
    if _no_double(row["id"]):
        raise ValueError(f"{row['id']} has no double")
    return {**row, "part": 2 * row["id"]}


def _parts(row: dict[str, int]) -> Iterator[dict[str, int]]:
    """Some raise when they have given a part already."""
    for number in range(row["id"] % 3 + 1):
        if _stuck(row["id"]) and number == row["id"] % 3:
            raise ValueError(f"{row['id']} is stuck in part {number}")
        yield {**row, "part": number}


def _is_even(row: dict[str, int]) -> bool:
    if _unknown(row["id"]):
        raise ValueError(f"nobody knows {row['id']}")
    return row["id"] % 2 == 0


def _in_batches(rows: pl.DataFrame) -> pl.DataFrame:
    if any(map(_spoils, rows["id"])):
        raise ValueError("this batch is spoiled")
    return rows.with_columns(part=pl.col("id") + 1)


def _in_thread(row: dict[str, int]) -> dict[str, int]:
    if _unknown(row["id"]):
        raise DataError(f"nobody knows {row['id']}")  # asking again is of no use
    return {**row, "part": -row["id"]}


def _declare(app: App) -> None:
    doubled = read(app, "views").map(_doubled, _COLUMNS, on_error="dead_letter", dead_letter=app.output("undoubled"))
    by_k = doubled.partition_by("k", id="by-k", partitions=2)
    parts = by_k.flat_map(_parts, _COLUMNS, on_error="skip")
    (
        parts.filter(_is_even, on_error="dead_letter", dead_letter=app.output("unfiltered"))
        .window(tumbling(ticks(20)), key="k", id="in-windows")
        .agg(n=aggregates.count(), parts=aggregates.sum("part"))
        .send_to(app.output("windows", partitions=1))
    )
    batches = by_k.map_batches(_in_batches, _COLUMNS, on_error="dead_letter", dead_letter=app.output("spoiled"))
    batches.select("id", "part").send_to(app.output("batched", partitions=1))
    called = by_k.map_async(
        _in_thread,
        _COLUMNS,
        concurrency=2,
        ordered=False,
        timeout="50ms",
        retry=retry(None, "2ms", longest="20ms"),
        on_error="dead_letter",
        dead_letter=app.output("uncalled"),
        id="in-threads",
    )
    called.select("id", "part").send_to(app.output("called", partitions=1))


def _letters(rows: Outputs, name: str) -> list[int]:
    return [json.loads(row["row"])["id"] for row in rows[name]]


def _wrong(sources: Sources, outputs: Outputs) -> str | None:
    views = sources["views"]
    if wrong := _undoubled(outputs["undoubled"], views):
        return wrong
    came = [view for view in views if not _no_double(view.id)]
    windows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for view in came:
        if not _stuck(view.id) and not _unknown(view.id) and view.id % 2 == 0:
            windows[view.k, start_of(view.ts, 20)] += range(view.id % 3 + 1)
    wanted = [(k, start, len(parts), sum(parts)) for (k, start), parts in windows.items()]
    called = [(view.id, -view.id) for view in came if not _unknown(view.id)]
    unknown = [view.id for view in came if _unknown(view.id)]
    spread = [id_ for id_ in unknown if not _stuck(id_) for _ in range(id_ % 3 + 1)]
    return (
        differ("windows", columns(outputs["windows"], "k", "window_start", "n", "parts"), wanted)
        or differ("unfiltered", _ones(_letters(outputs, "unfiltered")), _ones(spread))
        or differ("called", columns(outputs["called"], "id", "part"), called)
        or differ("uncalled", _ones(_letters(outputs, "uncalled")), _ones(unknown))
    )


def _ones(ids: list[int]) -> list[tuple[int]]:
    return [(id_,) for id_ in ids]


def _undoubled(letters: Any, views: Any) -> str | None:
    """Letters about messages of a source say where each of them stood."""
    places: Counter[tuple[int, int]] = Counter()
    wanted = []
    for view in views:
        offset, index = view.frame * STEP, places[view.partition, view.frame]
        places[view.partition, view.frame] += 1
        if _no_double(view.id):
            wanted.append((view.id, view.partition, offset, offset, index, f"ValueError: {view.id} has no double"))
    names = "partition", "offset", "last_offset", "index", "reason"
    found = [(json.loads(letter["row"])["id"], *(letter[name] for name in names)) for letter in letters]
    return differ("undoubled", found, wanted)


def _wrong_batches(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    came: list[Message] = [view for view in sources["views"] if not _no_double(view.id)]
    spoiled = _letters(outputs, "spoiled")
    found = [*columns(outputs["batched"], "id", "part"), *((id_, id_ + 1) for id_ in spoiled)]
    if wrong := differ("batched", found, [(view.id, view.id + 1) for view in came]):
        return wrong
    if whole := [id_ for id_, _ in columns(outputs["batched"], "id", "part") if _spoils(id_)]:
        return f"output batched: {whole} make the function raise"
    together: dict[tuple[int, int], list[int]] = defaultdict(list)
    for task, life in enumerate(lives["by-k"]):
        for arrival in chain.from_iterable(version.arrivals for version in life):
            rows: list[Row] = list(arrival.rows)
            together[task, arrival.at] += [row["id"] for row in rows]
    for ids in together.values():
        if not any(map(_spoils, ids)) and (wrongly := set(ids) & set(spoiled)):
            return f"output spoiled: {wrongly}, though nothing spoils a batch of {ids}"
    return None


CASES = (AppCase("app-mapped", {"views": 2}, _declare, _wrong, wrong_by_lives=_wrong_batches),)
