"""Rows of Polars as Arrow batches of a schema of Spark: the columns that are asked for, with the same values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.core.errors import DataError
from headrace.serdes.rows import concat_rows
from headrace.serdes.schema import Schema, nulls
from headrace.spark.types import as_spark_has_it, to_polars_columns

ROWS_PER_BATCH = 32_768
"""The most rows of one Arrow batch. Spark holds a few batches of each task at a time."""


class ArrowRows:
    """Makes batches of one schema. Can be pickled."""

    def __init__(
        self, schema: StructType, declared: Mapping[str, pl.DataType] | None, where: str, added: Sequence[str] = ()
    ) -> None:
        """``declared`` are the columns that there are (None: not known), ``added`` those that the caller adds.

        Raises ``DeclarationError`` for a column that isn't there. ``where`` begins the message.
        """
        self.columns = to_polars_columns(schema)
        self._target: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        own = {name: dtype for name, dtype in self.columns.items() if name not in added}
        self._wanted = Schema(own) if own else None
        if declared is not None:
            Schema(declared).require(own, where)

    def conformed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with the columns that are asked for, in their order; null where one is missing.

        Raises ``DataError`` for a value that doesn't fit its column.
        """
        if self._wanted is None:
            return pl.DataFrame()
        names = set(rows.columns)
        found = [
            as_spark_has_it(rows.get_column(name)) if name in names else nulls(name, dtype, rows.height)
            for name, dtype in self._wanted.columns.items()
        ]
        fitted, mismatch = self._wanted.conform(pl.DataFrame(found))
        if mismatch is not None:
            raise DataError(
                mismatch.error().message, hint="give the column its own type in .schema(...), and cast it in Spark"
            )
        return fitted

    def table(self, rows: Sequence[pl.DataFrame]) -> pa.Table:
        """Return conforming rows, with the columns that the caller has added, as Spark expects them."""
        try:
            return concat_rows(rows).to_arrow().cast(self._target)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"the rows don't fit the schema: {error}", hint="check NOT NULL in the schema") from error

    @staticmethod
    def batches(table: pa.Table) -> list[pa.RecordBatch]:
        """Return a table in pieces that aren't too large for Spark."""
        found: list[pa.RecordBatch] = table.to_batches(max_chunksize=ROWS_PER_BATCH)
        return found
