"""Changes of a key-value store: many entries in one record, up to a limit."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import CorruptLogError
from headrace.rows.ipc import encode_rows
from headrace.stores.base import CHANGE_BYTES_MAX, decode_change, encode_entries

ENTRIES = st.dictionaries(st.binary(max_size=5), st.none() | st.binary(max_size=50), max_size=30)


def encode_changes(
    operation: bytes, entries: dict[bytes, bytes | None], bytes_max: int = CHANGE_BYTES_MAX
) -> list[bytes]:
    return encode_entries(operation, list(entries), list(entries.values()), bytes_max)


@settings(deadline=None)
@given(ENTRIES, st.integers(1, 300))
def test_entries_come_back_in_their_order(entries: dict[bytes, bytes | None], bytes_max: int) -> None:
    told: list[tuple[bytes, bytes | None]] = []
    for change in encode_changes(b"\x01", entries, bytes_max):
        assert change[:1] == b"\x01"
        keys, values = decode_change(change)
        assert len(keys) == 1 or sum(len(k) + len(v or b"") for k, v in zip(keys, values, strict=True)) <= bytes_max
        told += zip(keys, values, strict=True)
    assert told == list(entries.items())


def test_a_large_entry_is_alone() -> None:
    entries: dict[bytes, bytes | None] = {b"a": b"1", b"b": b"x" * 1000, b"c": b"3", b"d": b"4"}
    assert [decode_change(change)[0] for change in encode_changes(b"\x01", entries, 100)] == [
        [b"a"],
        [b"b"],
        [b"c", b"d"],
    ]


def test_an_entry_costs_few_bytes() -> None:
    entries: dict[bytes, bytes | None] = {b"%08d" % number: b"%016d" % number for number in range(10_000)}
    assert sum(map(len, encode_changes(b"\x01", entries))) < 10_000 * (8 + 16 + 9)


def test_damage_is_refused() -> None:
    [change] = encode_changes(b"\x01", {b"a": b"1"})
    with pytest.raises(CorruptLogError, match="a change in the changelog is damaged"):
        decode_change(change[:-10])
    with pytest.raises(CorruptLogError, match=r"has the columns \['x'\]"):
        decode_change(b"\x01" + encode_rows(pl.DataFrame({"x": [1]})))
