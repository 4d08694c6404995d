"""What the tests of the files system share."""

from __future__ import annotations

import polars as pl

from headrace.core.ids import SSP, StreamId
from headrace.systems.base import BadRecord, Edge, Ended, Position, Rows
from headrace.systems.files.consumer import FilesConsumer
from headrace.systems.files.stock import offset_of, place_of
from headrace.systems.files.system import FilesSystem


def ssp(partition: int = 0) -> SSP:
    return SSP(StreamId("files", "input"), partition)


def read(
    system: FilesSystem, position: Position = Edge.OLDEST, partition: int = 0, max_bytes: int = 1 << 20
) -> tuple[list[Rows], int]:
    """All rows of a partition, and how many row numbers its files have from there on. Also checks the offsets."""
    consumer = system.consumer()
    try:
        consumer.register(ssp(partition), position)
        return _read_on(consumer, partition, max_bytes)
    finally:
        consumer.close()


def _read_on(consumer: FilesConsumer, partition: int, max_bytes: int) -> tuple[list[Rows], int]:
    got: list[Rows] = []
    at, numbers = consumer.position(ssp(partition)), 0
    while True:
        for item in consumer.poll(max_bytes=max_bytes):
            if isinstance(item, Ended):
                assert consumer.poll() == []
                assert item.next == consumer.position(ssp(partition))
                return got, numbers
            assert isinstance(item, Rows)
            assert item.offset >= at
            at = item.next
            if not item.frame.height and not item.bad:
                assert item.next == offset_of(place_of(item.offset)[0] + 1)
                numbers += place_of(item.offset)[1]
                continue
            assert item.place
            assert item.frame.height + len(item.bad) == item.next - item.offset
            assert all(item.offset <= record.offset < item.next for record in item.bad)
            got.append(item)


def rows_of(got: list[Rows]) -> list[tuple[object, ...]]:
    return [row for item in got for row in item.frame.rows()]


def bad_of(got: list[Rows]) -> list[BadRecord]:
    return [record for item in got for record in item.bad]


def placed(got: list[Rows]) -> dict[int, tuple[object, ...]]:
    """Every good row by its offset."""
    places: dict[int, tuple[object, ...]] = {}
    for item in got:
        bad = {record.offset for record in item.bad}
        offsets = [offset for offset in range(item.offset, item.next) if offset not in bad]
        places.update(zip(offsets, item.frame.rows(), strict=True))
    return places


def table(count: int) -> pl.DataFrame:
    return pl.DataFrame({"member": [f"m{i % 7}" for i in range(count)], "ts": range(count)})
