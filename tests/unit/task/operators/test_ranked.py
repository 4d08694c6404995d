"""The first rows and the last row of each key, against all rows sorted anew: however batches are cut, and restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.api.checks import here
from headrace.api.operators.changes import Top, with_changes
from headrace.rows.changes import AFTER, BEFORE, CHANGE, DELETE, INSERT, KIND
from headrace.rows.hashing import partition_of
from headrace.stores.base import Share
from headrace.task.metrics import TaskMetrics
from headrace.task.operators import ranked
from headrace.task.operators.base import BuildContext, Operator
from headrace.task.operators.registry import build_operator
from tests.drawn import examples
from tests.histories import batches, histories, total

COLUMNS: dict[str, Any] = {"k": pl.String, "x": pl.Int64, "y": pl.Int64}
CHANGES = {**COLUMNS, CHANGE: KIND}
ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "x": st.sampled_from([None, 1, 2, 3, 4, 5]),
        "y": st.sampled_from([None, 1, 2]),
    }
)
Row = dict[str, Any]
quick = settings(max_examples=examples(25))


def app_of(step: Callable[[hr.Stream], hr.Stream], columns: Mapping[str, Any], key: str | None = "k") -> hr.App:
    app = hr.App("ranked")
    read = app.input("rows", columns).partition_by(key, id="parts")
    step(read).send_to(app.output("out"))
    return app


def told(app: hr.App, fed: Sequence[Sequence[Row]], restart: int | None = None) -> pl.DataFrame:
    with app.test() as t:
        for number, rows in enumerate(fed):
            t.feed("rows", rows)
            if number == restart:
                t.restart(checkpoint=number % 2 == 0)
        t.end()
        return t.read("out", committed=True)


def alive(rows: Sequence[Row]) -> list[Row]:
    """The rows there after all changes. Equal ones are together, in the order in which the last of each came."""
    number: Counter[tuple[Any, ...]] = Counter()
    came: dict[tuple[Any, ...], int] = {}
    for place, row in enumerate(rows):
        bare = tuple(row[name] for name in COLUMNS)
        adds = row.get(CHANGE, INSERT) in (INSERT, AFTER)
        number[bare] += 1 if adds else -1
        came |= {bare: place} if adds else {}
    there = sorted((row for row in number.elements()), key=lambda row: came[row])
    return [dict(zip(COLUMNS, row, strict=True)) for row in there]


def by_key(rows: Sequence[Row], key: str = "k") -> list[list[Row]]:
    return [[row for row in rows if row[key] == one] for one in dict.fromkeys(row[key] for row in rows)]


def last(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [tuple(mine[-1].values()) for mine in by_key(rows)]


def first(rows: Sequence[Row], n: int, order: Mapping[str, bool]) -> list[tuple[Any, ...]]:
    """The first rows of each key, with their numbers. Nulls are last."""
    found = []
    for mine in by_key(rows):
        rest = mine
        for name, down in reversed([*order.items(), *((c, False) for c in COLUMNS if c not in order)]):
            there = sorted((row for row in rest if row[name] is not None), key=itemgetter(name), reverse=down)
            rest = there + [row for row in rest if row[name] is None]
        found += [(*(row[name] for name in COLUMNS), place + 1) for place, row in enumerate(rest[:n])]
    return found


def in_order(changes: pl.DataFrame, key: Sequence[str]) -> None:
    """Raise unless each key has at most one row at any time, and the halves of an update follow each other."""
    known: dict[Any, Row] = {}
    half: dict[Any, bool] = {}
    for row in changes.rows(named=True):
        of, kind = tuple(row[name] for name in key), row.pop(CHANGE)
        assert half.pop(of, False) == (kind == AFTER)
        if kind in (BEFORE, DELETE):
            assert known.pop(of) == row
            half[of] = kind == BEFORE
        else:
            assert of not in known
            known[of] = row
    assert not any(half.values())


@st.composite
def cut(draw: st.DrawFn, *, changing: bool, rows: st.SearchStrategy[Row] = ROWS) -> tuple[list[list[Row]], int]:
    parts = draw(batches(draw(histories(rows, 40) if changing else st.lists(rows, max_size=40))))
    return parts, draw(st.integers(0, 6))


ORDERS = st.sampled_from([{"x": True}, {"x": False}, {"y": True, "x": False}])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("changing", [False, True])
@given(data=st.data(), order=ORDERS, spare=st.sampled_from([0, 1]))
@quick
def test_the_first_rows_are_those_of_all_rows_sorted(
    data: st.DataObject, order: dict[str, bool], spare: int, n: int, changing: bool
) -> None:
    fed, restart = data.draw(cut(changing=changing))
    rank = data.draw(st.sampled_from([None, "place"]))

    def step(flow: hr.Stream) -> hr.Stream:
        return flow.top(n, list(order), descending=list(order.values()), rank=rank)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranked, "_SPARE", spare)
        changes = told(app_of(step, CHANGES if changing else COLUMNS), fed, restart)
    expected = first(alive([row for rows in fed for row in rows]), n, order)
    assert Counter(total(changes)) == Counter(row if rank else row[:-1] for row in expected)
    if rank or n == 1:
        in_order(changes, ["k", rank] if rank else ["k"])


def long(seed: int, columns: Mapping[str, Sequence[Any]]) -> list[list[Row]]:
    """A long history in random batches, with many rows of a key at times, and few at others."""
    draw = random.Random(seed)
    there: list[Row] = []
    found: list[list[Row]] = [[]]
    for step in range(300):
        if not there or draw.random() < (0.7 if step % 100 < 60 else 0.3):
            there.append({name: draw.choice(values) for name, values in columns.items()})
            found[-1].append({**there[-1], CHANGE: INSERT})
        else:
            kind = draw.choice([DELETE, BEFORE])
            found[-1].append({**there.pop(draw.randrange(len(there))), CHANGE: kind})
            if kind == BEFORE:
                there.append({name: draw.choice(values) for name, values in columns.items()})
                found[-1].append({**there[-1], CHANGE: AFTER})
        if draw.random() < 0.1:
            found.append([])
    return [rows for rows in found if rows]


def check_each_batch(app: hr.App, fed: Sequence[Sequence[Row]], expected: Callable[[list[Row]], Any]) -> pl.DataFrame:
    with app.test() as t:
        for number, rows in enumerate(fed):
            t.feed("rows", rows)
            there = alive([row for rows in fed[: number + 1] for row in rows])
            assert Counter(total(t.read("out"))) == Counter(expected(there)), f"after batch {number}"
            if number == 9:
                t.restart(checkpoint=True)
        return t.read("out")


MANY = {"k": ["a", "b"], "x": range(12), "y": [None, 1, 2]}


@pytest.mark.parametrize(("seed", "spare", "n"), [(1, 0, 1), (2, 1, 2), (3, 0, 5)])
def test_many_rows_come_and_go(monkeypatch: pytest.MonkeyPatch, seed: int, spare: int, n: int) -> None:
    monkeypatch.setattr(ranked, "_SPARE", spare)
    order = {"x": seed % 2 == 1}
    app = app_of(lambda flow: flow.top(n, "x", descending=order["x"], rank="place"), CHANGES)
    in_order(check_each_batch(app, long(seed, MANY), lambda there: first(there, n, order)), ["k", "place"])


@pytest.mark.parametrize("spare", [0, 3])
def test_many_rows_of_a_key_are_told_by_arrival(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    monkeypatch.setattr(ranked, "_SPARE", spare)
    app = app_of(lambda flow: flow.changes("k"), CHANGES)
    in_order(check_each_batch(app, long(4 + spare, MANY), last), ["k"])


ARRIVAL = st.fixed_dictionaries({"k": st.sampled_from(["a", None]), "x": st.sampled_from([1, 2, 3]), "y": st.none()})


@pytest.mark.parametrize("changing", [False, True])
@given(data=st.data(), spare=st.sampled_from([0, 16]))
@quick
def test_the_row_that_came_last_is_told_by_its_key(data: st.DataObject, spare: int, changing: bool) -> None:
    fed, restart = data.draw(cut(changing=changing, rows=ARRIVAL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranked, "_SPARE", spare)
        changes = told(app_of(lambda flow: flow.changes("k"), CHANGES if changing else COLUMNS), fed, restart)
    assert Counter(total(changes)) == Counter(last(alive([row for rows in fed for row in rows])))
    in_order(changes, ["k"])


@pytest.mark.parametrize("changing", [False, True])
def test_columns_of_any_type_are_in_order(changing: bool) -> None:
    types = {"s": pl.String, "b": pl.Boolean, "f": pl.Float64, "i": pl.Int8, "l": pl.List(pl.Int64)}
    types |= {"u": pl.UInt64, "e": pl.Enum(["z", "y"]), "o": pl.Struct({"a": pl.Int64})}
    rows: list[Row] = [
        {"s": "b", "b": True, "f": 1.5, "i": -128, "l": [1], "u": 1, "e": "y", "o": {"a": 1}},
        {"s": "b", "b": True, "f": 1.5, "i": None, "l": [2], "u": None, "e": None, "o": {"a": 1}},
        {"s": "b", "b": None, "f": float("nan"), "i": 127, "l": None, "u": 1 << 63, "e": "z", "o": None},
        {"s": "a", "b": False, "f": float("inf"), "i": 0, "l": [], "u": 2, "e": "z", "o": {"a": 3}},
        {"s": None, "b": False, "f": None, "i": 1, "l": [1, 2], "u": 3, "e": "z", "o": {"a": 2}},
    ]
    for by, best in {"s": [0], "b": [0], "f": [2], "i": [2], "u": [2], "e": [0]}.items():
        app = hr.App("types")
        flow = app.input("rows", types | ({CHANGE: KIND} if changing else {}))
        flow.partition_by(None).top(1, by, key=None).send_to(app.output("out"))
        with app.test() as t:
            for row in rows:
                t.feed("rows", [row | ({CHANGE: INSERT} if changing else {})])
            assert repr(total(t.read("out"))) in [repr([tuple(rows[one].values())]) for one in best]
            if changing:
                for one in best:
                    t.feed("rows", [rows[one] | {CHANGE: DELETE}])
                assert len(total(t.read("out"))) == 1


@pytest.mark.parametrize("spare", [0, 16])
def test_rows_that_differ_in_a_list_only(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    monkeypatch.setattr(ranked, "_SPARE", spare)
    app = hr.App("lists")
    flow = app.input("rows", {"x": pl.Int64, "l": pl.List(pl.Int64), CHANGE: KIND}).partition_by(None)
    flow.top(1, "x", key=None).select("l").send_to(app.output("out"))
    with app.test() as t:
        for one in range(8):
            t.feed("rows", [{"x": 1, "l": [one], CHANGE: INSERT}])
        for one in range(7):
            assert total(t.read("out")) == [([one],)]
            t.feed("rows", [{"x": 1, "l": [one], CHANGE: DELETE}])
        assert total(t.read("out")) == [([7],)]


def test_a_row_that_is_not_there_is_not_taken_away() -> None:
    with app_of(lambda flow: flow.top(2, "x"), CHANGES).test() as t:
        t.feed("rows", [{"k": "a", "x": 1, "y": 1, CHANGE: INSERT}, {"k": "a", "x": 2, "y": 1, CHANGE: DELETE}])
        t.feed("rows", [{"k": "b", "x": 1, "y": 1, CHANGE: BEFORE}, {"k": "b", "x": 2, "y": 1, CHANGE: AFTER}])
        t.feed("rows", [{"k": "a", "x": 2, "y": 1, CHANGE: INSERT}])
        assert total(t.read("out")) == [("a", 1, 1), ("a", 2, 1), ("b", 2, 1)]
        assert t.counter("missing") == 2


@pytest.mark.parametrize("step", [lambda flow: flow.top(2, "x", descending=False), lambda flow: flow.changes("k")])
@pytest.mark.parametrize("changing", [False, True])
def test_kept_rows_gain_a_column(step: Callable[[hr.Stream], hr.Stream], changing: bool) -> None:
    old, more = (CHANGES if changing else COLUMNS), {"new": pl.List(pl.String)}
    kind = {CHANGE: INSERT} if changing else {}
    with app_of(step, old).test() as t:
        t.feed("rows", [{"k": "a", "x": 3, "y": 1, **kind}, {"k": "a", "x": 2, "y": 1, **kind}])
        before = t.read("out").height
        t.change(app_of(step, {**old, **more}))
        t.feed("rows", [{"k": "a", "x": 1, "y": 1, "new": ["z"], **kind}])
        told = t.read("out").slice(before).drop("y")
    gone = (3, DELETE, None) if told.get_column(CHANGE)[0] == DELETE else (2, BEFORE, None)
    assert told.select("x", CHANGE, "new").rows()[0] == gone
    assert told.select("x", "new").rows()[1] == (1, ["z"])


def built(step: Callable[[hr.Stream], hr.Stream], told: list[pl.DataFrame]) -> Operator:
    flow = hr.App("alone").input("rows", CHANGES, key="k")
    node = flow.draft.nodes[step(flow).node]
    none: Any = None
    context = BuildContext(port=none, counters=TaskMetrics(), calls=none, tables=none, inputs=(flow.schema,))
    operator = build_operator(node, context)
    setattr(operator, "emit", told.append)  # noqa: B010 - so the type checker allows it
    return operator


@pytest.mark.parametrize("step", [lambda flow: flow.top(2, "x"), lambda flow: flow.changes("k")])
def test_two_tasks_take_over_the_rows_of_one(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[hr.Stream], hr.Stream]
) -> None:
    monkeypatch.setattr(ranked, "_SPARE", 0)
    fed = [pl.DataFrame(rows, schema=CHANGES) for rows in long(7, {**MANY, "k": list("abcdef")})]
    told: list[pl.DataFrame] = []
    one = built(step, told)
    for rows in fed[:9]:
        one.on_batch(rows)
    for store in one.stores():
        store.take_changes(1)
    for partition in (0, 1):
        mine = built(step, told)
        for old, new in zip(one.stores(), mine.stores(), strict=True):
            for change in old.whole(Share(partition, 2, ("k",))):
                new.apply(change)
        for rows in fed[9:]:
            part = rows.filter(pl.Series(partition_of(rows, ["k"], 2) == partition))
            if part.height:
                mine.on_batch(part)
    there = alive([row for rows in fed for row in rows.rows(named=True)])
    expected = last(there) if "changes" in str(one.node.id) else [row[:-1] for row in first(there, 2, {"x": True})]
    assert Counter(total(pl.concat(told))) == Counter(expected)


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("changing", [False, True])
def test_without_columns_the_order_is_that_of_arrival(
    monkeypatch: pytest.MonkeyPatch, changing: bool, down: bool
) -> None:
    monkeypatch.setattr(ranked, "_SPARE", 0)

    def step(flow: hr.Stream) -> hr.Stream:
        spec = Top(n=2, keys=("k",), by=(), descending=(down,), input=flow.schema)
        return flow._then("top", spec, here(), with_changes(flow.schema.columns), None, id_="two")

    fed = long(11, {"k": ["a", "b"], "x": range(1 << 40), "y": [None]})
    if not changing:
        fed = [[{n: row[n] for n in COLUMNS} for row in rows if row[CHANGE] in (INSERT, AFTER)] for rows in fed]

    def expected(there: list[Row]) -> list[tuple[Any, ...]]:
        ordered = (mine[::-1] if down else mine for mine in by_key(there))
        return [tuple(row.values()) for mine in ordered for row in mine[:2]]

    check_each_batch(app_of(step, CHANGES if changing else COLUMNS), [rows for rows in fed if rows][:15], expected)
