"""Low-level tasks as a user sees them: the order of calls, timers, sending, errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_scene import COUNTS, TOLD, VIEWS, app_of, views

import headrace as hr
from drawn import examples

# -- calls and their order


class Telling(hr.tasks.Task):
    """Sends a line for each call."""

    def __init__(self) -> None:
        self.early: list[str] = []

    def init(self, context: hr.tasks.TaskContext) -> None:
        self.early.append(f"init {context.task} {context.partition} {context.watermark}")

    def tell(self, text: str, out: hr.tasks.Out) -> None:
        for line in [*self.early, text]:
            out.send("told", {"text": line})
        self.early.clear()

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        self.tell(f"{out.input} {message['member']} {message['ts']}", out)
        if message["member"] != "-":
            out.set_timer(message["member"], message["ts"] + 10)
            out.set_timer(message["member"], 60_000, axis="processing", name="later")

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        self.tell(f"{timer.axis} {timer.name} {timer.key} {timer.time} at {out.watermark}", out)

    def on_watermark(self, watermark: int, out: hr.tasks.Out) -> None:
        self.tell(f"watermark {watermark}", out)

    def on_end_of_stream(self, out: hr.tasks.Out) -> None:
        self.tell("end", out)
        out.set_timer("never", 1_000_000)


def test_calls_come_in_the_order_of_the_contract() -> None:
    with app_of(Telling(), TOLD).test() as t:
        t.feed("views", views(("b", 5), ("a", 1)))
        t.feed("views", views(("-", 20)))
        t.restart(checkpoint=True)
        t.feed("views", views(("c", 21)))
        t.end()
        assert t.read("told")["text"].to_list() == [
            "init views/0 0 None",
            "views b 5",
            "views a 1",
            "watermark 5",
            "views - 20",
            "event  a 11 at 20",
            "event  b 15 at 20",
            "watermark 20",
            "init views/0 0 20",
            "views c 21",
            "watermark 21",
            "event  c 31 at 21",
            "processing later a 60000 at 21",
            "processing later b 60000 at 21",
            "processing later c 60000 at 21",
            "end",
        ]
        assert t.counter("timers_dropped") == 1
        assert t.counter("timers_fired") == 4


def test_processing_time_timers_fire_by_the_clock_and_after_a_restart() -> None:
    class Reminder(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            out.set_timer(message["member"], out.now_ms + 5_000, axis="processing")

        def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
            out.send("told", {"text": f"{timer.key} at {out.now_ms - timer.time}"})

    with app_of(Reminder(), TOLD).test() as t:
        t.feed("views", views(("a", 1)))
        t.advance("4s")
        t.feed("views", views(("b", 1)))
        t.advance("1100ms")
        told = t.read("told")["text"].to_list()
        assert [text.split()[0] for text in told] == ["a"]
        t.restart(checkpoint=True)
        t.advance("10s")
        assert [text.split()[0] for text in t.read("told")["text"].to_list()] == ["a", "b"]


class Timing(hr.tasks.Task):
    """Sets, moves and deletes timers as messages say, and sends those that fire."""

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        if message["at"] is None:
            out.delete_timer(message["key"])
        else:
            out.set_timer(message["key"], message["at"])

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        out.send("fired", {"key": timer.key, "ts": timer.time})


Step = tuple[int, int, int | None]

STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 5), st.none() | st.integers(0, 30)), max_size=5),
        st.sampled_from(["kill", "commit"]),
    ),
    max_size=12,
)


class Plain:
    """The same in plain Python. After a kill, everything that wasn't committed arrives again, as one batch."""

    def __init__(self) -> None:
        self.timers: dict[int, int] = {}
        self.watermark = -1
        self.fired: list[tuple[int, int]] = []
        self.since: list[dict[str, Any]] = []
        self.committed: tuple[dict[int, int], int, int] = ({}, -1, 0)

    def take(self, batch: list[dict[str, Any]]) -> None:
        self.since += batch
        for message in batch:
            if message["at"] is None:
                self.timers.pop(message["key"], None)
            else:
                self.timers[message["key"]] = message["at"]
        self.fire()  # timers that were set for a time that had already come
        self.watermark = max([self.watermark, *(message["ts"] - 3 for message in batch)])
        self.fire()

    def fire(self) -> None:
        for at, key in sorted((at, key) for key, at in self.timers.items() if at <= self.watermark):
            self.fired.append((key, at))
            del self.timers[key]

    def commit(self) -> None:
        self.committed = (dict(self.timers), self.watermark, len(self.fired))
        self.since = []

    def kill(self) -> None:
        timers, self.watermark, count = self.committed
        self.timers, self.fired, again = dict(timers), self.fired[:count], self.since
        self.since = []
        self.take(again)


@settings(deadline=None, max_examples=examples(60))
@given(STEPS)
def test_event_time_timers_against_plain_python_with_disorder_and_kills(steps: list[Any]) -> None:
    app = hr.App("timing", checkpoint_interval="1h")
    schema = {"key": pl.Int64, "ts": pl.Int64, "at": pl.Int64}
    source = app.input("in", schema, event_time="ts", lateness="3ms")
    flows = app.task(Timing(), {"in": source}, {"fired": {"key": pl.Int64, "ts": pl.Int64}}, id="timing")
    flows["fired"].send_to(app.output("fired"))
    plain = Plain()
    with app.test() as t:
        for number, step in enumerate(steps):
            if isinstance(step, str):
                t.restart(checkpoint=step == "commit")
                plain.commit() if step == "commit" else plain.kill()
                continue
            batch = [
                {"key": key, "ts": max(0, 10 * number + late), "at": None if at is None else 10 * number + at}
                for key, late, at in step
            ]
            t.feed("in", batch)
            plain.take(batch)
        t.end()
        plain.watermark = 1 << 62
        plain.fire()
        assert t.read("fired", committed=True).rows() == plain.fired


def test_a_timer_that_on_timer_sets_fires_in_its_turn() -> None:
    class Ticking(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            out.set_timer(message["member"], message["ts"] + 10)

        def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
            out.send("told", {"text": f"{timer.key} {timer.time}"})
            if timer.time < 60:
                out.set_timer(timer.key, timer.time + 20)
            if timer.key == "a":
                out.delete_timer("c")

    with app_of(Ticking(), TOLD, lateness="5ms").test() as t:
        t.feed("views", views(("a", 0), ("b", 5), ("c", 3)))
        t.feed("views", views(("-", 100)))
        assert t.read("told")["text"].to_list() == [
            "a 10", "b 15", "a 30", "b 35", "a 50", "b 55", "a 70", "b 75"
        ]  # fmt: skip


def test_a_result_with_the_time_of_its_timer_is_not_late_downstream() -> None:
    class Closing(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            out.set_timer(message["member"], message["ts"] + 10)

        def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
            out.send("closed", {"member": timer.key, "ts": timer.time})

    app = hr.App("tasks")
    source = app.input("views", VIEWS, event_time="ts")
    flows = app.task(Closing(), {"views": source}, {"closed": VIEWS}, id="step")
    counted = flows["closed"].window(hr.tumbling("10ms"), key=None, id="counted").agg(n=hr.count())
    counted.send_to(app.output("counts"))
    with app.test() as t:
        for ts in range(0, 100, 7):
            t.feed("views", views((str(ts), ts)))
        t.end()
        assert t.counter("late") == 0
        assert t.read("counts")["n"].sum() == 15


def test_datetimes_are_times_of_timers() -> None:
    class Dated(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            out.set_timer("naive", datetime(1970, 1, 1) + timedelta(milliseconds=7))
            out.set_timer("aware", datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=8))
            out.send("told", {"text": f"{out.timer_at('naive')} {out.timer_at('aware')} {out.timer_at('none')}"})

        def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None: ...

    with app_of(Dated(), TOLD).test() as t:
        t.feed("views", views(("a", 1)))
        assert t.read("told")["text"].to_list() == ["7 8 None"]


# -- inputs and outputs


class Both(hr.tasks.Task):
    orders = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        if out.input == "orders":
            self.orders.put(message["member"], {"n": message["n"]})
            out.send("orders", message)
        elif (order := self.orders.get(message["member"])) is not None:
            out.send("views", {"member": message["member"], "n": order["n"], "ts": message["ts"]})


def test_a_task_has_any_number_of_inputs_and_outputs() -> None:
    app = hr.App("tasks", intermediate_partitions=3)
    orders_schema = {"member": pl.String, "n": pl.Int64}
    seen = app.input("views", VIEWS, event_time="ts").partition_by("member", id="views-by-member")
    orders = app.input("orders", orders_schema).partition_by("member", id="orders-by-member")
    flows = app.task(
        Both(),
        {"views": seen, "orders": orders},
        {"views": {**orders_schema, "ts": pl.Int64}, "orders": orders_schema},
        id="both",
    )
    for name, flow in flows.items():
        flow.send_to(app.output(f"{name}-out"))
    with app.test() as t:
        t.feed("orders", [{"member": member, "n": n} for n, member in enumerate("abcdef")])
        t.feed("views", views(*((member, 1) for member in "fax")))
        t.end()
        assert sorted(t.read("views-out").rows()) == [("a", 0, 1), ("f", 5, 1)]
        assert t.read("orders-out").height == 6


class InBatches(hr.tasks.Task):
    totals = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process_batch(self, rows: pl.DataFrame, out: hr.tasks.Out) -> None:
        counts = rows.group_by("member").agg(n=pl.len().cast(pl.Int64))
        before = self.totals.get_rows(counts.select("member")).get_column("n").fill_null(0)
        totals = counts.with_columns(n=pl.col("n") + before)
        self.totals.put_rows(totals)
        out.send("counts", totals)


def test_a_task_may_work_on_columns() -> None:
    with app_of(InBatches(), COUNTS).test() as t:
        t.feed("views", views(("a", 1), ("b", 1), ("a", 1)))
        t.restart(checkpoint=True)
        t.feed("views", views(("a", 1)))
        assert sorted(t.read("counts").rows()) == [("a", 2), ("a", 3), ("b", 1)]


def test_rows_and_frames_leave_in_the_order_in_which_they_were_sent() -> None:
    class Mixing(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            row = {"member": "first", "n": 1}
            out.send("counts", row)
            row["n"] = 2
            out.send("counts", pl.DataFrame({"n": [3], "member": ["frame"]}))
            out.send("counts", row)

    with app_of(Mixing(), COUNTS).test() as t:
        t.feed("views", views(("a", 1), ("b", 1)))
        assert t.read("counts").rows() == [("first", 1), ("frame", 3), ("first", 2)] * 2


# -- asking for things


def test_a_commit_that_is_asked_for_comes_at_once() -> None:
    class Committing(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            out.send("told", {"text": message["member"]})
            if message["member"] == "now":
                out.commit()

    with app_of(Committing(), TOLD, checkpoint_interval="1h").test() as t:
        t.feed("views", views(("a", 1)))
        assert t.read("told", committed=True).height == 0
        t.feed("views", views(("now", 1)))
        assert t.read("told", committed=True)["text"].to_list() == ["a", "now"]
        t.feed("views", views(("now", 2)))
        assert t.read("told", committed=True).height == 2  # once an interval: downstream tasks wait for it
        t.advance("1h")
        assert t.read("told", committed=True).height == 3
        assert t.counter("commits_asked_for") == 2


def test_shutdown_is_asked_for_from_the_message_on_that_says_so() -> None:
    class Stopping(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            if message["member"] == "stop":
                out.shutdown()

    with app_of(Stopping()).test() as t:
        t.feed("views", views(("a", 1)))
        assert not t.wants_shutdown
        t.feed("views", views(("stop", 1)))
        assert t.wants_shutdown


def test_init_and_close_are_called_once_for_each_life() -> None:
    calls: list[str] = []

    class Opening(hr.tasks.Task):
        def init(self, context: hr.tasks.TaskContext) -> None:
            calls.append("init")

        def process(self, message: Any, out: hr.tasks.Out) -> None: ...

        def close(self) -> None:
            calls.append("close")

    app = hr.App("tasks")
    app.task(Opening(), {"in": app.input("in", {"n": pl.Int64})}, id="step")
    with app.test() as t:
        assert calls == ["init"]
        t.restart()
        assert calls == ["init", "close", "init"]
    assert calls == ["init", "close", "init", "close"]


# -- what goes wrong


def failing(act: Callable[[hr.tasks.Out], Any], timed: bool = True) -> str:
    class Failing(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            act(out)

        def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
            out.set_timer(timer.key, timer.time)

    app = hr.App("tasks")
    source = app.input("views", VIEWS, event_time="ts" if timed else None)
    app.task(Failing(), {"views": source}, {"o": {"n": pl.Int64}}, id="step")["o"].send_to(app.output("o"))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as caught:
        t.feed("views", views(("a", 100)))
    assert "operator 'step' (declared at" in caught.value.message
    assert "test_task_operator.py:" in caught.value.message
    return str(caught.value)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda out: 1 / 0, "process of the task Failing of operator .* raised ZeroDivisionError at .*: division"),
        (lambda out: out.send("p", {"n": 1}), "has no output 'p'"),
        (lambda out: out.send("o", {"m": 1}), "the rows sent to 'o' don't fit: {'m': 1} has no 'n'"),
        (lambda out: out.send("o", 1), "1 is a int, not a dict"),
        (lambda out: out.send("o", {"n": "x"}), r"sent at .*test_task_operator.py:\d+: column 'n': 'x' \(str\) is no"),
        (lambda out: out.send("o", pl.DataFrame({"m": [1]})), "column 'n' .* is missing"),
        (lambda out: out.send("o", pl.DataFrame({"n": ["x"]})), "column 'n' should be Int64, found 'x'"),
        (lambda out: out.set_timer("a", -1), "can't be set for -1"),
        (lambda out: out.set_timer("a", 1.5), "can't be set for 1.5"),
        (lambda out: out.set_timer("a", 1, axis="wall"), "axis='wall' is not one of the choices"),
        (lambda out: out.set_timer(["a"], 1), "can't be the key of a timer"),
        (lambda out: out.set_timer("a", 5), "sets a timer for 5, which is not after its own time, 5"),
    ],
)
def test_mistakes_are_reported_with_the_users_line(act: Any, message: str) -> None:
    text = failing(act)
    assert re.search(message, text), text


def test_an_event_time_timer_needs_event_time() -> None:
    assert "event-time timer would never fire" in failing(lambda out: out.set_timer("a", 5), timed=False)


def test_a_timer_needs_somebody_who_hears_it() -> None:
    class Deaf(hr.tasks.Task):
        def process(self, message: Any, out: hr.tasks.Out) -> None:
            out.set_timer("a", 5)

    with app_of(Deaf()).test() as t, pytest.raises(hr.errors.UserFunctionError, match="has no on_timer"):
        t.feed("views", views(("a", 1)))


def test_nothing_is_sent_from_init_or_between_calls() -> None:
    class Early(hr.tasks.Task):
        def init(self, context: Any) -> None:
            context.send("told", {"text": "too early"})

        def process(self, message: Any, out: hr.tasks.Out) -> None: ...

    with pytest.raises(hr.errors.UserFunctionError, match=r"init of the task Early .* outside of a call that may send"):
        app_of(Early(), TOLD).test()
