"""Joins with remote tables in an app: what is asked, what is joined, what happens without an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from gated_calls import TIME_MAX_S, Gate
from headrace.kit.harness import TestApp

MEMBER = {"member": pl.String, "country": pl.String, "n": pl.Int64}
VIEW = {"member": pl.String, "n": pl.Int64, "ts": pl.Int64}


class Members:
    """A service that knows some members, and records what it was asked."""

    def __init__(self, **countries: str) -> None:
        self.countries = countries
        self.asked: list[list[Any]] = []
        self.failures: list[Exception] = []

    def __call__(self, keys: pl.DataFrame) -> Any:
        self.asked.append(keys["member"].to_list())
        if self.failures:
            raise self.failures.pop(0)
        found = [member for member in keys["member"] if member in self.countries]
        return [{"member": member, "country": self.countries[member], "n": len(member)} for member in found]


def joining(remote: hr.tables.Remote, how: Any = "inner", **options: Any) -> hr.App:
    app = hr.App("joining")
    table = app.table("members", key="member", schema=MEMBER, remote=remote)
    views = app.input("views", VIEW, event_time="ts")
    views.join(table, how=how, **options).select("member", "country", "n", "n_right").send_to(app.output("out"))
    return app


def views(*members: str | None) -> list[dict[str, Any]]:
    return [{"member": member, "n": n, "ts": n} for n, member in enumerate(members)]


def turns(t: TestApp, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIME_MAX_S
    while not until():
        assert time.monotonic() < deadline
        t._container.turn()
        t._container.wakeup.wait(20)


@pytest.mark.parametrize(
    ("how", "rows"),
    [
        ("inner", [("ann", "AT", 0, 3), ("ann", "AT", 3, 3)]),
        ("left", [("ann", "AT", 0, 3), ("eve", None, 1, None), (None, None, 2, None), ("ann", "AT", 3, 3)]),
    ],
)
def test_a_message_gets_the_columns_of_its_row(how: str, rows: list[Any]) -> None:
    members = Members(ann="AT")
    with joining(hr.tables.remote(members), how).test() as t:
        t.feed("views", views("ann", "eve", None, "ann"))
        assert t.read("out").rows() == rows
        assert sorted(members.asked[0]) == ["ann", "eve"]
        assert len(members.asked) == 1


def test_keys_are_asked_in_pieces_of_the_batch_size() -> None:
    members = Members(**{f"m{n}": "AT" for n in range(7)})
    with joining(hr.tables.remote(members, batch=3)).test() as t:
        t.feed("views", views(*[f"m{n}" for n in range(7)] * 2))
        assert sorted(map(len, members.asked)) == [1, 3, 3]
        assert t.read("out")["member"].to_list() == [f"m{n}" for n in range(7)] * 2


def test_an_async_function_may_return_a_frame_with_more_than_was_asked_for() -> None:
    async def everybody(keys: pl.DataFrame) -> pl.DataFrame:
        return pl.DataFrame(
            {"country": ["AT", "CH", "DE", None], "member": ["ann", "bob", "ann", None], "n": [1, 2, 3, 4], "x": 1}
        )

    with joining(hr.tables.remote(everybody, batch=1), "left").test() as t:
        t.feed("views", views("ann", "bob", None))
        assert t.read("out").rows() == [("ann", "DE", 0, 3), ("bob", "CH", 1, 2), (None, None, 2, None)]


def test_keys_of_several_columns_by_other_names() -> None:
    app = hr.App("joining")
    read = hr.tables.remote(lambda keys: keys.with_columns(sum=pl.col("a") + pl.col("b")))
    table = app.table("sums", key=["a", "b"], schema={"a": pl.Int64, "b": pl.Int64, "sum": pl.Int64}, remote=read)
    app.input("pairs", {"x": pl.Int64, "y": pl.Int64}).join(table, on=["x", "y"]).send_to(app.output("out"))
    with app.test() as t:
        t.feed("pairs", [{"x": 1, "y": 2}, {"x": 1, "y": None}, {"x": 1, "y": 3}, {"x": 1, "y": 2}])
        assert t.read("out").rows() == [(1, 2, 3), (1, 3, 4), (1, 2, 3)]


def test_batches_leave_in_order_and_watermarks_after_them() -> None:
    gate = Gate(lambda row: [{"member": str(row["n"]), "country": "AT", "n": 0}])
    app = hr.App("joining")

    async def read(keys: pl.DataFrame) -> Any:
        return await gate({"n": int(keys["member"][0])})

    table = app.table("members", key="member", schema=MEMBER, remote=hr.tables.remote(read))
    joined = app.input("views", VIEW, event_time="ts").join(table)
    joined.drop_late(late_to=app.output("late")).send_to(app.output("out"))
    with app.test() as t:
        for n in (1, 2, 3):
            t.feed("views", [{"member": str(n), "n": n, "ts": n * 10}], settle=False)
            turns(t, lambda n=n: n in gate.asked)
        gate.answer(3)
        gate.answer(2)
        t._container.turn()
        assert t.read("out").height == 0
        gate.answer(1)
        t.settle()
        assert t.read("out")["n"].to_list() == [1, 2, 3]
        assert t.read("late").height == 0


def test_a_table_that_is_away_stops_the_reading_and_loses_nothing() -> None:
    members = Members(ann="AT", bob="CH")
    members.failures = [ConnectionError("refused")] * 3
    with joining(hr.tables.remote(members, retry=hr.calls.retry(None, first="1ms", longest="1ms"))).test() as t:
        t.feed("views", views("ann"), settle=False)
        turns(t, lambda: t.read("out").height == 1)
        assert t.counter("call_retries") == 3
        host = t._container.hosts[0]
        members.failures = [ConnectionError("refused")] * 10**6
        for _ in range(20):
            t.feed("views", views("bob"), settle=False)
            t._container.turn()
            t._container.turn()
        turns(t, lambda: "refused" in str(host.blocked_by))
        assert host.blocked_by == "step join-1: table members can't be read: ConnectionError: refused"
        members.failures = []
        t.end()
        assert t.read("out", committed=True).height == 21


def test_a_restart_in_the_middle_of_reading_reads_again_and_counts_once() -> None:
    gate = Gate(lambda row: [{"member": "ann", "country": "AT", "n": 0}])

    async def read(keys: pl.DataFrame) -> Any:
        return await gate({"n": 1})

    with joining(hr.tables.remote(read)).test() as t:
        t.feed("views", views("ann"), settle=False)
        turns(t, lambda: gate.asked == [1])
        t._stop()
        gate.until(lambda: gate.cancelled == 1)
        t._container = t._start()
        turns(t, lambda: gate.asked == [1, 1])
        gate.answer(1)
        t.end()
        assert t.read("out", committed=True).height == 1


# -- the cache


def test_what_is_cached_is_not_asked_again_until_its_time_is_over() -> None:
    members = Members(ann="AT")
    with joining(hr.tables.cached(hr.tables.remote(members), ttl="1s"), "left").test() as t:
        t.feed("views", views("ann", "eve"))
        members.countries = {"ann": "DE", "eve": "CH"}
        t.feed("views", views("ann", "eve", "bob"))
        assert t.read("out")["country"].to_list() == ["AT", None, "AT", None, None]
        t.advance("1s")
        t.feed("views", views("eve", "ann"))
        assert t.read("out")["country"].to_list()[5:] == ["CH", "DE"]
        assert (t.counter("cache_hits"), t.counter("cache_misses")) == (2, 5)


def test_of_too_many_keys_those_asked_for_longest_ago_are_forgotten() -> None:
    members = Members(ann="AT")
    with joining(hr.tables.cached(hr.tables.remote(members), rows=2)).test() as t:
        for member in ("a", "b", "a", "c", "a", "b"):
            t.feed("views", views(member))
        assert members.asked == [["a"], ["b"], ["c"], ["b"]]


# -- errors


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "it returned NoneType None, not rows"),
        ({"ann": 1}, "it returned dict"),
        (7, "it returned int 7, not rows"),
        ([{"member": "ann", "country": "AT"}], "record 0 has no 'n'"),
        ([{"country": "AT", "n": 1}], "record 0 has no 'member'"),
        (["ann"], "record 0 is a str, not a dict"),
        (pl.DataFrame({"country": ["AT"], "n": [1]}), "column 'member' (String) is missing"),
        (pl.DataFrame({"member": ["ann"], "country": ["AT"], "n": ["x"]}), "column 'n' should be Int64"),
    ],
)
def test_what_is_not_rows_of_the_table_is_an_error_that_is_not_tried_again(answer: Any, message: str) -> None:
    asked = []

    def read(keys: pl.DataFrame) -> Any:
        asked.append(keys)
        return answer

    with joining(hr.tables.remote(read)).test() as t, pytest.raises(hr.errors.UserFunctionError) as info:
        t.feed("views", views("ann"))
    assert message in str(info.value)
    assert "what the read function of table 'members' returned" in str(info.value)
    assert len(asked) == 1


def test_a_read_that_is_given_up_names_table_line_and_attempts() -> None:
    members = Members()
    members.failures = [OSError("no route")] * 9
    once = hr.tables.remote(members, retry=hr.calls.retry(2, first="1ms", longest="1ms"))
    with joining(once).test() as t, pytest.raises(hr.errors.UserFunctionError) as info:
        t.feed("views", views("ann"))
    assert "the read function of table 'members' of operator 'join-1'" in str(info.value)
    assert "raised OSError" in str(info.value)
    assert "in the last of 2 attempts: no route" in str(info.value)
    assert "test_remote_lookup.py:" in str(info.value)


def fetch(keys: pl.DataFrame) -> list[dict[str, Any]]:
    return []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (hr.tables.remote, "needs a function that reads, or one that writes"),
        (lambda: hr.tables.remote(read=7), "read= must be a function"),  # type: ignore[arg-type]
        (lambda: hr.tables.remote(write="store"), "write= must be a function"),  # type: ignore[arg-type]
        (lambda: hr.tables.remote(fetch, delete=fetch), "delete= is given, but no write="),
        (lambda: hr.tables.remote(fetch, reads_per_s=-1), "reads_per_s=-1 is not a rate"),
        (lambda: hr.tables.remote(fetch, writes_per_s=0), "writes_per_s=0 is not a rate"),
        (lambda: hr.tables.remote(fetch, reads_per_s=float("nan")), "reads_per_s=nan is not a rate"),
        (lambda: hr.tables.remote(fetch, batch=0), "batch=0 is not a whole number from 1 up"),
        (lambda: hr.tables.remote(fetch, concurrency=0), "concurrency=0"),
        (lambda: hr.tables.sql_table("mysql://host/db", "t"), "doesn't name a known kind of database"),
        (lambda: hr.tables.sql_table("sqlite:///a.db", "t", batch=20_000), "batch=20000 is not a whole number"),
        (lambda: hr.tables.cached(fetch), "what is cached is a remote table, not function"),  # type: ignore[arg-type]
        (lambda: hr.tables.cached(hr.tables.remote(write=fetch)), "only written has nothing to cache"),
        (lambda: hr.tables.cached(hr.tables.remote(fetch), rows=0), "rows=0"),
        (lambda: hr.tables.cached(hr.tables.remote(fetch), ttl="0s"), "ttl: 0 is below 1 ms"),
        (lambda: hr.tables.cached(hr.tables.remote(fetch), write="behind"), "write='behind' is not one of the choices"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message):
        make()


def test_a_table_is_remote_or_kept_here() -> None:
    app = hr.App("joining")
    members = app.input("members", MEMBER)
    both = {"key": "member", "schema": MEMBER, "remote": hr.tables.remote(fetch)}
    with pytest.raises(hr.errors.DeclarationError, match="can't be both remote and filled by side inputs"):
        app.table("t", side_inputs=members, **both)  # type: ignore[arg-type]
    with pytest.raises(hr.errors.DeclarationError, match='kind="global" is not for'):
        app.table("t", kind="global", **both)  # type: ignore[arg-type]
    with pytest.raises(hr.errors.DeclarationError, match="ttl= doesn't apply"):
        app.table("t", ttl="1m", **both)  # type: ignore[arg-type]
    with pytest.raises(hr.errors.DeclarationError, match="needs a schema="):
        app.table("t", key="member", remote=hr.tables.remote(fetch))
    with pytest.raises(hr.errors.DeclarationError, match="remote= takes a remote table, not function"):
        app.table("t", key="member", schema=MEMBER, remote=fetch)  # type: ignore[arg-type]
    with pytest.raises(hr.errors.DeclarationError, match='kind="remote" needs remote='):
        app.table("t", key="member", schema=MEMBER, kind="remote")


def test_a_table_without_the_function_can_not_be_joined_or_sent_to() -> None:
    app = hr.App("joining")
    flow = app.input("views", MEMBER)
    written = app.table("written", key="member", schema=MEMBER, remote=hr.tables.remote(write=fetch))
    with pytest.raises(hr.errors.DeclarationError, match=r"remote table 'written' .* can only be written"):
        flow.join(written)
    read = app.table("read", key="member", schema=MEMBER, remote=hr.tables.remote(fetch))
    with pytest.raises(hr.errors.DeclarationError, match=r"remote table 'read' .* can only be read"):
        flow.send_to(read)


# -- the plan


def test_a_remote_table_asks_for_no_equal_partition_counts_and_has_no_state() -> None:
    app = hr.App("joining")
    table = app.table("members", key="member", schema=MEMBER, remote=hr.tables.remote(fetch))
    one, two = app.input("one", VIEW), app.input("two", VIEW)
    one.join(table).send_to(app.output("a"))
    two.join(table).send_to(app.output("b"))
    with app.test({"one": 3, "two": 2}) as t:
        assert [(stage.name, len(stage.tasks)) for stage in t.plan.stages] == [("one", 3), ("two", 2)]
        assert all(not host.task.chain.stores() for host in t._container.hosts)


def test_the_rate_is_that_of_the_app_and_each_task_has_an_equal_part() -> None:
    app = joining(hr.tables.remote(fetch, reads_per_s=40))
    with app.test(4) as t:
        limits = [host.task.chain.tables.remote["members"]._limit for host in t._container.hosts]
        assert [limit and limit._per_ms * 1000 for limit in limits] == [10, 10, 10, 10]
