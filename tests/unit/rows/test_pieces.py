"""Pieces of a batch job as tables of Spark."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from headrace.core.errors import DataError
from headrace.rows import pieces
from headrace.rows.pieces import SCHEMA, Piece, as_batch, pieces_in

SOME = [
    Piece("views", 0, -(2**63), 2**63 - 1, 3, "by-member-0", 1, b"rows"),
    Piece("übersicht", 2**31 - 1, -1, 0, 0, "", 2**40, b""),
]


def test_a_table_of_pieces_is_as_arrow_makes_it() -> None:
    batch = as_batch(SOME)
    batch.validate(full=True)
    columns = [pa.array([getattr(piece, field.name) for piece in SOME], field.type) for field in SCHEMA]
    assert batch.equals(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    assert list(pieces_in(batch)) == SOME
    assert list(pieces_in(as_batch([]))) == []


def test_a_worker_makes_a_table_without_loading_pandas() -> None:
    code = (
        "import sys; from headrace.rows.pieces import Piece, as_batch, pieces_in; "
        "list(pieces_in(as_batch([Piece('s', 0, 1, 2, 3, 'w', 4, b'x')]))); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_what_doesnt_fit_into_a_table_of_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_BYTES_MAX", 3)
    with pytest.raises(DataError, match="have 4 bytes, but Spark takes at most 3 at a time"):
        as_batch([Piece("s", 0, 0, 0, 1, "w", 1, b"four")])
