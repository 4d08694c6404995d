"""Running aggregates of flows with changes and without, cut anywhere and restarted, against plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import headrace as hr
from drawn import examples
from headrace.rows.changes import AFTER, CHANGE, INSERT, KIND, added_up
from histories import batches, histories, total

COLUMNS = {
    "key": pl.String,
    "x": pl.Int64,
    "small": pl.UInt8,
    "large": pl.UInt64,
    "half": pl.Float64,
    "price": pl.Decimal(10, 2),
    "yes": pl.Boolean,
    "took": pl.Duration("ms"),
    "name": pl.String,
    "at": pl.Int64,
}
Row = Mapping[str, Any]
Told = tuple[pl.Expr | hr.aggregates.Aggregate, Callable[[list[Row]], Any]]


def seen(rows: Sequence[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def summed(column: str, none: Any = 0) -> Callable[[list[Row]], Any]:
    return lambda rows: sum(seen(rows, column), none)


def mean(rows: Sequence[Row], column: str) -> float | None:
    values = seen(rows, column)
    return float(sum(values)) / len(values) if values else None


def extreme(rows: Sequence[Row], column: str, pick: Callable[[list[Any]], Any]) -> Any:
    numbers = [value for value in seen(rows, column) if value == value]
    return pick(numbers) if numbers else next(iter(seen(rows, column)), None)


def largest(rows: Sequence[Row], column: str, by: str, most: int) -> list[Any]:
    ranked = sorted((row for row in rows if row[by] is not None), key=lambda row: row[by], reverse=True)
    return [row[column] for row in ranked[:most]]


AGG = hr.aggregates
PLAIN: dict[str, Told] = {
    "n": (pl.len(), len),
    "known": (pl.col("x").count(), lambda rows: len(seen(rows, "x"))),
    "even": (pl.col("x").filter(pl.col("x") % 2 == 0).count(), lambda rows: sum(x % 2 == 0 for x in seen(rows, "x"))),
    "x_sum": (pl.col("x").sum(), summed("x")),
    "small_sum": (pl.col("small").sum(), summed("small")),
    "large_sum": (pl.col("large").sum(), summed("large")),
    "half_sum": (pl.col("half").sum(), summed("half", 0.0)),
    "price_sum": (pl.col("price").sum(), summed("price", Decimal(0))),
    "yes_sum": (pl.col("yes").sum(), summed("yes")),
    "took_sum": (pl.col("took").sum(), summed("took", timedelta(0))),
    "x_mean": (pl.col("x").mean(), lambda rows: mean(rows, "x")),
    "half_mean": (pl.col("half").mean(), lambda rows: mean(rows, "half")),
    "x_min": (pl.col("x").min(), lambda rows: extreme(rows, "x", min)),
    "half_max": (pl.col("half").max(), lambda rows: extreme(rows, "half", max)),
    "name_max": (pl.col("name").max(), lambda rows: extreme(rows, "name", max)),
    "took_min": (pl.col("took").min(), lambda rows: extreme(rows, "took", min)),
    "x_unique": (AGG.n_unique("x"), lambda rows: len(set(seen(rows, "x")))),
    "even_unique": (
        pl.col("x").filter(pl.col("x") % 2 == 0).drop_nulls().n_unique(),
        lambda rows: len({x for x in seen(rows, "x") if x % 2 == 0}),
    ),
    "name_unique": (AGG.n_unique("name"), lambda rows: len(set(seen(rows, "name")))),
    "half_unique": (AGG.n_unique("half"), lambda rows: len({repr(h + 0.0) for h in seen(rows, "half")})),
    "large_unique": (AGG.n_unique("large"), lambda rows: len(set(seen(rows, "large")))),
    "price_unique": (AGG.n_unique("price"), lambda rows: len(set(seen(rows, "price")))),
    "x_top": (AGG.top_k("x", 2), lambda rows: largest(rows, "x", "x", 2)),
    "name_top": (AGG.top_k("name", 2, by="x"), lambda rows: largest(rows, "name", "x", 2)),
    "x_first": (AGG.first("x"), lambda rows: rows[0]["x"]),
    "x_last": (AGG.last("x"), lambda rows: rows[-1]["x"]),
}
BY_TIME: dict[str, Told] = {
    "x_first": (AGG.first("x"), lambda rows: min(rows, key=lambda row: row["at"])["x"]),
    "x_last": (AGG.last("x"), lambda rows: max(reversed(rows), key=lambda row: row["at"])["x"]),
}
WITHOUT_CHANGES: dict[str, Told] = {
    "xs": (AGG.implode("x"), lambda rows: [row["x"] for row in rows]),
    "about": (AGG.approx_n_unique("x"), lambda rows: len(set(seen(rows, "x")))),
    "folded": (
        AGG.fold(1, lambda so_far, row: so_far + (row["x"] or 0), dtype=pl.Int64),
        lambda rows: 1 + sum(seen(rows, "x")),
    ),
    "most": (AGG.reduce(max, "x"), lambda rows: max(seen(rows, "x"), default=None)),
}
ORDERED = {"x_first": ("x",), "x_last": ("x",), "name_top": ("name", "x")}
"""By what an aggregate knows a row again: of equal ones, the first to come goes first."""


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


ROWS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["a", "a", "b", None]),
        "x": maybe(st.integers(-3, 3)),
        "small": maybe(st.integers(0, 255)),
        "large": maybe(st.sampled_from([0, 1, 2**62])),
        "half": maybe(st.sampled_from([-1.5, -0.0, 0.0, 0.5, 2.0, math.inf, -math.inf, math.nan])),
        "price": maybe(st.sampled_from([Decimal("-1.50"), Decimal("0.25"), Decimal("99999999.99")])),
        "yes": maybe(st.booleans()),
        "took": maybe(st.integers(-2, 2).map(lambda ms: timedelta(milliseconds=ms))),
        "name": maybe(st.sampled_from(["", "ann", "a name of more than twelve bytes"])),
        "at": st.integers(0, 4),
    }
)


@dataclass(frozen=True)
class Case:
    """Batches of rows, with changes or without; after which of them the task restarts."""

    fed: list[list[dict[str, Any]]]
    restarts: list[bool]
    changing: bool
    names: list[str]
    keyed: bool
    timed: bool
    every: str | None

    @property
    def aggregates(self) -> dict[str, Told]:
        known = PLAIN | (BY_TIME if self.timed else {}) | ({} if self.changing else WITHOUT_CHANGES)
        return {name: known[name] for name in self.names}

    @property
    def keys(self) -> tuple[str, ...]:
        return ("key",) if self.keyed else ()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    changing = draw(st.booleans())
    rows = draw(histories(ROWS) if changing else st.lists(ROWS, max_size=24))
    fed = draw(batches(rows))
    names = st.lists(st.sampled_from(sorted(PLAIN if changing else PLAIN | WITHOUT_CHANGES)), min_size=1, unique=True)
    restarts = draw(st.lists(st.booleans(), min_size=len(fed), max_size=len(fed)))
    every = draw(st.sampled_from([None, None, "1s"]))
    return Case(fed, restarts, changing, draw(names), draw(st.booleans()), draw(st.booleans()), every)


def declared(case: Case, aggregates: Mapping[str, Told] | None = None) -> hr.App:
    app = hr.App("running")
    columns = COLUMNS | ({"change": pl.String} if case.changing else {})
    rows = app.input("rows", columns, key="key", event_time="at" if case.timed else None)
    rows = rows.as_changes() if case.changing else rows
    chosen = case.aggregates if aggregates is None else aggregates
    grouped = rows.group_by("key" if case.keyed else None, id="g", every=case.every)
    grouped.agg(**{name: told[0] for name, told in chosen.items()}).as_rows().send_to(app.output("out"))
    return app


def fed(case: Case, rows: Sequence[Row]) -> list[Row]:
    return [{"change" if name == CHANGE else name: value for name, value in row.items()} for row in rows]


def kept(history: Sequence[Row], columns: Sequence[str]) -> dict[Any, list[Row]]:
    """The rows of each key that are there at the end, in the order in which they came."""
    alive: dict[Any, list[Row]] = defaultdict(list)
    for row in history:
        mine = alive[row["key"]]
        if row.get(CHANGE, INSERT) in (INSERT, AFTER):
            mine.append(row)
        else:
            own = [repr(row[name]) for name in columns]
            mine.pop(next(n for n, other in enumerate(mine) if [repr(other[name]) for name in columns] == own))
    return alive


def expected(case: Case) -> dict[Any, dict[str, Any]]:
    history = [row if case.keyed else {**row, "key": "all"} for batch in case.fed for row in batch]
    results: dict[Any, dict[str, Any]] = defaultdict(dict)
    for name, (_, oracle) in case.aggregates.items():
        same = [*ORDERED.get(name, [*COLUMNS]), *(["at"] if case.timed and name in BY_TIME else [])]
        for key, rows in kept(history, same).items():
            if rows:
                results[key][name] = oracle(rows)
    return results


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, abs_tol=1e-9) or (math.isnan(found) and math.isnan(wanted))
    return bool(found == wanted)


@settings(max_examples=examples(60), deadline=None)
@given(cases())
def test_results_are_those_of_all_rows_that_are_there(case: Case) -> None:
    with declared(case).test() as t:
        for rows, restarts in zip(case.fed, case.restarts, strict=True):
            t.feed("rows", fed(case, rows))
            if case.every:
                t.advance("400ms")
            if restarts:
                t.restart(checkpoint=True)
        t.end()
        changes = told(t.read("out"))
    found = {row.pop("key", "all"): row for row in added_up(changes).rows(named=True)}
    wanted = expected(case)
    assert found.keys() == wanted.keys()
    for key, results in wanted.items():
        for name, value in results.items():
            assert same(found[key][name], value), (key, name, found[key][name], value)
    assert in_order(changes, case.keys)


def told(out: pl.DataFrame) -> pl.DataFrame:
    """Changes that were read, as changes."""
    return out.rename({"change": CHANGE}).with_columns(pl.col(CHANGE).cast(KIND))


def in_order(changes: pl.DataFrame, keys: Sequence[str]) -> bool:
    """Whether each key has at most one row at any time, and each update its other half."""
    here: dict[Any, dict[str, Any] | None] = {}
    half: set[Any] = set()
    for row in changes.rows(named=True):
        kind, key = row.pop(CHANGE), tuple(row[name] for name in keys)
        gone = kind in ("delete", "update_before")
        if (here.get(key) is None) == gone or (key in half) != (kind == AFTER):
            return False
        half.discard(key)
        if kind == "update_before":
            half.add(key)
        here[key] = None if gone else row
    return not half
