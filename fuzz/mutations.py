"""Damage bytes as broken programs, disks and wires do, and as somebody would who wants to hurt. Pure."""

from __future__ import annotations

from random import Random

MOST_BYTES = 1 << 20
"""How long a damaged input gets."""

_ODD_NUMBERS = tuple(
    number.to_bytes(size, order, signed=number < 0)
    for size in (1, 2, 4, 8)
    for order in ("little", "big")
    for number in (0, 1, -1, 1 << 8 * size - 2, (1 << 8 * size - 1) - 1, -(1 << 8 * size - 1))
)
_ODD_TEXTS = (
    b"\xff",
    b"\x80",
    b"\x00",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"[" * 5000,
    b'{"a":' * 5000,
    b"-0",
    b"1e999",
    b"9" * 400,
    b"NaN",
    b"null",
    b"\xef\xbb\xbf",
    b"\r\n",
    b'"',
    b"}",
)


def mutated(random: Random, data: bytes, other: bytes) -> bytes:
    """Return ``data`` with one to four changes; some take a piece of ``other``."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        data = random.choice(_CHANGES)(random, data, other)
    return data[:MOST_BYTES]


def _flip(random: Random, data: bytes, other: bytes) -> bytes:
    del other
    if not data:
        return data
    changed = bytearray(data)
    changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwrite(random: Random, data: bytes, other: bytes) -> bytes:
    del other
    odd = random.choice(_ODD_NUMBERS)
    at = random.randrange(max(1, len(data) - len(odd) + 1))
    return data[:at] + odd + data[at + len(odd) :]


def _overwrite_aligned(random: Random, data: bytes, other: bytes) -> bytes:
    """Formats of binary columns have their numbers at multiples of eight."""
    del other
    odd = random.choice(_ODD_NUMBERS)
    at = random.randrange(len(data) // 8 + 1) * 8
    return data[:at] + odd + data[at + len(odd) :]


def _insert(random: Random, data: bytes, other: bytes) -> bytes:
    del other
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(_ODD_TEXTS) + data[at:]


def _replace(random: Random, data: bytes, other: bytes) -> bytes:
    del other
    start, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    return data[:start] + random.choice(_ODD_TEXTS) + data[end:]


def _cut(random: Random, data: bytes, other: bytes) -> bytes:
    del other
    return data[: random.randrange(len(data) + 1)]


def _leave_out(random: Random, data: bytes, other: bytes) -> bytes:
    del other
    start, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    return data[:start] + data[end:]


def _double(random: Random, data: bytes, other: bytes) -> bytes:
    del other
    start, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    return data[:end] + data[start:end] * random.choice((1, 1, 2, 16)) + data[end:]


def _splice(random: Random, data: bytes, other: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _exchange(random: Random, data: bytes, other: bytes) -> bytes:
    """Put a stretch of another input in the same place."""
    end = min(len(data), len(other))
    start = random.randrange(end + 1)
    stop = random.randrange(start, end + 1)
    return data[:start] + other[start:stop] + data[stop:]


_CHANGES = (
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _overwrite_aligned,
    _overwrite_aligned,
    _insert,
    _replace,
    _cut,
    _leave_out,
    _double,
    _splice,
    _exchange,
)
