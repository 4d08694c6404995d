"""A table of a running app as a DataFrame: each Spark task asks one task of the app for its rows, page by page.

The app answers from committed state (see ``runners/tables``). The rows of one page are of one commit; a later page may
be of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from headrace.core.errors import UsageError
from headrace.core.home import home_of
from headrace.metadata.opening import existing_metadata
from headrace.runners.coordination.query_messages import LIMIT_MAX, LIMIT_MS_MAX
from headrace.runners.tables.finding import find_table
from headrace.runners.tables.reader import TableReader
from headrace.runners.tables.routing import TableColumns
from headrace.spark.arrow_rows import ArrowRows
from headrace.spark.types import to_spark_schema

OPTION = "table"

_OPTIONS = (OPTION, "home")


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table of an app that runs from a home. Can be pickled."""

    home: Path
    app: str
    table: str
    columns: Mapping[str, pl.DataType]
    tasks: tuple[int | None, ...]
    """What to ask one by one: the tasks of the table by their numbers, or None for any one that has all rows."""

    @classmethod
    def of(cls, options: Mapping[str, str], home: str | None = None) -> TableSource:
        """Find the table that the options name. ``home`` is the folder of the app if they name none."""
        for name in options:
            if name.lower() not in _OPTIONS:
                raise UsageError(
                    f"option {name!r} can't be used with {OPTION}",
                    hint=f"a table has the options {', '.join(_OPTIONS)}",
                )
        app, slash, table = options[OPTION].partition("/")
        if not (app and slash and table):
            raise UsageError(f"option {OPTION} must be app/table, not {options[OPTION]!r}", hint='write "shop/prices"')
        there = home_of(options.get("home") or home).absolute()
        with existing_metadata(there, None) as store:
            facts = find_table(store, app, table)[1]
        tasks = (None,) if facts.kind == "global" else tuple(range(len(facts.tasks)))
        return cls(there, app, table, TableColumns(facts).schema, tasks)

    def schema(self) -> StructType:
        """The columns that Spark gets."""
        return to_spark_schema(self.columns)

    def pages(self, task: int | None) -> Iterator[pl.DataFrame]:
        """Yield the rows of a task, of all rows for None."""
        with TableReader(self.app, self.table, home=self.home, timeout=f"{LIMIT_MS_MAX}ms") as reader:
            yield reader.scan(limit=LIMIT_MAX, partition=task)
            while reader.after is not None:
                yield reader.scan(limit=LIMIT_MAX, partition=task, after=reader.after)


class TableBatchReader(DataSourceReader):
    """Reads a table as of the moment when each of its tasks is asked."""

    def __init__(self, source: TableSource, schema: StructType) -> None:
        self._source = source
        self._rows = ArrowRows(schema, source.columns, f"table {source.table!r} of app {source.app!r}")

    @override
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._source.tasks]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for page in self._source.pages(partition.value):
            if page.height:
                yield from self._rows.batches(self._rows.table([self._rows.conformed(page)]))
