"""Convert Polars' column types to Spark's, and back.

Each type has one counterpart with the same values, or is refused with what to do instead; see ``as_spark_has_it``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl
from pyspark.sql import types as spark

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.dtypes import instantiate

_BOTH: Sequence[tuple[pl.DataType, spark.DataType]] = (
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
    (pl.Null(), spark.NullType()),
)
_TO_SPARK: Mapping[type[pl.DataType], spark.DataType] = {type(ours): theirs for ours, theirs in _BOTH} | {
    pl.UInt8: spark.ShortType(),
    pl.UInt16: spark.IntegerType(),
    pl.UInt32: spark.LongType(),
    pl.UInt64: spark.DecimalType(20, 0),
    pl.Float16: spark.FloatType(),
    pl.Categorical: spark.StringType(),
    pl.Enum: spark.StringType(),
}
_TO_POLARS: Mapping[type[spark.DataType], pl.DataType] = {type(theirs): ours for ours, theirs in _BOTH} | {
    spark.CharType: pl.String(),
    spark.VarcharType: pl.String(),
    spark.TimestampType: pl.Datetime("us", "UTC"),
    spark.TimestampNTZType: pl.Datetime("us"),
}

_INSTEAD_OF: Mapping[str, str] = {
    "MapType": "cast it to a list of entries: map_entries(column)",
    "VariantType": "cast it to text: to_json(column), or take out what you need: variant_get",
    "YearMonthIntervalType": "cast it to a number of months",
    "CalendarIntervalType": "cast it to an interval of days and seconds, or to a number",
    "GeometryType": "convert it to binary: st_asbinary(column)",
    "GeographyType": "convert it to binary: st_asbinary(column)",
}


def to_spark_schema(columns: Mapping[str, pl.DataType]) -> spark.StructType:
    """Spark's schema of these columns. Raises ``DeclarationError`` for a type that Spark lacks."""
    return spark.StructType([spark.StructField(name, to_spark_type(dtype, name)) for name, dtype in columns.items()])


def to_polars_columns(schema: spark.StructType) -> dict[str, pl.DataType]:
    """The columns of a DataFrame. Raises ``DeclarationError`` for a type that a stream can't hold."""
    return {field.name: to_polars_type(field.dataType, field.name) for field in schema.fields}


def to_spark_type(dtype: pl.DataType, column: str = "?") -> spark.DataType:
    match dtype:
        case pl.Datetime():
            return spark.TimestampNTZType() if dtype.time_zone is None else spark.TimestampType()
        case pl.Decimal():
            return spark.DecimalType(dtype.precision or 38, dtype.scale)
        case pl.List() | pl.Array():
            return spark.ArrayType(to_spark_type(instantiate(dtype.inner, column), f"{column}[]"))
        case pl.Struct():
            return spark.StructType(
                [
                    spark.StructField(field.name, to_spark_type(instantiate(field.dtype), f"{column}.{field.name}"))
                    for field in dtype.fields
                ]
            )
    found = _TO_SPARK.get(type(dtype))
    if found is None:
        raise DeclarationError(
            f"column {column!r}: Spark has no type for {dtype}",
            hint="convert it in the program that writes it: wide integers to Decimal(38, 0), objects to Binary",
        )
    return found


def to_polars_type(dtype: spark.DataType, column: str = "?") -> pl.DataType:
    match dtype:
        case spark.DecimalType():
            return pl.Decimal(dtype.precision, dtype.scale)
        case spark.ArrayType():
            return pl.List(to_polars_type(dtype.elementType, f"{column}[]"))
        case spark.StructType():
            return pl.Struct([pl.Field(f.name, to_polars_type(f.dataType, f"{column}.{f.name}")) for f in dtype.fields])
    found = _TO_POLARS.get(type(dtype))
    if found is None:
        name = "a user-defined type" if isinstance(dtype, spark.UserDefinedType) else dtype.simpleString().upper()
        raise DeclarationError(
            f"column {column!r}: a stream can't hold Spark's {name}",
            hint=_INSTEAD_OF.get(type(dtype).__name__, "convert the column to a type that docs/dataframes.md lists"),
        )
    return found


def as_spark_has_it(series: pl.Series) -> pl.Series:
    """The column as the type that comes back from Spark, which counts time in microseconds, with the same values.

    Raises ``DataError`` for a finer value, and ``DeclarationError`` for a type that Spark lacks.
    """
    dtype = series.dtype
    wanted = to_polars_type(to_spark_type(dtype, series.name), series.name)
    if _is_finer(dtype):
        fine = series.cast(_counted_in(dtype, "ns"))
        lost = fine.cast(_counted_in(dtype, "us")).cast(fine.dtype).ne_missing(fine).arg_true()
        if len(lost):
            raise DataError(
                f"column {series.name!r}: the value in row {lost[0]} is finer than a microsecond, which Spark's types "
                "can't hold",
                hint="round such values in the program that writes them, or write nanoseconds as a number",
            )
    return series if dtype == wanted else series.cast(wanted)


def _is_finer(dtype: pl.DataType) -> bool:
    match dtype:
        case pl.Datetime() | pl.Duration():
            return dtype.time_unit == "ns"
        case pl.Time():
            return True
        case pl.List() | pl.Array():
            return _is_finer(instantiate(dtype.inner))
        case pl.Struct():
            return any(_is_finer(instantiate(field.dtype)) for field in dtype.fields)
    return False


def _counted_in(dtype: pl.DataType, unit: Literal["us", "ns"]) -> pl.DataType:
    """The type with its times in this unit. A time of day becomes a duration: as such it has a unit."""
    match dtype:
        case pl.Datetime():
            return pl.Datetime(unit, dtype.time_zone)
        case pl.Duration() | pl.Time():
            return pl.Duration(unit)
        case pl.List():
            return pl.List(_counted_in(instantiate(dtype.inner), unit))
        case pl.Array():
            return pl.Array(_counted_in(instantiate(dtype.inner), unit), dtype.size)
        case pl.Struct():
            return pl.Struct([pl.Field(f.name, _counted_in(instantiate(f.dtype), unit)) for f in dtype.fields])
    return dtype
