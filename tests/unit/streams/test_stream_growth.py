"""Columns that are added to a stream while programs that know only the old ones go on writing and reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import DataError, StreamExistsError, StreamNotFoundError

OLD = {"member": pl.String, "euros": pl.Float64}


@pytest.fixture(autouse=True)
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    hr.streams.create_stream("orders", 1, OLD)


def test_rows_of_all_ages_are_read_together() -> None:
    old_writer = hr.streams.StreamWriter("orders")
    old_reader = hr.streams.StreamReader("orders")
    old_writer.write([{"member": "ann", "euros": 1.0}])
    hr.streams.add_columns("orders", {"voucher": pl.String, "tags": pl.List(pl.Int64)})
    old_writer.write([{"member": "ben", "euros": 2.0}])
    with hr.streams.StreamWriter("orders") as writer:
        writer.write([{"member": "cas", "euros": 3.0, "voucher": "v", "tags": [1]}, {"member": "dan", "euros": 4.0}])
        writer.write(pl.DataFrame({"member": ["eva"], "euros": [5.0]}))
    old_writer.close()
    rows = hr.streams.read_stream("orders")
    assert rows.schema == {**OLD, "voucher": pl.String, "tags": pl.List(pl.Int64)}
    assert rows["voucher"].to_list() == [None, None, "v", None, None]
    assert rows["tags"].to_list() == [None, None, [1], None, None]
    assert pl.concat(old_reader).equals(rows)
    (first,) = hr.streams.StreamReader("orders")
    assert first.equals(rows)


def test_a_reader_of_old_rows_alone_knows_the_new_columns() -> None:
    with hr.streams.StreamWriter("orders") as writer:
        writer.write([{"member": "ann", "euros": 1.0}])
    hr.streams.add_columns("orders", {"voucher": pl.String})
    assert hr.streams.read_stream("orders").rows() == [("ann", 1.0, None)]


def test_a_column_that_was_there_from_the_start_is_still_required() -> None:
    hr.streams.add_columns("orders", {"voucher": pl.String})
    with hr.streams.StreamWriter("orders") as writer:
        with pytest.raises(DataError, match="has no 'euros'"):
            writer.write([{"member": "ann", "voucher": "v"}])
        with pytest.raises(DataError, match="no column 'euro'"):
            writer.write(pl.DataFrame({"member": ["ann"], "euro": [1.0]}))
        with pytest.raises(DataError, match=r"column 'euros' .* is missing"):
            writer.write(pl.DataFrame({"member": ["ann"]}))


def test_columns_may_come_from_a_dataclass_that_has_the_old_ones_too() -> None:
    @dataclass
    class Order:
        member: str
        euros: float
        voucher: str | None

    hr.streams.add_columns("orders", Order)
    hr.streams.create_stream("orders", 1, Order)
    hr.streams.create_stream("orders", 1, OLD)
    assert hr.streams.StreamReader("orders").columns == {**OLD, "voucher": pl.String}


def test_what_is_no_addition_is_refused() -> None:
    with pytest.raises(StreamExistsError, match="column 'euros' is Float64, not String"):
        hr.streams.add_columns("orders", {"euros": pl.String, "voucher": pl.String})
    assert hr.streams.StreamReader("orders").columns == OLD
    with pytest.raises(StreamNotFoundError, match=r"there is no stream log.order"):
        hr.streams.add_columns("order", {"voucher": pl.String})
    with pytest.raises(StreamExistsError, match="it has no column 'voucher'") as caught:
        hr.streams.create_stream("orders", 1, {**OLD, "voucher": pl.String})
    assert "headrace stream add-column" in (caught.value.hint or "")
    with pytest.raises(StreamExistsError, match="it also has a column 'euros'"):
        hr.streams.create_stream("orders", 1, {"member": pl.String})
