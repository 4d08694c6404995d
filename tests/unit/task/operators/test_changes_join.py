"""Joins of all rows of two flows: whatever was told adds up to the join of both multisets, computed row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.api.operators.join import ChangesHow
from headrace.rows.changes import BEFORE, CHANGE, DELETE
from headrace.task.operators import changes_join
from histories import batches, histories, total

HOWS: tuple[ChangesHow, ...] = get_args(ChangesHow)
LEFT = {"k": pl.String, "a": pl.Int64}
RIGHT = {"key": pl.String, "a": pl.Int64, "b": pl.Int64}
WHERE = pl.col("a") < pl.col("a_right")
Row = tuple[Any, ...]


def joined(how: ChangesHow, *, changes: Sequence[bool] = (True, True), **options: Any) -> hr.App:
    app = hr.App("joined")
    sides = []
    for name, schema, changing in zip(("left", "right"), (LEFT, RIGHT), changes, strict=True):
        flow = app.input(name, schema | ({"change": pl.String} if changing else {}))
        sides.append(flow.as_changes() if changing else flow)
    keys = {"left_on": "k", "right_on": "key"} if "left_on" not in options else {}
    result = sides[0].join(sides[1], how=how, **{"ttl": "never", "id": "join"} | keys | options)
    result.send_to(app.output("out"))
    return app


def fed(t: Any, side: str, *rows: dict[str, Any]) -> None:
    t.feed(side, [{"change" if name == CHANGE else name: value for name, value in row.items()} for row in rows])


def multiset(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[Row]:
    found: Counter[Row] = Counter()
    for row in rows:
        found[tuple(row[name] for name in columns)] += -1 if row.get(CHANGE) in (BEFORE, DELETE) else 1
    return list(found.elements())


def sql_join(
    how: ChangesHow, left: Sequence[Row], right: Sequence[Row], *, where: bool, keyed: bool = True
) -> list[Row]:
    """The plain join: each left row with each right row; ``keyed``: only those of its key."""

    def agree(one: Row, two: Row) -> bool:
        same = not keyed or (one[0] is not None and one[0] == two[0])
        return same and (not where or (None not in (one[1], two[1]) and one[1] < two[1]))

    partners = [[two for two in right if agree(one, two)] for one in left]
    if how in ("semi", "anti"):
        return [one for one, those in zip(left, partners, strict=True) if bool(those) == (how == "semi")]
    of_right = (lambda two: two[1:]) if keyed else (lambda two: two)
    found = [one + of_right(two) for one, those in zip(left, partners, strict=True) for two in those]
    if how in ("left", "full"):
        nothing = (None,) * (2 if keyed else 3)
        found += [one + nothing for one, those in zip(left, partners, strict=True) if not those]
    if how in ("right", "full"):
        nothing = (None,) * (1 if keyed else 2)
        alone = [two for two in right if not any(agree(one, two) for one in left)]
        found += [(two[0], *nothing, *two[1:]) if keyed else (*nothing, *two) for two in alone]
    return found


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_join, "_EMITTED_ROWS_MAX", 3)


KEYS = st.sampled_from(["x", "y", None])
SMALL = st.sampled_from([1, 2, None])
LEFTS = st.fixed_dictionaries({"k": KEYS, "a": SMALL})
RIGHTS = st.fixed_dictionaries({"key": KEYS, "a": SMALL, "b": st.sampled_from([7, 8])})


@st.composite
def fed_batches(draw: st.DrawFn, changes: Sequence[bool]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The batches of both sides, in any order."""
    of_side = []
    for name, rows, changing in zip(("left", "right"), (LEFTS, RIGHTS), changes, strict=True):
        history = draw(histories(rows, 14) if changing else st.lists(rows, max_size=8))
        of_side.append([(name, batch) for batch in draw(batches(history))])
    found = []
    while any(of_side):
        side = of_side[draw(st.integers(0, 1))] or of_side[0] or of_side[1]
        found.append(side.pop(0))
    return found


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), changes=st.tuples(st.booleans(), st.booleans()), where=st.booleans())
@pytest.mark.parametrize("how", HOWS)
def test_any_history_adds_up_to_the_join(
    how: ChangesHow, data: st.DataObject, changes: tuple[bool, bool], where: bool
) -> None:
    given_ = data.draw(fed_batches(changes))
    sides: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    with joined(how, changes=changes, where=WHERE if where else None).test() as t:
        for name, batch in given_:
            sides[name] += batch
            fed(t, name, *batch)
            match data.draw(st.sampled_from(["go on", "go on", "commit", "die"])):
                case "commit":
                    t.restart(checkpoint=True)
                case "die":
                    t.restart()
        expected = sql_join(how, multiset(sides["left"], [*LEFT]), multiset(sides["right"], [*RIGHT]), where=where)
        t.end()
        assert in_order(total(t.read("out", committed=True))) == in_order(expected)


TTL_MS = 10_000


@dataclass(eq=False)
class Kept:
    row: Row
    due: int
    met: bool = False


class Forgetful:
    """The join with ``ttl``, one row after the other."""

    def __init__(self, how: ChangesHow, *, where: bool) -> None:
        self.how, self.where = how, where
        self.sides: dict[str, list[Kept]] = {"left": [], "right": []}
        self.lone = {"left": how in ("left", "full", "semi", "anti"), "right": how in ("right", "full")}
        self.told: Counter[Row] = Counter()
        self.missing = 0

    def feed(self, side: str, rows: Sequence[dict[str, Any]], now: int) -> None:
        for name in self.sides:
            self.sides[name] = [each for each in self.sides[name] if each.due > now]
        for row in rows:
            values = tuple(row[name] for name in (LEFT if side == "left" else RIGHT))
            self._take(side, values) if row.get(CHANGE) in (BEFORE, DELETE) else self._add(side, values, now + TTL_MS)

    def _add(self, side: str, row: Row, due: int) -> None:
        partners = self._partners(side, row)
        mine = Kept(row, due, bool(partners))
        self._tell(side, row, partners, 1)
        self._tell_alone(side, mine, 1)
        for other, each in partners:
            if not each.met:
                self._tell_alone(other, each, -1)
                each.met = True
                self._tell_alone(other, each, 1)
        if row[0] is not None:
            self.sides[side].append(mine)

    def _take(self, side: str, row: Row) -> None:
        if row[0] is None:
            self._tell_alone(side, Kept(row, 0), -1)
            return
        mine = next((each for each in self.sides[side] if each.row == row), None)
        if mine is None:
            self.missing += 1
            return
        self.sides[side].remove(mine)
        partners = self._partners(side, row)
        self._tell(side, row, partners, -1)
        self._tell_alone(side, mine, -1)
        for other, each in partners:
            if each.met and not self._partners(other, each.row):
                self._tell_alone(other, each, -1)
                each.met = False
                self._tell_alone(other, each, 1)

    def _partners(self, side: str, row: Row) -> list[tuple[str, Kept]]:
        other = "right" if side == "left" else "left"

        def agree(each: Kept) -> bool:
            pair = ([row], [each.row]) if side == "left" else ([each.row], [row])
            return bool(sql_join("inner", *pair, where=self.where))

        return [(other, each) for each in self.sides[other] if agree(each)]

    def _tell(self, side: str, row: Row, partners: Sequence[tuple[str, Kept]], times: int) -> None:
        for _, each in partners if self.how not in ("semi", "anti") else ():
            left, right = (row, each.row) if side == "left" else (each.row, row)
            self.told[left + right[1:]] += times

    def _tell_alone(self, side: str, kept: Kept, times: int) -> None:
        if self.lone[side] and kept.met == (self.how == "semi"):
            rows = ([kept.row], []) if side == "left" else ([], [kept.row])
            (row,) = [kept.row] if self.how == "semi" else sql_join(self.how, *rows, where=False)
            self.told[row] += times


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), changes=st.tuples(st.booleans(), st.booleans()), where=st.booleans())
@pytest.mark.parametrize("how", HOWS)
def test_rows_are_forgotten_and_nothing_else_changes(
    how: ChangesHow, data: st.DataObject, changes: tuple[bool, bool], where: bool
) -> None:
    oracle = Forgetful(how, where=where)
    with joined(how, changes=changes, where=WHERE if where else None, ttl=f"{TTL_MS}ms").test() as t:
        for name, batch in data.draw(fed_batches(changes)):
            fed(t, name, *batch)
            oracle.feed(name, batch, t.clock.now_ms())
            match data.draw(st.sampled_from(["go on", "time", "commit"])):
                case "time":
                    t.advance(f"{data.draw(st.integers(1, 12_000))}ms")
                case "commit":
                    t.restart(checkpoint=True)
        assert all(times >= 0 for times in oracle.told.values())
        assert in_order(total(t.read("out"))) == in_order(list(oracle.told.elements()))


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), how=st.sampled_from(HOWS), history=histories(LEFTS))
def test_a_flow_joins_with_itself(how: ChangesHow, data: st.DataObject, history: list[dict[str, Any]]) -> None:
    app = hr.App("itself")
    flow = app.input("left", LEFT | {"change": pl.String}).as_changes()
    few = flow.filter(pl.col("a") == 1).select(pl.col("k").alias("key"), "a", b="a")
    flow.join(few, left_on="k", right_on="key", how=how, ttl="never", id="join").send_to(app.output("out"))
    with app.test() as t:
        for batch in data.draw(batches(history)):
            fed(t, "left", *batch)
        rows = multiset(history, [*LEFT])
        right = [(key, a, a) for key, a in rows if a == 1]
        assert in_order(total(t.read("out"))) == in_order(sql_join(how, rows, right, where=False))


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), how=st.sampled_from(HOWS), changes=st.tuples(st.booleans(), st.booleans()))
def test_without_a_key_each_row_meets_each(how: ChangesHow, data: st.DataObject, changes: tuple[bool, bool]) -> None:
    sides: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    with joined(how, changes=changes, where=WHERE, left_on=(), right_on=()).test() as t:
        for name, batch in data.draw(fed_batches(changes)):
            sides[name] += batch
            fed(t, name, *batch)
            if data.draw(st.booleans()):
                t.restart(checkpoint=True)
        expected = sql_join(
            how, multiset(sides["left"], [*LEFT]), multiset(sides["right"], [*RIGHT]), where=True, keyed=False
        )
        assert in_order(total(t.read("out"))) == in_order(expected)


def left(k: str | None, a: int | None, change: str = "insert") -> dict[str, Any]:
    return {"k": k, "a": a, CHANGE: change}


def right(key: str | None, a: int | None, b: int, change: str = "insert") -> dict[str, Any]:
    return {"key": key, "a": a, "b": b, CHANGE: change}


def test_an_inner_join_of_flows_that_only_add_rows_tells_plain_rows() -> None:
    app = joined("inner", changes=(False, False))
    with app.test() as t:
        t.feed("left", [{"k": "x", "a": 1}, {"k": "x", "a": 1}])
        t.feed("right", [{"key": "x", "a": 2, "b": 3}])
        rows = t.read("out")
        assert (rows.columns, rows.rows()) == (["k", "a", "a_right", "b"], [("x", 1, 2, 3)] * 2)


def test_a_batch_is_netted_and_tells_deletions_first() -> None:
    with joined("inner").test() as t:
        fed(t, "right", right("x", 5, 6))
        fed(t, "left", left("x", 1), left("x", 2), left("x", 1, "delete"))
        fed(t, "left", left("x", 3), left("x", 2, "update_before"), left("x", 4, "update_after"))
        assert t.read("out")["_change"].to_list() == ["insert", "delete", "insert", "insert"]


def test_a_deletion_of_a_row_that_is_not_there_is_counted() -> None:
    with joined("left", ttl="10s").test() as t:
        fed(t, "left", left("x", 1), left("x", 1), left("x", 1, "delete"))
        t.advance("10s")
        fed(t, "left", left("x", 1, "delete"), left("x", 1), left("x", 2, "delete"))
        assert total(t.read("out")) == [("x", 1, None, None)] * 2
        (host,) = t._container.hosts
        assert host.metrics.counters["missing"] == 2


def test_forgotten_rows_leave_the_state_without_a_look_up() -> None:
    with joined("full", changes=(False, True), ttl="10s").test() as t:
        t.feed("left", [{"k": str(number), "a": number} for number in range(100)])
        fed(t, "right", right("5", 1, 1))
        (host,) = t._container.hosts
        stores = host.task.chain.stores()
        sizes = []
        for _ in range(2):
            sizes.append([stores[id_].entries() for id_ in ("join.left", "join.right")])
            t.advance("10s")
        assert sizes == [[100, 1], [0, 0]]


def test_a_hot_key_tells_its_products_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_join, "_EMITTED_ROWS_MAX", 1000)
    heights: list[int] = []
    app = hr.App("hot")
    sides = [app.input(name, {"k": pl.Int64, name: pl.Int64}) for name in ("one", "two")]
    pairs = sides[0].join(sides[1], on="k", ttl="never", id="join")
    pairs.map_batches(lambda rows: (heights.append(rows.height), rows)[1]).send_to(app.output("out"))
    with app.test() as t:
        t.feed("one", pl.DataFrame({"k": [1] * 300 + [2], "one": range(301)}))
        t.feed("two", pl.DataFrame({"k": [1] * 40 + [3], "two": range(41)}))
        assert t.read("out").unique().height == 300 * 40
    assert heights == [1000] * 12


def test_values_of_any_type_are_told_apart() -> None:
    columns = {"k": pl.Int64, "tags": pl.List(pl.String), "at": pl.Struct({"x": pl.Float64}), "raw": pl.Binary}
    app = hr.App("nested")
    flow = app.input("left", columns | {"change": pl.String}).as_changes()
    other = app.input("right", {"k": pl.Int64, "b": pl.Int64})
    flow.join(other, on="k", how="left", ttl="1h", id="join").send_to(app.output("out"))
    one = {"k": 1, "tags": ["a", None], "at": {"x": 0.5}, "raw": b"\x00", CHANGE: "insert"}
    with app.test() as t:
        fed(t, "left", one, one | {"tags": []}, one | {"tags": None})
        t.restart(checkpoint=True)
        fed(t, "left", one | {CHANGE: "delete"}, one | {"tags": [], CHANGE: "delete"})
        t.feed("right", [{"k": 1, "b": 2}])
        assert t.read("out").filter(pl.col("b") == 2).drop(CHANGE).to_dicts() == [
            {"k": 1, "tags": None, "at": {"x": 0.5}, "raw": b"\x00", "b": 2}
        ]


def test_a_semi_join_keeps_each_key_of_plain_rows_once() -> None:
    with joined("semi", changes=(True, False)).test() as t:
        for _ in range(3):
            t.feed("right", [{"key": "x", "a": number, "b": number} for number in range(50)])
        fed(t, "left", left("x", 1), left("y", 1))
        assert total(t.read("out")) == [("x", 1)]
        (host,) = t._container.hosts
        right_side = host.task.chain.stores()["join.right"]
        assert right_side.entries() == 1
        assert right_side.scan().columns == ["key"]


def test_a_column_may_be_added_and_is_null_in_earlier_rows() -> None:
    def app(*more: str) -> hr.App:
        app = hr.App("grown")
        flow = app.input("left", LEFT | dict.fromkeys(more, pl.Int64))
        flow.join(app.input("right", RIGHT), left_on="k", right_on="key", ttl="never", id="join").send_to(
            app.output("out")
        )
        return app

    with app().test() as t:
        t.feed("left", [{"k": "x", "a": 1}])
        t.change(app("more"))
        t.feed("right", [{"key": "x", "a": 2, "b": 3}])
        assert t.read("out").to_dicts() == [{"k": "x", "a": 1, "more": None, "a_right": 2, "b": 3}]


def test_what_fails_in_the_condition_names_the_step() -> None:
    broken = pl.col("k").str.to_integer() > 0
    with (
        joined("inner", where=broken).test() as t,
        pytest.raises(hr.errors.UserFunctionError, match="the condition of operator 'join'"),
    ):
        fed(t, "left", left("x", 1))
        fed(t, "right", right("x", 1, 1))


def test_a_last_partner_that_is_replaced_in_one_batch_leaves_none_alone() -> None:
    with joined("right").test() as t:
        fed(t, "right", right("x", 5, 6))
        fed(t, "left", left("x", 1))
        fed(t, "left", left("x", 1, "update_before"), left("x", 2, "update_after"))
        assert total(t.read("out")) == [("x", 2, 5, 6)]


@pytest.mark.parametrize("cut", [False, True])
def test_a_partner_that_came_and_went_in_one_batch_was_a_partner(cut: bool) -> None:
    with joined("right", ttl="10s").test() as t:
        fed(t, "left", left("x", 1))
        t.advance("5s")
        fed(t, "right", right("x", 5, 6))
        t.advance("6s")
        came_and_went = [left("x", 2), left("x", 2, "delete")]
        for batch in [[one] for one in came_and_went] if cut else [came_and_went]:
            fed(t, "left", *batch)
        assert total(t.read("out")) == [("x", None, 5, 6), ("x", 1, 5, 6)]


def test_of_two_equal_rows_one_is_deleted_and_stays_so_after_a_restart() -> None:
    with joined("inner").test() as t:
        fed(t, "left", left("x", 1), left("x", 1), left("x", 3))
        t.restart(checkpoint=True)
        fed(t, "left", left("x", 1, "delete"), left("x", 3, "delete"))
        t.restart(checkpoint=True)
        fed(t, "right", right("x", 5, 6))
        assert total(t.read("out")) == [("x", 1, 5, 6)]
