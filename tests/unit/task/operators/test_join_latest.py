"""join_latest(stream): each message with the last one of its key on the other side, against a dict for each side."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples

VIEWS = {"member": pl.String, "n": pl.Int64}
CARTS = {"member": pl.String, "n": pl.Int64, "items": pl.Int64}

How = Literal["inner", "left", "full"]


def paired(how: How = "inner", ttl: Any = "1h", **app_settings: Any) -> hr.App:
    app = hr.App("carts-shown", **app_settings)
    views = app.input("views", VIEWS)
    carts = app.input("carts", CARTS)
    views.join_latest(carts, "member", ttl=ttl, how=how, id="shown").send_to(app.output("out"))
    return app


def view(member: str | None, n: int) -> dict[str, Any]:
    return {"member": member, "n": n}


def cart(member: str | None, n: int, items: int | None = 1) -> dict[str, Any]:
    return {"member": member, "n": n, "items": items}


def pairs(t: Any, **options: Any) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = t.read("out", **options).select("member", "n", "n_right").rows()
    return rows


def test_each_message_joins_with_the_other_sides_last_one() -> None:
    with paired().test() as t:
        t.feed("views", [view("ann", 1), view("ann", 2), view("bob", 3)])
        t.feed("carts", [cart("ann", 10), cart("eve", 11)])
        t.feed("carts", [cart("ann", 12)])
        t.feed("views", [view("eve", 4), view("ann", 5)])
        assert pairs(t) == [("ann", 2, 10), ("ann", 2, 12), ("eve", 4, 11), ("ann", 5, 12)]


def test_the_columns_are_the_lefts_then_the_rights() -> None:
    with paired("full").test() as t:
        t.feed("carts", [cart("ann", 1, 7)])
        t.feed("views", [view("bob", 2)])
        assert t.read("out").to_dicts() == [
            {"member": "ann", "n": None, "n_right": 1, "items": 7},
            {"member": "bob", "n": 2, "n_right": None, "items": None},
        ]


def test_one_that_finds_nothing_leaves_alone_and_joins_later_nevertheless() -> None:
    with paired("left").test() as t:
        t.feed("views", [view("ann", 1)])
        t.feed("carts", [cart("ann", 10), cart("bob", 11)])
        assert pairs(t) == [("ann", 1, None), ("ann", 1, 10)]


def test_null_keys_have_no_partners_and_are_not_kept() -> None:
    with paired("full").test() as t:
        t.feed("views", [view(None, 1)])
        t.feed("carts", [cart(None, 2)])
        assert pairs(t) == [(None, 1, None), (None, None, 2)]
        (stores,) = [host.task.chain.stores() for host in t._container.hosts]
        assert [stores[id_].entries() for id_ in ("shown.left", "shown.right")] == [0, 0]


def test_a_message_is_forgotten_after_its_time_of_the_wall_clock() -> None:
    with paired(ttl="10s").test() as t:
        t.feed("views", [view("ann", 1)])
        t.advance("9s")
        t.feed("carts", [cart("ann", 10)])
        t.restart(checkpoint=True)
        t.advance("1s")
        t.feed("carts", [cart("ann", 11)])
        t.feed("views", [view("ann", 2)])
        t.advance("20s")
        t.feed("views", [view("ann", 3)])
        assert pairs(t) == [("ann", 1, 10), ("ann", 2, 11)]


def test_expired_messages_are_removed_without_a_look_up() -> None:
    with paired(ttl="10s").test() as t:
        t.feed("views", pl.DataFrame({"member": [f"m-{n}" for n in range(5_000)], "n": range(5_000)}))
        (host,) = t._container.hosts
        left = host.task.chain.stores()["shown.left"]
        assert left.entries() > 5_000
        for _ in range(30):
            t.advance("1s")
        assert left.entries() == 1


def test_keys_of_several_columns_and_no_others() -> None:
    app = hr.App("pairs")
    columns = {"a": pl.Int32, "b": pl.String}
    left, right = app.input("left", columns), app.input("right", columns)
    left.join_latest(right, ["b", "a"], ttl="1h", id="pairs").send_to(app.output("out"))
    with app.test() as t:
        t.feed("left", [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}])
        t.feed("right", [{"a": 2, "b": "x"}, {"a": 1, "b": "y"}])
        assert t.read("out").rows() == [(2, "x")]


def test_what_comes_of_it_has_no_event_time_and_says_so() -> None:
    app = hr.App("timed")
    left = app.input("left", {"k": pl.Int64, "ts": pl.Int64}, event_time="ts")
    right = app.input("right", {"k": pl.Int64, "at": pl.Int64}, event_time="at")
    joined = left.join_latest(right, "k", ttl="1h", id="pairs")
    assert joined.event_time is None
    with pytest.raises(hr.errors.DeclarationError, match=r"'ts' may be that of an older message at .* by join_latest"):
        joined.window(hr.tumbling("1s"), key="k", id="per-second").agg(n=hr.count())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "member", "ttl": "0s", "id": "j"}, "ttl: '0s' is below 1 ms"),
        ({"on": "items", "ttl": "1h", "id": "j"}, "there is no column 'items'"),
        ({"on": "member", "ttl": "1h", "how": "right", "id": "j"}, "how='right' is not one of the choices"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    app = hr.App("wrong")
    with pytest.raises(hr.errors.DeclarationError, match=message):
        app.input("views", VIEWS).join_latest(app.input("carts", CARTS), **arguments)


def test_both_sides_need_like_partitions() -> None:
    with pytest.raises(hr.errors.PlanError, match=r"join_latest 'shown' \(.*test_join_latest.py"):
        paired().test(partitions={"views": 2, "carts": 3})


MESSAGES = st.tuples(
    st.sampled_from(["views", "carts"]), st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=4)
)
PASSING = st.tuples(st.just("time"), st.integers(1, 12_000))
RESTARTS = st.tuples(st.sampled_from(["restart", "checkpoint"]), st.none())
TTL_MS = 10_000


class Oracle:
    """The same with two dicts."""

    def __init__(self, how: How) -> None:
        self.alone = {"views": how != "inner", "carts": how == "full"}
        self.last: dict[str, dict[str, tuple[int, int]]] = {"views": {}, "carts": {}}
        self.pairs: list[tuple[Any, ...]] = []

    def feed(self, side: str, messages: list[tuple[str | None, int]], now: int) -> None:
        other = self.last["carts" if side == "views" else "views"]
        for key, number in messages:
            partner, put = other.get(key or "", (None, 0))
            if partner is not None and now - put >= TTL_MS:
                partner = None
            if partner is not None or self.alone[side]:
                self.pairs.append((key, number, partner) if side == "views" else (key, partner, number))
        for key, number in messages:
            if key is not None:
                self.last[side][key] = (number, now)


@settings(deadline=None, max_examples=examples(50))
@given(history=st.lists(MESSAGES | PASSING | RESTARTS, max_size=25), how=st.sampled_from(["inner", "left", "full"]))
def test_any_history_gives_what_two_dicts_give(history: list[tuple[str, Any]], how: How) -> None:
    oracle = Oracle(how)
    number = 0
    with paired(how, f"{TTL_MS}ms").test() as t:
        for kind, what in history:
            if kind in ("views", "carts"):
                messages = [(key, number := number + 1) for key in what]
                t.feed(kind, [(view if kind == "views" else cart)(key, n) for key, n in messages], settle=True)
                oracle.feed(kind, messages, t.clock.now_ms())
            elif kind == "time":
                t.advance(f"{what}ms")
            else:
                t.restart(checkpoint=True)
        t.end()
        assert pairs(t, committed=True) == oracle.pairs
