"""DataFrames that are inputs: Spark's executors copy each to files that containers read.

A copy is a folder of Parquet files and a record of what is in them. It is made once, before the app first runs, under a
hidden name, and renamed when it is durable; from then on it never changes, because tasks keep their positions in it. A
lock keeps two starts from making it at once. The first Ctrl-C cancels the copying.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import MapType

from headrace.api.dataframe import DataFrameInput
from headrace.api.specs import StreamSpec
from headrace.core.errors import (
    DataError,
    DeploymentError,
    InfrastructureError,
    StorageError,
    UnavailableError,
    UsageError,
)
from headrace.core.files import (
    decode_record,
    make_private,
    make_private_folder,
    open_private,
    replace_file,
    sync_file,
    sync_folder,
    writing,
)
from headrace.core.log import logger
from headrace.rows.dtypes import Columns, columns_from_json, columns_to_json, written
from headrace.rows.hashing import partition_of
from headrace.run.coordinated import Interrupts
from headrace.run.spark.hosting import run_watched
from headrace.run.spark.session import prepare_workers

FORMAT = 1
_PART = re.compile(r"part-(\d{5,})-")
RECORD = "_copy.json"
FILE_ROWS_MAX = 1_000_000
_GROUP_BYTES = 16 << 20
"""The size of a row group: what a container decodes at once."""

_STANDARD = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_log = logger(__name__)


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is in a copy. ``key``: file n has the rows whose hash of these columns is n modulo the number of files."""

    format: int = FORMAT
    columns: dict[str, Any]
    ordered_by: str
    key: tuple[str, ...] = ()
    rows: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an app wants of a copy. With a ``key`` there is a file for each of ``partitions``."""

    columns: Columns
    ordered_by: str = ""
    key: tuple[str, ...] = ()
    partitions: int = 1


_DECODER = msgspec.json.Decoder(CopyRecord)


class DataFrameCopy:
    """The copy of one input's DataFrame, in this folder; ``stream`` names the input in errors."""

    def __init__(self, folder: Path, list_file: Path, stream: str) -> None:
        self.folder, self._list_file, self._stream = folder, list_file, stream

    def record(self) -> CopyRecord | None:
        try:
            data = (self.folder / RECORD).read_bytes()
        except FileNotFoundError:
            if self.folder.exists() or self._list_file.exists():
                raise DeploymentError(
                    f"the copy of the DataFrame of {self._stream} in {self.folder} is gone or incomplete, and the app "
                    "may have read some of it",
                    hint="put it back; or rename the input or the app to copy the DataFrame again",
                ) from None
            return None
        except OSError as error:
            raise StorageError(f"can't read {self.folder / RECORD}: {error}") from error
        return decode_record(_DECODER, data, f"the record {self.folder / RECORD}", FORMAT)

    def check(self, record: CopyRecord, wanted: Wanted) -> None:
        there = columns_from_json(record.columns)
        wrong = [
            f"{name!r} was {written(there[name])} and is {written(dtype)}"
            if name in there
            else f"{name!r} ({written(dtype)}) is new"
            for name, dtype in wanted.columns.items()
            if there.get(name) != dtype
        ]
        if wrong:
            raise DeploymentError(
                f"{self._stream} reads the copy of its DataFrame from the app's first run, but now has "
                f"different columns: {'; '.join(wrong)}",
                hint="restore the former columns; or rename the input or the app to copy it again",
            )
        if wanted.ordered_by and record.ordered_by != wanted.ordered_by:
            before = f"in the order of {record.ordered_by!r}" if record.ordered_by else "in no order"
            raise self._changed(f"has the event time {wanted.ordered_by!r} now", before)
        if wanted.key and record.key != wanted.key:
            before = f"by {', '.join(record.key)}" if record.key else "by no key"
            raise self._changed(f"has key={', '.join(wanted.key)} now", before)
        if wanted.key and record.files != wanted.partitions:
            raise self._changed(f"has {wanted.partitions} partitions now", f"for {record.files}")

    def _changed(self, now: str, before: str) -> DeploymentError:
        return DeploymentError(
            f"{self._stream} {now}, but the copy of its DataFrame from the app's first run is {before}",
            hint="declare it as before; or rename the input or the app to copy it again",
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the copy for the block. Raises ``UnavailableError`` if another process is making it."""
        place = self.folder.with_name(f".{self.folder.name}.lock")
        with writing(place):
            make_private_folder(place.parent)
            file = os.fdopen(open_private(place, os.O_WRONLY | os.O_APPEND), "ab")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UnavailableError(
                    f"another start of the app is copying the DataFrame of {self._stream}",
                    hint="wait until it runs, or end it",
                ) from error
            yield

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Yield a new hidden folder for the files, which is removed after the block. For use while locked."""
        prefix = f".{self.folder.name}-copy-"
        for left in self.folder.parent.glob(f"{prefix}*"):  # by a driver that died
            shutil.rmtree(left, ignore_errors=True)
        staging = self.folder.with_name(f"{prefix}{uuid.uuid4().hex}")
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def publish(self, staging: Path, wanted: Wanted) -> CopyRecord:
        """Make the files durable, and the copy of them, while locked. With a key, their names have their numbers."""
        try:
            files = _completed(staging, wanted)
            rows = sum(_checked(file, wanted.columns, self._stream) for file in files)
            record = CopyRecord(
                columns=columns_to_json(wanted.columns),
                ordered_by=wanted.ordered_by,
                key=wanted.key,
                rows=rows,
                files=len(files),
            )
            for file in staging.iterdir():
                if file in files:
                    sync_file(file)
                elif file.is_dir():
                    shutil.rmtree(file)
                else:
                    file.unlink()
            replace_file(staging / RECORD, msgspec.json.encode(record))
            make_private(staging)  # Spark has made it
            sync_folder(staging)
            staging.rename(self.folder)
            sync_folder(self.folder.parent)
        except OSError as error:
            raise StorageError(
                f"can't write the copy of the DataFrame of {self._stream} to {self.folder}: {error}",
                hint="free up disk space or check who owns the folder; then start the app again",
            ) from error
        return record


def _completed(staging: Path, wanted: Wanted) -> list[Path]:
    """The files, with those that Spark leaves out because they have no rows: files are dealt to partitions in order."""
    there = sorted(staging.glob("*.parquet"))
    numbers = range(wanted.partitions if wanted.key else 0 if there else 1)
    files = {_number(file): file for file in there} if wanted.key else {}
    if (len(files) != len(there) and wanted.key) or not files.keys() <= set(numbers):
        raise DataError(
            f"Spark has written {len(there)} files for {wanted.partitions} partitions: {there[0].name}, ...",
            hint="keep Spark's defaults for spark.sql.files.* and the commit protocol, or leave out key=",
        )
    for number in numbers:
        if number not in files:
            make_private_folder(staging)
            files[number] = staging / f"part-{number:05}-empty.parquet"
            pl.DataFrame(schema=dict(wanted.columns)).write_parquet(files[number])
    return [files[number] for number in numbers] if numbers else there


def _number(file: Path) -> int:
    found = _PART.match(file.name)
    return int(found[1]) if found else -1


def _checked(file: Path, columns: Columns, stream: str) -> int:
    there: Mapping[str, pl.DataType] = pl.read_parquet_schema(file)
    for name, dtype in columns.items():
        if there.get(name) != dtype:
            raise DataError(
                f"{stream}: Spark has written column {name!r} as {there.get(name)}, not as {dtype}",
                hint="keep Spark's defaults for spark.sql.parquet.*, or cast the column in the DataFrame",
            )
    return int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item())


def dataframe_of(spec: StreamSpec) -> DataFrame | None:
    held = spec.system.held
    return held.dataframe if isinstance(held, DataFrameInput) and isinstance(held.dataframe, DataFrame) else None


def key_of(spec: StreamSpec) -> tuple[str, ...]:
    """Return the columns by which the rows of a DataFrame are placed in partitions; none if it doesn't matter."""
    held = spec.system.held
    return held.key if isinstance(held, DataFrameInput) else ()


def copy_dataframes(inputs: Iterable[StreamSpec], interrupts: Interrupts | None = None) -> bool:
    """Copy the DataFrames of these inputs that haven't been copied yet. False if a signal asked to end meanwhile."""
    return all(_copy(spec, interrupts) for spec in inputs)


def _copy(spec: StreamSpec, interrupts: Interrupts | None) -> bool:
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
        context = dataframe.sparkSession.sparkContext
        if context._jsc is None or context._jsc.sc().isStopped():
            raise UsageError(
                f"the Spark session of the DataFrame of input {spec.id!r} ({spec.location}) has been stopped",
                hint="make the DataFrame in a session that runs until the app has started",
            )
        with copy.staged() as staging:
            _log.info("copying a DataFrame of Spark", input=spec.id, folder=str(copy.folder))
            rows_max = 0 if wanted.key else FILE_ROWS_MAX
            if not _write(_shaped(dataframe, wanted), rows_max, staging, spec, interrupts):
                return False
            record = copy.publish(staging, wanted)
    _log.info("copied a DataFrame of Spark", input=spec.id, rows=record.rows, files=record.files)
    return True


def _wanted(spec: StreamSpec) -> Wanted:
    options = spec.system.options
    declared = spec.schema.columns if spec.schema else {}
    return Wanted(
        columns={name: dtype for name, dtype in columns_from_json(options["columns"]).items() if name in declared},
        ordered_by=spec.event_time.column if spec.event_time else "",
        key=key_of(spec),
        partitions=options["partitions"],
    )


def _shaped(dataframe: DataFrame, wanted: Wanted) -> DataFrame:
    selected = without_maps(dataframe, wanted.columns)
    times = [_column(wanted.ordered_by)] if wanted.ordered_by else []
    if wanted.key:
        prepare_workers(dataframe.sparkSession.sparkContext)
        place = _placing(wanted.partitions)(*(_column(name) for name in wanted.key))
        placed = selected.repartitionById(wanted.partitions, place)
        return placed.sortWithinPartitions(*times) if times else placed
    return selected.sort(*times) if times else selected.hint("rebalance")


def without_maps(dataframe: DataFrame, columns: Iterable[str]) -> DataFrame:
    maps = {field.name for field in dataframe.schema.fields if isinstance(field.dataType, MapType)}
    selected = {name: _column(name) for name in columns}
    return dataframe.select([F.map_entries(c).alias(name) if name in maps else c for name, c in selected.items()])


def _placing(partitions: int) -> Callable[..., Column]:
    """A function of Spark from the columns of a key to the partition that ``partition_by`` would send it to."""

    def place(*keys: pa.Array) -> pa.Array:
        frame = pl.DataFrame({str(number): pl.from_arrow(key) for number, key in enumerate(keys)})
        return pa.array(partition_of(frame, frame.columns, partitions), pa.int32())

    # Spark's types want an argument that its code warns of: the hints of ``place`` say it.
    return cast("Callable[..., Column]", cast("Any", arrow_udf)(place, "int"))


def _column(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _write(dataframe: DataFrame, rows_max: int, folder: Path, spec: StreamSpec, interrupts: Interrupts | None) -> bool:
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
