"""Expressions of SQL have the values and types that Spark gives, for the whole table of cases."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import polars as pl
import pytest
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession

import headrace as hr
from headrace.sql.relations import Relation
from tests.unit.sql.test_sql_expressions import CASES, COLUMNS, OF_SPARK, ROWS, expected, same, translated


@pytest.fixture
def in_utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.fixture
def session(spark_context: SparkContext) -> Iterator[SparkSession]:
    found = SparkSession(spark_context).newSession()
    found.conf.set("spark.sql.session.timeZone", "UTC")
    found.conf.set("spark.sql.subexpressionElimination.enabled", "false")  # it computes what a CASE doesn't reach
    yield found
    found.catalog.clearCache()


def test_spark_gives_these_values_and_types(session: SparkSession, in_utc: None) -> None:
    relation = Relation.of(hr.App("expressions").input("t", COLUMNS), "t", {})
    flat = [tuple(tuple(one.values()) if isinstance(one, dict) else one for one in row) for row in ROWS]
    frame = session.createDataFrame(flat, OF_SPARK).coalesce(1).cache()
    wrong = []
    for start in range(0, len(CASES), 40):
        part = CASES[start : start + 40]
        found = frame.selectExpr(*(f"{text} AS c{n}" for n, (text, _) in enumerate(part)))
        columns = list(zip(*found.collect(), strict=True))
        for (text, right), values, field in zip(part, columns, found.schema.fields, strict=True):
            plain = [one.asDict() if isinstance(one, Row) else one for one in values]
            kind = simple(translated(text, relation).dtype)
            if not same(plain, expected(right)) or (kind is not None and kind != field.dataType.simpleString()):
                wrong.append((text, plain, field.dataType.simpleString(), kind))
    assert wrong == []


def simple(dtype: pl.DataType) -> str | None:
    """Spark's word for a type."""
    if isinstance(dtype, pl.Decimal):
        return f"decimal({dtype.precision},{dtype.scale})"
    words = {pl.Int8: "tinyint", pl.Int32: "int", pl.Int64: "bigint", pl.Float64: "double", pl.String: "string"}
    words |= {pl.Boolean: "boolean", pl.Date: "date", pl.Datetime: "timestamp"}
    return words.get(type(dtype))
