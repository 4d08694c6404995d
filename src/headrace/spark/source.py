"""The data source ``headrace``, of which Spark makes and pickles an object for each use; and its registration."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from headrace.core.deployment import home_of
from headrace.core.errors import UsageError
from headrace.spark.reading import OPTION, BatchReader, ReadOptions, StreamSource, TableBatchReader, TableSource
from headrace.spark.streaming import StreamingReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        from headrace.spark.writing import BatchWriter

        return BatchWriter(self._write_options(), schema, overwrite)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.spark.streaming import StreamWriter

        return StreamWriter(self._write_options(), schema, overwrite)

    def _read_options(self, *, streaming: bool | None) -> ReadOptions:
        return ReadOptions.of(self.options, self.home, streaming=streaming)

    def _write_options(self) -> Mapping[str, str]:
        given = dict(self.options.items())
        return given | {"home": str(home_of(given.get("home") or self.home).absolute())}


def register(spark: SparkSession, home: str | Path | None = None) -> None:
    """Make the format ``headrace`` known to the session ``spark``.

    Spark finds it by itself where Headrace is installed. Registering also says which Python to start on one machine,
    and where the log is, for readers and writers without the option ``home``: the processes that Spark starts don't
    know the driver's folder and environment. By default ``home`` is the deployment's, or ``.headrace``, as it is at
    this moment.

    Examples
    --------
    >>> hr.spark.register(spark)
    >>> spark.read.format("headrace").load("orders").show()
    +------+-----+
    |member|euros|
    +------+-----+
    |   ann|  5.0|
    |   ann|  2.0|
    +------+-----+
    <BLANKLINE>
    """
    from headrace.run.spark.session import prepare_session

    prepare_session(spark)
    there = str(home_of(home).absolute())
    spark.dataSource.register(type("HeadraceDataSource", (HeadraceDataSource,), {"home": there}))


def read_frame(name: str, *, committed: bool, home: Path) -> Any:
    """A DataFrame over a stream of the log in ``home``. Spark reads it when it is used, in its own processes."""
    session = _session()
    register(session, home)
    options = {"home": str(home.absolute()), "committed": str(committed).lower()}
    return session.read.format("headrace").options(**options).load(name)


def _session() -> Any:
    """The active session, of Spark Connect or of this driver; else a new one."""
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None and (session := connect.SparkSession.getActiveSession()) is not None:
        return session
    from headrace.run.spark.session import open_session

    return open_session("headrace")
