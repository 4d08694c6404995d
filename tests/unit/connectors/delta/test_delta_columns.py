"""What columns and values become in a Delta table, read back from one."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from headrace.connectors.delta.system import DeltaSystem, fitted, stored_columns, stored_rows
from headrace.core.errors import DataError, DeclarationError

WRITER = "app/stage/0/out"
VIENNA = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Vienna"))
FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999000)

STRUCT = pl.Struct({"a": pl.Int64, "b": pl.List(pl.Struct({"c": pl.String}))})

KEPT: dict[str, tuple[list[Any], pl.DataType]] = {
    "i8": ([-128, 127, None], pl.Int8()),
    "i16": ([-(2**15), 2**15 - 1, None], pl.Int16()),
    "i32": ([-(2**31), 2**31 - 1, None], pl.Int32()),
    "i64": ([-(2**63), 2**63 - 1, None], pl.Int64()),
    "f32": ([1.5, float("-inf"), None], pl.Float32()),
    "f64": ([0.1, float("nan"), None], pl.Float64()),
    "flag": ([True, False, None], pl.Boolean()),
    "text": (["", "naïve 🙂", None], pl.String()),
    "bytes": ([b"", b"\x00\xff", None], pl.Binary()),
    "day": ([date(1, 1, 1), date(9999, 12, 31), None], pl.Date()),
    "money": ([Decimal("-12345678.90"), Decimal("0.01"), None], pl.Decimal(38, 2)),
    "local": ([FIRST, LAST, None], pl.Datetime("us")),
    "instant": ([FIRST.replace(tzinfo=UTC), VIENNA.astimezone(UTC), None], pl.Datetime("us", "UTC")),
    "list": ([[1, None], [], None], pl.List(pl.Int32())),
    "struct": ([{"a": 1, "b": [{"c": "x"}]}, {"a": None, "b": []}, None], STRUCT),
}  # fmt: skip

CHANGED: dict[str, tuple[list[Any], pl.DataType, pl.DataType]] = {
    "u8": ([0, 255, None], pl.UInt8(), pl.Int16()),
    "u16": ([0, 2**16 - 1, None], pl.UInt16(), pl.Int32()),
    "u32": ([0, 2**32 - 1, None], pl.UInt32(), pl.Int64()),
    "enum": (["a", "b", None], pl.Enum(["a", "b"]), pl.String()),
    "category": (["a", "b", None], pl.Categorical(), pl.String()),
    "ms": ([FIRST, LAST, None], pl.Datetime("ms"), pl.Datetime("us")),
    "array": ([[1, 2], [3, 4], None], pl.Array(pl.Int64, 2), pl.List(pl.Int64)),
    "ulist": ([[255], [], None], pl.List(pl.UInt8), pl.List(pl.Int16)),
    "ustruct": ([{"a": 2**32 - 1}, {"a": None}, None], pl.Struct({"a": pl.UInt32}), pl.Struct({"a": pl.Int64})),
    "times": ([[LAST], [], None], pl.List(pl.Datetime("ms")), pl.List(pl.Datetime("us"))),
}


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    given = {name: pl.Series(values, dtype=dtype) for name, (values, dtype) in KEPT.items()}
    given |= {name: pl.Series(values, dtype=dtype) for name, (values, dtype, _) in CHANGED.items()}
    given["u64"] = pl.Series([0, 2**64 - 1, None], dtype=pl.UInt64)
    given["vienna"] = pl.Series([VIENNA, None, None], dtype=pl.Datetime("us", "Europe/Vienna"))
    rows = pl.DataFrame(given)
    system = DeltaSystem(str(tmp_path / "t"))
    system.admin().create("out", 1, dict(rows.schema))
    target = system.target("out")
    target.publish(WRITER, 0, [target.accept(rows)])
    found = pl.read_delta(system.path)

    for name, (values, dtype) in KEPT.items():
        assert found[name].equals(pl.Series(name, values, dtype=dtype), check_dtypes=True, null_equal=True), name
    for name, (values, _, dtype) in CHANGED.items():
        assert found[name].equals(pl.Series(name, values, dtype=dtype), check_dtypes=True, null_equal=True), name
    assert found["u64"].to_list() == [Decimal(0), Decimal(2**64 - 1), None]
    assert found["vienna"].to_list() == [VIENNA.astimezone(UTC), None, None]
    described = system.admin().describe("out")
    assert described is not None
    assert described.columns == stored_columns(dict(rows.schema)) == dict(found.schema)


@pytest.mark.parametrize(
    "dtype",
    [
        pl.Duration("ms"),
        pl.Time(),
        pl.Null(),
        pl.Int128(),
        pl.Datetime("ns"),
        pl.List(pl.Duration("us")),
        pl.Struct({"a": pl.Array(pl.Time, 2)}),
    ],
    ids=str,
)
def test_a_type_that_delta_lacks_is_refused_before_the_app_runs(dtype: pl.DataType, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="column 'x'") as caught:
        DeltaSystem(str(tmp_path / "t")).admin().create("out", 1, {"n": pl.Int64(), "x": dtype})
    assert caught.value.hint
    assert not (tmp_path / "t").exists()


def test_remedies_are_remedies() -> None:
    rows = pl.DataFrame({"x": [timedelta(milliseconds=1)], "y": [time(12)], "z": [FIRST.replace(year=2000)]})
    rows = rows.with_columns(pl.col("z").cast(pl.Datetime("ns")))
    rows = rows.select(
        pl.col("x").dt.total_microseconds(), pl.col("y").cast(pl.String), pl.col("z").dt.cast_time_unit("us")
    )
    assert stored_columns(dict(rows.schema)) == dict(rows.schema)


@pytest.mark.parametrize(
    ("columns", "partition_by", "message"),
    [
        ({"a": pl.Int64(), "A": pl.Int64()}, (), "the columns 'a' and 'A' are the same to Delta"),
        ({"a": pl.Int64()}, ("b",), "partition_by: the output has no column 'b'; it has a"),
        ({"a": pl.Float64(), "b": pl.Int64()}, ("a",), "partition_by: column 'a' is of type"),
        ({"a": pl.List(pl.Int64), "b": pl.Int64()}, ("a",), "partition_by: column 'a' is of type"),
        ({"a": pl.Int64()}, ("a",), "the table needs at least one other column"),
    ],
)
def test_columns_that_no_table_can_have(
    columns: dict[str, pl.DataType], partition_by: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        stored_columns(columns, partition_by)


def test_a_time_that_microseconds_cannot_say_is_refused() -> None:
    rows = pl.DataFrame({"ts": pl.Series([0, 2**62, None], dtype=pl.Int64).cast(pl.Datetime("ms"))})
    with pytest.raises(DataError, match="column 'ts' of 1 rows is a time beyond the year 260,000"):
        stored_rows(rows)
    assert stored_rows(rows[:1])["ts"].to_list() == [datetime(1970, 1, 1)]


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_would_be_read_as_null_is_refused(text: str) -> None:
    rows = pl.DataFrame({"site": ["a", None, text], "n": [1, 2, 3]})
    with pytest.raises(DataError, match="column 'site' of 1 rows is text that readers"):
        stored_rows(rows, ["site"])
    assert stored_rows(rows).equals(rows)
    assert stored_rows(rows[:2], ["site"]).equals(rows[:2])


def test_rows_are_fitted_into_a_table_that_has_more_and_wider_columns() -> None:
    rows = pl.DataFrame({"n": [1], "a": ["x"]}, schema={"n": pl.Int32, "a": pl.String})
    table = {"a": pl.String(), "b": pl.Date(), "n": pl.Int64()}
    wanted = pl.DataFrame({"a": ["x"], "b": [None], "n": [1]}, schema=table)
    assert fitted(rows, table, "the table").equals(wanted)
    with pytest.raises(DeclarationError, match="the table doesn't fit the output: its column 'n' is i16, not i32"):
        fitted(rows, {**table, "n": pl.Int16()}, "the table")
    with pytest.raises(DeclarationError, match="it has no column 'n'"):
        fitted(rows, {"a": pl.String()}, "the table")
