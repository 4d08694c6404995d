"""The data source ``headrace`` of Spark. Spark makes an object of it for each use, and pickles it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from headrace.core.errors import UsageError
from headrace.core.home import home_of
from headrace.spark.read_options import ReadOptions
from headrace.spark.reading import BatchReader, StreamSource
from headrace.spark.stream_reading import StreamingReader
from headrace.spark.table_reading import OPTION, TableBatchReader, TableSource


class HeadraceDataSource(DataSource):
    """Streams and tables as DataFrames, and DataFrames into streams."""

    home: ClassVar[str | None] = None
    """The folder of the log if an option doesn't name one; None: as the process finds it that plans the query."""

    @override
    @classmethod
    def name(cls) -> str:
        return "headrace"

    @override
    def schema(self) -> StructType:
        if OPTION in self.options:
            return TableSource.of(self.options, self.home).schema()
        return StreamSource(self._read_options(streaming=None)).schema()

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        if OPTION in self.options:
            return TableBatchReader(TableSource.of(self.options, self.home), schema)
        return BatchReader(self._read_options(streaming=False), schema)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if OPTION in self.options:
            raise UsageError(
                f"table {self.options[OPTION]!r} can't be read as a stream",
                hint="read the stream that fills it, or the table with spark.read",
            )
        return StreamingReader(self._read_options(streaming=True), schema)

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.writing import BatchWriter  # a reader's process doesn't need it

        return BatchWriter(self._write_options(), schema, overwrite)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.spark.stream_writing import StreamWriter

        return StreamWriter(self._write_options(), schema, overwrite)

    def _read_options(self, *, streaming: bool | None) -> ReadOptions:
        return ReadOptions.of(self.options, self.home, streaming=streaming)

    def _write_options(self) -> Mapping[str, str]:
        """The options, with the folder of the log among them."""
        given = dict(self.options.items())
        return given | {"home": str(home_of(given.get("home") or self.home).absolute())}
