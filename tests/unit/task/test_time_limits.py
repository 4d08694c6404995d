"""Event times are of the years 1000 to 8999, wherever they come from. Integers that are surely seconds are noticed."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.core.ids import SSP, StreamId
from headrace.task.event_time import not_times, why_no_times
from headrace.task.inputs.intake import Intake
from headrace.task.metrics import TaskMetrics

INT64 = (-(2**63), 2**63 - 1)
PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
EPOCH = datetime(1970, 1, 1)


def ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def wrong(column: pl.Series) -> list[bool]:
    found = not_times(column)
    return [False] * column.len() if found is None else found.to_list()


def moments(unit: Any, *numbers: int | None) -> pl.Series:
    return pl.Series("ts", numbers, pl.Int64).cast(pl.Datetime(unit))


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ms", "Europe/Berlin")])
def test_the_years_1000_to_8999_are_times(dtype: Any) -> None:
    per_ms = PER_MS[dtype.time_unit] if isinstance(dtype, pl.Datetime) else 1
    first, end = ms(datetime(1000, 1, 1)) * per_ms, ms(datetime(9000, 1, 1)) * per_ms
    column = pl.Series("ts", [INT64[0], first - 1, first, 0, None, end - 1, end, INT64[1]], pl.Int64).cast(dtype)
    assert wrong(column) == [True, True, False, False, True, False, True, True]
    assert wrong(column[2:4]) == [False, False]


def test_nanoseconds_have_fewer_years() -> None:
    first, end = (ms(datetime(year, 1, 1)) * 1_000_000 for year in (1679, 2261))
    column = moments("ns", *INT64, first - 1, first, end - 1, end)
    assert wrong(column) == [True, True, True, False, False, True]
    assert "in the years 1679 to 2260" in why_no_times(column, pl.Series(wrong(column)))


def test_no_rows_and_no_values() -> None:
    assert (wrong(pl.Series("ts", [], pl.Int64)), wrong(pl.Series("ts", [None], pl.Int64))) == ([], [True])
    assert wrong(pl.Series("ts", [2**64 - 1, 0], pl.UInt64)) == [True, False]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pl.Series("ts", [None], pl.Int64), "'ts' is null"),
        (pl.Series("ts", [2**64 - 1], pl.UInt64), "'ts' is 18446744073709551615, but event times must be in the years"),
        (pl.Series("ts", [1_700_000_000_000_000_000]), "(in nanoseconds it is 2023-11-14)"),
        (moments("ms", ms(datetime(1, 1, 1))), "'ts' is 0001-01-01 00:00:00, but"),
        (moments("us", ms(datetime(9999, 12, 31)) * 1_000), "'ts' is 9999-12-31 00:00:00, but"),
        (moments("ms", INT64[0]), "'ts' is -9223372036854775808 ms since 1970, but"),
    ],
)
def test_the_value_is_shown_even_if_no_calendar_has_it(column: pl.Series, says: str) -> None:
    missing = not_times(column)
    assert missing is not None
    assert says in why_no_times(column, missing)


# -- times that are made on the way

COLUMNS = {"k": pl.String, "ts": pl.Int64}
Step = Callable[[hr.App, hr.Stream], hr.Stream]


def window(app: hr.App, flow: hr.Stream) -> hr.Stream:
    return flow.window(hr.tumbling("1s"), key="k", id="step").agg(n=pl.len())


def behind_a_shuffle(app: hr.App, flow: hr.Stream) -> hr.Stream:
    return window(app, flow.partition_by("k", id="by-k"))


def session(app: hr.App, flow: hr.Stream) -> hr.Stream:
    return flow.window(hr.session("1s"), key="k", id="step").agg(n=pl.len())


def joined(app: hr.App, flow: hr.Stream) -> hr.Stream:
    other = app.input("other", {"k": pl.String, "at": pl.Int64}, event_time="at")
    return flow.join(other, on="k", within="1s", id="step")


def as_of(app: hr.App, flow: hr.Stream) -> hr.Stream:
    table = app.table("versions", key="k", schema=COLUMNS | {"v": pl.Int64}, versions="1h")
    app.input("other", COLUMNS | {"v": pl.Int64}, event_time="ts").send_to(table)
    return flow.join(table, id="step")


@pytest.mark.parametrize(
    "step",
    [
        window,
        behind_a_shuffle,
        session,
        joined,
        as_of,
        lambda app, flow: flow.deduplicate("k", within="1s", id="step"),
        lambda app, flow: flow.drop_late(),
    ],
)
@pytest.mark.parametrize("made", [INT64[0], INT64[1], None])
def test_a_step_names_itself_and_the_value_that_is_no_time(step: Step, made: int | None) -> None:
    app = hr.App("made")
    flow = app.input("views", COLUMNS, event_time="ts").map(lambda row: row | {"ts": made}, schema=COLUMNS)
    step(app, flow).send_to(app.output("out"))
    value = "null" if made is None else str(made)
    says = rf"'(step|drop_late-1)' got messages without an event time \(1 of 1\): 'ts' is {value}.*views\[0\], offsets"
    with app.test() as t, pytest.raises(hr.errors.DataError, match=says):
        t.feed("views", [{"k": "a", "ts": 5}])


def test_versions_of_a_table_are_checked_where_they_are_sent() -> None:
    app = hr.App("made")
    table = app.table("versions", key="k", schema=COLUMNS, versions="1h")
    flow = app.input("views", COLUMNS, event_time="ts").map(lambda row: row | {"ts": INT64[0]}, schema=COLUMNS)
    flow.send_to(table)
    says = r"'send_to-1' .*, which sends them to table 'versions', got messages without an event time .*'ts' is -9"
    with app.test() as t, pytest.raises(hr.errors.DataError, match=says):
        t.feed("views", [{"k": "a", "ts": 5}])


def test_the_windows_of_the_last_moment_can_be_windowed_again() -> None:
    """The end of a window may be a little after the range."""
    app = hr.App("made")
    flow = app.input("views", {"k": pl.String, "ts": pl.Datetime("ms")}, event_time="ts")
    weeks = flow.window(hr.tumbling("7d"), key="k", id="weeks").agg(n=pl.len())
    weeks.window(hr.tumbling("70d"), key="k", id="more").agg(n=pl.col("n").sum()).send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", [{"k": "a", "ts": datetime(1000, 1, 1)}, {"k": "a", "ts": datetime(8999, 12, 31, 23)}])
        t.end()
        rows = t.read("out").rows()
    assert [row[-1] for row in rows] == [1, 1]
    assert (rows[0][1] <= datetime(1000, 1, 1), rows[1][2] > datetime(9000, 1, 1)) == (True, True)


# -- another unit


def warned(columns: Any, *times: object) -> list[str]:
    app = hr.App("units")
    app.input("views", columns, event_time="ts", on_error="skip").send_to(app.output("out"))
    metrics = TaskMetrics()
    intake = Intake(app.graph().streams["views"], metrics, _no_letters)
    for value in times:
        intake.accept(SSP(StreamId("log", "views"), 0), pl.DataFrame({"ts": [value]}, columns), 0)
    return list(metrics.warnings)


def _no_letters(stream: str, rows: pl.DataFrame) -> None:
    raise AssertionError(f"a dead letter to {stream}: {rows}")


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt64])
def test_seconds_are_pointed_out_once(dtype: Any) -> None:
    (warning,) = warned({"ts": dtype}, 1_700_000_000, 1_700_000_001)
    assert warning == (
        "input 'views': column 'ts' seems to hold seconds, and event time is in milliseconds: "
        "1700000000 means 1970-01-20 (in seconds it is 2023-11-14); "
        "multiply it by 1000 where the rows are written"
    )


@pytest.mark.parametrize("time", [-1, 0, 5, 100_000, 86_400_000, 10**12, 1_700_000_000_000])
def test_other_integers_are_milliseconds(time: int) -> None:
    assert warned({"ts": pl.Int64}, time, 1_700_000_000) == []


def test_the_unit_of_a_datetime_is_known() -> None:
    assert warned({"ts": pl.Datetime("ms")}, EPOCH + timedelta(milliseconds=1_700_000_000)) == []
