"""DataFrames that are inputs: before an app first runs, Spark's executors copy each to files that containers read.

The first Ctrl-C cancels that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import MapType

from headrace.api.dataframe import DataFrameInput
from headrace.api.specs import StreamSpec
from headrace.core.errors import InfrastructureError, UsageError
from headrace.core.log import logger
from headrace.runners.dataframe_copy import DataFrameCopy, Wanted
from headrace.runners.interrupts import Interrupts
from headrace.runners.spark.session import prepare_workers
from headrace.runners.spark.watched_job import run_watched
from headrace.serdes.dtypes import columns_from_json
from headrace.serdes.hashing import partition_of

FILE_ROWS_MAX = 1_000_000
_GROUP_BYTES = 16 << 20
"""The size of a row group: what a container decodes at once."""

_STANDARD = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_log = logger(__name__)


def dataframe_of(spec: StreamSpec) -> DataFrame | None:
    """The DataFrame that an input was declared with; None for other streams, and in containers."""
    held = spec.system.held
    return held.dataframe if isinstance(held, DataFrameInput) and isinstance(held.dataframe, DataFrame) else None


def key_of(spec: StreamSpec) -> tuple[str, ...]:
    """The columns by which the rows of a DataFrame are placed in partitions; none if it doesn't matter."""
    held = spec.system.held
    return held.key if isinstance(held, DataFrameInput) else ()


def copy_dataframes(inputs: Iterable[StreamSpec], interrupts: Interrupts | None = None) -> bool:
    """Copy the DataFrames of these inputs that haven't been copied yet. False if a signal asked to end meanwhile.

    Raises ``DeploymentError`` if a copy has other columns than the app now wants, ``UsageError`` if the session of a
    DataFrame has ended, and ``InfrastructureError`` if Spark can't compute it. Then nothing is left of that copy.
    """
    return all(_copy(spec, interrupts) for spec in inputs)


def _copy(spec: StreamSpec, interrupts: Interrupts | None) -> bool:
    """Copy a DataFrame, unless the copy exists. Return False if a signal ended it."""
    options = spec.system.options
    copy = DataFrameCopy(Path(options["path"]), Path(options["list_file"]), f"input {spec.id!r} ({spec.location})")
    wanted = _wanted(spec)
    if (record := copy.record()) is not None:
        copy.check(record, wanted)
        return True
    with copy.locked():
        if (record := copy.record()) is not None:  # another start was quicker
            copy.check(record, wanted)
            return True
        dataframe = dataframe_of(spec)
        if dataframe is None:
            raise InfrastructureError(f"input {spec.id!r} has no DataFrame in this process")
        _check_alive(dataframe, spec)
        with copy.staged() as staging:
            _log.info("copying a DataFrame of Spark", input=spec.id, folder=str(copy.folder))
            if not _write(_shaped(dataframe, wanted), staging, spec, interrupts):
                return False
            record = copy.publish(staging, wanted)
    _log.info("copied a DataFrame of Spark", input=spec.id, rows=record.rows, files=record.files)
    return True


def _wanted(spec: StreamSpec) -> Wanted:
    options, held = spec.system.options, spec.system.held
    declared = spec.schema.columns if spec.schema else {}
    return Wanted(
        columns={name: dtype for name, dtype in columns_from_json(options["columns"]).items() if name in declared},
        ordered_by=spec.event_time.column if spec.event_time else "",
        key=held.key if isinstance(held, DataFrameInput) else (),
        partitions=options["partitions"],
    )


def _check_alive(dataframe: DataFrame, spec: StreamSpec) -> None:
    context = dataframe.sparkSession.sparkContext
    if context._jsc is None or context._jsc.sc().isStopped():
        raise UsageError(
            f"the Spark session of the DataFrame of input {spec.id!r} ({spec.location}) has been stopped",
            hint="make the DataFrame in a session that runs until the app has started",
        )


def _shaped(dataframe: DataFrame, wanted: Wanted) -> DataFrame:
    """The rows as they are copied: only these columns, by the event time if there is one, in files of a good size.

    With a key, each of Spark's partitions becomes one file, however large it is.
    """
    selected = without_maps(dataframe, wanted.columns)
    times = [_column(wanted.ordered_by)] if wanted.ordered_by else []
    if wanted.key:
        prepare_workers(dataframe.sparkSession.sparkContext)
        place = _placing(wanted.partitions)(*(_column(name) for name in wanted.key))
        placed = selected.repartitionById(wanted.partitions, place)
        return placed.sortWithinPartitions(*times) if times else placed
    return selected.sort(*times) if times else selected.hint("rebalance")


def without_maps(dataframe: DataFrame, columns: Iterable[str]) -> DataFrame:
    """These columns, with maps as lists of their entries: Polars has no maps."""
    maps = {field.name for field in dataframe.schema.fields if isinstance(field.dataType, MapType)}
    return dataframe.select([_selected(name, name in maps) for name in columns])


def _placing(partitions: int) -> Callable[..., Column]:
    """A function of Spark from the columns of a key to the partition that ``partition_by`` would send it to."""

    def place(*keys: pa.Array) -> pa.Array:
        frame = pl.DataFrame({str(number): pl.from_arrow(key) for number, key in enumerate(keys)})
        return pa.array(partition_of(frame, frame.columns, partitions), pa.int32())

    # Spark's types want an argument that its code warns of: the hints of ``place`` say it.
    return cast("Callable[..., Column]", cast("Any", arrow_udf)(place, "int"))


def _selected(name: str, is_map: bool) -> Column:
    return F.map_entries(_column(name)).alias(name) if is_map else _column(name)


def _column(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _write(dataframe: DataFrame, folder: Path, spec: StreamSpec, interrupts: Interrupts | None) -> bool:
    """Have Spark write files. False if a signal has cancelled that."""
    rows_max = 0 if _wanted(spec).key else FILE_ROWS_MAX

    def run() -> None:
        with _standard(dataframe.sparkSession):
            writer = dataframe.write.option("maxRecordsPerFile", rows_max)
            writer.option("parquet.block.size", _GROUP_BYTES).option("compression", "zstd").parquet(folder.as_uri())

    named = f"headrace copies the DataFrame of {spec.id}"
    return run_watched(dataframe.sparkSession.sparkContext, named, run, partial(_failed, spec), interrupts)


@contextmanager
def _standard(session: SparkSession) -> Iterator[None]:
    """Parquet is written as its standard says during the block, whatever the session has set."""
    before = {name: session.conf.get(name, None) for name in _STANDARD}
    try:
        for name, value in _STANDARD.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, was)


def _failed(spec: StreamSpec, said: str) -> InfrastructureError:
    lines = [line for line in said.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "..."))]
    return InfrastructureError(
        f"Spark couldn't copy the DataFrame of input {spec.id!r} ({spec.location}): {' '.join(lines[:10])[:1000]}",
        hint="try df.count() in the same session; what Spark logged above says more. Nothing was kept of the copy",
    )
