"""on_error= of low-level tasks: a message on which process raises has no effect, and the others are processed."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.stores.keyvalue import KeyValueStore

COLUMNS = {"key": pl.String, "n": pl.Int64, "ts": pl.Int64}
SENT = {"key": pl.String, "n": pl.Int64}
Policy = Literal["fail", "skip", "dead_letter"]


class Summing(hr.tasks.Task):
    """Keeps sums, moves timers and sends. For some messages it raises after all of that, or in the middle of it."""

    sums = hr.tasks.Store(key={"key": pl.String}, value={"n": pl.Int64})

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        key, n = message["key"], message["n"]
        out.send("sent", {"key": key, "n": n})
        if n == -1:
            out.send("sent", {"key": key, "n": "no number"})
        before = self.sums.get(key)
        self.sums.put(key, {"n": n + (0 if before is None else before["n"])})
        out.set_timer(key, 1_000 + n)
        if n % 3 == 0:
            self.sums.delete(key)
            out.delete_timer(key)
        out.send("sent", pl.DataFrame({"key": [key], "n": [n * 10]}))
        out.send("sent", {"key": key, "n": n * 100})
        if n % 5 == 0:
            out.commit()
            raise ValueError(f"{n} can be divided by five")

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        kept = self.sums.get(timer.key)
        out.send("sent", {"key": timer.key, "n": None if kept is None else kept["n"]})


def app_of(task: hr.tasks.Task, on_error: Policy, **options: Any) -> hr.App:
    app = hr.App("failing", **options)
    source = app.input("in", COLUMNS, event_time="ts")
    letters = app.output("letters") if on_error == "dead_letter" else None
    flows = app.task(task, {"in": source}, {"sent": SENT}, on_error=on_error, dead_letter=letters, id="summing")
    flows["sent"].send_to(app.output("sent"))
    return app


def rows(*messages: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"key": key, "n": n, "ts": 1} for key, n in messages]


def failing(n: int) -> bool:
    return n == -1 or n % 5 == 0


MESSAGES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 20)), max_size=20)


@settings(deadline=None, max_examples=examples(30))
@given(MESSAGES, MESSAGES)
def test_it_is_as_if_failing_messages_had_not_come(first: Any, second: Any) -> None:
    with app_of(Summing(), "skip").test() as t:
        t.feed("in", rows(*first))
        t.restart(checkpoint=True)
        t.feed("in", rows(*second))
        assert t.counter("failed_skipped") == sum(failing(n) for _, n in second)
        t.end()
        found = t.read("sent", committed=True).rows()
    with app_of(Summing(), "fail").test() as t:
        for part in (first, second):
            t.feed("in", rows(*((key, n) for key, n in part if not failing(n))))
        t.end()
        assert t.read("sent", committed=True).rows() == found


def test_letters_say_what_failed_and_where() -> None:
    with app_of(Summing(), "dead_letter").test() as t:
        t.feed("in", rows(("a", 1), ("b", 10), ("c", -1)))
        letters = t.read("letters").to_dicts()
        assert [(letter["step"], letter["offset"], letter["index"]) for letter in letters] == [
            ("summing", 0, 1),
            ("summing", 0, 2),
        ]
        assert letters[0]["reason"] == "ValueError: 10 can be divided by five"
        assert "column 'n': 'no number' (str) is not of type Int64" in letters[1]["reason"]
        assert all("test_task_failing.py" in letter["line"] for letter in letters)
        assert t.counter("dead_lettered") == 2
        assert t.counter("commits_asked_for") == 1


def test_a_commit_that_a_failing_message_asked_for_is_not_made() -> None:
    with app_of(Summing(), "skip", checkpoint_interval="1h").test() as t:
        t.feed("in", rows(("a", 1), ("a", 5)))
        assert t.read("sent").height == 3
        assert t.read("sent", committed=True).height == 0


def test_without_a_policy_the_first_failure_ends_the_app() -> None:
    with (
        app_of(Summing(), "fail").test() as t,
        pytest.raises(hr.errors.UserFunctionError, match="10 can be divided by five"),
    ):
        t.feed("in", rows(("a", 1), ("b", 10)))


def test_a_batch_fails_as_a_whole() -> None:
    class Batches(hr.tasks.Task):
        sums = hr.tasks.Store(key={"key": pl.String}, value={"n": pl.Int64})

        def process_batch(self, rows: pl.DataFrame, out: hr.tasks.Out) -> None:
            out.send("sent", rows.select("key", "n"))
            self.sums.put_rows(rows.unique("key").select("key", "n"))
            out.send("sent", rows.select("key", n=pl.col("key").cast(pl.Int64)))

    with app_of(Batches(), "skip").test() as t:
        t.feed("in", rows(("a", 1), ("1", 10)))
        t.feed("in", rows(("2", 1)))
        assert t.counter("failed_skipped") == 2
        assert t.read("sent").rows() == [("2", 1), ("2", 2)]


def test_timers_that_fail_end_the_app_whatever_the_policy() -> None:
    class Late(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            out.set_timer(message["key"], 0)

        def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
            raise ValueError("no")

    with (
        app_of(Late(), "skip").test() as t,
        pytest.raises(hr.errors.UserFunctionError, match="on_timer of the task Late"),
    ):
        t.feed("in", rows(("a", 1)))


# -- the store below


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "begin", "keep", "drop", "take"]), st.sampled_from("abcd"), st.binary()
        )
    ),
    st.sampled_from([None, 1_000]),
)
def test_trials_of_a_store_against_a_dict(actions: list[tuple[str, str, bytes]], ttl_ms: int | None) -> None:
    store = KeyValueStore("s", ttl_ms=ttl_ms)
    store.advance(0)
    held: dict[bytes, bytes] = {}
    before: dict[bytes, bytes] | None = None
    for what, key, value in actions:
        match what:
            case "put":
                store.put(key.encode(), value)
                held[key.encode()] = value
            case "delete":
                store.delete(key.encode())
                held.pop(key.encode(), None)
            case "begin" if before is None:
                store.begin_trial()
                before = dict(held)
            case "keep" | "drop" if before is not None:
                store.end_trial(keep=what == "keep")
                held, before = (held if what == "keep" else before), None
            case "take" if before is None:
                store.take_changes(1)
            case _:
                pass
        assert dict(store.range()) == held
