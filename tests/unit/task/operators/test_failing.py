"""on_error= of steps that call functions: what fails is left out, counted and reported; the rest continues."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.api.operators.steps import FAILED_COLUMNS

COLUMNS = {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}
PARTS = {"part": pl.Int64}


def row(ms: int | None, member: str = "a") -> dict[str, Any]:
    return {"member": member, "ms": ms, "ts": 1}


def part(row: dict[str, Any]) -> dict[str, Any]:
    ms = row["ms"]
    row["ms"] = "spoiled"  # a function's changes to its row don't reach the dead letter
    return {"part": 100 // ms}


def parts(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"part": 1}
    yield {"part": 100 // row["ms"]}


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if text in line)


def letters(t: Any, name: str = "failed") -> list[dict[str, Any]]:
    return list(t.read(name).to_dicts())


# -- what a letter holds


def test_a_letter_says_where_what_and_why(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(part, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).send_to(out)
    with app.test(2) as t:
        t.feed("views", [row(1)], partition=1, settle=False)
        t.feed("views", [row(2), row(50), row(0, "z\n\u2028")], partition=1, settle=False)
        t.settle()
        found = t.read("failed")
        assert found.schema == pl.Schema(FAILED_COLUMNS)
        (letter,) = found.to_dicts()
        assert pl.read_ipc_stream(letter.pop("raw")).to_dicts() == [row(0, "z\n\u2028")]
        assert json.loads(letter.pop("row")) == row(0, "z\n\u2028")
        assert letter.pop("stream").endswith(".views")
        assert letter == {
            "step": "map-1",
            "partition": 1,
            "offset": 1,
            "last_offset": 1,
            "index": 2,
            "reason": "ZeroDivisionError: integer division or modulo by zero",
            "line": f"{__file__}:{line_of('100 // ms')}",
        }
        assert t.read("out").rows() == [(100,), (50,), (2,)]
        assert (t.counter("dead_lettered"), t.counter("failed_skipped")) == (1, 0)


def test_skipped_rows_are_counted(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(part, PARTS, on_error="skip").send_to(out)
    with app.test() as t:
        t.feed("views", [row(0), row(1), row(None), row(0), row(4)])
        assert t.read("out").rows() == [(100,), (25,)]
        assert (t.counter("failed_skipped"), t.counter("dead_lettered")) == (3, 0)


def test_of_a_row_that_fails_no_result_is_taken(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.flat_map(parts, PARTS, on_error="skip").send_to(out)
    with app.test() as t:
        t.feed("views", [row(10), row(0), row(20)])
        assert t.read("out")["part"].to_list() == [1, 10, 1, 5]


def test_a_filter_that_fails(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    failed = app.output("failed")
    views.filter(lambda row: 1 // row["ms"] == 1, on_error="dead_letter", dead_letter=failed).send_to(out)
    with app.test() as t:
        t.feed("views", [row(0, "a"), row(1, "b"), row(2, "c"), row(0, "d"), row(1, "e")])
        assert t.read("out")["member"].to_list() == ["b", "e"]
        assert [letter["index"] for letter in letters(t)] == [0, 3]


@pytest.mark.parametrize("mode", ["map", "flat_map"])
def test_results_that_do_not_fit_fail_too(app: hr.App, views: hr.Stream, out: hr.Output, mode: str) -> None:
    def result(row: dict[str, Any]) -> Any:
        found = {1: {"part": 1}, 2: {"part": "two"}, 3: None, 4: {"part": 4}, 5: {"other": 5}}[row["ms"]]
        return found if mode == "map" else [{"part": 0}, found]

    getattr(views, mode)(result, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).send_to(out)
    with app.test() as t:
        t.feed("views", [row(n) for n in (1, 2, 6, 3, 4, 5, 1)])
        expected = [1, 4, 1]
        assert t.read("out")["part"].to_list() == (
            expected if mode == "map" else [x for part in expected for x in (0, part)]
        )
        reasons = [(letter["index"], letter["reason"]) for letter in letters(t)]
        assert [index for index, _ in reasons] == [1, 2, 3, 5]
        assert "column 'part': 'two' (str) is not of type Int64" in reasons[0][1]
        assert reasons[1][1] == "KeyError: 6"
        assert all(reason.startswith("doesn't fit its schema: ") for n, (_, reason) in enumerate(reasons) if n != 1)


def test_a_function_that_ends_iteration_loses_nothing(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    """StopIteration would end the iteration over the rows, and the remaining rows would be lost silently."""
    views.map(lambda row: next(iter([{"part": 1}] * row["ms"])), PARTS, on_error="skip").send_to(out)
    with app.test() as t:
        t.feed("views", [row(1), row(0), row(0), row(1), row(0)])
        assert (t.read("out").height, t.counter("failed_skipped")) == (2, 3)


def test_a_function_that_ends_iteration_stops_the_app(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(lambda row: next(iter([])), PARTS).send_to(out)
    with (
        app.test() as t,
        pytest.raises(hr.errors.UserFunctionError, match=r"raised StopIteration(.|\n)*offset 0, row 0"),
    ):
        t.feed("views", [row(1)])


Value = st.sampled_from(["good", "raises", "misfits", "ends"])


@settings(deadline=None)
@given(st.lists(st.lists(Value, min_size=1, max_size=6), min_size=1, max_size=5), st.sampled_from(["map", "flat_map"]))
def test_every_row_has_all_of_its_effects_or_a_letter(frames: list[list[str]], mode: str) -> None:
    def act(row: dict[str, Any]) -> Any:
        found: dict[str, Callable[[], Any]] = {
            "good": lambda: {"n": row["n"]},
            "raises": lambda: 1 // 0,
            "misfits": lambda: {"n": "x"},
            "ends": lambda: next(iter([])),
        }
        value = found[row["what"]]()
        return value if mode == "map" else [{"n": row["n"]}, value, {"n": row["n"]}]

    app = hr.App("any")
    rows = app.input("rows", {"n": pl.Int64, "what": pl.String, "keep": pl.Boolean})
    kept = rows.filter("keep").select("n", "what").filter(lambda row: True)
    getattr(kept, mode)(act, {"n": pl.Int64}, on_error="dead_letter", dead_letter=app.output("failed")).send_to(
        app.output("out")
    )
    numbered = [[(i * 10 + j, what) for j, what in enumerate(frame)] for i, frame in enumerate(frames)]
    with app.test() as t:
        for frame in numbered:
            # Rows that a filter leaves out are between the others.
            t.feed("rows", [{"n": n, "what": w, "keep": k} for n, w in frame for k in (False, True)], settle=False)
        t.settle()
        good = [n for frame in numbered for n, what in frame if what == "good"]
        assert t.read("out")["n"].to_list() == [n for n in good for _ in range(1 if mode == "map" else 3)]
        told = [(one["offset"], one["last_offset"], one["index"], json.loads(one["row"])["n"]) for one in letters(t)]
        assert told == [
            (i, i, 2 * j + 1, n)
            for i, frame in enumerate(numbered)
            for j, (n, what) in enumerate(frame)
            if what != "good"
        ]
        assert t.counter("dead_lettered") == len(told)


# -- batches


def test_a_batch_function_fails_for_its_whole_batch(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    def some(df: pl.DataFrame) -> pl.DataFrame:
        if (df["ms"] == 0).any():
            raise ValueError("a null among them")
        return df.with_columns(ms="ts") if (df["ms"] == 1).any() else df.drop("ts")

    views.map_batches(some, on_error="dead_letter", dead_letter=app.output("failed")).send_to(out)
    with app.test() as t:
        t.feed("views", [row(1), row(1)])
        t.feed("views", [row(1), row(0)])
        t.feed("views", [row(3)])
        assert t.read("out").height == 2
        found = letters(t)
        assert [(one["offset"], one["index"], json.loads(one["row"])["ms"]) for one in found] == [
            (1, 0, 1),
            (1, 1, 0),
            (2, 0, 3),
        ]
        assert [one["line"] is None for one in found] == [False, False, True]
        assert found[2]["reason"].startswith("doesn't fit its schema: column 'ts' (Int64) is missing")
        assert t.counter("dead_lettered") == 3


def test_a_sink_that_fails(app: hr.App, views: hr.Stream) -> None:
    views.sink(lambda df: print(1 // df["ms"][0]), on_error="dead_letter", dead_letter=app.output("failed"))
    views.sink(lambda df: print(1 // df["ms"][0]), on_error="skip")
    with app.test() as t:
        t.feed("views", [row(0), row(5)])
        t.feed("views", [row(1), row(5)])
        assert [letter["step"] for letter in letters(t)] == ["sink-1", "sink-1"]
        assert (t.counter("dead_lettered"), t.counter("failed_skipped")) == (2, 2)


# -- where it came from


def test_a_full_window_has_the_place_of_the_message_that_filled_it(app: hr.App, views: hr.Stream) -> None:
    counts = views.window(hr.windows.count(2), key="member", id="pairs").agg(n=hr.count())
    counts.map(lambda row: {"part": 1 // 0}, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).sink(
        print
    )
    with app.test() as t:
        t.feed("views", [row(0)], settle=False)
        t.feed("views", [row(0)], settle=False)
        t.settle()
        (letter,) = letters(t)
        assert (letter["offset"], letter["last_offset"], letter["index"]) == (1, 1, 0)


def test_what_time_lets_go_comes_of_no_message(app: hr.App, views: hr.Stream) -> None:
    counts = views.window(hr.tumbling("1s"), key="member", id="seconds").agg(n=hr.count())
    counts.map(lambda row: {"part": 1 // 0}, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).sink(
        print
    )
    with app.test() as t:
        t.feed("views", [row(0)])
        t.end()
        (letter,) = letters(t)
        assert {letter[name] for name in ("stream", "partition", "offset", "last_offset", "index")} == {None}
        assert json.loads(letter["row"])["n"] == 1
        assert t.ended


def test_a_pair_has_the_place_of_its_later_message(app: hr.App, views: hr.Stream) -> None:
    others = app.input("others", {"member": pl.String, "at": pl.Int64}, event_time="at")
    joined = views.join(others, on="member", within="10s", id="both")
    joined.map(lambda row: {"part": 1 // 0}, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).sink(
        print
    )
    with app.test() as t:
        t.feed("views", [row(0, "x"), row(0, "a")])
        t.feed("others", [{"member": "b", "at": 1}], settle=False)
        t.feed("others", [{"member": "a", "at": 1}], settle=False)
        t.settle()
        (letter,) = letters(t)
        assert letter["stream"].endswith(".others")
        assert (letter["offset"], letter["last_offset"], letter["index"]) == (1, 1, 0)


def test_rows_of_files_have_offsets_of_their_own(tmp_path: Path) -> None:
    pl.DataFrame({"ms": [1, 2, 0, 4]}).write_parquet(tmp_path / "a.parquet")
    app = hr.App("files", home=str(tmp_path / "home"))
    rows = app.input("rows", {"ms": pl.Int64}, system=hr.io.files(str(tmp_path / "*.parquet")))
    rows.map(part, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).send_to(app.output("out"))
    app.run(local=True, progress=False)
    (letter,) = hr.streams.read_stream("failed", home=str(tmp_path / "home")).to_dicts()
    assert (letter["offset"], letter["last_offset"], letter["index"]) == (2, 2, None)


def test_any_column_can_be_in_a_dead_letter(app: hr.App, out: hr.Output) -> None:
    columns = {
        "t": pl.Datetime("us", "UTC"), "d": pl.Date, "c": pl.Decimal(10, 2), "b": pl.Binary, "n": pl.Null,
        "l": pl.List(pl.Struct({"x": pl.Binary})), "e": pl.Enum(["u"]), "u": pl.Duration("ms"), "f": pl.Float64,
    }  # fmt: skip
    columns.pop("n")
    value = {
        "t": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "d": dt.date(2026, 1, 2), "c": Decimal("1.50"), "b": b"\xff\x00",
        "l": [{"x": b"\n"}], "e": "u", "u": dt.timedelta(seconds=1), "f": float("nan"),
    }  # fmt: skip
    rows = app.input("rows", columns)
    rows.map(lambda row: 1 // 0, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).send_to(out)
    with app.test() as t:
        t.feed("rows", [value, dict.fromkeys(value)])
        first, second = letters(t)
        told = json.loads(first["row"])
        assert (told["b"], told["l"], told["f"], told["e"]) == ("/wA=", [{"x": "Cg=="}], None, "u")
        assert json.loads(second["row"]) == dict.fromkeys(columns)
        assert pl.read_ipc_stream(first["raw"])["c"].to_list() == [Decimal("1.50")]


# -- letters are results


def test_letters_are_taken_back_with_what_no_checkpoint_covers(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map(part, PARTS, on_error="dead_letter", dead_letter=app.output("failed")).send_to(out)
    with app.test() as t:
        t.feed("views", [row(0)])
        t.restart(checkpoint=True)
        t.feed("views", [row(0), row(1)])
        t.restart()
        t.end()
        assert t.read("failed", committed=True).height == 2
        assert t.read("out", committed=True).rows() == [(100,)]


def test_what_stops_the_app_shows_the_row_and_the_remedy(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.filter(pl.col("member") != "x").map(part, PARTS).send_to(out)
    with app.test() as t:
        t.feed("views", [row(1)], settle=False)
        t.feed("views", [row(3, "x"), row(1), row(0, "y" * 1000)], settle=False)
        with pytest.raises(hr.errors.UserFunctionError) as info:
            t.settle()
    assert "views[0], offset 1, row 2 of it" in info.value.message
    assert '{"member":"yyyy' in info.value.message
    assert len(info.value.message) < 1500
    assert info.value.hint == 'fix the function; or give the step on_error="skip" or "dead_letter"'


# -- sys.exit


def ends(row: Any) -> Any:
    raise SystemExit(3)


def test_sys_exit_in_a_function_is_an_error_of_that_function(views: hr.Stream, out: hr.Output, app: hr.App) -> None:
    views.map(ends, PARTS).send_to(out)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match=r"raised SystemExit at .*: 3") as raised:
        t.feed("views", [row(1)])
    assert "raise an error instead of calling sys.exit" in (raised.value.hint or "")


@pytest.mark.parametrize("error", [GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("step", ["map", "map_batches", "map_async"])
def test_errors_that_are_no_exceptions_are_the_functions_too(
    step: str, error: type[BaseException], views: hr.Stream, out: hr.Output, app: hr.App
) -> None:
    def cancelled(row: Any) -> Any:
        raise error

    getattr(views, step)(cancelled, schema=PARTS).send_to(out)
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match=f"raised {error.__name__} at"):
        t.feed("views", [row(1)])


@pytest.mark.parametrize("step", ["map", "filter", "flat_map", "map_batches", "sink", "map_async"])
def test_the_policy_holds_for_sys_exit_too(step: str, views: hr.Stream, out: hr.Output, app: hr.App) -> None:
    schema = {} if step in ("filter", "sink") else {"schema": PARTS}
    flow = getattr(views, step)(ends, **schema, on_error="skip")
    if step != "sink":
        flow.send_to(out)
    with app.test() as t:
        t.feed("views", [row(1), row(2)])
        assert t.counter("failed_skipped") == 2
