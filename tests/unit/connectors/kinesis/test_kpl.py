"""Aggregates of the KPL, against an encoder of the test's own that follows the published format."""

from __future__ import annotations

from hashlib import md5

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.connectors.kinesis.api import HASH_END, key_hash
from headrace.connectors.kinesis.records import Aggregate, UserRecord, unpack

MAGIC = bytes.fromhex("f3899ac2")
EVERYWHERE = (0, HASH_END - 1)
USER_RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "", "schlüssel", "k" * 200]) | st.text(max_size=5),
        st.none() | st.integers(0, HASH_END - 1),
        st.binary(max_size=300),
    ),
    max_size=30,
)


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sealed(message: bytes) -> bytes:
    return MAGIC + message + md5(message).digest()


def packed(records: list[tuple[str, int | None, bytes]]) -> bytes:
    """The message of an aggregate, each key and hash once in its table."""
    keys = list(dict.fromkeys(key for key, _, _ in records))
    hashes = list(dict.fromkeys(number for _, number, _ in records if number is not None))
    message = b"".join(field(1, key.encode()) for key in keys)
    message += b"".join(field(2, str(number).encode()) for number in hashes)
    for key, number, data in records:
        record = field(1, keys.index(key))
        if number is not None:
            record += field(2, hashes.index(number))
        message += field(3, record + field(3, data))
    return message


@given(USER_RECORDS.filter(bool))
def test_user_records_come_back_in_order(records: list[tuple[str, int | None, bytes]]) -> None:
    aggregate = unpack(sealed(packed(records)), *EVERYWHERE)
    wanted = [UserRecord(key, key_hash(key) if number is None else number, data) for key, number, data in records]
    assert aggregate == Aggregate(wanted, misplaced=False)


@given(USER_RECORDS.filter(bool), st.integers(0, HASH_END - 1), st.integers(0, HASH_END - 1))
def test_an_aggregate_with_a_record_of_another_shard_is_misplaced(
    records: list[tuple[str, int | None, bytes]], one: int, other: int
) -> None:
    first, last = sorted((one, other))
    aggregate = unpack(sealed(packed(records)), first, last)
    assert aggregate is not None
    numbers = [int(md5(key.encode()).hexdigest(), 16) if number is None else number for key, number, _ in records]
    assert aggregate.misplaced == (min(numbers) < first or max(numbers) > last)


@pytest.mark.parametrize(("hash", "misplaced"), [(9, True), (10, False), (20, False), (21, True)])
def test_a_shard_has_both_its_bounds(hash: int, misplaced: bool) -> None:
    aggregate = unpack(sealed(packed([("a", hash, b"x")])), 10, 20)
    assert aggregate is not None
    assert aggregate.misplaced == misplaced


@given(st.binary(max_size=400))
@example(b"")
@example(MAGIC)
@example(MAGIC + md5(b"").digest())
@example(b'{"json": 1}')
def test_other_bytes_are_a_plain_record(data: bytes) -> None:
    assert unpack(data, *EVERYWHERE) is None
    assert unpack(MAGIC + data, *EVERYWHERE) is None, "the digest is missing"


@given(USER_RECORDS.filter(bool), st.data())
def test_a_damaged_aggregate_is_a_plain_record(
    records: list[tuple[str, int | None, bytes]], data: st.DataObject
) -> None:
    whole = sealed(packed(records))
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    assert unpack(flipped, *EVERYWHERE) is None
    assert unpack(whole[:at], *EVERYWHERE) is None


@given(st.binary(min_size=1, max_size=60))
def test_any_message_with_a_right_digest_is_read_or_plain(message: bytes) -> None:
    aggregate = unpack(sealed(message), *EVERYWHERE)
    assert aggregate is None or all(record.hash >= 0 for record in aggregate.records)


KEY, RECORD = field(1, b"a"), field(1, 0) + field(3, b"x")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no such key", field(3, RECORD)),
        ("no such hash", KEY + field(3, RECORD + field(2, 0))),
        ("a hash that is no number", KEY + field(2, b"x") + field(3, RECORD + field(2, 0))),
        ("a negative hash", KEY + field(2, b"-1") + field(3, RECORD + field(2, 0))),
        ("no key", KEY + field(3, field(3, b"x"))),
        ("no data", KEY + field(3, field(1, 0))),
        ("data of a wrong kind", KEY + field(3, field(1, 0) + field(3, 7))),
        ("a key that is no text", field(1, b"\xff") + field(3, RECORD)),
        ("cut off", (KEY + field(3, RECORD))[:-1]),
        ("a group", KEY + field(3, RECORD) + varint(5 << 3 | 3)),
        ("an endless number", KEY + field(3, RECORD) + b"\x80" * 30 + b"\x01"),
    ],
)
def test_what_the_kpl_never_writes_is_a_plain_record(what: str, message: bytes) -> None:
    assert unpack(sealed(message), *EVERYWHERE) is None, what


def test_fields_that_came_later_are_passed_over() -> None:
    tags = field(4, field(1, b"name") + field(2, b"value"))
    numbers = varint(9 << 3 | 1) + bytes(8) + varint(10 << 3 | 5) + bytes(4) + field(11, 3)
    aggregate = unpack(sealed(KEY + numbers + field(3, RECORD + tags)), *EVERYWHERE)
    assert aggregate is not None
    assert aggregate.records == [UserRecord("a", key_hash("a"), b"x")]


def test_an_aggregate_of_no_records_has_none() -> None:
    assert unpack(sealed(KEY), *EVERYWHERE) == Aggregate([], misplaced=False)
