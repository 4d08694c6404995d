"""Rows are deleted from tables: by delete_from, and by a column of what fills the table."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.api.specs import TableKind, TableStorage
from headrace.plan.planner import plan
from headrace.plan.render import render, to_text
from headrace.systems.base import StreamInfo

MEMBERS = {"member": pl.String, "country": pl.String}
MARKED = MEMBERS | {"gone": pl.Boolean}


def located(deleted: str | pl.Expr | None = "gone", *, side: bool = False, **of_table: Any) -> hr.App:
    """Views with the countries of their members; ``members`` puts members, ``leavers`` deletes them."""
    app = hr.App("located")
    columns = MARKED if isinstance(deleted, str) else MEMBERS
    members = app.input("members", columns)
    if side:
        table = app.table("countries", key="member", side_inputs=members, deleted=deleted, **of_table)
    else:
        table = app.table("countries", key="member", deleted=deleted, **of_table)
        members.send_to(table)
        app.input("leavers", {"left": pl.Int64, "member": pl.String}).delete_from(table)
    views = app.input("views", {"member": pl.String})
    views.join(table, how="left", id="locate").send_to(app.output("out"))
    return app


def change(member: str, country: str | None, gone: bool | None = False) -> dict[str, Any]:
    return {"member": member, "country": country, "gone": gone}


def now(t: Any, *members: str) -> list[tuple[Any, ...]]:
    before = t.read("out").height
    t.feed("views", [{"member": member} for member in members])
    rows: list[tuple[Any, ...]] = t.read("out").rows()[before:]
    return rows


@pytest.mark.parametrize(("side", "kind"), [(False, "local"), (True, "local"), (True, "global")])
@pytest.mark.parametrize("storage", ["disk", "memory"])
def test_a_row_that_says_so_takes_the_row_of_its_key_out(side: bool, storage: TableStorage, kind: TableKind) -> None:
    with located(side=side, storage=storage, kind=kind).test() as t:
        t.feed("members", [change("ann", "AT"), change("bob", "DE"), change("eve", "CH", None)])
        t.feed("members", [change("bob", None, True), change("ann", "AT", True), change("ann", "IT")])
        t.feed("members", [change("max", "FR"), change("max", None, True), change("nobody", None, True)])
        assert now(t, "ann", "bob", "eve", "max") == [("ann", "IT"), ("bob", None), ("eve", "CH"), ("max", None)]
        t.restart(checkpoint=True)
        assert now(t, "bob", "eve") == [("bob", None), ("eve", "CH")]
        (host,) = t._container.hosts
        assert host.task.chain.tables.sizes() == {"countries": 2}


def test_a_column_that_marks_deletions_is_not_in_the_table_but_those_of_an_expression_are() -> None:
    assert list(located().graph().tables["countries"].schema.columns) == ["member", "country"]  # type: ignore[union-attr]
    with located(pl.col("country").is_null() | pl.col("country").str.starts_with("-")).test() as t:
        t.feed("members", [{"member": m, "country": "AT"} for m in ("ann", "bob", "eve")])
        t.feed("members", [{"member": "ann", "country": None}, {"member": "bob", "country": "-"}])
        assert now(t, "ann", "bob", "eve") == [("ann", None), ("bob", None), ("eve", "AT")]


def test_a_declared_schema_may_name_the_column_or_not() -> None:
    for schema in (MEMBERS, MARKED):
        app = located(schema=schema)
        assert app.graph().tables["countries"].schema == hr.Schema.of(MEMBERS)
        with app.test() as t:
            t.feed("members", [change("ann", "AT"), change("ann", None, True)])
            assert now(t, "ann") == [("ann", None)]


def test_a_flow_deletes_the_rows_of_its_keys() -> None:
    with located().test() as t:
        t.feed("members", [change("ann", "AT"), change("bob", "DE")])
        t.feed("leavers", [{"left": 1, "member": "bob"}, {"left": 2, "member": "bob"}, {"left": 3, "member": "eve"}])
        t.restart(checkpoint=True)
        assert now(t, "ann", "bob", "eve") == [("ann", "AT"), ("bob", None), ("eve", None)]
        with pytest.raises(hr.errors.DataError, match=r"'delete_from-1' .* to 'countries': 'member' is null in 1 of 1"):
            t.feed("leavers", [{"left": 4, "member": None}])


def test_the_plan_says_who_deletes() -> None:
    graph = located(storage="memory").graph()
    text = to_text(render(plan(graph, {id_: StreamInfo(id_, 1) for id_ in graph.streams})))
    assert "from table countries" in text
    assert "local, deleted gone, storage memory" in text


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda app: app.table("t", key="member", schema=MEMBERS, deleted=3), "deleted must be a column name or a"),
        (
            lambda app: app.table("t", key="gone", schema=MARKED, deleted="gone"),
            "the key column 'gone' can't also mark deletions",
        ),
        (
            lambda app: app.table("t", key="member", side_inputs=app.input("i", MEMBERS), deleted="gone"),
            "there is no column 'gone' that marks deletions from the table 't'",
        ),
        (
            lambda app: app.table("t", key="member", schema=MARKED | {"gone": pl.Int64}, deleted="gone"),
            "the predicate .* is Int64, not Boolean",
        ),
        (
            lambda app: app.table("t", key="member", schema=MEMBERS, deleted=pl.col("left").is_null()),
            "there is no column 'left'",
        ),
        (lambda app: app.input("i", MEMBERS).send_to(app.table("t", key="member", deleted="gone")), "no column 'gone'"),
        (
            lambda app: app.input("i", MEMBERS).send_to(app.table("t", key="member", schema=MEMBERS, deleted="gone")),
            "doesn't match 't' .*: 'gone' is missing",
        ),
        (
            lambda app: app.input("i", MEMBERS).delete_from(app.table("t", key="member")),
            "the columns of the table 't' aren't known yet",
        ),
        (
            lambda app: app.input("i", {"member": pl.Int64}).delete_from(app.table("t", key="member", schema=MEMBERS)),
            "the key 'member' is Int64, and String in the table 't'",
        ),
        (
            lambda app: app.input("i", {"name": pl.Int64}).delete_from(app.table("t", key="member", schema=MEMBERS)),
            "there is no column 'member'",
        ),
        (
            lambda app: app.input("i", MEMBERS).delete_from(
                app.table("t", key="member", side_inputs=app.input("side", MEMBERS))
            ),
            "is filled by side inputs, so no flow can write it",
        ),
        (lambda app: app.input("i", MEMBERS).delete_from(app.output("o")), "rows can be deleted from a table"),
        (
            lambda app: app.table("t", key="member", schema=MEMBERS, storage="tape"),
            "storage='tape' is not one of the choices",
        ),
    ],
)
def test_wrong_declarations(declare: Any, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message):
        declare(hr.App("wrong"))


def test_a_table_that_only_loses_rows_is_never_filled() -> None:
    app = hr.App("emptied")
    table = app.table("t", key="member", schema=MEMBERS)
    app.input("i", MEMBERS).delete_from(table)
    with pytest.raises(hr.errors.PlanError, match="nothing ever fills table 't'"):
        app.test()
    app.input("asked", {"member": pl.String}).join(table).send_to(app.output("out"))
    with pytest.raises(hr.errors.DeclarationError, match="the table 't' is joined, but nothing fills it"):
        app.test()


TELL = st.tuples(
    st.just("members"),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), min_size=1, max_size=5),
)
LEAVE = st.tuples(st.just("leavers"), st.lists(st.sampled_from("abc"), min_size=1, max_size=3))
RESTART = st.tuples(st.just("restart"), st.none())


@settings(deadline=None, max_examples=examples(40))
@given(history=st.lists(TELL | LEAVE | RESTART, max_size=12), storage=st.sampled_from(["disk", "memory"]))
def test_any_history_gives_what_a_dict_gives(history: list[tuple[str, Any]], storage: TableStorage) -> None:
    table: dict[str, str] = {}
    with located(storage=storage).test() as t:
        for kind, what in history:
            if kind == "members":
                t.feed("members", [change(key, str(number), gone) for key, number, gone in what])
                for key, number, gone in what:
                    table.pop(key, None)
                    table |= {} if gone else {key: str(number)}
            elif kind == "leavers":
                t.feed("leavers", [{"left": 0, "member": key} for key in what])
                for key in what:
                    table.pop(key, None)
            else:
                t.restart(checkpoint=True)
        assert now(t, *"abc") == [(key, table.get(key)) for key in "abc"]
