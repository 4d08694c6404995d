"""Types of Polars as those of Spark and back, without a session."""

from __future__ import annotations

from datetime import time, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_series_equal
from polars.testing.parametric import dtypes, series
from pyspark.sql import types as spark

from headrace.core.errors import DataError, DeclarationError
from headrace.spark.types import as_spark_has_it, to_polars_columns, to_polars_type, to_spark_schema, to_spark_type

SAME = [
    (pl.Int8(), spark.ByteType()),
    (pl.Int16(), spark.ShortType()),
    (pl.Int32(), spark.IntegerType()),
    (pl.Int64(), spark.LongType()),
    (pl.Float32(), spark.FloatType()),
    (pl.Float64(), spark.DoubleType()),
    (pl.Boolean(), spark.BooleanType()),
    (pl.String(), spark.StringType()),
    (pl.Binary(), spark.BinaryType()),
    (pl.Date(), spark.DateType()),
    (pl.Time(), spark.TimeType(6)),
    (pl.Duration("us"), spark.DayTimeIntervalType()),
    (pl.Datetime("us", "UTC"), spark.TimestampType()),
    (pl.Datetime("us"), spark.TimestampNTZType()),
    (pl.Decimal(12, 3), spark.DecimalType(12, 3)),
    (pl.Null(), spark.NullType()),
    (pl.List(pl.List(pl.Int8)), spark.ArrayType(spark.ArrayType(spark.ByteType()))),
    (
        pl.Struct({"a": pl.Int64, "b": pl.List(pl.String)}),
        spark.StructType().add("a", spark.LongType()).add("b", spark.ArrayType(spark.StringType())),
    ),
]

WIDER = [
    (pl.UInt8(), spark.ShortType()),
    (pl.UInt16(), spark.IntegerType()),
    (pl.UInt32(), spark.LongType()),
    (pl.UInt64(), spark.DecimalType(20, 0)),
    (pl.Float16(), spark.FloatType()),
    (pl.Enum(["a"]), spark.StringType()),
    (pl.Categorical(), spark.StringType()),
    (pl.Datetime("ms"), spark.TimestampNTZType()),
    (pl.Datetime("ns", "Europe/Berlin"), spark.TimestampType()),
    (pl.Duration("ms"), spark.DayTimeIntervalType()),
    (pl.Array(pl.Int8, 3), spark.ArrayType(spark.ByteType())),
    (pl.Array(pl.Int8, (2, 3)), spark.ArrayType(spark.ArrayType(spark.ByteType()))),
]


@pytest.mark.parametrize(("dtype", "counterpart"), SAME, ids=str)
def test_types_that_both_have(dtype: pl.DataType, counterpart: spark.DataType) -> None:
    assert to_spark_type(dtype) == counterpart
    assert to_polars_type(counterpart) == dtype


@pytest.mark.parametrize(("dtype", "counterpart"), WIDER, ids=str)
def test_types_that_spark_has_wider(dtype: pl.DataType, counterpart: spark.DataType) -> None:
    assert to_spark_type(dtype) == counterpart


@pytest.mark.parametrize("dtype", [pl.Int128(), pl.UInt128(), pl.Object(), pl.List(pl.Int128)])
def test_types_that_spark_lacks_are_refused(dtype: pl.DataType) -> None:
    with pytest.raises(DeclarationError, match=r"column 'a(\[\])?': Spark has no type for"):
        to_spark_schema({"a": dtype})


@pytest.mark.parametrize(
    ("dtype", "what", "hint"),
    [
        (spark.MapType(spark.StringType(), spark.LongType()), "'a': .*MAP<STRING,BIGINT>", "map_entries"),
        (spark.ArrayType(spark.VariantType()), r"'a\[\]': .*VARIANT", "to_json"),
        (spark.StructType().add("b", spark.YearMonthIntervalType()), r"'a\.b': .*YEAR TO MONTH", "months"),
        (spark.CalendarIntervalType(), "INTERVAL", "days and seconds"),
        (spark.GeometryType(4326), "GEOMETRY", "binary"),
    ],
)
def test_types_that_streams_lack_are_refused(dtype: spark.DataType, what: str, hint: str) -> None:
    with pytest.raises(DeclarationError, match=what) as caught:
        to_polars_columns(spark.StructType().add("a", dtype))
    assert hint in (caught.value.hint or "")


@given(dtypes(excluded_dtypes=[pl.Int128, pl.UInt128, pl.Object, pl.Unknown, pl.Extension], allow_time_zones=False))
def test_every_type_that_a_stream_can_hold_has_a_counterpart_that_comes_back(dtype: pl.DataType) -> None:
    there = to_spark_type(dtype)
    back = to_polars_type(there)
    assert to_spark_type(back) == there


@given(st.data())
def test_values_stay_as_they_are(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([pl.List(pl.UInt64()), *(one for one, _ in SAME + WIDER if one != pl.Null())]))
    column = data.draw(series(dtype=dtype, max_size=20))
    try:
        found = as_spark_has_it(column)
    except DataError:
        assert "ns" in str(dtype) or dtype == pl.Time  # finer than a microsecond
        return
    assert found.dtype == to_polars_type(to_spark_type(dtype))
    assert_series_equal(found.cast(dtype), column)


NANOSECOND = [
    pl.Series("a", [1_000, 1_001], pl.Datetime("ns")),
    pl.Series("a", [1_000, 1_001], pl.Duration("ns")),
    pl.Series("a", [1_000, 1_001]).cast(pl.Time),
    pl.Series("a", [[1_000], [1_001]]).cast(pl.List(pl.Time)),
    pl.Series("a", [[1_000], [1_001]]).cast(pl.List(pl.Datetime("ns", "UTC"))),
    pl.DataFrame({"t": [1_000, 1_001]}, schema={"t": pl.Duration("ns")}).to_struct("a"),
]


@pytest.mark.parametrize("column", NANOSECOND, ids=lambda column: str(column.dtype))
def test_what_is_finer_than_a_microsecond_is_refused(column: pl.Series) -> None:
    assert as_spark_has_it(column.head(1)).dtype == to_polars_type(to_spark_type(column.dtype))
    with pytest.raises(DataError, match="column 'a': the value in row 1 is finer than a microsecond"):
        as_spark_has_it(column)


def test_whole_microseconds_pass() -> None:
    column = pl.Series("a", [time(1, 2, 3, 4), None])
    assert as_spark_has_it(column).to_list() == [time(1, 2, 3, 4), None]
    assert as_spark_has_it(pl.Series("a", [timedelta(1)], pl.Duration("ns"))).to_list() == [timedelta(1)]
