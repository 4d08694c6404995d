"""What an app says of a DataFrame of Spark, and what is wrong with it. Spark isn't needed for that."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

import headrace as hr
from headrace.api.dataframe import DataFrameInput, columns_of
from headrace.rows.dtypes import Columns
from headrace.systems.registry import SystemSpec

COLUMNS: Columns = {"member": pl.String(), "ts": pl.Datetime("us", "UTC"), "n": pl.Int32()}


def schema_of(**columns: Any) -> dict[str, Any]:
    """A schema as Spark's ``jsonValue`` has it."""
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()],
    }


def an_array(of: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": of, "containsNull": True}


def a_map(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def declared(columns: Columns = COLUMNS, schema: Any = None, **options: Any) -> SystemSpec:
    """The system of an input."""
    mine = hr.App("shop", home="/data")
    system = DataFrameInput(object(), columns, 2)
    mine.input("orders.v1", schema, system=system, **options).send_to(mine.output("out"))
    return mine.graph().streams["orders.v1"].system


def test_an_input_is_files_in_the_home_that_the_start_of_the_app_writes() -> None:
    assert declared(event_time="ts") == SystemSpec(
        "dataframe-orders-v1",
        "files",
        {
            "path": "/data/dataframes/shop/orders.v1",
            "format": "parquet",
            "partitions": 2,
            "columns": {"member": "String", "ts": {"Datetime": {"unit": "us", "zone": "UTC"}}, "n": "Int32"},
            "awaited": True,
            "list_file": "/data/dataframes/shop/orders.v1.jsonl",
            "event_time": {"ts": {"Datetime": {"unit": "us", "zone": "UTC"}}},
        },
    )


def test_the_dataframe_stays_in_this_process() -> None:
    spec = declared()
    assert spec.held is not None
    sent = pickle.loads(pickle.dumps(spec))
    assert sent == spec
    assert sent.held is None


def test_an_app_is_planned_before_there_is_a_copy(tmp_path: Path) -> None:
    app = hr.App("shop", home=tmp_path)
    system = DataFrameInput(object(), COLUMNS, 3)
    app.input("orders", system=system, event_time="ts").send_to(app.output("out"))
    assert app.plan().streams["orders"].partitions == 3
    assert list(tmp_path.iterdir()) == []


def test_an_app_is_tested_with_rows_that_the_test_feeds(tmp_path: Path) -> None:
    app = hr.App("shop", home=tmp_path)
    orders = app.input("orders", {"n": pl.Int64}, system=DataFrameInput(object(), COLUMNS))
    orders.filter(pl.col("n") > 1).send_to(app.output("large"))
    with app.test() as t:
        t.feed("orders", [{"n": 1}, {"n": 2}])
        t.end()
        assert t.read("large").to_dicts() == [{"n": 2}]


def test_types_of_spark() -> None:
    spark = schema_of(
        a="boolean", b="byte", c="short", d="integer", e="long", f="float", g="double", h="string", i="binary",
        j="date", k="timestamp", l="timestamp_ntz", m="decimal(38,18)", n="varchar(5)", o="char(2)",
    )  # fmt: skip
    assert list(columns_of(spark).values()) == [
        pl.Boolean, pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.String, pl.Binary, pl.Date,
        pl.Datetime("us", "UTC"), pl.Datetime("us"), pl.Decimal(38, 18), pl.String, pl.String,
    ]  # fmt: skip
    nested = schema_of(a=an_array(schema_of(x="long", y=an_array("timestamp"))), b=a_map("string", an_array("long")))
    assert columns_of(nested) == {
        "a": pl.List(pl.Struct({"x": pl.Int64, "y": pl.List(pl.Datetime("us", "UTC"))})),
        "b": pl.List(pl.Struct({"key": pl.String, "value": pl.List(pl.Int64)})),
    }


@pytest.mark.parametrize(
    ("kind", "message", "hint"),
    [
        ("void", "column 'x' of the DataFrame has Spark's type void", 'F.col("x").cast("string")'),
        ("variant", "type variant", "to_json"),
        ("interval", "type interval", "bigint"),
        ("interval day to second", "type interval day to second", "bigint"),
        ("time(6)", r"type time\(6\)", "string"),
        (an_array(a_map("string", "long")), "type map", "map_entries"),
        (a_map("string", a_map("string", "long")), "type map", "map_entries"),
        (schema_of(inner="void"), "column 'x.inner' of the DataFrame", "cast"),
        (schema_of(), "type struct", "drop it"),
        ({"type": "udt", "class": "org.Vector"}, "type udt", '.drop("x")'),
    ],
)
def test_types_that_a_stream_cannot_hold(kind: Any, message: str, hint: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        columns_of(schema_of(x=kind))
    assert hint in str(caught.value.hint)


def test_names_that_spark_takes_for_one() -> None:
    fields = [*schema_of(id="long")["fields"], *schema_of(ID="string")["fields"]]
    with pytest.raises(hr.errors.DeclarationError, match="the DataFrame has several columns named 'id'"):
        columns_of({"type": "struct", "fields": fields})
    with pytest.raises(hr.errors.DeclarationError, match="has no columns"):
        columns_of(schema_of())


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (pl.DataFrame({"n": [1]}), "dataframe: DataFrame of polars .* is not a DataFrame of Spark", "hr.io.files"),
        (pd.DataFrame({"n": [1]}), "DataFrame of pandas", "hr.io.files"),
        ("orders", "dataframe: str orders is not a DataFrame of Spark", "spark.read"),
        (None, "dataframe: NoneType None is not", "spark.read"),
    ],
)
def test_other_things_are_refused(given: Any, message: str, hint: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=f"(?s){message}") as caught:
        hr.io.dataframe(given)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("partitions", [0, -1, True, 2.0, None])
def test_partitions_are_a_number(partitions: Any) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=f"partitions={partitions!r} is not a number of partitions"):
        hr.io.dataframe(object(), partitions=partitions)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ({"member": pl.String, "euros": pl.Float64}, {}, "there is no column 'euros' in the DataFrame"),
        ({"member": pl.Datetime("ms")}, {"event_time": "member"}, "the event time column 'member' .* is String"),
        (None, {"start": "upcoming"}, "start='upcoming': a DataFrame gets no rows later"),
    ],
)
def test_uses_that_a_dataframe_does_not_have(schema: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        declared(schema=schema, **options)
    assert caught.value.hint


def test_a_key_that_would_have_another_hash_is_refused() -> None:
    mine = hr.App("shop", home="/data")
    columns: Columns = {"member": pl.String(), "n": pl.Int32()}
    mine.input("wider", {"n": pl.Int64}, system=DataFrameInput(object(), columns, key=("n",)))
    with pytest.raises(hr.errors.DeclarationError, match=r"placed by column 'member', which is String .* as Int64"):
        mine.input("other", {"member": pl.Int64}, system=DataFrameInput(object(), columns, key=("member",)))
    with pytest.raises(hr.errors.DeclarationError, match=r"no column 'member' in the input, by which"):
        mine.input("less", {"n": pl.Int32}, system=DataFrameInput(object(), columns, key=("member",)))


@pytest.mark.parametrize(
    ("key", "partitions", "message"),
    [
        ((), 2, "side input 'members' .* nothing says by which key .*: rows of one 'member'"),
        (("n",), 2, "side input 'members' .*, but 'members' is partitioned by 'n'"),
        (("member",), 2, ""),
        ((), 1, ""),
    ],
)
def test_a_local_table_needs_its_rows_by_key(tmp_path: Path, key: Any, partitions: int, message: str) -> None:
    app = hr.App("shop", home=tmp_path)
    side = app.input("members", system=DataFrameInput(object(), {**COLUMNS}, partitions, key))
    table = app.table("by-member", key="member", side_inputs=[side])
    orders = app.input("orders", {"member": pl.String}, system=DataFrameInput(object(), COLUMNS))
    joined = orders.partition_by("member", id="by", partitions=partitions).join(table)
    joined.send_to(app.output("out"))
    if not message:
        assert app.plan().streams["members"].partitions == partitions
        return
    with pytest.raises(hr.errors.PlanError, match=message) as caught:
        app.plan()
    assert caught.value.hint


def test_a_dataframe_is_no_output() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="a DataFrame can only be an input, but 'out' isn't one"):
        hr.App("shop").output("out", system=DataFrameInput(object(), COLUMNS))
