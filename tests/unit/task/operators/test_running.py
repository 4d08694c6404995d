"""Running aggregates of flows with changes and without, cut anywhere and restarted, against plain Python."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import headrace as hr
from drawn import examples
from headrace.api.operators.changes import GroupBy
from headrace.rows.changes import AFTER, CHANGE, INSERT, KIND, added_up
from headrace.stores.base import Share
from headrace.task.metrics import TaskMetrics
from headrace.task.operators import running
from headrace.task.operators.base import BuildContext
from headrace.task.operators.running import GroupByOperator
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
    numbers = [value for value in seen(rows, column) if not (isinstance(value, float) and math.isnan(value))]
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


# -- when changes leave --------------------------------------------------------------------------------
def counting(every: str | None = None, changing: bool = False, **aggregates: Any) -> hr.App:
    app = hr.App("counting")
    columns = {"key": pl.String, "x": pl.Int64} | ({"change": pl.String} if changing else {})
    rows = app.input("rows", columns, key="key")
    rows = rows.as_changes() if changing else rows
    rows.group_by("key", id="g", every=every).agg(**(aggregates or {"n": pl.len()})).as_rows().send_to(
        app.output("out")
    )
    return app


def rows_of(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(("key", "x", "change"), row, strict=False)) for row in rows]


def test_each_batch_tells_what_changed_and_nothing_else() -> None:
    with counting(hi=pl.col("x").max()).test() as t:
        t.feed("rows", rows_of(("a", 1), ("b", 5)))
        t.feed("rows", rows_of(("a", 3), ("b", 4)))
        out = t.read("out").rows()
    assert sorted(out[:2]) == [("a", 1, "insert"), ("b", 5, "insert")]
    assert out[2:] == [("a", 1, "update_before"), ("a", 3, "update_after")]


def test_changes_leave_at_most_once_in_every_and_all_are_told_at_the_end() -> None:
    with counting("10s").test() as t:
        t.feed("rows", rows_of(("a", 1), ("b", 1)))
        t.feed("rows", rows_of(("a", 1)))
        assert t.read("out").rows() == []
        t.advance("10s")
        assert sorted(t.read("out").rows()) == [("a", 2, "insert"), ("b", 1, "insert")]
        t.feed("rows", rows_of(("a", 1)))
        t.restart(checkpoint=True)
        t.feed("rows", rows_of(("a", 1)))
        t.advance("10s")
        assert t.read("out").rows()[2:] == [("a", 2, "update_before"), ("a", 4, "update_after")]
        t.feed("rows", rows_of(("b", 1)))
        t.end()
        assert t.read("out").rows()[4:] == [("b", 1, "update_before"), ("b", 2, "update_after")]


def test_a_key_that_came_and_went_meanwhile_is_not_told() -> None:
    with counting("10s", changing=True).test() as t:
        t.feed("rows", rows_of(("a", 1, "insert")))
        t.feed("rows", rows_of(("a", 1, "delete"), ("b", 1, "insert")))
        t.advance("10s")
        t.feed("rows", rows_of(("b", 1, "delete")))
        t.advance("10s")
        assert t.read("out").rows() == [("b", 1, "insert"), ("b", 1, "delete")]


def test_results_that_wait_are_told_when_the_app_stops_waiting() -> None:
    with counting("10s").test() as t:
        t.feed("rows", rows_of(("a", 1)))
        t.change(counting())
        t.feed("rows", rows_of(("a", 1), ("b", 1)))
        assert total(told(t.read("out"))) == [("a", 2), ("b", 1)]


def test_a_crash_takes_back_what_was_counted_after_the_checkpoint() -> None:
    with counting(changing=True, n=pl.len(), u=AGG.n_unique("x"), lo=pl.col("x").min()).test() as t:
        t.feed("rows", rows_of(("a", 1, "insert"), ("a", 2, "insert")))
        t.restart(checkpoint=True)
        t.feed("rows", rows_of(("a", 1, "delete")))
        t.restart()
        t.end()
        assert total(told(t.read("out", committed=True))) == [("a", 1, 1, 2)]


def test_one_group_over_everything_goes_with_its_last_row() -> None:
    app = hr.App("all")
    rows = app.input("rows", {"x": pl.Int64, "change": pl.String}).as_changes()
    rows.partition_by(None).group_by(None, id="g").agg(n=pl.len(), hi=pl.col("x").max()).as_rows().send_to(
        app.output("out")
    )
    with app.test() as t:
        for change in ("insert", "delete", "insert"):
            t.feed("rows", [{"x": 7, "change": change}])
        assert t.read("out").rows() == [(1, 7, change) for change in ("insert", "delete", "insert")]


def test_results_of_many_keys_leave_in_batches_of_some_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_EMITTED_ROWS_MAX", 3)
    operator = operator_of(counting())
    sent: list[int] = []
    monkeypatch.setattr(operator, "emit", lambda rows: sent.append(rows.height))
    operator.on_batch(pl.DataFrame({"key": [*"abcdefgh"], "x": [1] * 8}))
    assert sent == [3, 3, 2]


# -- rows that are taken away --------------------------------------------------------------------------
def test_a_row_taken_away_from_a_key_that_is_not_there_is_ignored_and_counted() -> None:
    with counting(changing=True, n=pl.len(), s=pl.col("x").sum(), lo=pl.col("x").min()).test() as t:
        t.feed("rows", rows_of(("a", 1, "delete"), ("a", 2, "delete"), ("b", 3, "insert")))
        t.feed("rows", rows_of(("a", 5, "insert")))
        assert t.counter("missing") == 2
        assert total(told(t.read("out"))) == [("a", 1, 5, 5), ("b", 1, 3, 3)]


def test_of_equal_rows_the_first_to_come_goes_first() -> None:
    with counting(changing=True, first=AGG.first("x"), last=AGG.last("x")).test() as t:
        t.feed("rows", rows_of(*[("a", x, "insert") for x in (1, 2, 3, 1)]))
        t.feed("rows", rows_of(("a", 1, "delete")))
        assert total(told(t.read("out"))) == [("a", 2, 1)]


def test_a_value_that_came_and_went_in_one_batch_is_not_found() -> None:
    for found in (pl.col("x").max(), AGG.last("x")):
        with counting(changing=True, found=found).test() as t:
            t.feed("rows", rows_of(("a", 5, "insert")))
            t.feed("rows", rows_of(("a", 10, "insert"), ("a", 10, "delete")))
            t.feed("rows", rows_of(("a", 5, "update_before"), ("a", 5, "update_after")))
            assert t.read("out").rows() == [("a", 5, "insert")]


def test_both_zeros_are_one_value() -> None:
    with counting(u=AGG.n_unique(pl.col("x") * 0.0)).test() as t:
        t.feed("rows", rows_of(("a", 1)))
        t.feed("rows", rows_of(("a", -1)))
        assert total(told(t.read("out"))) == [("a", 1)]


def test_an_infinite_value_leaves_the_sum_with_its_row() -> None:
    half = pl.col("x") / 2
    odd = pl.when(pl.col("x") == 9).then(float("inf")).when(pl.col("x") == 8).then(float("nan")).otherwise(half)
    with counting(changing=True, s=odd.sum(), m=odd.mean()).test() as t:
        t.feed("rows", rows_of(("a", 9, "insert"), ("a", 3, "insert"), ("a", 8, "insert")))
        t.feed("rows", rows_of(("a", 8, "delete")))
        t.feed("rows", rows_of(("a", 9, "delete")))
        out = t.read("out").filter(pl.col("change") != "update_before").select("s", "m").rows()
    assert repr(out) == repr([(math.nan, math.nan), (math.inf, math.inf), (1.5, 1.5)])


@pytest.mark.parametrize("changing", [False, True])
def test_a_sum_that_its_type_cannot_hold_is_an_error(changing: bool) -> None:
    big = pl.col("x") * 2**61
    with counting(changing=changing, s=big.sum()).test() as t:
        t.feed("rows", rows_of(("a", 3, "insert")[: 2 + changing]))
        with pytest.raises(
            hr.errors.DataError, match=r"the sum 's' of operator 'g'.* is too large for Int64.*key = 'a'"
        ):
            t.feed("rows", rows_of(("a", 1, "insert")[: 2 + changing]))


def test_rows_that_come_and_go_do_not_pile_up() -> None:
    operator = operator_of(counting(changing=True, hi=pl.col("x").max(), last=AGG.last("x")))
    feed(operator, ("a", 100, INSERT))
    for n in range(60):
        feed(operator, ("a", n, INSERT), ("a", n - 1, "delete") if n else ("a", 50, INSERT))
    assert operator.stores()[2].entries() < 60
    same = operator_of(counting(changing=True, hi=pl.col("x").max()))
    for _ in range(100):
        feed(same, ("a", 1, INSERT))
    assert same.stores()[2].entries() < 20


# -- state ---------------------------------------------------------------------------------------------
def test_values_that_are_known_are_not_written_again() -> None:
    operator = operator_of(counting(u=AGG.n_unique("x")))
    values = operator.stores()[1]
    rows = [("a", n) for n in range(1000)]
    feed(operator, *rows)
    first = values.take_changes(1)
    feed(operator, *rows)
    assert values.take_changes(2) == []
    feed(operator, ("a", 1000), *rows)
    second = values.take_changes(3)
    assert 0 < sum(map(len, second)) < sum(map(len, first)) / 4
    assert values.entries() == 1001


CODED = [
    pl.Series([-1, 0, 127], dtype=pl.Int8),
    pl.Series([0, 1, 2**64 - 1], dtype=pl.UInt64),
    pl.Series([False, True], dtype=pl.Boolean),
    pl.Series([0.1, 0.2, math.inf, -math.inf, math.nan], dtype=pl.Float32),
    pl.Series(["1.10", "1.11", "-1.10"]).cast(pl.Decimal(38, 2)),
    pl.Series([0, 1]).cast(pl.Date),
    pl.Series([0, 1]).cast(pl.Datetime("ns", "Europe/Berlin")),
    pl.Series([0, 1]).cast(pl.Duration("us")),
    pl.Series([0, 1]).cast(pl.Time),
    pl.Series(["", "a", "\0", "a value of more than twelve bytes"]),
    pl.Series([b"", b"\xff", b"\0"]),
    pl.Series(["a", "b"]).cast(pl.Categorical()),
    pl.Series(["a", "b"]).cast(pl.Enum(["b", "a"])),
]


@pytest.mark.parametrize("values", CODED, ids=lambda values: str(values.dtype))
def test_values_of_any_type_are_counted(values: pl.Series) -> None:
    app = hr.App("types")
    rows = app.input("rows", {"key": pl.String, "x": values.dtype}, key="key")
    rows.group_by("key", id="g").agg(u=AGG.n_unique("x")).as_rows().send_to(app.output("out"))
    operator = operator_of(app)
    sent = list[pl.DataFrame]()
    operator.emit = sent.append
    for part in (values.head(1), pl.concat([values, values]), values):
        operator.on_batch(pl.DataFrame({"key": ["a"] * len(part), "x": part}))
    assert total(pl.concat(sent)) == [("a", len(values))]


def test_a_value_that_cannot_be_computed_is_an_error_that_names_the_step() -> None:
    with counting(u=AGG.n_unique(pl.col("key").str.to_integer())).test() as t:
        t.feed("rows", rows_of(("1", 1)))
        with pytest.raises(hr.errors.UserFunctionError, match="an aggregate of operator 'g'"):
            t.feed("rows", rows_of(("no number", 1)))


def test_values_of_one_expression_are_kept_once() -> None:
    few = pl.col("x").filter(pl.col("x") < 3).drop_nulls().n_unique()
    operator = operator_of(counting(u=AGG.n_unique("x"), few=few, twice=AGG.n_unique("x")))
    feed(operator, *[("a", n) for n in range(10)], ("b", 1), ("b", None))
    assert operator.stores()[1].entries() == 11


def as_json(changing: bool = False, **aggregates: Any) -> hr.App:
    """In one column, so that the output stays as it is."""
    app = hr.App("changing")
    columns = {"key": pl.String, "x": pl.Int64} | ({"change": pl.String} if changing else {})
    rows = app.input("rows", columns, key="key")
    grouped = (rows.as_changes() if changing else rows).group_by("key", id="g")
    rows = grouped.agg(**aggregates).as_rows().select(row=pl.struct(pl.all()).struct.json_encode())
    rows.send_to(app.output("out"))
    return app


def test_aggregates_come_and_go_and_new_ones_count_from_then_on() -> None:
    few = pl.col("x").filter(pl.col("x") < 9).drop_nulls().n_unique()
    with as_json(n=pl.len(), u=AGG.n_unique("x")).test() as t:
        t.feed("rows", rows_of(("a", 1), ("a", 2)))
        t.change(as_json(few=few, u=AGG.n_unique("x"), lo=pl.col("x").min()))
        t.feed("rows", rows_of(("a", 2), ("a", 3), ("a", 9)))
        last = json.loads(t.read("out")["row"][-1])
    assert last == {"key": "a", "few": 2, "u": 4, "lo": 2, "change": "update_after"}


def test_a_new_aggregate_owes_nothing_for_values_that_it_has_not_counted() -> None:
    with as_json(True, u=AGG.n_unique("x")).test() as t:
        t.feed("rows", rows_of(*[("a", 2, "insert")] * 3))
        few = pl.col("x").filter(pl.col("x") < 9).drop_nulls().n_unique()
        t.change(as_json(True, u=AGG.n_unique("x"), few=few, lo=pl.col("x").min(), last=AGG.last("x")))
        t.feed("rows", rows_of(("a", 2, "delete")))
        t.feed("rows", rows_of(("a", 2, "insert"), ("a", 5, "insert")))
        t.feed("rows", rows_of(("a", 5, "delete")))
        last = json.loads(t.read("out")["row"][-1])
    assert last == {"key": "a", "u": 1, "few": 1, "lo": 2, "last": 2, "change": "update_after"}


def test_an_aggregate_that_is_now_something_else_is_refused() -> None:
    with as_json(n=pl.len()).test() as t:
        t.feed("rows", rows_of(("a", 1)))
        with pytest.raises(hr.errors.PlanError, match="'n' was count, and is now sum of"):
            t.change(as_json(n=pl.col("x").sum()))


@pytest.mark.parametrize("partitions", [1, 3])
def test_state_is_divided_by_its_keys(partitions: int) -> None:
    app = counting("10s", changing=True, hi=pl.col("x").max(), u=AGG.n_unique("x"), last=AGG.last("x"))
    operator = operator_of(app)
    feed(operator, *[(f"key-{n % 40}", n % 7, INSERT) for n in range(200)])
    versions = [change for store in operator.stores() for change in store.take_changes(1)]
    assert versions
    found = []
    for partition in range(partitions):
        part, heard = operator_of(app), list[pl.DataFrame]()
        for mine, store in zip(part.stores(), operator.stores(), strict=True):
            for change in store.whole(Share(partition, partitions, ("key",))):
                mine.apply(change)
        part.emit = heard.append
        feed(part, *[(f"key-{n}", 6, "delete") for n in range(40) if n in (6, 13)])
        part.on_end()
        found += heard
    feed(operator, *[(f"key-{n}", 6, "delete") for n in range(40) if n in (6, 13)])
    whole = list[pl.DataFrame]()
    operator.emit = whole.append
    operator.on_end()
    assert_frame_equal(added_up(pl.concat(found)), added_up(pl.concat(whole)))


def operator_of(app: hr.App) -> GroupByOperator:
    node = app.graph().nodes["g"]
    assert isinstance(node.operator, GroupBy)
    unused: Any = None
    context = BuildContext(
        port=unused, counters=TaskMetrics(), calls=unused, tables=unused, inputs=(node.operator.input,)
    )
    operator = GroupByOperator(node, node.operator, context)
    operator.now_ms = 0
    return operator


def feed(operator: GroupByOperator, *rows: tuple[Any, ...]) -> None:
    spec = operator.node.operator
    assert isinstance(spec, GroupBy)
    operator.on_batch(pl.DataFrame(rows, spec.input.columns, orient="row"))
