"""Flows of changes: how rows become changes and changes rows, which operators take them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

import headrace as hr
from headrace.core.errors import DeclarationError
from headrace.kit.harness import TestApp
from headrace.rows.changes import AFTER, BEFORE, CHANGE, DELETE, INSERT, KIND
from tests.drawn import examples
from tests.histories import batches, histories, total

COLUMNS = {"k": pl.String, "x": pl.Int64}
CHANGES = {**COLUMNS, CHANGE: KIND}
ROWS = st.fixed_dictionaries({"k": st.sampled_from("ab"), "x": st.integers(0, 3)})


@pytest.fixture
def app() -> hr.App:
    return hr.App("changing")


@pytest.fixture
def rows(app: hr.App) -> hr.Stream:
    return app.input("rows", COLUMNS, key="k")


@pytest.fixture
def changes(app: hr.App) -> hr.Stream:
    return app.input("changes", CHANGES, key="k")


def change(kind: str, k: str, x: int) -> dict[str, Any]:
    return {"k": k, "x": x, CHANGE: kind}


@pytest.mark.parametrize(
    ("step", "columns"),
    [
        (lambda flow: flow.select("x"), ["x", CHANGE]),
        (lambda flow: flow.select(pl.all()), ["k", "x", CHANGE]),
        (lambda flow: flow.select(pl.exclude("k")), ["x", CHANGE]),
        (lambda flow: flow.select(CHANGE, "x"), [CHANGE, "x"]),
        (lambda flow: flow.select(pl.selectors.numeric() + 1), ["x", CHANGE]),
        (lambda flow: flow.with_columns(y=pl.col("x") + 1), ["k", "x", CHANGE, "y"]),
        (lambda flow: flow.with_columns(pl.selectors.integer() + 1), ["k", "x", CHANGE]),
        (lambda flow: flow.drop("k"), ["x", CHANGE]),
        (lambda flow: flow.rename({"x": "z"}), ["k", "z", CHANGE]),
        (lambda flow: flow.filter(pl.col("x") > 1), ["k", "x", CHANGE]),
        (lambda flow: flow.filter(pl.all_horizontal(pl.all().is_not_null())), ["k", "x", CHANGE]),
        (lambda flow: flow.split({"some": pl.col("x") > 1})["some"], ["k", "x", CHANGE]),
        (lambda flow: flow.partition_by("x"), ["k", "x", CHANGE]),
        (lambda flow: flow.broadcast(), ["k", "x", CHANGE]),
        (lambda flow: flow.merge(flow), ["k", "x", CHANGE]),
    ],
)
def test_steps_for_single_rows_keep_the_kinds(
    app: hr.App, changes: hr.Stream, step: Callable[[hr.Stream], hr.Stream], columns: list[str]
) -> None:
    flow = step(changes)
    assert flow.changing
    assert list(flow.schema.columns) == columns
    flow.send_to(app.output("out"))
    with app.test() as t:
        t.feed("changes", [change(INSERT, "a", 2), change(BEFORE, "a", 2), change(AFTER, "a", 3)])
        assert total(t.read("out")) in ([row] * n for row in total(t.read("out"))[:1] for n in (1, 2))


@pytest.mark.parametrize(
    "step",
    [
        lambda flow: flow.select(pl.col(CHANGE).alias("kind")),
        lambda flow: flow.select("x", _change=pl.lit(1)),
        lambda flow: flow.with_columns(pl.col("x").alias(CHANGE)),
        lambda flow: flow.with_columns(pl.all().cast(pl.String)),
        lambda flow: flow.with_columns(pl.struct(pl.all()).alias("all")),
        lambda flow: flow.filter(pl.col(CHANGE) == INSERT),
        lambda flow: flow.split({"new": pl.col(CHANGE) == INSERT}),
        lambda flow: flow.drop(CHANGE),
        lambda flow: flow.rename({CHANGE: "kind"}),
        lambda flow: flow.rename({"x": CHANGE}),
    ],
)
def test_no_step_reads_or_computes_the_kinds(changes: hr.Stream, step: Callable[[hr.Stream], object]) -> None:
    with pytest.raises(DeclarationError, match="'_change' is the column in which Headrace keeps"):
        step(changes)


def test_no_key_is_the_kind(changes: hr.Stream) -> None:
    for step in (changes.changes, lambda key: changes.top(1, key), changes.group_by):
        with pytest.raises(DeclarationError, match="there is no column '_change'"):
            step(CHANGE)


def test_a_column_of_this_name_is_one_of_kinds(app: hr.App, rows: hr.Stream) -> None:
    with pytest.raises(DeclarationError, match="the column '_change' is String, but in a column of this name"):
        app.input("other", {"_change": pl.String})
    with pytest.raises(DeclarationError, match="'_change' is the column in which Headrace keeps"):
        rows.with_columns(_change=pl.lit("insert"))


class _Task(hr.tasks.Task):
    @override
    def process(self, message: Any, out: Any) -> None: ...


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("map", lambda flow, *_: flow.map(dict, COLUMNS)),
        ("flat_map", lambda flow, *_: flow.flat_map(lambda row: [row], COLUMNS)),
        ("filter", lambda flow, *_: flow.filter(lambda row: True)),
        ("map_batches", lambda flow, *_: flow.map_batches(lambda rows: rows)),
        ("map_async", lambda flow, *_: flow.map_async(dict, COLUMNS)),
        ("map_batches", lambda flow, *_: flow.sample(0.5)),
        ("sink", lambda flow, *_: flow.sink(print)),
        ("window", lambda flow, *_: flow.window(hr.windows.count(2), key="k").agg(n=pl.len())),
        ("deduplicate", lambda flow, *_: flow.deduplicate("k", within="1m")),
        ("drop_late", lambda flow, *_: flow.drop_late()),
        ("join_latest", lambda flow, rows, _: flow.join_latest(rows, "k", ttl="1h")),
        ("join_latest", lambda flow, rows, _: rows.join_latest(flow, "k", ttl="1h")),
        ("join", lambda flow, rows, _: flow.join(rows, "k", within="1m")),
        ("join", lambda flow, _, table: flow.join(table, "k")),
        ("task", lambda flow, *_: flow.process(_Task(), {}, id="task")),
    ],
)
def test_others_refuse_changes_and_say_what_to_do(
    app: hr.App, kind: str, step: Callable[[hr.Stream, hr.Stream, hr.Table], object]
) -> None:
    columns = {**COLUMNS, "ts": pl.Int64}
    flow = app.input("changes", {**columns, CHANGE: KIND}, key="k", event_time="ts")
    rows = app.input("rows", columns, key="k", event_time="ts")
    with pytest.raises(DeclarationError, match=f"{kind} can't take 'input-changes', whose rows may be") as caught:
        step(flow, rows, app.table("table", key="k", schema=columns))
    assert "as_rows()" in str(caught.value)


def test_outputs_that_only_take_new_rows_refuse_changes(app: hr.App, changes: hr.Stream, tmp_path: Path) -> None:
    out = app.output("out", system=hr.io.files(str(tmp_path)))
    with pytest.raises(DeclarationError, match=r"the output 'out' \(files\) only takes new rows") as caught:
        changes.send_to(out)
    assert "upserts()" in str(caught.value)
    changes.as_rows().send_to(out)


def test_delete_from_refuses_changes(app: hr.App, changes: hr.Stream) -> None:
    with pytest.raises(DeclarationError, match=r"delete_from\(\) takes rows") as caught:
        changes.delete_from(app.table("t", key="k", schema=COLUMNS))
    assert "send_to(table) also deletes" in str(caught.value)


def test_which_flows_have_a_key(changes: hr.Stream) -> None:
    keyed = changes.changes("k", id="keyed")
    keys = changes.draft.change_keys
    assert keys.get(changes.node) is None
    assert keys[keyed.node] == ("k",)
    assert keys[keyed.rename({"k": "name"}).node] == ("name",)
    assert keys[keyed.drop("k").node] is None
    assert keys[keyed.with_columns(k=pl.lit("a")).node] is None
    assert keys[keyed.filter(pl.col("x") > 1).partition_by("k").node] == ("k",)
    assert keys[keyed.partition_by("x").node] is None
    assert keys[keyed.partition_by(None).node] == ("k",)
    assert keys[keyed.merge(changes).node] is None
    with pytest.raises(DeclarationError, match="nothing says by which key the rows of 'drop-2' change"):
        keyed.drop("k").upserts()


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (lambda rows, _: rows.upserts(), r"upserts\(\) is for a flow whose rows change"),
        (lambda rows, _: rows.as_rows(), r"as_rows\(\) is for a flow whose rows change"),
        (lambda rows, _: rows.as_changes(), "there is no column 'change'"),
        (lambda rows, _: rows.as_changes("x"), "the column 'x' is Int64"),
        (lambda rows, _: rows.changes("k", deleted="x"), "deleted='x' is not a Boolean column"),
        (lambda _, changes: changes.as_rows("x"), "the flow already has a column 'x'"),
        (lambda _, changes: changes.as_changes(), "the rows of 'input-changes' are changes already"),
        (lambda _, changes: changes.changes("k").upserts("x"), "the flow already has a column 'x'"),
    ],
)
def test_conversions_say_what_does_not_fit(
    rows: hr.Stream, changes: hr.Stream, step: Callable[[hr.Stream, hr.Stream], object], match: str
) -> None:
    with pytest.raises(DeclarationError, match=match):
        step(rows, changes)


def test_changes_of_a_key_that_marks_deletions(app: hr.App) -> None:
    flow = app.input("flags", {"gone": pl.Boolean})
    with pytest.raises(DeclarationError, match="the key column 'gone' can't also mark deletions"):
        flow.changes("gone", deleted="gone")
    more = app.input("more", CHANGES | {"gone": pl.Boolean})
    with pytest.raises(DeclarationError, match="the flow carries changes already"):
        more.changes("k", deleted="gone")


def test_the_event_time_ends_where_older_rows_are_told_again(app: hr.App) -> None:
    flow = app.input("timed", {**COLUMNS, "ts": pl.Int64}, key="k", event_time="ts")
    assert flow.changes("k").event_time is None
    with pytest.raises(DeclarationError, match="needs an event time; 'ts' may be that of an earlier row"):
        flow.changes("k", id="again").send_to(app.table("versions", key="k", versions="1h"))


def test_a_merge_of_rows_and_changes_inserts_the_rows(app: hr.App, rows: hr.Stream, changes: hr.Stream) -> None:
    other = app.input("other", {"x": pl.Int64, "k": pl.String})
    rows.merge(changes, other).send_to(app.output("out"))
    changes.merge(rows).send_to(app.output("again"))
    with app.test() as t:
        t.feed("rows", [{"k": "a", "x": 1}])
        t.feed("other", [{"k": "b", "x": 2}])
        t.feed("changes", [change(INSERT, "c", 3), change(DELETE, "c", 3), change(INSERT, "d", 4)])
        assert total(t.read("out")) == [("a", 1), ("b", 2), ("d", 4)]
        assert total(t.read("again")) == [("a", 1), ("d", 4)]


def test_a_filter_deletes_a_row_whose_new_one_it_drops(app: hr.App, changes: hr.Stream) -> None:
    changes.filter(pl.col("x") < 3).send_to(app.output("out"))
    with app.test() as t:
        t.feed("changes", [change(INSERT, "a", 1), change(BEFORE, "a", 1), change(AFTER, "a", 3)])
        assert t.read("out").rows() == [("a", 1, INSERT), ("a", 1, DELETE)]
        t.feed("changes", [change(BEFORE, "a", 3), change(AFTER, "a", 2)])
        assert t.read("out").rows()[2:] == [("a", 2, INSERT)]


def test_as_changes_reads_kinds_as_text(app: hr.App) -> None:
    log = app.input("log", {**COLUMNS, "kind": pl.String})
    log.as_changes("kind").send_to(app.output("out"))
    inserted = log.drop("kind").as_changes(None)
    inserted.send_to(app.output("inserted"))
    assert list(inserted.schema.columns) == ["k", "x", CHANGE]
    with app.test() as t:
        t.feed("log", [{"k": "a", "x": 1, "kind": None}, {"k": "a", "x": 1, "kind": "delete"}])
        assert t.read("out").rows() == [("a", 1, INSERT), ("a", 1, DELETE)]
        with pytest.raises(hr.errors.UserFunctionError, match="upsert"):
            t.feed("log", [{"k": "a", "x": 1, "kind": "upsert"}])


# -- tables, and streams of rows ---------------------------------------------------------------------
def app_with_table(how: Callable[[hr.Stream], hr.Stream], columns: dict[str, Any], **options: Any) -> hr.App:
    """What ``how`` makes of the input ``rows`` goes to a table, in which ``probes`` are looked up."""
    app = hr.App("tables")
    table = app.table("table", key="k", **options)
    how(app.input("rows", columns, key="k")).send_to(table)
    app.input("probes", {"k": pl.String}, key="k").join(table, how="left").send_to(app.output("found"))
    return app


def found(t: TestApp, keys: str) -> list[Any]:
    before = t.read("found").height
    t.feed("probes", [{"k": key} for key in keys])
    xs: list[Any] = t.read("found").slice(before).get_column("x").to_list()
    return xs


@pytest.mark.parametrize("options", [{}, {"deleted": "gone"}, {"storage": "memory"}])
@pytest.mark.parametrize(
    "how",
    [
        lambda flow: flow.changes("k"),
        lambda flow: flow,
        lambda flow: flow.changes("k", id="one").filter(pl.col("x") != 2),
    ],
)
@given(data=st.data())
@settings(max_examples=examples(20))
def test_a_table_has_the_last_row_of_each_key(
    data: st.DataObject, how: Callable[[hr.Stream], hr.Stream], options: dict[str, Any]
) -> None:
    dropped = 2 if how(hr.App("a").input("rows", CHANGES, key="k")).node.startswith("filter") else None
    history = data.draw(histories(ROWS, 12))
    with app_with_table(how, CHANGES, **options).test() as t:
        told: list[dict[str, Any]] = []
        for batch in data.draw(batches(history)):
            t.feed("rows", batch)
            told += batch
        there = {}
        for key in "ab":
            mine = [row for row in told if row["k"] == key]
            added = [row["x"] for row in mine if row[CHANGE] in (INSERT, AFTER)]
            gone = [row["x"] for row in mine if row[CHANGE] in (BEFORE, DELETE)]
            alive = [x for x in dict.fromkeys(reversed(added)) if added.count(x) > gone.count(x)]
            there[key] = alive[0] if alive and alive[0] != dropped else None
        assert found(t, "ab") == list(there.values())


@pytest.mark.parametrize(
    "how",
    [
        lambda flow: flow.join(flow.select("k"), on="k", how="semi", ttl="never"),
        lambda flow: flow.join(flow.filter(pl.col("x") > 9).select("k"), on="k", how="anti", ttl="never"),
        lambda flow: flow.join(flow.select("k", y="x"), on="k", ttl="never").changes("k", id="told").drop("y"),
    ],
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_table_gets_what_a_step_tells_in_several_parts_in_order(
    how: Callable[[hr.Stream], hr.Stream], number: int
) -> None:
    with app_with_table(lambda flow: how(flow.changes("k", id="first")), COLUMNS).test() as t:
        for x in range(3):
            t.feed("rows", [{"k": key, "x": x} for key in "abc"[:number]])
            assert found(t, "abc"[:number]) == [x] * number


def test_rows_with_deletions_become_changes_tables_and_rows_again() -> None:
    app = hr.App("members")
    columns = {"id": pl.Int64, "country": pl.String, "deleted": pl.Boolean}
    read = app.input("members", columns)
    members = read.partition_by("id").changes("id", deleted="deleted")
    countries = members.partition_by("country").top(2, "id", descending=False, rank="place")
    first = app.table("first", key=["country", "place"])
    countries.send_to(first)
    asked = app.input("asked", {"country": pl.String, "place": pl.Int64})
    asked.partition_by("country", id="asked-by-country").join(first, how="left").send_to(app.output("answers"))
    members.as_rows().send_to(app.output("log"))
    members.upserts().send_to(app.output("upserts"))

    def row(id_: int, country: str, *, deleted: bool = False) -> dict[str, Any]:
        return {"id": id_, "country": country, "deleted": deleted}

    with app.test() as t:
        t.feed("members", [row(1, "AT"), row(2, "AT"), row(3, "DE")])
        t.feed("asked", [{"country": "AT", "place": 1}, {"country": "AT", "place": 2}])
        assert t.read("answers").rows() == [("AT", 1, 1), ("AT", 2, 2)]
        t.feed("members", [row(1, "DE"), row(1, "DE"), row(3, "DE", deleted=True), row(9, "AT", deleted=True)])
        t.feed("asked", [{"country": c, "place": n} for c in ("AT", "DE") for n in (1, 2)])
        assert t.read("answers").rows()[2:] == [("AT", 1, 2), ("AT", 2, None), ("DE", 1, 1), ("DE", 2, None)]
        assert sorted(t.read("upserts").rows()[3:]) == [(1, "DE", False), (3, "DE", True)]
        log = t.read("log")
    back = hr.App("back")
    back.input("log", {"id": pl.Int64, "country": pl.String, "change": pl.String}).as_changes().send_to(
        back.output("again")
    )
    with back.test() as t:
        t.feed("log", log)
        assert total(t.read("again")) == [(1, "DE"), (2, "AT")]


def test_a_remote_table_is_written_and_deleted_from() -> None:
    there: dict[str, int] = {}

    def store(rows: pl.DataFrame) -> None:
        there.update(rows.rows())

    def remove(keys: pl.DataFrame) -> None:
        for key in keys.get_column("k"):
            there.pop(key, None)

    app = hr.App("remote")
    table = app.table("there", key="k", schema=COLUMNS, remote=hr.tables.remote(write=store, delete=remove))
    app.input("rows", CHANGES, key="k").changes("k").send_to(table)
    with app.test() as t:
        t.feed("rows", [change(INSERT, "a", 1), change(INSERT, "b", 2), change(INSERT, "c", 3)])
        t.feed("rows", [change(BEFORE, "a", 1), change(AFTER, "a", 4), change(DELETE, "b", 2)])
        t.end()
    assert there == {"a": 4, "c": 3}
    written = app.table("written", key="k", schema=COLUMNS, remote=hr.tables.remote(write=store))
    with pytest.raises(DeclarationError, match="there is no function to delete rows of the remote table 'written'"):
        app.input("more", CHANGES).changes("k", id="more-rows").send_to(written)
