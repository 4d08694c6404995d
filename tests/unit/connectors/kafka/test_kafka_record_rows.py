"""Rows of records against the same in plain Python: values, keys, what Kafka says of a record, and bad ones."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.fetching import FetchedRecords
from headrace.connectors.kafka.rows import KeyColumn, RecordRows
from headrace.connectors.kafka.settings import key_dtype
from headrace.core.errors import DeclarationError
from headrace.rows.formats import FormatSpec, open_format

JSON = open_format(FormatSpec("json"))
TEXT = open_format(FormatSpec("text"))
ABOUT = {"k": "key", "h": "headers", "t": "timestamp", "p": "partition", "o": "offset"}
EPOCH = datetime(1970, 1, 1)

RECORDS = st.lists(
    st.tuples(
        st.integers(1, 3),  # how far the offset is from the one before
        st.sampled_from([b'{"n": 1}', b'{"n": 22}', b"{", b"", None]),
        st.sampled_from([b"ann", "zoé".encode(), b"\xff", b"", None]),
        st.one_of(
            st.none(), st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([b"1", None])), max_size=2)
        ),
    ),
    max_size=12,
)


def fetched(records: list[tuple[Any, ...]]) -> FetchedRecords:
    offsets, at = [], 9
    for step, *_ in records:
        at += step
        offsets.append(at)
    return FetchedRecords(
        offsets,
        [value for _, value, _, _ in records],
        at + 1,
        keys=[key for _, _, key, _ in records],
        times=[1000 * offset for offset in offsets],
        headers=[headers for *_, headers in records],
    )


def expected(given: FetchedRecords) -> tuple[list[dict[str, Any]], list[int], list[int]]:
    """The rows, their offsets, and the indices of bad records."""
    rows, offsets, bad = [], [], []
    for i, (offset, value, key) in enumerate(zip(given.offsets, given.values, given.keys, strict=True)):
        try:
            n = json.loads(value or b"{")["n"]
            name = None if key is None else key.decode()
        except (ValueError, KeyError):
            bad.append(i)
            continue
        headers = [{"name": name, "value": value} for name, value in given.headers[i] or ()]
        time = EPOCH + timedelta(seconds=offset)
        rows.append({"n": n, "k": name, "h": headers, "t": time, "p": 3, "o": offset})
        offsets.append(offset)
    return rows, offsets, bad


@given(RECORDS)
def test_rows_are_what_plain_python_makes_of_the_records(records: list[tuple[Any, ...]]) -> None:
    given = fetched(records)
    maker = RecordRows(JSON.decoder({"n": pl.Int64()}), ABOUT, [KeyColumn("k", TEXT, pl.String())])
    found = maker.decode(3, given)
    rows, offsets, bad = expected(given)
    assert found.frame.select("n", "k", "h", "t", "p", "o").to_dicts() == rows
    assert [i for i, _ in found.bad] == bad
    if found.offsets is None:
        assert given.dense
    else:
        assert found.offsets.tolist() == offsets


def test_a_bad_key_says_so() -> None:
    maker = RecordRows(JSON.decoder({"n": pl.Int64()}), {"k": "key"}, [KeyColumn("k", TEXT, pl.String())])
    ((index, why),) = maker.decode(0, fetched([(1, b'{"n": 1}', b"a", None), (1, b'{"n": 1}', b"\xff", None)])).bad
    assert index == 1
    assert why.startswith("key: ")


def test_a_key_with_columns_is_a_struct() -> None:
    dtype = pl.Struct({"member": pl.String(), "country": pl.String()})
    maker = RecordRows(JSON.decoder({"n": pl.Int64()}), {"k": "key"}, [KeyColumn("k", JSON, dtype)])
    keys = [b'{"member": "ann", "country": "de"}', None, b"no", b'{"member": "bob"}']
    found = maker.decode(0, fetched([(1, b'{"n": 1}', key, None) for key in keys]))
    assert found.frame["k"].to_list() == [
        {"member": "ann", "country": "de"},
        None,
        {"member": "bob", "country": None},
    ]
    assert [index for index, _ in found.bad] == [2]


def test_the_type_of_a_key_is_that_of_its_format() -> None:
    assert key_dtype(open_format(FormatSpec("bytes"))) == pl.Binary()
    assert key_dtype(TEXT) == pl.String()
    assert key_dtype(JSON) is None
    with pytest.raises(DeclarationError):
        KeyColumn("k", TEXT, pl.Int64())


def test_records_that_say_nothing_leave_gaps() -> None:
    """A Debezium tombstone comes after the deletion, and is no message."""
    maker = RecordRows(open_format(FormatSpec("bytes")).decoder({"value": pl.Binary()}), {"o": "offset"})
    found = maker.decode(0, fetched([(1, b"a", None, None), (2, b"b", None, None)]))
    assert found.offsets is not None
    assert found.offsets.tolist() == found.frame["o"].to_list() == [10, 12]


def test_what_is_wanted_of_records() -> None:
    decoder = open_format(FormatSpec("bytes")).decoder({"value": pl.Binary()})
    assert not any(RecordRows(decoder, {"o": "offset"}).wants(what) for what in ("key", "timestamp", "headers"))
    maker = RecordRows(decoder, ABOUT, [KeyColumn("k", TEXT, pl.String())])
    assert all(maker.wants(what) for what in ("key", "timestamp", "headers"))
