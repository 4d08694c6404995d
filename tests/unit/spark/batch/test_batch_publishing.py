"""Results leave in portions that are always the same, and each is published once."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.rows.ipc import encode_rows
from headrace.rows.pieces import SCHEMA, TIME, Piece, as_batch
from headrace.spark.batch import runner as publishing
from headrace.spark.batch.runner import pieces_of, portions


def piece(stream: str, partition: int, number: int, rows: int) -> Piece:
    frame = pl.DataFrame({"n": [number] * rows, TIME: [number] * rows})
    return Piece(stream, partition, number, number, rows, "w", number, encode_rows(frame))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The results of a run: three files, as Spark writes them."""
    parts = [
        [piece("counts", 0, n, 30) for n in range(20)],
        [piece("counts", 1, n, 30) for n in range(3)],
        [piece("other", 0, 1, 5)],
    ]
    for number, pieces in enumerate(parts):
        pq.write_table(pa.Table.from_batches([as_batch(pieces)], SCHEMA), tmp_path / f"part-{number:05}.parquet")
    return tmp_path


def test_pieces_of_an_output_come_by_partition_in_their_order(folder: Path) -> None:
    found = [(one.partition, one.number) for one in pieces_of(folder, "counts")]
    assert found == [*((0, n) for n in range(20)), *((1, n) for n in range(3))]
    assert [one.rows for one in pieces_of(folder, "other")] == [5]
    assert list(pieces_of(folder, "none")) == []


def test_portions_are_of_one_partition_and_not_much_larger_than_need_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PORTION_ROWS", 100)
    cut = [[one.number for one in some] for some in portions(pieces_of(folder, "counts"))]
    assert cut == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19], [0, 1, 2]]
