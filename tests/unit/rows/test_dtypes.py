from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.dtypes import columns_from_json, columns_to_json, parse_columns, written

PLAIN = [
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64,
    pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Binary, pl.Date, pl.Time, pl.Null,
]  # fmt: skip
units = st.sampled_from(["ms", "us", "ns"])
leaves = st.one_of(
    st.sampled_from([cls() for cls in PLAIN]),
    st.builds(pl.Datetime, units, st.sampled_from([None, "UTC", "Europe/Berlin"])),
    st.builds(pl.Duration, units),
    st.builds(pl.Decimal, st.just(20), st.integers(0, 20)),
    st.just(pl.Enum(["red", "green"])),
)
dtypes = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(pl.List, inner),
        st.builds(pl.Array, inner, st.integers(1, 4)),
        st.dictionaries(st.text(max_size=5), inner, min_size=1, max_size=3).map(pl.Struct),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=8), dtypes, max_size=5))
def test_columns_survive_json(columns: dict[str, pl.DataType]) -> None:
    again = columns_from_json(json.loads(json.dumps(columns_to_json(columns))))
    assert again == columns
    assert list(again) == list(columns)


def test_the_durable_form_stays_as_it_is() -> None:
    columns = {
        "a": pl.Int64,
        "t": pl.Datetime("us", "UTC"),
        "d": pl.Duration("ms"),
        "m": pl.Decimal(18, 2),
        "l": pl.List(pl.String),
        "s": pl.Struct({"x": pl.Float64}),
        "f": pl.Array(pl.Int8, 3),
        "e": pl.Enum(["a"]),
    }
    assert columns_to_json(columns) == {
        "a": "Int64",
        "t": {"Datetime": {"unit": "us", "zone": "UTC"}},
        "d": {"Duration": {"unit": "ms"}},
        "m": {"Decimal": {"precision": 18, "scale": 2}},
        "l": {"List": "String"},
        "s": {"Struct": [["x", "Float64"]]},
        "f": {"Array": {"inner": "Int8", "shape": [3]}},
        "e": {"Enum": ["a"]},
    }


@pytest.mark.parametrize("dtype", [pl.Object(), pl.Categorical(), int, "i64", pl.Array])
def test_what_a_stream_cannot_keep_is_refused(dtype: Any) -> None:
    with pytest.raises(DeclarationError, match="'c'"):
        columns_to_json({"c": dtype})


@pytest.mark.parametrize("value", ["Int65", {"Map": 1}, 5, None, {"Datetime": {"unit": "us"}}])
def test_an_unknown_durable_type_is_refused(value: Any) -> None:
    with pytest.raises(DataError, match="unknown column type"):
        columns_from_json({"c": value})


def test_columns_as_users_write_them() -> None:
    text = "member:str, ts: i64,ok:bool,at:datetime[ms,UTC],price:decimal[18,2]"
    text += ",tags:list[list[str]],n:Int16,w:duration[ms]"
    assert parse_columns(text) == {
        "member": pl.String(),
        "ts": pl.Int64(),
        "ok": pl.Boolean(),
        "at": pl.Datetime("ms", "UTC"),
        "price": pl.Decimal(18, 2),
        "tags": pl.List(pl.List(pl.String())),
        "n": pl.Int16(),
        "w": pl.Duration("ms"),
    }


@given(st.one_of(leaves, st.builds(pl.List, leaves)))
def test_a_type_is_written_as_users_write_it(dtype: pl.DataType) -> None:
    assume(not str(written(dtype)).startswith(("Enum", "list[Enum", "Int128", "list[Int128")))
    assert parse_columns(f"a:{written(dtype)}") == {"a": dtype}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "'a' isn't of the form name:type"),
        ("a:", "isn't of the form name:type"),
        ("", "isn't of the form name:type"),
        ("a:i64,a:str", "'a' appears twice"),
        ("a:i65", "unknown type 'i65'"),
        ("a:Int128", "unknown type 'Int128'"),
        ("a:list[Int128]", "unknown type 'Int128'"),
        ("a:duration[us,UTC]", "unknown type"),
        ("a:datetime[s]", "unknown type"),
    ],
)
def test_columns_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said.replace("[", r"\[")):
        parse_columns(text)
