"""Readers of the data source, called as Spark calls them, without a session."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from app_task import AppTask
from headrace.core.ids import StreamId
from headrace.spark.reading import BatchReader
from headrace.spark.source import HeadraceDataSource
from headrace.spark.streaming import StreamingReader
from headrace.systems.log.system import LogSystem

ALL = ReadAllAvailable()
NUMBERS = StreamId("log", "numbers")


def source(home: Path, **options: object) -> HeadraceDataSource:
    return HeadraceDataSource({"path": "numbers", "home": str(home)} | {k: str(v) for k, v in options.items()})


def batch(home: Path, **options: object) -> BatchReader:
    made = source(home, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, BatchReader)
    return reader


def stream(home: Path, **options: object) -> StreamingReader:
    made = source(home, **{"startingOffsets": "earliest"} | options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamingReader)
    return reader


def rows_of(reader: BatchReader | StreamingReader, parts: Any) -> list[dict[str, Any]]:
    """What executors read: each gets copies of the reader and of its part."""
    return [
        row
        for part in parts
        for records in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(part)))
        for row in records.to_pylist()
    ]


def numbers(reader: BatchReader | StreamingReader, parts: Any) -> list[int]:
    return [row["n"] for row in rows_of(reader, parts)]


def read(home: Path, **options: object) -> list[int]:
    reader = batch(home, **options)
    return sorted(numbers(reader, reader.partitions()))


def ends(home: Path) -> dict[str, int]:
    extents = LogSystem(home / "streams").admin().extents("numbers")
    return {str(number): extent.upcoming for number, extent in enumerate(extents)}


def write(home: Path, *values: int, partition: int = 0) -> None:
    """Committed rows, a frame for each."""
    task = AppTask(home, 7 + partition + values[0] * 10, partition)
    task.start()
    for value in values:
        task.rows(value)
    task.commit()
    task.close()
