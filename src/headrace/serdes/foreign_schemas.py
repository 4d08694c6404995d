"""Schemas and types of PyArrow, Spark and Pydantic as columns of a stream.

A program with a schema of such a library has imported the library, so this module needn't import it for others.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import polars as pl

from headrace.core.errors import DeclarationError


def columns_of_schema(declared: object) -> dict[str, pl.DataType] | None:
    """The columns of a ``pyarrow.Schema`` or of Spark's ``StructType``; None if it is neither."""
    arrow, spark = _arrow(), _spark()
    if arrow is not None and isinstance(declared, arrow.Schema):
        return {field.name: _of_arrow(field.type, field.name) for field in declared}
    if spark is not None and isinstance(declared, spark.StructType):
        return dict(_types().to_polars_columns(declared))
    return None


def type_of(declared: object, column: str) -> pl.DataType | None:
    """The Polars type for a type of PyArrow or Spark, as an instance or as Spark's class; None if it is neither."""
    arrow, spark = _arrow(), _spark()
    if arrow is not None and isinstance(declared, arrow.DataType):
        return _of_arrow(declared, column)
    if spark is None:
        return None
    if isinstance(declared, type) and issubclass(declared, spark.AtomicType):
        declared = declared()
    if isinstance(declared, spark.DataType):
        found: pl.DataType = _types().to_polars_type(declared, column)
        return found
    return None


def model_fields(record: object) -> list[str] | None:
    """Return the names of the fields of a Pydantic model class; None for anything else."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(record, type) or not issubclass(record, pydantic.BaseModel):
        return None
    fields: dict[str, Any] = getattr(record, "model_fields", {})
    return list(fields)


def _arrow() -> Any:
    return sys.modules.get("pyarrow")


def _spark() -> Any:
    return sys.modules.get("pyspark.sql.types")


def _types() -> Any:
    return import_module("headrace.spark.types")  # this imports Spark, which is installed in this case


def _of_arrow(declared: Any, column: str) -> pl.DataType:
    try:
        found = pl.from_arrow(_arrow().table({column: _arrow().array([], declared)}))
    except (pl.exceptions.PolarsError, NotImplementedError, ValueError, _arrow().ArrowException) as error:
        raise DeclarationError(
            f"column {column!r}: a stream can't hold values of PyArrow's type {declared}: {error}",
            hint="give the column a Polars type, and cast it where it is written",
        ) from None
    assert isinstance(found, pl.DataFrame)
    return found.dtypes[0]
