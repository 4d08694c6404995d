"""What a function returns by a slip is refused, and never taken for a decision, no rows or null."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import task_scene

import headrace as hr

ROWS = [{"member": "a", "ms": 5, "ts": 1}, {"member": "b", "ms": 50, "ts": 2}]
MEMBER = {"member": pl.String}
RETURN = "write return before the result"


def forgets(row: dict[str, Any]) -> Any:
    row["ms"] > 10  # noqa: B015 - this is the slip


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


def error_of(app: hr.App) -> hr.errors.UserFunctionError:
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as raised:
        t.feed("views", ROWS)
        t.end()
    return raised.value


# -- filters


def test_a_filter_without_return_names_itself_its_line_and_the_slip(
    app: hr.App, views: hr.Stream, out: hr.Output
) -> None:
    views.filter(forgets).send_to(out)
    error = error_of(app)
    assert "the function of operator 'filter-1' (declared at " in error.message
    assert f": forgets() at {__file__}:{line_of('def forgets')} returned None instead of True or False" in error.message
    assert "views[0], offset 0, row 0 of it" in error.message
    assert 'the row it was given: {"member":"a","ms":5,"ts":1}' in error.message
    assert error.hint is not None
    assert error.hint.startswith(RETURN)


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        ("False", "returned 'False' instead of True or False"),
        ("", "returned '' instead of True or False"),
        (1, "returned 1 instead of"),
        ([], r"returned \[\] instead of"),
        (pl.col("ms") > 1, "returned a Expr instead of"),
        (pl.Series([True]), "returned a Series instead of"),
    ],
)
def test_only_bools_decide(app: hr.App, views: hr.Stream, out: hr.Output, decision: Any, says: str) -> None:
    views.filter(lambda row: decision).send_to(out)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match=says):
        t.feed("views", ROWS)


def test_numpys_bools_decide(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.filter(lambda row: np.int64(row["ms"]) > 10 if row["member"] == "b" else False).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out")["member"].to_list() == ["b"]


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_the_policy_is_for_the_rows_without_a_decision(
    app: hr.App, views: hr.Stream, out: hr.Output, policy: Any
) -> None:
    decisions = {"a": True, "b": None, "c": False, "d": "no", "e": True}

    def decide(row: dict[str, Any]) -> Any:
        return 1 // 0 if row["member"] == "x" else decisions[row["member"]]

    letters = app.output("failed") if policy == "dead_letter" else None
    views.filter(decide, on_error=policy, dead_letter=letters).send_to(out)
    with app.test() as t:
        t.feed("views", [{"member": member, "ms": 1, "ts": 1} for member in "axbcde"])
        assert t.read("out")["member"].to_list() == ["a", "e"]
        assert t.counter("failed_skipped" if policy == "skip" else "dead_lettered") == 3
        if letters is not None:
            found = t.read("failed").to_dicts()
            assert [letter["index"] for letter in found] == [1, 2, 4]
            assert found[1]["reason"].endswith("returned None instead of True or False")
            assert found[1]["line"] == f"{__file__}:{line_of('def decide')}"


def test_the_first_of_several_failures_is_told(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.filter(lambda row: None if row["member"] == "a" else 1 // 0).send_to(out)
    assert "returned None" in error_of(app).message


# -- maps


def undeclared(row: dict[str, Any]) -> dict[str, Any]:
    return {"member": row["member"], "memberr": 1}


@pytest.mark.parametrize("mode", ["map", "flat_map", "map_async"])
def test_a_column_that_is_not_declared_is_refused(app: hr.App, views: hr.Stream, out: hr.Output, mode: str) -> None:
    function = (lambda row: [undeclared(row)]) if mode == "flat_map" else undeclared
    getattr(views, mode)(function, MEMBER).send_to(out)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as raised:
        t.feed("views", ROWS)
        t.settle()
    assert "the schema has no column 'memberr'; it has member" in raised.value.message
    assert raised.value.hint == "did you mean 'member'?"


def test_the_policy_is_for_rows_with_undeclared_columns(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(lambda row: {**MEMBER, "x": 1} if row["ms"] == 5 else {"member": "b"}, MEMBER, on_error="skip").send_to(
        out
    )
    with app.test() as t:
        t.feed("views", ROWS)
        assert (t.read("out").rows(), t.counter("failed_skipped")) == ([("b",)], 1)


@pytest.mark.parametrize("mode", ["map", "flat_map", "map_batches", "map_async"])
def test_a_forgotten_return_is_the_likely_reason(app: hr.App, views: hr.Stream, out: hr.Output, mode: str) -> None:
    getattr(views, mode)(lambda given: None, MEMBER).send_to(out)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match="None") as raised:
        t.feed("views", ROWS)
        t.settle()
    assert raised.value.hint is not None
    assert raised.value.hint.startswith(RETURN)


@pytest.mark.parametrize("result", [{}, "", b"", pl.DataFrame(), 7])
def test_what_holds_no_rows_is_not_taken_for_none(app: hr.App, views: hr.Stream, out: hr.Output, result: Any) -> None:
    views.flat_map(lambda row: result, MEMBER).send_to(out)
    assert "instead of rows" in error_of(app).message


def test_a_batch_with_a_column_that_is_not_declared(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map_batches(lambda df: df.with_columns(seconds=pl.col("ms") / 1000)).send_to(out)
    error = error_of(app)
    assert "the schema has no column 'seconds'; it has member, ms, ts" in error.message
    assert error.hint == "leave 'seconds' out, or declare it as a column"


def test_a_lazy_frame_is_not_computed(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map_batches(lambda df: df.lazy()).send_to(out)  # type: ignore[arg-type, return-value]
    assert (error_of(app).hint or "").startswith("nothing has computed this LazyFrame; call .collect()")


# -- sinks


async def stored(df: pl.DataFrame) -> None:
    raise AssertionError("nobody awaits it")


def awaited(df: pl.DataFrame) -> Any:
    return stored(df)


@pytest.mark.parametrize(
    "result",
    [lambda df: df.filter(pl.col("ms") > 1), pl.DataFrame.lazy, lambda df: (row for row in df.rows()), awaited],
)
def test_a_sink_whose_result_nobody_takes(app: hr.App, views: hr.Stream, result: Callable[[Any], Any]) -> None:
    views.sink(result)
    assert "the sink function of operator 'sink-1'" in error_of(app).message


def test_a_sink_may_return_what_a_call_returns(app: hr.App, views: hr.Stream) -> None:
    views.sink(lambda df: df.height)  # type: ignore[arg-type, return-value]
    with app.test() as t:
        t.feed("views", ROWS)


# -- functions that a call doesn't run


def yields(row: Any) -> Any:
    yield row


class Yielding:
    def __call__(self, row: Any) -> Any:
        yield row


@pytest.mark.parametrize("function", [yields, functools.partial(yields), Yielding()])
@pytest.mark.parametrize("step", ["filter", "map", "map_batches", "map_async", "sink"])
def test_a_yield_is_refused_at_the_declaration(views: hr.Stream, step: str, function: Any) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="has a yield, so a call doesn't run it"):
        getattr(views, step)(function)


# -- folds


def windowed(app: hr.App, views: hr.Stream, aggregate: Any) -> None:
    views.window(hr.tumbling("1m"), key="member", id="w").agg(x=aggregate).send_to(app.output("out"))


@pytest.mark.parametrize(
    "aggregate",
    [
        hr.aggregates.fold(0, lambda so_far, row: None, dtype=pl.Int64),
        hr.aggregates.fold(lambda: 0, lambda so_far, row: None, dtype=pl.Int64),
        hr.aggregates.fold([], lambda so_far, row: so_far.append(row["ms"]), dtype=pl.List(pl.Int64)),
        hr.aggregates.reduce(lambda a, b: None, "ms"),
    ],
)
def test_a_fold_without_return_is_refused(app: hr.App, views: hr.Stream, aggregate: Any) -> None:
    windowed(app, views, aggregate)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError) as raised:
        t.feed("views", [*ROWS, *ROWS])
        t.end()
    assert f"the lambda at {__file__}:" in raised.value.message
    assert "returned None instead of a result" in raised.value.message
    assert (raised.value.hint or "").startswith(RETURN)


def test_a_merge_without_return_is_refused(app: hr.App) -> None:
    fold = hr.aggregates.fold(0, lambda so_far, row: so_far + 1, lambda a, b: None, dtype=pl.Int64)
    late = app.input("late", {"member": pl.String, "ts": pl.Int64}, event_time="ts", lateness="1s")
    late.window(hr.session("5ms"), key="member", id="w").agg(x=fold).send_to(app.output("out"))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match="returned None instead of a result"):
        for ts in (1, 9, 5):
            t.feed("late", [{"member": "a", "ts": ts}])
        t.end()


def test_a_fold_that_begins_with_none_may_return_it(app: hr.App, views: hr.Stream) -> None:
    windowed(app, views, hr.aggregates.fold(None, lambda so_far, row: so_far, dtype=pl.Int64))
    with app.test() as t:
        t.feed("views", ROWS)
        t.end()
        assert t.read("out")["x"].to_list() == [None, None]


# -- low-level tasks


class Returning(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> Any:
        out.send("told", {"text": message["member"]})
        return [{"text": message["member"]}] if message["member"] == "b" else None


class ReturningBatches(hr.tasks.Task):
    def process_batch(self, rows: pl.DataFrame, out: hr.tasks.Out) -> Any:
        return rows


class ReturningLater(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> None:
        out.set_timer(message["member"], message["ts"])

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> Any:
        return {"text": timer.key}


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Returning(), "process of the task Returning of .*Returning.process.* returned \\[{'text': 'b'}\\]"),
        (ReturningBatches(), "process_batch of the task ReturningBatches of .* returned a DataFrame instead of None"),
        (ReturningLater(), "on_timer of the task ReturningLater of .* returned {'text': 'b'} instead of None"),
    ],
)  # fmt: skip
def test_a_task_that_returns_rows_is_told_to_send_them(task: hr.tasks.Task, says: str) -> None:
    app = task_scene.app_of(task, task_scene.TOLD)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match=says) as raised:
        t.feed("views", task_scene.views(("b", 1)))
        t.end()
    assert "out.send(output, row) does" in (raised.value.hint or "")


def test_the_policy_of_a_task_is_for_messages_with_results() -> None:
    app = hr.App("tasks")
    views = app.input("views", task_scene.VIEWS)
    app.task(Returning(), {"views": views}, task_scene.TOLD, id="step", on_error="skip")["told"].send_to(
        app.output("told")
    )
    with app.test() as t:
        t.feed("views", task_scene.views(("a", 1), ("b", 2), ("c", 3)))
        assert t.read("told")["text"].to_list() == ["a", "c"]
        assert t.counter("failed_skipped") == 1


@dataclass
class Text:
    text: str


class Sending(hr.tasks.Task):
    seen = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def __init__(self, row: Any) -> None:
        self.row = row

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        if isinstance(self.row, dict) and "n" in self.row:
            self.seen.put(message["member"], self.row)
        else:
            out.send("told", self.row)


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"text": "a", "texts": 1}, "did you mean 'text'?"),
        (pl.DataFrame({"text": ["a"], "texts": [1]}), "did you mean 'text'?"),
        ({"text": "a", "other": 1}, "leave 'other' out, or declare it as a column"),
        ({"n": 1, "other": 1}, "leave 'other' out, or declare it as a column"),
    ],
)
def test_what_a_task_sends_or_puts_has_only_declared_columns(row: Any, hint: str) -> None:
    app = task_scene.app_of(Sending(row), task_scene.TOLD)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match="has no column") as raised:
        t.feed("views", task_scene.views(("a", 1)))
    assert raised.value.hint == hint
