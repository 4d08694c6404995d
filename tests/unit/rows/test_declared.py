"""Types as users declare them: what they mean, and the errors for those that are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import polars as pl
import pytest

from headrace.core.errors import DeclarationError
from headrace.rows.schema import columns_of_class, dtype_of, record_builder


@dataclass
class Node:
    child: Optional["Node"]  # noqa: UP037, UP045


@dataclass
class Odd:
    what: complex


@dataclass
class DeepOdd:
    odd: list[Odd]


@dataclass
class Choice:
    either: int | str


@dataclass
class Bare:
    items: list


@dataclass
class Unknown:
    what: "Nowhere"  # noqa: F821, UP037


@dataclass
class Nothing:
    pass


@dataclass
class OnlyDerived:
    derived: int = field(default=1, init=False)


@dataclass
class Inner:
    x: int


@dataclass
class Outer:
    first: Inner
    second: Inner | None
    rows: list[list[Inner]]


@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        ("a", complex, "column 'a'"),
        ("a", "pl.Int64", "column 'a'"),
        ("a", pl.List, "column 'a'.*parameters"),
        ("a", pl.Object, "column 'a'"),
        ("a", pl.Int128, "column 'a'"),
        ("a", pl.List(pl.Struct({"x": pl.Object})), "column 'a'"),
        ("a", pl.Array(pl.Int128, 2), "column 'a'"),
        (1, pl.String, "1 isn't a column name"),
        ("", pl.String, "'' isn't a column name"),
    ],
    ids=str,
)
def test_types_that_a_stream_cannot_hold_are_named(column: object, declared: object, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        dtype_of(column, declared)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Odd, "Odd.what: <class 'complex'>"),
        (DeepOdd, "DeepOdd.odd.what"),
        (Choice, "Choice.either"),
        (Bare, "Bare.items"),
        (Node, "Node.child: Node contains itself"),
        (Unknown, "Unknown: a type hint can't be resolved: name 'Nowhere'"),
        (Nothing, "Nothing has no fields"),
        (OnlyDerived, "OnlyDerived has no fields"),
    ],
)
def test_fields_that_are_no_columns_are_named(record: type, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        columns_of_class(record)


def test_one_dataclass_may_be_used_twice() -> None:
    inner = pl.Struct({"x": pl.Int64()})
    assert columns_of_class(Outer) == {"first": inner, "second": inner, "rows": pl.List(pl.List(inner))}


def test_records_are_built_with_their_nested_records() -> None:
    columns: list[list[Any]] = [[{"x": 1}], [None], [[[{"x": 2}, None], None]]]
    assert record_builder(["first", "second", "rows"], Outer)(columns) == [
        Outer(Inner(1), None, [[Inner(2), None], None])  # type: ignore[list-item]
    ]


def test_dicts_are_built_with_one_column_too() -> None:
    assert record_builder(["only"], None)([[1, 2]]) == [{"only": 1}, {"only": 2}]
