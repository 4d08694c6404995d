"""A DataFrame of Spark is written to a stream as it is."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import headrace as hr
from headrace.core.errors import DataError


def test_a_dataframe_of_spark_is_written(tmp_path: Path, spark_context: SparkContext) -> None:
    session = SparkSession(spark_context)
    orders = session.createDataFrame([("ann", 5.0), ("bob", None)], "member string, euros double")
    hr.streams.create_stream("orders", 1, {"member": pl.String, "euros": pl.Float64}, home=tmp_path)
    with hr.streams.StreamWriter("orders", home=tmp_path) as writer:
        writer.write(orders)
        with pytest.raises(DataError, match="orders has no column 'currency'; it has member, euros"):
            writer.write(orders.selectExpr("*", "'EUR' AS currency"))
    (batch,) = hr.streams.StreamReader("orders", home=tmp_path)
    assert batch.rows() == [("ann", 5.0), ("bob", None)]
