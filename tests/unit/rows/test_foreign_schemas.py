"""Schemas that are written with the types of Python, PyArrow, Spark and Pydantic."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Optional

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

import headrace as hr
from headrace.core.errors import DeclarationError
from headrace.rows.schema import Schema

VISIT: dict[str, pl.DataType] = {
    "member": pl.String(),
    "seen": pl.Datetime("us"),
    "euros": pl.Float64(),
    "tags": pl.List(pl.String()),
}


@dataclass
class Place:
    city: str
    zip: int


def test_types_of_python() -> None:
    hints: dict[str, Any] = {"member": str, "seen": datetime, "euros": float, "tags": list[str]}
    assert Schema.of(hints).columns == VISIT
    some: dict[str, Any] = {"day": date | None, "n": Optional[int], "place": Place}  # noqa: UP045 - people write it
    assert Schema.of(some).columns == {
        "day": pl.Date(),
        "n": pl.Int64(),
        "place": pl.Struct({"city": pl.String, "zip": pl.Int64}),
    }


def test_pyarrow() -> None:
    declared = pa.schema(
        {"member": pa.string(), "seen": pa.timestamp("us"), "euros": pa.float64(), "tags": pa.list_(pa.string())}
    )
    assert Schema.of(declared).columns == VISIT
    assert Schema.of({"n": pa.int16(), "at": pa.timestamp("ms", "UTC")}).columns == {
        "n": pl.Int16(),
        "at": pl.Datetime("ms", "UTC"),
    }
    with pytest.raises(DeclarationError, match="column 'x': a stream can't hold values of PyArrow's type"):
        Schema.of(pa.schema({"x": pa.sparse_union([])}))


def test_spark() -> None:
    declared = spark.StructType(
        [
            spark.StructField("member", spark.StringType()),
            spark.StructField("seen", spark.TimestampNTZType()),
            spark.StructField("euros", spark.DoubleType()),
            spark.StructField("tags", spark.ArrayType(spark.StringType())),
        ]
    )
    assert Schema.of(declared).columns == VISIT
    assert Schema.of({"n": spark.ShortType(), "m": spark.LongType}).columns == {"n": pl.Int16(), "m": pl.Int64()}
    with pytest.raises(DeclarationError, match="column 'm': a stream can't hold Spark's MAP") as caught:
        Schema.of({"m": spark.MapType(spark.StringType(), spark.LongType())})
    assert "map_entries" in str(caught.value.hint)


def test_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    home = pydantic.create_model("Home", city=(str, ...))
    model = pydantic.create_model(
        "Visit", member=(str, ...), seen=(datetime, ...), euros=(float, 0.0), tags=(list[str], []), at=(home, ...)
    )
    schema = Schema.of(model)
    assert schema.columns == VISIT | {"at": pl.Struct({"city": pl.String})}
    assert schema.record is None  # functions get dicts
    with pytest.raises(DeclarationError, match=r"column Odd\.what: .* isn't a type that a column can have"):
        Schema.of(pydantic.create_model("Odd", what=(complex, ...)))


def test_none_of_them_is_imported_for_others() -> None:
    script = (
        "import sys, polars as pl; from headrace.rows.schema import Schema; Schema.of({'a': pl.Int64, 'b': int}); "
        "print(sorted({'pydantic', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_an_app_takes_them() -> None:
    app = hr.App("shop", home="unused")
    rows = app.input("rows", pa.schema({"n": pa.int64()}))
    frames = app.input("frames", spark.StructType([spark.StructField("n", spark.LongType())]))
    rows.merge(frames).send_to(app.output("out"))
    assert "n Int64" in repr(rows)
    assert repr(rows).split(":", 1)[1] == repr(frames).split(":", 1)[1]
