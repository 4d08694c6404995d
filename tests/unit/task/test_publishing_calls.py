"""What flows send to remote tables: written when it is committed, in order, at least once, whoever fails meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from gated_calls import TIME_MAX_S, Gate
from headrace.kit.harness import TestApp
from headrace.plan.render import render

ROW = {"member": pl.String, "n": pl.Int64}
SOON = hr.calls.retry(None, first="1ms", longest="1ms")


class Place:
    """Where rows are written, and in which pieces."""

    def __init__(self) -> None:
        self.rows: dict[str, int | None] = {}
        self.pieces: list[list[tuple[Any, ...]]] = []
        self.failures: list[Exception] = []

    def write(self, rows: pl.DataFrame) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.pieces.append(rows.rows())
        self.rows |= dict(rows.rows())

    async def delete(self, keys: pl.DataFrame) -> None:
        assert keys.columns == ["member"]
        for member in keys["member"]:
            self.rows.pop(member, None)

    def read(self, keys: pl.DataFrame) -> list[dict[str, Any]]:
        return [{"member": member, "n": self.rows[member]} for member in keys["member"] if member in self.rows]


def writing(remote: hr.tables.Remote, **settings: Any) -> hr.App:
    app = hr.App("writing", **settings)
    table = app.table("places", key="member", schema=ROW, remote=remote)
    app.input("rows", ROW).send_to(table)
    return app


def rows(*members: str, start: int = 0) -> list[dict[str, Any]]:
    return [{"member": member, "n": n} for n, member in enumerate(members, start)]


def turns(t: TestApp, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIME_MAX_S
    while not until():
        assert time.monotonic() < deadline
        t._container.turn()
        t._container.wakeup.wait(20)


def test_rows_are_written_when_they_are_committed_and_the_last_one_of_a_key_counts() -> None:
    place = Place()
    with writing(hr.tables.remote(write=place.write, batch=2)).test() as t:
        t.feed("rows", rows("a", "b", "a", "c", "d"))
        assert place.pieces == []
        t.advance("1s")
        assert place.pieces == [[("b", 1), ("a", 2)], [("c", 3), ("d", 4)]]
        t.feed("rows", rows("a", start=9))
        t.end()
        assert place.rows == {"a": 9, "b": 1, "c": 3, "d": 4}
        assert t.ended


def test_what_was_not_committed_is_never_written() -> None:
    place = Place()
    with writing(hr.tables.remote(write=place.write)).test() as t:
        t.feed("rows", rows("a"))
        t.restart()
        assert place.pieces == []
        t.advance("1s")
        assert place.pieces == [[("a", 0)]]
        t.restart()
        t.end()
        assert place.rows == {"a": 0}


def test_versions_are_written_in_order_and_reading_goes_on_while_the_place_is_away() -> None:
    place = Place()
    place.failures = [ConnectionError("refused")] * 10**6
    with writing(hr.tables.remote(write=place.write, retry=SOON)).test() as t:
        host = t._container.hosts[0]
        for n in range(3):
            t.feed("rows", rows("a", start=n), settle=False)
            turns(t, lambda n=n: sum(host.positions.values()) == n + 1)
            t.clock.advance(1000)
            version = host.machine.version
            turns(t, lambda version=version: host.machine.version > version)
        ((id_, state),) = host.publishing.states()
        turns(t, lambda: next(host.publishing.states())[1].error is not None)
        ((id_, state),) = host.publishing.states()
        assert (id_, state.waiting, state.error) == ("places", 3, "ConnectionError: refused")
        assert state.failures > 0
        place.failures = []
        t.end()
        assert place.pieces == [[("a", 0)], [("a", 1)], [("a", 2)]]
        assert next(host.publishing.states())[1].error is None


def test_a_place_that_is_away_for_long_holds_the_reading_up_and_status_says_why() -> None:
    place = Place()
    place.failures = [ConnectionError("refused")] * 10**6
    with writing(hr.tables.remote(write=place.write, retry=SOON), ahead_bytes_max=100).test() as t:
        host = t._container.hosts[0]
        t.feed("rows", rows("a"), settle=False)
        t.clock.advance(1000)
        turns(t, lambda: host.blocked_by is not None and "refused" in host.blocked_by)
        assert "output places, which has" in str(host.blocked_by)
        place.failures = []
        t.end()
        assert place.rows == {"a": 0}


def test_a_restart_in_the_middle_of_writing_writes_again() -> None:
    gate = Gate()
    written: list[list[Any]] = []

    async def write(batch: pl.DataFrame) -> None:
        await gate({"n": batch["n"][0]})
        written.append(batch["n"].to_list())

    with writing(hr.tables.remote(write=write)).test() as t:
        t.feed("rows", rows("a", start=1))
        t.clock.advance(1000)
        turns(t, lambda: gate.asked == [1])
        t._stop()
        gate.until(lambda: gate.cancelled == 1)
        t._container = t._start()
        turns(t, lambda: gate.asked == [1, 1])
        gate.answer(1)
        t.end()
        assert written == [[1]]


def test_rows_that_are_null_but_for_their_key_are_deleted_where_there_is_a_function_for_it() -> None:
    place = Place()
    with writing(hr.tables.remote(write=place.write, delete=place.delete)).test() as t:
        t.feed("rows", rows("a", "b"))
        t.advance("1s")
        t.feed("rows", [{"member": "a", "n": None}, {"member": "c", "n": 1}])
        t.end()
        assert place.rows == {"b": 1, "c": 1}
        assert place.pieces[-1] == [("c", 1)]


def test_rows_are_deleted_where_there_is_a_function_for_it() -> None:
    place = Place()
    place.rows = {"a": 1, "b": 2}
    app = hr.App("writing")
    remote = hr.tables.remote(write=place.write, delete=place.delete)
    app.input("gone", {"why": pl.String, "member": pl.String}).delete_from(
        app.table("places", key="member", schema={"n": pl.Int64, "member": pl.String}, remote=remote)
    )
    with app.test() as t:
        t.feed("gone", [{"why": "left", "member": "a"}])
        t.end()
        assert (place.rows, place.pieces) == ({"b": 2}, [])
    other = app.table("others", key="member", schema=ROW, remote=hr.tables.remote(write=place.write))
    with pytest.raises(
        hr.errors.DeclarationError, match="there is no function to delete rows of the remote table 'others'"
    ):
        app.input("more", ROW).delete_from(other)


def test_without_such_a_function_they_are_rows() -> None:
    place = Place()
    with writing(hr.tables.remote(write=place.write)).test() as t:
        t.feed("rows", [{"member": "a", "n": None}])
        t.end()
        assert place.rows == {"a": None}


@pytest.mark.parametrize(("write", "asked"), [("through", 1), ("around", 3)])
def test_what_the_task_writes_goes_through_its_cache_or_around_it(write: Any, asked: int) -> None:
    place = Place()
    place.rows = {"a": 0, "b": 0}
    reads: list[Any] = []

    def read(keys: pl.DataFrame) -> Any:
        reads.append(keys["member"].to_list())
        return place.read(keys)

    app = hr.App("writing")
    remote = hr.tables.cached(hr.tables.remote(read, place.write, delete=place.delete), ttl="1h", write=write)
    table = app.table("places", key="member", schema=ROW, remote=remote)
    source = app.input("rows", ROW)
    source.join(table, how="left").send_to(app.output("out"))
    source.filter(pl.col("n") != 100).with_columns(n=pl.when(pl.col("n") >= 0).then(pl.col("n"))).send_to(table)
    with app.test() as t:
        t.feed("rows", rows("a", start=1))
        t.advance("1s")
        t.feed("rows", rows("a", start=-1))
        t.advance("1s")
        t.feed("rows", rows("a", start=100))
        assert t.read("out")["n_right"].to_list() == [0, 1, None]
        assert len(reads) == asked


def test_a_write_that_is_given_up_stops_the_app_and_names_table_and_line() -> None:
    place = Place()
    place.failures = [OSError("no route")] * 5
    once = hr.tables.remote(write=place.write, retry=hr.calls.retry(2, first="1ms", longest="1ms"))
    with writing(once).test() as t, pytest.raises(hr.errors.UserFunctionError) as info:
        t.feed("rows", rows("a"))
        t.advance("1s")
    message = str(info.value)
    assert "the write function of table 'places'" in message
    assert "raised OSError" in message
    assert "test_publishing_calls.py:" in message
    assert "in the last of 2 attempts: no route" in message


def test_a_row_without_a_key_is_an_error() -> None:
    with (
        writing(hr.tables.remote(write=Place().write)).test() as t,
        pytest.raises(hr.errors.DataError, match="sends rows without a key to 'places'"),
    ):
        t.feed("rows", [{"member": None, "n": 1}])


def test_the_run_loop_does_not_wait_for_a_write() -> None:
    free, begun = threading.Event(), threading.Event()

    def slow(batch: pl.DataFrame) -> None:
        begun.set()
        free.wait(TIME_MAX_S)

    with writing(hr.tables.remote(write=slow)).test() as t:
        t.feed("rows", rows("a"))
        t.clock.advance(1000)
        turns(t, begun.is_set)
        t.feed("rows", rows("b"), settle=False)
        host = t._container.hosts[0]
        turns(t, lambda: sum(host.positions.values()) == 2)
        free.set()
        t.end()


# -- the plan


def test_a_table_that_one_flow_writes_and_another_joins_ties_no_stages_and_is_at_least_once() -> None:
    place = Place()
    app = hr.App("writing")
    table = app.table("places", key="member", schema=ROW, remote=hr.tables.remote(place.read, place.write))
    app.input("rows", ROW).send_to(table)
    app.input("asked", ROW).join(table).send_to(app.output("out"))
    with app.test({"rows": 2, "asked": 3}) as t:
        assert [(stage.name, len(stage.tasks)) for stage in t.plan.stages] == [("asked", 3), ("rows", 2)]
        shown = render(t.plan)
        assert (shown.streams["places"].delivery, shown.streams["out"].delivery) == ("at-least-once", "exactly-once")
        assert shown.tables["places"].writers == ("send_to-1",)
        with pytest.raises(hr.errors.UsageError, match="'places' is a remote table"):
            t.read("places")
        t.feed("rows", rows("a", start=5), partition=1)
        t.advance("1s")
        t.feed("asked", rows("a", "b"), partition=2)
        assert t.read("out").rows() == [("a", 0, 5)]


def test_the_rate_of_writes_is_that_of_the_app() -> None:
    app = writing(hr.tables.remote(write=Place().write, writes_per_s=40))
    with app.test(4) as t:
        outputs: list[Any] = [host.publishing._outputs["places"] for host in t._container.hosts]
        lanes = [output._open["write"]() for output in outputs]
        assert [lane._limit._per_ms * 1000 for lane in lanes] == [10, 10, 10, 10]


def test_rows_that_are_written_and_rows_that_are_deleted_may_be_of_one_version() -> None:
    place = Place()
    with writing(hr.tables.remote(write=place.write, delete=place.delete)).test() as t:
        t.feed("rows", [*rows("a", "b"), {"member": "c", "n": None}])
        t.advance("1s")
        assert place.rows == {"a": 0, "b": 1}
        t.feed("rows", [{"member": "a", "n": None}, {"member": "c", "n": 5}])
        t.end()
        assert place.rows == {"b": 1, "c": 5}


def test_an_answer_that_was_asked_for_before_a_write_is_not_remembered_after_it() -> None:
    reading, writing_ = Gate(), Gate()
    place = {"a": 0}

    async def read(keys: pl.DataFrame) -> list[dict[str, Any]]:
        found = [{"member": member, "n": place[member]} for member in keys["member"]]
        if not reading.asked:
            await reading({"n": 0})
        return found

    async def write(batch: pl.DataFrame) -> None:
        await writing_({"n": 0})
        place.update(dict(batch.rows()))

    app = hr.App("both")
    table = app.table(
        "places", key="member", schema=ROW, remote=hr.tables.cached(hr.tables.remote(read, write), ttl="1h")
    )
    source = app.input("rows", ROW)
    source.filter(pl.col("n") >= 100).join(table).send_to(app.output("out"))
    source.filter(pl.col("n") < 100).send_to(table)
    with app.test() as t:
        (host,) = t._container.hosts
        t.feed("rows", rows("a", start=1), settle=False)
        t._container.turn()
        t.clock.advance(1000)
        turns(t, lambda: writing_.asked == [0])
        t.feed("rows", rows("a", start=100), settle=False)
        turns(t, lambda: reading.asked == [0])
        writing_.answer(0)
        turns(t, lambda: host.publishing.idle)
        reading.answer(0)
        t.settle()
        t.feed("rows", rows("a", start=101))
        assert t.read("out")["n_right"].to_list() == [0, 1]


def test_a_table_of_keys_alone_has_no_way_to_say_that_a_row_is_deleted() -> None:
    place = Place()
    remote = hr.tables.remote(write=place.write, delete=place.delete)
    with pytest.raises(hr.errors.DeclarationError, match="only key columns"):
        hr.App("keys").table("members", key="member", schema={"member": pl.String}, remote=remote)
