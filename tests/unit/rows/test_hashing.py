"""The hash is a durable contract: golden values, equality across types, spread, and the split by it."""

from __future__ import annotations

import struct
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DeclarationError
from headrace.rows.hashing import hash_rows, partition_of, split

MASK = (1 << 64) - 1


def of(values: list[object], dtype: object = None) -> list[int]:
    return hash_rows(pl.DataFrame({"k": pl.Series(values, dtype=dtype)}), ["k"]).tolist()  # type: ignore[arg-type]


# -- an independent, slow reading of the definition in the module's head ----------------------------


def mix(word: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word ^= word >> 33
        word = word * factor & MASK
    return word ^ word >> 33


def plain_hash(data: bytes) -> int:
    golden = 0x9E3779B97F4A7C15
    head, rest = struct.unpack("<QQ", struct.pack("<I", len(data)) + data[:12].ljust(12, b"\0"))
    hashed = mix(mix(head * golden & MASK) ^ rest)
    if len(data) <= 12:
        return hashed
    for place, start in enumerate(range(12, len(data), 8), 1):
        word = int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "little")
        hashed += mix((word + place * golden) & MASK)
    return mix(hashed & MASK)


@given(st.lists(st.one_of(st.binary(max_size=60), st.none()), min_size=1))
def test_binaries_follow_the_definition(values: list[bytes | None]) -> None:
    expected = [0x6E756C6C2D6B6579 if value is None else plain_hash(value) for value in values]
    assert of(list(values), pl.Binary) == expected


def test_very_long_strings_follow_the_definition() -> None:
    # Values longer than one block of words beside short ones, so that rows begin and end inside blocks.
    values = [b"ab" * n for n in (1, 50_000, 3, 7, 200_000, 6, 8)]
    assert of(list(values), pl.Binary) == [plain_hash(value) for value in values]


@pytest.mark.parametrize("count", [1, 8191, 8192, 8193, 20_000])
def test_blocks_leave_no_seam(count: int) -> None:
    texts = [f"user-{n}" if n % 3 else f"a user with a long name, {n}" for n in range(count)]
    assert of(list(texts)) == [plain_hash(text.encode()) for text in texts]


# -- golden values: changing one of these breaks every app that exists -----------------------------

GOLDEN: list[tuple[object, object, int]] = [
    (0, pl.Int64, 0x0000000000000000),
    (1, pl.Int64, 0x9CA066F1A4AB2EEA),
    (-1, pl.Int64, 0xD314D4F7BBE9A09E),
    (2**63 - 1, pl.Int64, 0x0C3CA662A4CD05F1),
    (2**64 - 1, pl.UInt64, 0xD314D4F7BBE9A09E),
    (True, pl.Boolean, 0x9CA066F1A4AB2EEA),
    (1.5, pl.Float64, 0x2D3DF98CC77A6858),
    (float("nan"), pl.Float64, 0x2A66B251696B37EA),
    ("", pl.String, 0x0000000000000000),
    ("user-123", pl.String, 0x85DC8EFA50581E44),
    ("twelve bytes", pl.String, 0xA67F7A0F67D91C4C),
    ("thirteen byte", pl.String, 0x3484E56E52C29DD5),
    ("https://example.com/a/b/c?d=e", pl.String, 0x5924841B9018C31E),
    (b"\x00\x01", pl.Binary, 0xF5BEF315793A78AE),
    (datetime(2024, 2, 29, 12, 30), pl.Datetime("ms"), 0x652A10EA6139E64D),
    (date(2024, 2, 29), pl.Date, 0x706E96C7C709BDAC),
    (timedelta(seconds=1), pl.Duration("us"), 0xF15F2308F09658F5),
    (time(1, 2, 3), pl.Time, 0xF63DCD41842F3639),
    (Decimal("12.50"), pl.Decimal(10, 2), 0x22C9E781A92299C3),
    (None, pl.String, 0x6E756C6C2D6B6579),
]
MEMBERS = [5, 0, 3, 6, 3, 10, 9, 7, 9, 3, 11, 2]
PAIRS = [3, 0, 5, 6, 6, 1, 6, 1, 1, 0, 3, 2]


@pytest.mark.parametrize(("value", "dtype", "expected"), GOLDEN, ids=lambda value: str(value)[:30])
def test_golden_values(value: object, dtype: object, expected: int) -> None:
    assert of([value], dtype) == [expected]


def test_golden_partitions() -> None:
    df = pl.DataFrame({"member": [f"user-{n}" for n in range(12)], "shop": range(12)})
    assert partition_of(df, ["member"], 16).tolist() == MEMBERS
    assert partition_of(df, ["member", "shop"], 7).tolist() == PAIRS


# -- equality ------------------------------------------------------------------------------------------


def test_integers_of_all_widths_agree() -> None:
    signed = [pl.Int8, pl.Int16, pl.Int32, pl.Int64]
    unsigned = [pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64]
    assert len({tuple(of([0, 1, 100], dtype)) for dtype in signed + unsigned}) == 1
    assert len({tuple(of([-1, -128], dtype)) for dtype in signed}) == 1


def test_floats_agree_when_equal() -> None:
    assert of([0.0]) == of([-0.0])
    assert of([0.5], pl.Float32) == of([0.5], pl.Float64)
    nans = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8000000000000, 0xFFF8000000000001)]
    assert of([nans[0]]) == of([nans[1]])


def test_text_bytes_and_categories_agree() -> None:
    for value in ("a", "twelve bytes", "thirteen byte", "Öl und Wasser und mehr davon", ""):
        hashes = {of([value])[0], of([value.encode()])[0], of([value], pl.Categorical)[0]}
        hashes.add(of([value], pl.Enum([value]))[0])
        assert len(hashes) == 1, value


def test_times_agree_across_units() -> None:
    moment = datetime(2024, 2, 29, 12, 30)
    assert len({of([moment], pl.Datetime(unit))[0] for unit in ("ms", "us", "ns")}) == 1
    assert len({of([timedelta(hours=1)], pl.Duration(unit))[0] for unit in ("ms", "us", "ns")}) == 1
    assert of([date(2024, 2, 29)]) == of([datetime(2024, 2, 29)])


def test_decimals_agree_across_scales() -> None:
    for scale in (1, 2, 10):
        assert of([Decimal("1.5")], pl.Decimal(20, scale)) == of([Decimal("1.5")], pl.Decimal(38, 3))
    assert of([Decimal(100)], pl.Decimal(20, 0)) == of([Decimal(100)], pl.Decimal(20, 2))


def test_nulls_of_all_types_agree_and_are_no_value() -> None:
    dtypes = [pl.Int64, pl.Float32, pl.String, pl.Binary, pl.Boolean, pl.Date, pl.Null, pl.Decimal(9, 2)]
    assert len({of([None], dtype)[0] for dtype in dtypes}) == 1
    assert of([None], pl.String) != of([""])
    assert of([None], pl.Int64) != of([0])


def test_nulls_between_long_strings() -> None:
    values = ["a string of some length", None, "short", None, "another string of length"]
    assert of(list(values))[::2] == of(list(values[::2]))


def test_order_and_border_of_columns_matter() -> None:
    df = pl.DataFrame({"a": ["x", "ab"], "b": ["y", "c"], "c": ["xy", "a"], "d": ["", "bc"]})
    assert hash_rows(df, ["a", "b"])[0] != hash_rows(df, ["b", "a"])[0]
    assert hash_rows(df, ["a", "b"])[1] != hash_rows(df, ["c", "d"])[1]


def test_a_struct_is_its_fields_in_order() -> None:
    df = pl.DataFrame({"a": [1, 2], "b": ["x", None]}).with_columns(s=pl.struct("a", "b"))
    assert hash_rows(df, ["s"]).tolist() == hash_rows(df, ["a", "b"]).tolist()
    empty = pl.DataFrame({"s": [None]}, schema={"s": pl.Struct({"a": pl.Int64})})
    assert hash_rows(empty, ["s"]).tolist() == of([None], pl.Int64)


def test_slices_and_chunks_make_no_difference() -> None:
    texts = [f"user-{n}" * (1 + n % 4) for n in range(1000)]
    whole = pl.DataFrame({"k": texts, "n": range(1000)})
    chunked = pl.concat([whole.slice(0, 300), whole.slice(300, 1), whole.slice(301)], rechunk=False)
    expected = hash_rows(whole, ["k", "n"])
    assert (hash_rows(chunked, ["k", "n"]) == expected).all()
    assert (hash_rows(whole.slice(137, 500), ["k", "n"]) == expected[137:637]).all()
    assert hash_rows(whole.clear(), ["k", "n"]).tolist() == []


# -- spread --------------------------------------------------------------------------------------------


KEYS = {
    "sequential": pl.Series(range(100_000)),
    "every 1024th": pl.Series(range(0, 102_400_000, 1024)),
    "floats": pl.Series([n / 8 for n in range(100_000)]),
    "users": pl.Series([f"user-{n}" for n in range(100_000)]),
    "long": pl.Series([f"https://example.com/a/rather/long/path/{n}/index.html" for n in range(100_000)]),
    "hours": pl.Series([datetime(2000, 1, 1) + timedelta(hours=n) for n in range(100_000)]),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("n", [2, 3, 4, 7, 16, 64, 100, 256])
def test_keys_spread_evenly(keys: pl.Series, n: int) -> None:
    counts = np.bincount(partition_of(keys.to_frame("k"), ["k"], n), minlength=n)
    expected = len(keys) / n
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # Beyond five standard deviations: the odds against it are millions to one for a fair hash.
    assert chi_square < (n - 1) + 5 * (2 * (n - 1)) ** 0.5 + 10


def test_doubled_partitions_keep_their_keys_together() -> None:
    df = KEYS["users"].to_frame("k")
    assert (partition_of(df, ["k"], 32).astype(int) % 16 == partition_of(df, ["k"], 16)).all()


# -- what can't be a key ---------------------------------------------------------------------------------


def test_bad_keys_are_named() -> None:
    df = pl.DataFrame({"a": [1], "tags": [[1]]})
    with pytest.raises(DeclarationError, match="key column 'b' isn't in the batch; it has a, tags"):
        hash_rows(df, ["b"])
    with pytest.raises(DeclarationError, match="column 'tags' of type List"):
        hash_rows(df, ["tags"])
    with pytest.raises(DeclarationError, match="at least one column"):
        hash_rows(df, [])
    for n in (0, -1, 65_537):
        with pytest.raises(DeclarationError, match="1 to 65536"):
            partition_of(df, ["a"], n)


# -- split -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 100, 20_000, 140_000])
@pytest.mark.parametrize("n", [1, 2, 3, 16, 300])
def test_split_keeps_every_row_in_its_partition_and_order(rows: int, n: int) -> None:
    df = pl.DataFrame({"k": [f"user-{i % 1000}" for i in range(rows)], "place": range(rows)}, strict=False)
    ids = partition_of(df, ["k"], n)
    parts = split(df, ids, n)
    assert all(part.height for _, part in parts)
    assert all(a < b for (a, _), (b, _) in pairwise(parts))
    for partition, part in parts:
        assert part.equals(df.filter(pl.Series(ids == partition, dtype=pl.Boolean)))
    assert sum(part.height for _, part in parts) == rows


def test_split_of_one_partition_copies_nothing() -> None:
    df = pl.DataFrame({"k": ["same"] * 10})
    ((partition, part),) = split(df, partition_of(df, ["k"], 64), 64)
    assert part is df
    assert partition == partition_of(df, ["k"], 64)[0]


def test_split_refuses_ids_of_other_rows() -> None:
    df = pl.DataFrame({"k": [1, 2]})
    with pytest.raises(ValueError, match="1 partition ids for 2 rows"):
        split(df, partition_of(df.head(1), ["k"], 4), 4)


def test_time_of_day_is_a_key() -> None:
    assert of([time(1)]) != of([time(2)])
