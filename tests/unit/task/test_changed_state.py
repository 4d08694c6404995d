"""An app that is changed between two runs goes on with its state on disk, or says what is in the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr

COLUMNS = {"key": pl.String, "at": pl.Int64, "value": pl.Int64}
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (hr.tumbling("1000ms"), {}),
    "hopping": (hr.hopping("1000ms", every="500ms"), {}),
    "panes": (hr.tumbling("1000ms"), {"early": hr.triggers.every(100), "allowed_lateness": "10ms"}),
    "by the clock": (hr.tumbling("1000ms"), {"early": hr.triggers.every("1h", time="processing")}),
    "session": (hr.session("100ms"), {}),
    "sliding": (hr.windows.sliding("100ms"), {}),
    "global": (hr.windows.global_(), {}),
    "full count": (hr.windows.count(100), {}),
    "count": (hr.windows.count(100, every=60), {}),
}
OLD = {"total": hr.sum("value"), "all": hr.aggregates.implode("value")}
NEW = {"low": hr.min("value"), "all": hr.aggregates.implode("value"), "n": hr.count(), **OLD}


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hr.streams.StreamWriter:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    hr.streams.create_stream("rows", 1, COLUMNS)
    return hr.streams.StreamWriter("rows")


def windowed(shape: Any, options: dict[str, Any], aggregates: dict[str, Any], columns: Any = None) -> hr.App:
    app = hr.App("changing", checkpoint_interval=f"{INTERVAL_MS}ms")
    rows = app.input("rows", columns or COLUMNS, event_time="at", lateness="1ms")
    windows = rows.window(shape, key="key", id="w", **options).agg(**aggregates)
    # One column, so that the output stays as it is.
    windows.select(row=pl.struct(pl.all()).struct.json_encode()).send_to(app.output("out"))
    return app


def run(app: hr.App, *, to_the_end: bool = False) -> None:
    with DrivenApp(app) as driven:
        container = driven.start()
        if to_the_end:
            driven.finish()
        else:
            driven.run(6 * INTERVAL_MS)
            driven.drain(container)


def lose_state(home: Path) -> None:
    """What is left is the changelog."""
    shutil.rmtree(home / "state")
    shutil.rmtree(home / "snapshots", ignore_errors=True)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_window_gains_aggregates(tmp_path: Path, rows: hr.streams.StreamWriter, shape: str, lost: bool) -> None:
    """``lost``: so is the local state, and it is rebuilt from the changelog."""
    rows.write([{"key": "a", "at": 10, "value": 5}, {"key": "b", "at": 12, "value": 7}])
    run(windowed(*SHAPES[shape], OLD))
    if lost:
        lose_state(tmp_path)
    rows.write([{"key": "a", "at": 14, "value": 3}])
    rows.seal()
    run(windowed(*SHAPES[shape], NEW), to_the_end=True)
    out = [json.loads(row) for row in hr.streams.read_stream("out")["row"]]
    found = {(row["key"], tuple(row["all"]), row["total"], row["low"], row["n"]) for row in out if "low" in row}
    assert found >= {("a", (5, 3), 8, 3, 1)}
    assert {row for row in found if row[0] == "b"} == {("b", (7,), 7, None, 0)}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda: windowed(hr.session("100ms"), {}, OLD), "store 'w' was stored as a window of tumbling 1s, but is now"),
        (lambda: windowed(hr.tumbling("500ms"), {}, OLD), "is now declared as a window of tumbling 500ms"),
        (
            lambda: windowed(hr.tumbling("1000ms"), {"allowed_lateness": "5ms"}, OLD),
            "of tumbling 1s, with panes or functions",
        ),
        (
            lambda: windowed(hr.tumbling("1000ms"), {}, {"total": hr.max("value")}),
            "store 'w': column 'total' was stored as sum Int64, but is now declared as max Int64",
        ),
        (
            lambda: windowed(hr.tumbling("1000ms"), {}, {"all": hr.aggregates.implode(pl.col("value") / 2)}),
            "store 'w': column 'all' was stored as implode",
        ),
    ],
)
def test_what_does_not_fit_is_said(
    tmp_path: Path, rows: hr.streams.StreamWriter, changed: Callable[[], hr.App], message: str, lost: bool
) -> None:
    rows.write([{"key": "a", "at": 10, "value": 5}])
    run(windowed(*SHAPES["tumbling"], OLD))
    if lost:
        lose_state(tmp_path)
    app = changed()
    with pytest.raises(hr.errors.HeadraceError, match=message) as caught:
        run(app)
    assert "give the step another id" in (caught.value.hint or "")


@pytest.mark.parametrize("lost", [False, True])
def test_messages_that_wait_in_a_join_get_the_new_column(
    tmp_path: Path, rows: hr.streams.StreamWriter, lost: bool
) -> None:
    def app(columns: dict[str, Any]) -> hr.App:
        app = hr.App("joining", checkpoint_interval=f"{INTERVAL_MS}ms")
        left = app.input("rows", columns, event_time="at", lateness="1ms")
        right = app.input("others", {"key": pl.String, "ts": pl.Int64}, event_time="ts", lateness="1ms")
        left.join(right, on="key", within="1s", how="left", id="j").send_to(app.output("out"))
        return app

    hr.streams.create_stream("others", 1, {"key": pl.String, "ts": pl.Int64})
    rows.write([{"key": "a", "at": 10, "value": 5}, {"key": "c", "at": 10, "value": 6}])
    run(app(COLUMNS))
    if lost:
        lose_state(tmp_path)
    hr.streams.add_columns("rows", {"note": pl.String})
    with hr.streams.StreamWriter("rows") as writer:
        writer.write([{"key": "b", "at": 11, "value": 7, "note": "new"}])
        writer.seal()
    with hr.streams.StreamWriter("others") as writer:
        writer.write([{"key": "a", "ts": 12}, {"key": "b", "ts": 12}])
        writer.seal()
    run(app({**COLUMNS, "note": pl.String}), to_the_end=True)
    found = hr.streams.read_stream("out").select("key", "value", "note", "ts").sort("key")
    assert found.rows() == [("a", 5, None, 12), ("b", 7, "new", 12), ("c", 6, None, None)]


def test_partial_results_of_both_versions_wait_in_one_stream(rows: hr.streams.StreamWriter) -> None:
    """Frames with other aggregates, or in another order, are read together; their rows aren't mixed up."""

    def app(aggregates: dict[str, Any]) -> hr.App:
        app = hr.App("dealt", checkpoint_interval=f"{INTERVAL_MS}ms")
        dealt = app.input("rows", COLUMNS, event_time="at", lateness="1ms").partition_by("key", id="by-key")
        dealt.window(hr.tumbling("1000ms"), key="key", id="w").agg(**aggregates).send_to(app.output("out"))
        return app

    def first_stage(app: hr.App, *, to_the_end: bool) -> None:
        with DrivenApp(app) as driven:
            container = driven.start("rows")
            if to_the_end:
                driven.finish()
            else:
                driven.run(6 * INTERVAL_MS)
                driven.drain(container)

    rows.write([{"key": "a", "at": 10, "value": 5}])
    first_stage(app(OLD), to_the_end=False)
    rows.write([{"key": "a", "at": 11, "value": 3}])
    first_stage(app(NEW), to_the_end=False)
    rows.write([{"key": "a", "at": 12, "value": 9}])
    rows.seal()
    first_stage(app({"n": hr.count(), **OLD}), to_the_end=True)
    run(app(NEW), to_the_end=True)
    (row,) = hr.streams.read_stream("out").to_dicts()
    assert (row["all"], row["total"], row["low"], row["n"]) == ([5, 3, 9], 17, 3, 2)
