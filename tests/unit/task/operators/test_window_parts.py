"""A window that emits its results in many parts emits the same as at once, all before the watermark advances."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.stores import pieces
from headrace.task.operators.aligned_windows import slice_of, slice_start
from headrace.task.operators.base import Operator

COLUMNS = {"key": pl.Int64, "value": pl.Int64, "at": pl.Int64}
KEYS = 500


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces small, and keep almost none in memory."""
    monkeypatch.setattr(pieces, "PIECE_ROWS", 32)
    monkeypatch.setattr(pieces, "KEPT_BYTES_MAX", 4000)


@pytest.fixture
def heights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each part that a window emitted."""
    found: list[int] = []
    emit: Callable[[Operator, pl.DataFrame], None] = Operator.emit

    def noted(self: Operator, rows: pl.DataFrame) -> None:
        if self.node.id == "w":
            found.append(rows.height)
        emit(self, rows)

    monkeypatch.setattr(Operator, "emit", noted)
    return found


def messages(at: int) -> pl.DataFrame:
    index = pl.int_range(KEYS, eager=True)
    return pl.DataFrame({"key": index * 7919 % KEYS, "value": index, "at": at + index % 10}, COLUMNS)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (hr.tumbling("100ms"), {}),
        (hr.hopping("100ms", every="50ms"), {}),
        (hr.windows.sliding("50ms"), {}),
        (hr.session("20ms"), {}),
        (hr.tumbling("100ms"), {"allowed_lateness": "30ms"}),
    ],
)
def test_no_part_is_overtaken_by_the_watermark(
    shape: Any, options: dict[str, Any], restarted: bool, heights: list[int]
) -> None:
    """A window downstream would count what arrives after the watermark as late."""
    app = hr.App("parts")
    rows = app.input("rows", COLUMNS, event_time="at", lateness="0s")
    first = rows.window(shape, key="key", id="w", **options).agg(value=hr.sum("value"))
    outputs = {"first": first, "second": first.window(hr.tumbling("25ms"), key=None, id="then").agg(n=hr.count())}
    for name, stream in outputs.items():
        stream.send_to(app.output(name))
    with app.test() as t:
        for at in (0, 40, 80, 120, 200, 300):
            t.feed("rows", messages(at))
            if restarted:
                t.restart(checkpoint=True)
        t.end()
        said, counted = t.read("first", committed=True), t.read("second", committed=True)
    assert counted["n"].sum() == said.height >= 3 * KEYS
    assert max(heights) < KEYS
    names = [name for name in ("key", "window_start", "pane_index") if name in said.columns]
    assert said.select(names).is_unique().all()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (hr.tumbling("10ms"), {}),
        (hr.hopping("40ms", every="10ms"), {}),
        (hr.hopping("25ms", every="10ms"), {}),
        (hr.windows.sliding("50ms"), {}),
        (hr.session("7ms"), {}),
        (hr.tumbling("10ms"), {"allowed_lateness": "30ms"}),
    ],
)
def test_windows_that_end_together_are_emitted_in_the_order_of_their_ends(
    shape: Any, options: dict[str, Any], restarted: bool
) -> None:
    """Whoever counts or numbers results downstream must not depend on how far the watermark has jumped."""
    app = hr.App("jump")
    rows = app.input("rows", COLUMNS, event_time="at", lateness="10s")
    windows = rows.window(shape, key="key", id="w", **options).agg(value=hr.sum("value"))
    windows.send_to(app.output("out"))
    index = pl.int_range(1000, eager=True)
    fed = pl.DataFrame({"key": index * 7919 % 30, "value": index, "at": index * 104_729 % 997}, COLUMNS)
    with app.test(partitions=1) as t:
        for part in fed.iter_slices(500):
            t.feed("rows", part)
            if restarted:
                t.restart(checkpoint=True)
        t.feed("rows", pl.DataFrame({"key": [0], "value": [0], "at": [20_000]}, COLUMNS))
        said = t.read("out")
        t.end()
    assert said.height > 500
    assert said.equals(said.sort("window_end", "window_start", "key"))


def test_sums_in_parts_are_those_of_all_messages() -> None:
    app = hr.App("parts")
    rows = app.input("rows", COLUMNS, event_time="at", lateness="0s")
    agg = {"value": hr.sum("value"), "n": hr.count()}
    rows.window(hr.tumbling("1s"), key="key", id="w").agg(**agg).send_to(app.output("out"))
    with app.test() as t:
        for at in (0, 40, 80):
            t.feed("rows", messages(at))
            t.restart(checkpoint=True)
        t.end()
        found = t.read("out", committed=True).select("key", "value", "n").sort("key")
    expected = messages(0).select("key", value=3 * pl.col("value"), n=pl.lit(3, pl.Int64)).sort("key")
    assert found.equals(expected)


def test_count_windows_that_are_not_full_leave_in_parts_at_the_end(heights: list[int]) -> None:
    app = hr.App("parts")
    rows = app.input("rows", COLUMNS, event_time="at", lateness="0s")
    agg = {"value": hr.sum("value")}
    rows.window(hr.windows.count(4, every=2), key="key", id="w").agg(**agg).send_to(app.output("out"))
    with app.test() as t:
        t.feed("rows", messages(0))
        t.restart(checkpoint=True)
        before = len(heights)
        t.end()
        found = t.read("out", committed=True).select("key", "value").sort("key")
    assert found.equals(messages(0).select("key", "value").sort("key"))
    assert len(heights) - before > 5


@given(st.integers(-(10**12), 10**13), st.integers(1, 90_000), st.integers(1, 90_000), st.integers(0, 10_000))
def test_a_slice_of_a_time_is_the_one_of_its_column(time: int, every: int, more: int, offset: int) -> None:
    size, shift = every + more, offset % every
    column = pl.select(slice_start(pl.lit(time), size, every, shift)).item()
    assert slice_of(time, size, every, shift) == column
    tumbling = pl.select(slice_start(pl.lit(time), every, every, shift)).item()
    assert slice_of(time, every, every, shift) == tumbling
