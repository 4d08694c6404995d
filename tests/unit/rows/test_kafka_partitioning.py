from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rows.hashing import RUN, murmur2, partitions_of

# From the tests of Kafka (UtilsTest.java) and of librdkafka (rdmurmur2.c).
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
LIBRDKAFKA = {b"kafka": 0xD067CF64, b"giberish123456789": 0x8F552B0C, b"1234": 0x9FC97B14, b"": 0x106E08D9}


def one_by_one(key: bytes) -> int:
    """Kafka's ``Utils.murmur2``, step by step."""
    m, bits = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) // 4 * 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & bits
        h = (h * m & bits) ^ ((k ^ k >> 24) * m & bits)
    rest = key[len(key) // 4 * 4 :]
    for byte in range(len(rest) - 1, -1, -1):
        h ^= rest[byte] << 8 * byte
        if byte == 0:
            h = h * m & bits
    h = (h ^ h >> 13) * m & bits
    return h ^ h >> 15


@pytest.mark.parametrize(("key", "hash"), [*((k, v % 2**32) for k, v in JAVA.items()), *LIBRDKAFKA.items()])
def test_golden_values(key: bytes, hash: int) -> None:
    assert one_by_one(key) == hash
    assert murmur2(pl.Series([key, b"x" * 7, key], dtype=pl.Binary)).tolist()[::2] == [hash, hash]


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"", b"\xff" * 255, b"\x80" * 256, b"\xfe" * 257, b"a" * 4099]))
)
def test_whole_columns_hash_like_single_keys(keys: list[bytes]) -> None:
    assert murmur2(pl.Series(keys, dtype=pl.Binary)).tolist() == [one_by_one(key) for key in keys]


@given(st.lists(st.none() | st.binary(max_size=9)), st.integers(1, 50))
def test_keys_go_by_their_hashes(keys: list[bytes | None], partitions: int) -> None:
    found = partitions_of(pl.Series(keys, dtype=pl.Binary), partitions).tolist()
    for key, partition in zip(keys, found, strict=True):
        assert 0 <= partition < partitions
        assert key is None or partition == (one_by_one(key) & 0x7FFFFFFF) % partitions


def test_parts_of_a_column_and_several_chunks_are_hashed_alike() -> None:
    keys = pl.concat([pl.Series([f"key-{n}".encode() for n in range(m, m + 7)]) for m in (0, 7)], rechunk=False)
    assert keys.n_chunks() == 2
    assert murmur2(keys[3:12]).tolist() == murmur2(keys).tolist()[3:12]


def test_records_without_a_key_go_in_runs() -> None:
    nothing = pl.Series([None] * 10, dtype=pl.Binary)
    assert partitions_of(nothing, 4, first=2).tolist() == [2] * 10
    many = partitions_of(pl.Series([None] * (8 * RUN), dtype=pl.Binary), 4, first=3)
    assert many.tolist() == [p for p in (3, 0, 1, 2) for _ in range(2 * RUN)]
    mixed = partitions_of(pl.Series([None, b"foobar", None], dtype=pl.Binary), 3, first=1).tolist()
    assert mixed == [1, (one_by_one(b"foobar") & 0x7FFFFFFF) % 3, 1]


def test_no_keys_at_all() -> None:
    assert partitions_of(pl.Series([], dtype=pl.Binary), 3).tolist() == []
