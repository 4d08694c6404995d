"""The stores of low-level tasks: what they keep over restarts, how they are read, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from task_scene import COUNTS, app_of, views

import headrace as hr


class Counting(hr.tasks.Task):
    seen = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        n = (self.seen.get(message["member"]) or {"n": 0})["n"] + 1
        self.seen.put(message["member"], {"n": n})
        out.send("counts", {"member": message["member"], "n": n})


def test_state_survives_a_restart_and_what_was_not_committed_counts_once() -> None:
    with app_of(Counting(), COUNTS, checkpoint_interval="1h").test() as t:
        t.feed("views", views(("a", 1), ("b", 1), ("a", 2)))
        t.restart(checkpoint=True)
        t.feed("views", views(("a", 3)))
        t.restart()
        t.feed("views", views(("a", 4)))
        t.end()
        assert t.read("counts", committed=True).rows() == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 4)]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_both_guarantees_run_tasks(guarantee: Any) -> None:
    with app_of(Counting(), COUNTS, guarantee=guarantee).test() as t:
        t.feed("views", views(("a", 1), ("a", 2)))
        t.restart(checkpoint=True)
        t.feed("views", views(("a", 3)))
        t.end()
        assert t.read("counts")["n"].to_list() == [1, 2, 3]


class Stores(hr.tasks.Task):
    """Runs the operations of a script on its store, and sends what it finds."""

    kept = hr.tasks.Store(
        key={"shop": pl.String, "item": pl.Int64}, value={"price": pl.Float64, "tags": pl.List(pl.String)}
    )

    def __init__(self, script: Callable[[Any], Any]) -> None:
        self.script = script

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        out.send("found", {"found": repr(self.script(self.kept))})


def found(*scripts: Callable[[Any], Any]) -> list[str]:
    """What scripts find, with a restart between them."""
    results = []

    def script(kept: Any) -> Any:
        return scripts[len(results)](kept)

    with app_of(Stores(script), {"found": {"found": pl.String}}).test() as t:
        for _ in scripts:
            t.feed("views", views(("a", 1)))
            results = t.read("found")["found"].to_list()
            t.restart(checkpoint=True)
    return results


def test_a_store_is_read_by_key_by_beginning_and_by_range() -> None:
    def fill(kept: Any) -> None:
        for shop, item in [("b", 1), ("a", 2), ("a", 1), ("a", 10)]:
            kept.put((shop, item), {"price": item / 2, "tags": [shop]})
        kept.delete(("a", 2))
        kept.delete(("z", 2))

    def read(kept: Any) -> Any:
        return (
            kept.get(("a", 10)),
            kept.get_many([("a", 2), ("b", 1)]),
            ("a", 1) in kept,
            [key for key, _ in kept.items()],
            [key for key, _ in kept.items("a", reverse=True)],
            [key for key, _ in kept.items(start=("a", 5), stop="b")],
            kept.get_rows(pl.DataFrame({"shop": ["a", "x"], "item": [1, 1]}), found="there").rows(),
            [rows.rows() for rows in kept.scan(prefix={"shop": "b"})],
        )

    assert found(fill, read)[1] == repr(
        (
            {"price": 5.0, "tags": ["a"]},
            [None, {"price": 0.5, "tags": ["b"]}],
            True,
            [("a", 1), ("a", 10), ("b", 1)],
            [("a", 10), ("a", 1)],
            [("a", 10)],
            [(0.5, ["a"], True), (None, None, False)],
            [[("b", 1, 0.5, ["b"])]],
        )
    )


def test_a_store_takes_whole_frames() -> None:
    def fill(kept: Any) -> None:
        kept.put_rows(pl.DataFrame({"shop": ["a", "b"], "item": [1, 2], "price": [1.5, None], "tags": [["x"], None]}))
        kept.delete_rows(pl.DataFrame({"shop": ["a"], "item": [1]}))

    assert found(fill, lambda kept: list(kept.items()))[1] == repr([(("b", 2), {"price": None, "tags": None})])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (lambda kept: kept.get("a"), r"'a' isn't a key; the key has the columns shop, item"),
        (lambda kept: kept.get(("a", "1")), r"column 'item': '1' \(str\) is not of type Int64"),
        (lambda kept: kept.put(("a", 1), {"price": 1.0}), r"\{'price': 1.0\} has no 'tags'"),
        (
            lambda kept: kept.put(("a", 1), {"price": "x", "tags": []}),
            r"column 'price': 'x' \(str\) is not of type Float64",
        ),
        (lambda kept: kept.put(("a", 1), 3), r"3 is a int, not a dict"),
        (lambda kept: list(kept.items((1, 2, 3))), r"isn't a prefix of a key"),
    ],
)
def test_what_does_not_fit_a_store_is_refused_at_the_users_line(script: Any, message: str) -> None:
    with pytest.raises(hr.errors.UserFunctionError, match=message) as caught:
        found(script)
    assert "process of the task Stores of operator 'step'" in caught.value.message
    assert "test_task_stores.py" in caught.value.message.split("failed")[1]


@dataclass
class Last:
    at: int
    url: str | None


class Remembering(hr.tasks.Task):
    last = hr.tasks.Store(key={"member": pl.String}, value=Last, ttl="10s")

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        before = self.last.get(message["member"])
        out.send("before", {"at": None if before is None else before.at})
        self.last.put(message["member"], Last(message["ts"], None))


def test_records_may_be_dataclasses_and_are_forgotten_after_their_time_to_live() -> None:
    with app_of(Remembering(), {"before": {"at": pl.Int64}}).test() as t:
        t.feed("views", views(("a", 1)))
        t.advance("9999ms")
        t.feed("views", views(("a", 2)))
        t.restart(checkpoint=True)
        t.advance("10001ms")
        t.feed("views", views(("a", 3)))
        assert t.read("before")["at"].to_list() == [None, 1, None]
