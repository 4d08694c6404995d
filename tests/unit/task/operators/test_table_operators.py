"""send_to(table) and join(table): what a look-up finds, and when."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples

VIEWS = {"member": pl.String, "ms": pl.Int64}
PROFILES = {"id": pl.String, "country": pl.String, "ms": pl.Int64}


def located(how: Literal["inner", "left"] = "inner", ttl: str | None = None) -> hr.App:
    """Views with the row of their member, which another flow puts."""
    app = hr.App("located")
    profiles = app.table("profiles", key="id", schema=PROFILES, ttl=ttl)
    app.input("changes", PROFILES).send_to(profiles)
    views = app.input("views", VIEWS)
    views.join(profiles, on="member", how=how, id="locate").send_to(app.output("located"))
    return app


def profile(id_: str | None, country: str | None, ms: int = 0) -> dict[str, Any]:
    return {"id": id_, "country": country, "ms": ms}


def view(member: str | None, ms: int = 0) -> dict[str, Any]:
    return {"member": member, "ms": ms}


def test_a_message_finds_the_last_row_of_its_key() -> None:
    with located().test() as t:
        t.feed("changes", [profile("ann", "AT"), profile("bob", "DE"), profile("ann", "CH", 5)])
        t.feed("views", [view("ann", 1)])
        t.feed("changes", [profile("ann", None, 6)])
        t.feed("views", [view("ann", 2)])
        assert t.read("located").to_dicts() == [
            {"member": "ann", "ms": 1, "country": "CH", "ms_right": 5},
            {"member": "ann", "ms": 2, "country": None, "ms_right": 6},
        ]


def test_an_inner_join_leaves_out_what_finds_nothing_and_keeps_the_order() -> None:
    with located().test() as t:
        t.feed("changes", [profile("ann", "AT"), profile("bob", "DE")])
        t.feed("views", [view("bob", 1), view("eve", 2), view(None, 3), view("ann", 4), view("bob", 5)])
        assert t.read("located").select("member", "ms", "country").rows() == [
            ("bob", 1, "DE"),
            ("ann", 4, "AT"),
            ("bob", 5, "DE"),
        ]


def test_a_left_join_keeps_what_finds_nothing() -> None:
    with located("left").test() as t:
        t.feed("views", [view("ann", 1)])
        t.feed("changes", [profile("ann", "AT", 7)])
        t.feed("views", [view("eve", 2), view("ann", 3), view(None, 4)])
        assert t.read("located").rows() == [
            ("ann", 1, None, None),
            ("eve", 2, None, None),
            ("ann", 3, "AT", 7),
            (None, 4, None, None),
        ]


def test_a_table_may_have_a_key_of_several_columns_and_nothing_else() -> None:
    app = hr.App("allowed")
    allowed = app.table("allowed", key=("shop", "member"), schema={"member": pl.String, "shop": pl.Int32})
    app.input("grants", {"member": pl.String, "shop": pl.Int32}).send_to(allowed)
    orders = app.input("orders", {"who": pl.String, "where": pl.Int32})
    orders.join(allowed, on=("where", "who")).send_to(app.output("accepted"))
    with app.test() as t:
        t.feed("grants", [{"member": "ann", "shop": 1}])
        t.feed("orders", [{"who": "ann", "where": 2}, {"who": "ann", "where": 1}, {"who": "bob", "where": 1}])
        assert t.read("accepted").rows() == [("ann", 1)]


def test_keys_are_equal_when_their_values_are() -> None:
    app = hr.App("by-number")
    names = app.table("names", key=("x", "b"), schema={"x": pl.Float64, "b": pl.Binary, "name": pl.String})
    app.input("put", {"x": pl.Float64, "b": pl.Binary, "name": pl.String}).send_to(names)
    asked = app.input("asked", {"x": pl.Float64, "b": pl.Binary})
    asked.join(names, how="left").select("name").send_to(app.output("out"))
    nan = float("nan")
    with app.test() as t:
        t.feed("put", [{"x": 0.0, "b": b"", "name": "zero"}, {"x": nan, "b": b"\0", "name": "none"}])
        questions = [(-0.0, b""), (nan, b"\0"), (0.0, b""), (nan, b""), (None, b""), (-0.0, b"")]
        t.feed("asked", [{"x": x, "b": b} for x, b in questions])
        assert t.read("out")["name"].to_list() == ["zero", "none", "zero", None, None, "zero"]


def test_all_steps_of_a_task_see_one_table() -> None:
    app = hr.App("shared")
    last = app.table("last", key="member", schema=VIEWS)
    app.input("one", VIEWS).send_to(last)
    app.input("two", VIEWS).send_to(last)
    asked = app.input("asked", {"member": pl.String})
    asked.join(last, id="first-join").send_to(app.output("first"))
    asked.filter(pl.col("member") != "bob").join(last, how="left", id="second-join").send_to(app.output("second"))
    with app.test() as t:
        t.feed("one", [view("ann", 1), view("bob", 1)])
        t.feed("two", [view("ann", 2)])
        t.feed("asked", [{"member": "ann"}, {"member": "bob"}])
        assert t.read("first").rows() == [("ann", 2), ("bob", 1)]
        assert t.read("second").rows() == [("ann", 2)]


def test_a_row_without_a_key_is_an_error_that_names_the_step() -> None:
    with located().test() as t:
        with pytest.raises(
            hr.errors.DataError, match=r"step 'send_to-1' .* to 'profiles': 'id' is null in 1 of 2"
        ) as raised:
            t.feed("changes", [profile("ann", "AT"), profile(None, "DE")])
        assert "(in " in raised.value.message, "and the place of the message"
        assert raised.value.hint == "leave them out before it: .filter(pl.col('id').is_not_null())"


def test_a_restart_brings_back_what_was_committed_and_reads_the_rest_again() -> None:
    with located().test() as t:
        t.feed("changes", [profile("ann", "AT"), profile("bob", "DE")])
        t.restart(checkpoint=True)
        t.feed("changes", [profile("ann", "CH")])
        t.restart()
        t.feed("views", [view("ann", 1), view("bob", 2)])
        assert t.read("located").select("member", "country").rows() == [("ann", "CH"), ("bob", "DE")]


def test_rows_are_forgotten_when_their_time_is_over() -> None:
    with located(ttl="10s").test() as t:
        t.feed("changes", [profile("ann", "AT"), profile("bob", "DE")])
        t.advance("6s")
        t.feed("changes", [profile("bob", "DE")])
        t.advance("6s")
        t.restart(checkpoint=True)
        t.feed("views", [view("ann", 1), view("bob", 2)])
        assert t.read("located").select("member").rows() == [("bob",)]


CHANGES = st.tuples(st.just("changes"), st.sampled_from("abc"), st.integers(0, 9))
LOOKS = st.tuples(st.just("views"), st.sampled_from("abcd"), st.integers(0, 9))
RESTARTS = st.tuples(st.sampled_from(["restart", "checkpoint"]), st.just(""), st.just(0))


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(CHANGES | LOOKS | RESTARTS, max_size=25), st.sampled_from(["inner", "left"]))
def test_any_history_gives_what_a_dict_gives(
    history: list[tuple[str, str, int]], how: Literal["inner", "left"]
) -> None:
    table: dict[str, int] = {}
    wanted: list[tuple[str, int, int | None]] = []
    with located(how).test() as t:
        for kind, key, number in history:
            match kind:
                case "changes":
                    t.feed("changes", [profile(key, None, number)])
                    table[key] = number
                case "views":
                    t.feed("views", [view(key, number)])
                    if how == "left" or key in table:
                        wanted.append((key, number, table.get(key)))
                case _:
                    t.advance("1m")  # everything is committed: a restart undoes nothing
                    t.restart(checkpoint=kind == "checkpoint")
        t.advance("1m")
        assert t.read("located", committed=True).select("member", "ms", "ms_right").rows() == wanted
