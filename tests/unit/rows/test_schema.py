"""Declaring schemas, conforming batches to them, and converting to records and back."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Optional

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.schema import Schema


@dataclass
class Place:
    city: str
    zip: int | None


@dataclass(slots=True)
class Visit:
    member: str
    ts: int
    price: float
    paid: bool
    raw: bytes
    at: datetime
    day: date
    tags: list[str]
    place: Place
    places: list[Place]
    note: Optional[str] = None  # noqa: UP045
    derived: int = field(default=7, init=False)


@dataclass(frozen=True, kw_only=True)
class Keyed:
    b: int
    a: str


VISIT = Visit(
    "ann",
    1,
    0.5,
    True,
    b"x",
    datetime(2024, 1, 2),
    date(2024, 1, 2),
    ["a"],
    Place("Bonn", None),
    [Place("Ulm", 1)],
)
PLACE = pl.Struct({"city": pl.String, "zip": pl.Int64})
PAGE_VIEWS = Schema.of({"member": pl.String, "ts": pl.Int64})


# -- declaring ----------------------------------------------------------------------------------------


def test_a_dict_takes_classes_and_instances() -> None:
    schema = Schema.of({"a": pl.String, "b": pl.List(pl.Int32), "c": pl.Datetime})
    assert schema.columns == {"a": pl.String(), "b": pl.List(pl.Int32()), "c": pl.Datetime("us")}
    assert list(schema.columns) == ["a", "b", "c"]
    assert all(isinstance(dtype, pl.DataType) for dtype in schema.columns.values())


def test_a_dataclass_gives_its_constructors_fields() -> None:
    assert Schema.of(Visit).columns == {
        "member": pl.String(),
        "ts": pl.Int64(),
        "price": pl.Float64(),
        "paid": pl.Boolean(),
        "raw": pl.Binary(),
        "at": pl.Datetime("us"),
        "day": pl.Date(),
        "tags": pl.List(pl.String()),
        "place": PLACE,
        "places": pl.List(PLACE),
        "note": pl.String(),
    }


def test_no_schema_is_bytes_and_a_schema_is_itself() -> None:
    assert Schema.of().columns == {"key": pl.Binary(), "value": pl.Binary()}
    assert Schema.of(PAGE_VIEWS) is PAGE_VIEWS


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({}, "at least one column"),
        ("ts:int", "isn't a schema"),
        (int, "isn't a schema"),
        ({"a": object}, "column 'a'"),
        ({"a": [pl.Int64]}, "column 'a'"),
    ],
)
def test_what_is_no_schema_is_refused(declared: object, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Schema.of(declared)


def test_schemas_compare_and_travel() -> None:
    assert Schema.of({"a": pl.Int64}) == Schema.of({"a": pl.Int64()})
    assert Schema.of({"a": pl.Int64, "b": pl.Int64}) != Schema.of({"b": pl.Int64, "a": pl.Int64})
    assert len({Schema.of({"a": pl.Int64}), Schema.of({"a": pl.Int64})}) == 1
    travelled = pickle.loads(pickle.dumps(Schema.of(Visit)))
    assert travelled == Schema.of(Visit)
    assert travelled.to_records(travelled.from_records([VISIT])) == [VISIT]


def test_require_suggests_the_column_that_was_meant() -> None:
    PAGE_VIEWS.require(["ts", "member"], "window")
    with pytest.raises(DeclarationError, match="window: unknown column 'membr'; the columns are member, ts") as caught:
        PAGE_VIEWS.require(["ts", "membr"], "window")
    assert caught.value.hint == "did you mean 'member'?"
    with pytest.raises(DeclarationError) as caught:
        PAGE_VIEWS.require(["zzz"], "window")
    assert caught.value.hint is None


# -- conforming -----------------------------------------------------------------------------------------


def test_a_batch_that_fits_is_handed_back_itself() -> None:
    df = pl.DataFrame({"member": ["a"], "ts": [1]})
    fitted, mismatch = PAGE_VIEWS.conform(df)
    assert fitted is df
    assert mismatch is None
    assert PAGE_VIEWS.conform(PAGE_VIEWS.empty())[1] is None


def test_order_is_restored_and_extras_are_dropped() -> None:
    fitted, mismatch = PAGE_VIEWS.conform(pl.DataFrame({"x": [1], "ts": [2], "member": ["a"]}))
    assert mismatch is None
    assert fitted.to_dict(as_series=False) == {"member": ["a"], "ts": [2]}


def test_a_missing_column_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(DataError, match=r"column 'member' \(String\) is missing; the rows have Member, ts") as caught:
        PAGE_VIEWS.conform(pl.DataFrame({"Member": ["a"], "ts": [1]}))
    assert caught.value.hint == "did you mean 'Member'?"


def test_rows_that_do_not_fit_are_left_out_and_named() -> None:
    schema = Schema.of({"n": pl.Int64, "small": pl.UInt8})
    df = pl.DataFrame({"n": ["1", "abc", None, "4", "5"], "small": [1, 2, 3, 400, -1]})
    fitted, mismatch = schema.conform(df)
    assert fitted.rows() == [(1, 1), (None, 3)]
    assert fitted.schema == schema.columns
    assert mismatch is not None
    assert mismatch.rows == [1, 3, 4]
    assert mismatch.column == "n"
    message = str(mismatch.error())
    assert "3 rows don't fit; the first is row 1: column 'n' should be Int64, found 'abc' (String)" in message


def test_the_first_reason_belongs_to_the_first_row() -> None:
    schema = Schema.of({"a": pl.Int64, "b": pl.Int64})
    _, mismatch = schema.conform(pl.DataFrame({"a": ["1", "2", "x"], "b": ["1", "y", "3"]}))
    assert mismatch is not None
    assert mismatch.rows == [1, 2]
    assert (mismatch.column, mismatch.reason) == ("b", "column 'b' should be Int64, found 'y' (String)")


def test_a_type_that_cannot_become_the_expected_one_is_an_error() -> None:
    with pytest.raises(DataError, match=r"column 'member': expected String, found Int64") as caught:
        PAGE_VIEWS.conform(pl.DataFrame({"member": [1], "ts": [1]}))
    assert "declare the column as Int64" in str(caught.value)


# -- records ----------------------------------------------------------------------------------------------


def test_rows_become_dicts_and_come_back() -> None:
    df = pl.DataFrame({"member": ["a", None], "ts": [1, 2]})
    records = PAGE_VIEWS.to_records(df)
    assert records == [{"member": "a", "ts": 1}, {"member": None, "ts": 2}]
    assert PAGE_VIEWS.from_records(records).equals(df)


def test_names_of_columns_may_be_anything() -> None:
    df = pl.DataFrame({"it's": [1], 'a "b" {c}': [2], "class": [3], "\\": [4]})
    schema = Schema.of(dict(df.schema))
    assert schema.to_records(df) == df.to_dicts()
    assert schema.from_records(df.to_dicts()).equals(df)


def test_rows_become_instances_and_come_back() -> None:
    schema = Schema.of(Visit)
    other = dataclasses.replace(VISIT, tags=[], places=[], note="n")
    df = schema.from_records([VISIT, other])
    assert df.schema == schema.columns
    assert schema.to_records(df) == [VISIT, other]


def test_nulls_of_nested_records_stay_none() -> None:
    schema = Schema.of(Visit)
    bare: Any = Visit(*[None] * 11)  # type: ignore[arg-type]
    assert schema.to_records(schema.from_records([bare])) == [bare]
    assert schema.from_records([bare])["place"].null_count() == 1


def test_keyword_only_records() -> None:
    schema = Schema.of(Keyed)
    records = [Keyed(b=1, a="x"), Keyed(b=2, a="y")]
    assert schema.to_records(schema.from_records(records)) == records


@pytest.mark.parametrize("schema", [PAGE_VIEWS, Schema.of(Visit)])
def test_no_records_are_an_empty_batch(schema: Schema) -> None:
    assert schema.from_records([]).schema == schema.columns
    assert schema.to_records(schema.empty()) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"member": "b", "ts": "late"}, r"record 2, column 'ts': 'late' \(str\) is not of type Int64"),
        ({"member": 5, "ts": 1}, r"record 2, column 'member': 5 \(int\) is not of type String"),
        ({"member": "b", "ts": 1.5}, r"record 2, column 'ts': 1.5 \(float\) is not of type Int64"),
        ({"member": "b", "ts": 2**70}, "record 2, column 'ts'"),
        ({"member": "b"}, "record 2 has no 'ts'"),
        (None, "record 2 is a NoneType, not a dict"),
        ("text", "record 2 is a str, not a dict"),
    ],
)
def test_the_first_record_that_does_not_fit_is_named(bad: object, message: str) -> None:
    good = {"member": "a", "ts": 1}
    with pytest.raises(DataError, match=message):
        PAGE_VIEWS.from_records([good, good, bad, good, 5])


def test_records_of_a_dataclass_are_checked_too() -> None:
    schema = Schema.of(Visit)
    with pytest.raises(DataError, match="record 1 is a dict, not a Visit"):
        schema.from_records([VISIT, {"member": "a"}])
    with pytest.raises(DataError, match=r"record 1, column 'price': 'dear' \(str\) is not of type Float64"):
        schema.from_records([VISIT, dataclasses.replace(VISIT, price="dear")])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="record 0, column 'place'"):
        schema.from_records([dataclasses.replace(VISIT, place=5)])  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9), st.just("x"), st.none(), st.just([])), max_size=30))
def test_sifting_takes_what_fits_and_says_what_is_wrong_with_the_rest(values: list[Any]) -> None:
    schema = Schema.of({"n": pl.Int64})
    table, wrong = schema.sift([{"n": value} for value in values])
    assert table.schema == pl.Schema({"n": pl.Int64})
    assert table["n"].to_list() == [value for value in values if value is None or isinstance(value, int)]
    assert [index for index, _ in wrong] == [i for i, value in enumerate(values) if isinstance(value, str | list)]
    assert all("is not of type Int64" in error.message for _, error in wrong)


BEYOND = {
    pl.Datetime("ms"): (253_402_300_800_000, 2**63 - 1, -(2**63), -62_135_596_800_001),
    pl.Datetime("us"): (253_402_300_800_000_000, 2**63 - 1, -(2**63), -62_135_596_800_000_001),
    pl.Datetime("us", "Asia/Tokyo"): (253_402_300_800_000_000 - 9 * 3_600_000_000,),
    pl.Datetime("us", "America/New_York"): (-62_135_596_800_000_000 + 3_600_000_000,),
    pl.Date(): (2_932_897, -719_163, 2**31 - 1, -(2**31)),
    pl.Duration("ms"): (2**63 - 1, -(2**63)),
}
AT_THE_EDGE = {
    pl.Datetime("ms"): (253_402_300_799_999, -62_135_596_800_000),
    pl.Datetime("us"): (253_402_300_799_999_999, -62_135_596_800_000_000),
    pl.Datetime("ns"): (2**63 - 1, -(2**63)),
    pl.Datetime("us", "Asia/Tokyo"): (253_402_300_799_999_999 - 9 * 3_600_000_000,),
    pl.Date(): (2_932_896, -719_162),
    pl.Duration("us"): (2**63 - 1, -(2**63)),
}


def column_of(dtype: pl.DataType, numbers: Sequence[int | None]) -> pl.Series:
    return pl.Series("at", numbers, pl.Int32 if isinstance(dtype, pl.Date) else pl.Int64).cast(dtype)


@pytest.mark.parametrize("dtype", BEYOND, ids=str)
def test_times_that_python_has_no_value_for_do_not_fit(dtype: pl.DataType) -> None:
    schema = Schema.of({"at": dtype, "n": pl.Int64})
    for number in BEYOND[dtype]:
        rows = pl.DataFrame([column_of(dtype, [0, number, None, number]), pl.Series("n", [1, 2, 3, 4])])
        for batch in (rows, rows.select("n", "at")):  # one that has to be changed takes another way
            fitting, mismatch = schema.conform(batch)
            assert mismatch is not None
            assert mismatch.rows == [1, 3]
            assert fitting.get_column("n").to_list() == [1, 3]
            schema.to_records(fitting)
            assert f" {number} " in mismatch.error().message


@pytest.mark.parametrize("dtype", AT_THE_EDGE, ids=str)
def test_the_first_and_last_moments_of_the_calendar_fit(dtype: pl.DataType) -> None:
    schema = Schema.of({"at": dtype})
    rows = pl.DataFrame([column_of(dtype, AT_THE_EDGE[dtype])])
    assert schema.conform(rows) == (rows, None)
    assert len(schema.to_records(rows)) == rows.height


def test_a_date_is_checked_before_it_is_cast() -> None:
    """Cast to microseconds, it would become null, or another date."""
    rows = pl.DataFrame([column_of(pl.Date(), [0, 2**31 - 1, None])])
    fitting, mismatch = Schema.of({"at": pl.Datetime("us")}).conform(rows)
    assert mismatch is not None
    assert mismatch.rows == [1]
    assert fitting.get_column("at").to_list() == [datetime(1970, 1, 1), None]


def test_times_inside_lists_and_structs_are_found() -> None:
    at = column_of(pl.Datetime("us"), [0, 2**62, None, 0, 2**62])
    groups = pl.DataFrame({"row": [0, 1, 1, 3, 4], "at": at}).group_by("row", maintain_order=True).agg("at")
    lists = pl.concat([groups, pl.DataFrame({"row": [2], "at": [None]}, groups.schema)]).sort("row")
    rows = lists.select("at", pl.struct(a="at", b="row").alias("nested"))
    fitting, mismatch = Schema(dict(rows.schema)).conform(rows)
    assert mismatch is not None
    assert mismatch.rows == [1, 4]
    assert fitting.height == 3
