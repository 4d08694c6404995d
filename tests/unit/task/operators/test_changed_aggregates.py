"""A window whose aggregates change goes on with its state: what is kept counts on, what is new counts from then on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.kit.harness import TestApp

COLUMNS = {"key": pl.String, "at": pl.Int64, "value": pl.Int64}
VALUES = hr.aggregates.implode("value")
"""Kept all along. Every message has its own value, so this says which messages a result is of."""

Seen = list[tuple[int, int]]
"""The time and value of each message, by time."""

BUILT_IN: dict[str, tuple[Any, Callable[[Seen], Any]]] = {
    "count": (hr.count(), len),
    "count_of": (hr.count(pl.when(pl.col("value") % 2 == 0).then(1)), lambda seen: sum(v % 2 == 0 for _, v in seen)),
    "sum": (hr.sum("value"), lambda seen: sum(v for _, v in seen)),
    "floats": (hr.sum(pl.col("value") / 2), lambda seen: sum(v for _, v in seen) / 2),
    "min": (hr.min("value"), lambda seen: min((v for _, v in seen), default=None)),
    "max": (hr.max("value"), lambda seen: max((v for _, v in seen), default=None)),
    "mean": (hr.mean("value"), lambda seen: sum(v for _, v in seen) / len(seen) if seen else None),
    "first": (hr.aggregates.first("value"), lambda seen: seen[0][1] if seen else None),
    "last": (hr.aggregates.last("value"), lambda seen: seen[-1][1] if seen else None),
    "top": (hr.aggregates.top_k("value", 2), lambda seen: sorted((v for _, v in seen), reverse=True)[:2]),
    "top1": (hr.aggregates.top_k("value", 1), lambda seen: sorted((v for _, v in seen), reverse=True)[:1]),
    "unique": (hr.aggregates.n_unique("value"), len),
    "about": (hr.aggregates.approx_n_unique("value"), len),
    "all": (hr.aggregates.implode(pl.col("value") * 2), lambda seen: sorted(2 * v for _, v in seen)),
}
BY_FUNCTION: dict[str, tuple[Any, Callable[[Seen], Any]]] = {
    "fold": (
        hr.aggregates.fold(100, lambda so_far, v: so_far + v["value"], merge=lambda a, b: a + b - 100, dtype=pl.Int64),
        lambda seen: 100 + sum(v for _, v in seen),
    ),
    "reduce": (
        hr.aggregates.reduce(lambda a, b: a + b, "value"),
        lambda seen: sum(v for _, v in seen) if seen else None,
    ),
}
ALL = BUILT_IN | BY_FUNCTION

FUNCTION = {"always": hr.aggregates.fold(0, lambda so_far, _: so_far + 1, merge=lambda a, b: a + b, dtype=pl.Int64)}
"""With a function from the start, functions may be added: a window without one keeps other state."""

SHAPES: list[tuple[Any, dict[str, Any]]] = [
    (hr.tumbling("20ms"), {}),
    (hr.hopping("20ms", every="8ms"), {}),
    (hr.tumbling("20ms"), {"early": hr.triggers.every(2), "allowed_lateness": "10ms"}),
    (hr.tumbling("20ms"), {"early": hr.triggers.every(3), "panes": "discarding"}),
    (hr.session("7ms"), {}),
    (hr.session("7ms"), {"early": hr.triggers.every("4ms"), "allowed_lateness": "5ms", "panes": "discarding"}),
    (hr.windows.global_(), {"early": hr.triggers.every(3)}),
    (hr.windows.sliding("15ms"), {}),
    (hr.windows.count(4), {}),
    (hr.windows.count(5, every=2), {}),
]


@dataclass(frozen=True)
class Case:
    shape: Any
    options: dict[str, Any]
    keyed: bool
    functions: bool
    before: list[str]
    after: list[str]
    early: list[list[tuple[str | None, int]]]
    late: list[list[tuple[str | None, int]]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape, options = draw(st.sampled_from(SHAPES))
    functions = draw(st.booleans())
    names = st.lists(st.sampled_from(sorted(ALL if functions else BUILT_IN)), unique=True, max_size=6)
    message = st.tuples(st.sampled_from(["a", "a", "b", None]), st.integers(-30, 60))
    batches = st.lists(st.lists(message, min_size=1, max_size=6), max_size=4)
    before, after = draw(names), draw(names)
    keyed = draw(st.booleans())
    return Case(shape, options, keyed, functions, before, after, draw(batches), draw(batches))


def declared(case: Case, names: list[str]) -> hr.App:
    app = hr.App("changing")
    rows = app.input("rows", COLUMNS, event_time="at", lateness="15ms")
    if case.keyed:
        rows = rows.partition_by("key", id="by-key")
    own = FUNCTION if case.functions else {}
    chosen = [*((name, ALL[name][0]) for name in names), ("values", VALUES), *own.items()]
    at = len(names) // 2  # what is kept changes its place
    windows = rows.window(case.shape, key="key" if case.keyed else None, id="w", **case.options)
    result = windows.agg(**dict(chosen[at:] + chosen[:at]))
    # One column, so that the output stays as it is.
    result.select(row=pl.struct(pl.all()).struct.json_encode()).send_to(app.output("out"))
    return app


@settings(max_examples=examples(40), deadline=None)
@given(cases())
def test_new_aggregates_count_from_the_change_on(case: Case) -> None:
    numbers = iter(range(1000))
    times: dict[int, int] = {}

    def feed(t: TestApp, batches: list[list[tuple[str | None, int]]]) -> None:
        for batch in batches:
            rows = []
            for key, at in batch:
                value = next(numbers)
                # Times differ, so it doesn't matter which of two equal ones is the first.
                times[value] = at * 1000 + value
                rows.append((key, at, value))
            t.feed("rows", pl.DataFrame(rows, COLUMNS, orient="row"))

    with declared(case, case.before).test() as t:
        feed(t, case.early)
        first_new = len(times)
        finished = t.read("out").height
        t.change(declared(case, case.after))
        feed(t, case.late)
        t.end()
        results = [json.loads(row) for row in t.read("out")["row"]]
    for number, row in enumerate(results):
        for name in case.before if number < finished else case.after:
            since = 0 if number < finished or name in case.before else first_new
            seen = sorted((times[v], v) for v in row["values"] if v >= since)
            if name not in ("first", "last") or distinct(seen):  # else the order of arrival decides
                found = sorted(row[name]) if name == "all" else row[name]
                assert found == ALL[name][1](seen), (name, seen, row)


def test_the_first_function_of_a_plain_window_is_refused_before_anything_runs() -> None:
    case = Case(hr.tumbling("20ms"), {}, False, False, [], [], [], [])
    with declared(case, ["sum"]).test() as t:
        t.feed("rows", pl.DataFrame([("a", 1, 1)], COLUMNS, orient="row"))
        with pytest.raises(hr.errors.PlanError, match="state was none, and is now for fold and reduce"):
            t.change(declared(case, ["sum", "fold"]))


def distinct(seen: Seen) -> bool:
    return len({(time - value) // 1000 for time, value in seen}) == len(seen)
