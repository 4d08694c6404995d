"""The copy of a DataFrame that an app reads: a folder of Parquet files and a record of what is in them.

It is made once, before the app first runs, under a hidden name, and renamed when it is durable; from then on it never
changes, because tasks keep their positions in it. A lock keeps two starts from making it at once.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from headrace.core.durable import replace_file, sync_file, sync_folder, writing
from headrace.core.errors import DataError, DeploymentError, StorageError, UnavailableError
from headrace.core.private_folder import make_private, make_private_folder, open_private
from headrace.core.records import decode_record
from headrace.serdes.dtypes import Columns, columns_from_json, columns_to_json, written

FORMAT = 1
_PART = re.compile(r"part-(\d{5,})-")
RECORD = "_copy.json"


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is in a copy. ``columns`` are in the durable form of types; ``ordered_by`` is the event time or empty.

    ``key``: file n has the rows whose hash of these columns is n modulo the number of files.
    """

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
        self.folder = folder
        self._list_file = list_file
        self._stream = stream

    def record(self) -> CopyRecord | None:
        """Return its contents; None if it hasn't been made. Raises ``DeploymentError`` if it was deleted."""
        try:
            data = (self.folder / RECORD).read_bytes()
        except FileNotFoundError:
            if self.folder.exists() or self._list_file.exists():
                raise self._gone() from None
            return None
        except OSError as error:
            raise StorageError(f"can't read {self.folder / RECORD}: {error}") from error
        return decode_record(_DECODER, data, f"the record {self.folder / RECORD}", FORMAT)

    def check(self, record: CopyRecord, wanted: Wanted) -> None:
        """Raise ``DeploymentError`` if the copy isn't what the app wants now."""
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
        """Yield a new hidden folder for the files, which is removed after the block. Call it while locked."""
        prefix = f".{self.folder.name}-copy-"
        for left in self.folder.parent.glob(f"{prefix}*"):  # by a driver that died
            shutil.rmtree(left, ignore_errors=True)
        staging = self.folder.with_name(f"{prefix}{uuid.uuid4().hex}")
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def publish(self, staging: Path, wanted: Wanted) -> CopyRecord:
        """Make the files that are in ``staging`` durable, and the copy of them. Call it while locked.

        With a key, Spark has written at most one file for each partition, whose number its name begins with.
        """
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

    def _gone(self) -> DeploymentError:
        return DeploymentError(
            f"the copy of the DataFrame of {self._stream} in {self.folder} is gone or incomplete, and the app may have "
            "read some of it",
            hint="put it back; or rename the input or the app to copy the DataFrame again",
        )


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
    """The number of a file's rows. Raises ``DataError`` if Spark has written other types than it said."""
    there: Mapping[str, pl.DataType] = pl.read_parquet_schema(file)
    for name, dtype in columns.items():
        if there.get(name) != dtype:
            raise DataError(
                f"{stream}: Spark has written column {name!r} as {there.get(name)}, not as {dtype}",
                hint="keep Spark's defaults for spark.sql.parquet.*, or cast the column in the DataFrame",
            )
    return int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item())
