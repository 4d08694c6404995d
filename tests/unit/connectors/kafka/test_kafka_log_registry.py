from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.settings import Registry, StreamOrder, addition, creation, decode_order, encode_order
from headrace.core.errors import DataError, StreamNotFoundError, StreamSealedError
from headrace.systems.base import StreamInfo

COLUMNS: dict[str, pl.DataType] = {"key": pl.String(), "at": pl.Datetime("us", "UTC"), "n": pl.List(pl.Int64())}


def after(*orders: StreamOrder) -> Registry:
    registry = Registry()
    for order in orders:
        registry.apply(decode_order(encode_order(order), "a test"))
    return registry


def made(name: str = "s", partitions: int = 2, columns: dict[str, pl.DataType] | None = None) -> StreamOrder:
    return creation(StreamInfo(name, partitions, columns))


def test_a_created_stream_is_what_it_was_created_as() -> None:
    registry = after(made("b", 3, COLUMNS), made("a"))
    assert sorted(registry.entries) == ["a", "b"]
    assert registry.require("b").info == StreamInfo("b", 3, COLUMNS)
    assert registry.require("a").info.columns is None
    assert "c" not in registry.entries
    with pytest.raises(StreamNotFoundError, match="no stream 'c'"):
        registry.require("c")


def test_the_first_of_two_that_create_a_stream_counts() -> None:
    assert after(made(partitions=2, columns=COLUMNS), made(partitions=5)).require("s").info == StreamInfo(
        "s", 2, COLUMNS
    )


def test_columns_are_added_once_and_in_the_order_of_the_orders() -> None:
    one: dict[str, pl.DataType] = {"x": pl.Int64()}
    both: dict[str, pl.DataType] = {"y": pl.String(), "x": pl.Int64()}
    info = after(made(columns=COLUMNS), addition("s", one), addition("s", both), addition("s", one)).require("s").info
    assert list(info.columns or {}) == [*COLUMNS, "x", "y"]
    assert info.added == {"x", "y"}


@pytest.mark.parametrize(
    "late", [addition("s", {"key": pl.Int64()}), addition("other", {"x": pl.Int64()}), StreamOrder("sealing", "other")]
)
def test_an_order_that_does_not_fit_changes_nothing(late: StreamOrder) -> None:
    assert after(made(columns=COLUMNS), late).require("s") == after(made(columns=COLUMNS)).require("s")
    assert after(made(), addition("s", {"x": pl.Int64()})).require("s").info.columns is None


def test_the_first_ends_count() -> None:
    sealing, first, second = (
        StreamOrder("sealing", "s"),
        StreamOrder("sealed", "s", ends=(7, 8)),
        StreamOrder("sealed", "s", ends=(9, 9)),
    )
    begun = after(made(), sealing).require("s")
    assert (begun.sealing, begun.end(0)) == (True, None)
    with pytest.raises(StreamSealedError):
        begun.require_open()
    entry = after(made(), sealing, sealing, first, second).require("s")
    assert [entry.end(partition) for partition in range(3)] == [7, 8, 0]
    after(made()).require("s").require_open()


ADDED = [{"x": pl.Int64()}, {"x": pl.String(), "y": pl.Int8()}]
ORDERS = st.one_of(
    st.builds(made, st.sampled_from("st"), st.integers(1, 3), st.sampled_from([None, COLUMNS])),
    st.builds(
        addition, st.sampled_from("st"), st.sampled_from([{"x": pl.Int64()}, {"x": pl.String(), "y": pl.Int8()}])
    ),
    st.builds(
        StreamOrder, st.sampled_from(["sealing", "sealed"]), st.sampled_from("st"), ends=st.tuples(st.integers(0, 9))
    ),
)


@given(st.lists(ORDERS), st.data())
def test_an_order_that_is_there_twice_counts_once(orders: list[StreamOrder], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(orders)))
    again = orders[:index] + orders[max(0, index - 1) : index] + orders[index:]
    once, twice = after(*orders), after(*again)
    assert once.entries == twice.entries


def test_bytes_of_an_order() -> None:
    """Changed bytes would be unreadable for others."""
    assert encode_order(creation(StreamInfo("s", 2, {"n": pl.Int64()}, key=("n",)))) == (
        b'{"what":"create","stream":"s","partitions":2,"columns":{"n":"Int64"},"ends":[],"key":["n"],"format":1}'
    )


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"what":"create","stream":"s","format":2}', b'{"what":"x","stream":"s"}']
)
def test_what_is_no_order_is_an_error(data: bytes) -> None:
    with pytest.raises(DataError, match="the order at t, offset 3"):
        decode_order(data, "t, offset 3")
