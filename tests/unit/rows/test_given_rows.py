"""Rows as users pass them: DataFrames of other libraries, dicts, dataclasses, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.errors import DataError, UsageError
from headrace.rows.given import given_rows
from headrace.rows.schema import Schema

COLUMNS = {"member": pl.String, "euros": pl.Float64}
SCHEMA = Schema.of(COLUMNS)
ROWS = [{"member": "ann", "euros": 5.0}, {"member": "bob", "euros": None}]


@dataclass
class Order:
    member: str
    euros: float | None


@dataclass
class Delivery(Order):
    place: str


@dataclass
class Member:
    member: str


def as_generator() -> Iterator[dict[str, Any]]:
    yield from ROWS


@pytest.mark.parametrize(
    "rows",
    [
        pl.DataFrame(ROWS),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).set_index("member"),
        pd.DataFrame(ROWS, index=[7, 9]),
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        ROWS,
        as_generator(),
        [Order("ann", 5.0), Order("bob", None)],
    ],
    ids=lambda rows: f"{type(rows).__module__}.{type(rows).__name__}",
)
def test_rows_of_every_kind(rows: Any) -> None:
    assert given_rows(rows, SCHEMA, "orders").select("member", "euros").rows() == [("ann", 5.0), ("bob", None)]


@pytest.mark.parametrize(
    "rows",
    [
        pl.DataFrame(ROWS).with_columns(euro=1),
        pd.DataFrame(ROWS).assign(euro=1),
        pa.Table.from_pylist([{**row, "euro": 1} for row in ROWS]),
        [*ROWS, {"member": "eve", "euros": 1.0, "euro": 1.0}],
    ],
    ids=["polars", "pandas", "arrow", "dicts"],
)
def test_a_column_that_the_stream_does_not_have_is_refused(rows: Any) -> None:
    with pytest.raises(DataError, match="orders has no column 'euro'; it has member, euros") as caught:
        given_rows(rows, SCHEMA, "orders")
    assert caught.value.hint == "did you mean 'euros'?"


def test_a_dataclass_with_other_fields_is_refused() -> None:
    with pytest.raises(DataError, match="orders has no column 'place'"):
        given_rows([Delivery("ann", 5.0, "Graz")], SCHEMA, "orders")
    with pytest.raises(DataError, match="Member has no field 'euros', which is a column of orders"):
        given_rows([Member("ann")], SCHEMA, "orders")


def test_without_a_schema_rows_are_as_they_are() -> None:
    assert given_rows([{"a": 1}, {"a": 2}], None, "any").rows() == [(1,), (2,)]
    assert given_rows(pd.DataFrame({"b": [1.5]}), None, "any").rows() == [(1.5,)]


@pytest.mark.parametrize("rows", [{"member": "ann"}, "ann", 5, None, pl.LazyFrame(ROWS)])
def test_what_is_no_collection_of_rows(rows: Any) -> None:
    with pytest.raises(UsageError, match=r"rows must be a DataFrame|rows can't be a LazyFrame"):
        given_rows(rows, SCHEMA, "orders")


def test_a_pandas_column_of_several_types_says_so() -> None:
    mixed = pd.DataFrame({"member": ["ann", 5], "euros": [1.0, 2.0]})
    with pytest.raises(DataError, match="a DataFrame of pandas can't be converted to Polars") as caught:
        given_rows(mixed, SCHEMA, "orders")
    assert caught.value.hint is not None and "one type per column" in caught.value.hint


def test_a_value_of_another_type_is_found_when_it_is_written(tmp_path: Path) -> None:
    hr.streams.create_stream("orders", 1, COLUMNS, home=tmp_path)
    with hr.streams.StreamWriter("orders", home=tmp_path) as writer:
        writer.write(pd.DataFrame({"euros": [1, 2], "member": ["ann", "bob"]}))
        with pytest.raises(DataError, match="'euros'"):
            writer.write(pd.DataFrame({"member": ["ann"], "euros": ["five"]}))
        with pytest.raises(DataError, match="orders has no column 'euro'"):
            writer.write([{"member": "ann", "euros": 1.0, "euro": 2.0}])
        writer.write([Order("eve", 3.0)])
    (rows,) = hr.streams.StreamReader("orders", home=tmp_path)
    assert rows.rows() == [("ann", 1.0), ("bob", 2.0), ("eve", 3.0)]


def test_a_test_feeds_them_too() -> None:
    app = hr.App("orders")
    app.input("orders", COLUMNS).send_to(app.output("out"))
    with app.test() as t:
        t.feed("orders", pd.DataFrame(ROWS))
        t.feed("orders", pa.Table.from_pylist(ROWS))
        with pytest.raises(DataError, match="orders has no column 'euro'"):
            t.feed("orders", pl.DataFrame({"member": ["eve"], "euro": [1.0]}))
        assert t.read("out")["member"].to_list() == ["ann", "bob"] * 2


def test_a_dataclass_input_takes_dicts_too() -> None:
    app = hr.App("orders")
    app.input("orders", Order).send_to(app.output("out"))
    with app.test() as t:
        t.feed("orders", [Order("ann", 1.0)])
        t.feed("orders", ROWS)
        assert t.read("out")["member"].to_list() == ["ann", "ann", "bob"]


def test_neither_pandas_nor_spark_is_imported() -> None:
    code = (
        "import sys, headrace.rows.given as g; g.given_rows([{'a': 1}], None, 's'); "
        "sys.exit(any(name in sys.modules for name in ('pandas', 'pyspark')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_an_instance_may_lack_a_column_that_was_added() -> None:
    assert given_rows([Member("ann")], SCHEMA, "orders", optional=["euros"]).rows() == [("ann",)]
