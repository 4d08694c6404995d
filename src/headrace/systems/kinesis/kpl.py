"""Aggregates: many user records that the Kinesis Producer Library (KPL) has written as one record. Pure.

An aggregate is a magic number, a message in protobuf, and the message's MD5. Fields of the message: 1 a table of keys,
2 a table of explicit hashes (decimal), 3 the records, each with 1 the index of its key, 2 perhaps that of its
hash, 3 its data. Everything that isn't one, for whatever reason, is a plain record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5

from headrace.systems.kinesis.api import key_hash

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_KEYS, _HASHES, _RECORDS = 1, 2, 3
_KEY_INDEX, _HASH_INDEX, _DATA = 1, 2, 3
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One record of an aggregate. ``hash`` is what its shard is chosen by."""

    key: str
    hash: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The user records of an aggregate, in order.

    ``misplaced``: one of them belongs to another shard, since the stream was resharded while the KPL was writing. The
    KPL notices that and writes all of them again, so readers leave out a misplaced aggregate as a whole.
    """

    records: list[UserRecord]
    misplaced: bool


def unpack(data: bytes, first: int, last: int) -> Aggregate | None:
    """Return what is in the record of a shard with these hashes, or None if it is a plain record."""
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC) + _DIGEST_BYTES:
        return None
    message = data[len(MAGIC) : -_DIGEST_BYTES]
    if md5(message, usedforsecurity=False).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        records = _user_records(message)
    except (ValueError, IndexError):  # not what the KPL writes, though the digest fits
        return None
    return Aggregate(records, any(not first <= record.hash <= last for record in records))


def _user_records(message: bytes) -> list[UserRecord]:
    """Read the message. Raises ``ValueError`` or ``IndexError``."""
    tables: dict[int, list[bytes]] = {_KEYS: [], _HASHES: [], _RECORDS: []}
    for number, value in _fields(message):
        if number in tables:
            tables[number].append(_bytes(value))
    keys = [key.decode() for key in tables[_KEYS]]
    key_hashes = [key_hash(key) for key in keys]
    hashes = [_decimal(text) for text in tables[_HASHES]]
    records = []
    for packed in tables[_RECORDS]:
        fields = dict(_fields(packed))
        index = _number(fields.get(_KEY_INDEX))
        chosen = hashes[_number(fields[_HASH_INDEX])] if _HASH_INDEX in fields else key_hashes[index]
        records.append(UserRecord(keys[index], chosen, _bytes(fields.get(_DATA))))
    return records


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers and bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, value = tag & 7, 0
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            value, at = _varint(message, at)
        elif kind in (_FIXED_64, _FIXED_32):
            value = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"unknown kind of field {kind}")
        if at + value > len(message):
            raise ValueError("the message is cut off")
        yield tag >> 3, message[at : at + value]
        at += value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a place, and the place after it."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 70:
            raise ValueError("a number is too long")


def _decimal(text: bytes) -> int:
    if not text.isdigit():
        raise ValueError("a hash isn't a decimal number")
    return int(text)


def _number(value: int | bytes | None) -> int:
    if not isinstance(value, int):
        raise ValueError("a number is missing")
    return value


def _bytes(value: int | bytes | None) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("bytes are missing")
    return value
