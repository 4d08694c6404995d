"""The bytes of a log partition: encode, scan, and tell a torn append from damage. Pure.

A partition is one append-only file::

    file header, 32 bytes   "HRACELOG" | version u32 | salt u64 | zeros 8 | crc32c u32
    then records            mark 3 bytes, kind u8 | length u32 | crc32c u32 | check u32 | body

All integers are big-endian. An offset is a byte position, so the oldest possible offset is 32. ``crc``
covers the body, ``check`` the twelve bytes before it; both begin from a seed made of the file's salt.
The salt makes a record self-identifying: bytes copied from another log, lying in a body, are no record here.

Writers append with one write call each and no lock. A writer that dies in that call, or meets a full
disk, leaves the beginning of a record; the next writer's records follow it. So there are three ways for a
record not to check out, and ``diagnose`` tells them apart:

- *incomplete*: the file ends inside it and no other header stands in it: it may still be growing;
- *torn*: another header stands before its claimed end (or before the end of its own header): nobody was
  told that it was written, so it is stepped over, and counted;
- *corrupt*: anything else. An acknowledged record was whole once, so it is never stepped over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

import google_crc32c

from headrace.core.errors import CorruptLogError, UsageError

FORMAT_VERSION = 1
FILE_HEADER = struct.Struct(">8sIQ8xI")
FILE_HEADER_SIZE = FILE_HEADER.size
FILE_MAGIC = b"HRACELOG"

MARK = b"\xf5HR"
"""Begins every record. 0xF5 occurs in no UTF-8 text, so that a search for it meets few false starts."""
RECORD = 1
SEAL = 2
HEADER = struct.Struct(">3sBIII")
HEADER_SIZE = HEADER.size
CHECKED = HEADER_SIZE - 4
MAX_BODY = 1 << 30

_CHECKED_PART = struct.Struct(">3sBII")
_CHECK = struct.Struct(">I")
_extend = google_crc32c.extend


def encode_file_header(salt: int) -> bytes:
    """The first bytes of a partition file. ``salt`` is random, 64 bits."""
    checked = FILE_HEADER.pack(FILE_MAGIC, FORMAT_VERSION, salt, 0)[:-4]
    return checked + _CHECK.pack(google_crc32c.value(checked))


def decode_file_header(data: bytes) -> int:
    """The checksum seed of the file that ``data`` begins; raises ``CorruptLogError`` for anything else."""
    if len(data) < FILE_HEADER_SIZE or not data.startswith(FILE_MAGIC):
        raise CorruptLogError(f"not a log partition: it begins with {data[:8]!r}, not {FILE_MAGIC!r}")
    _, version, salt, crc = FILE_HEADER.unpack_from(data)
    if google_crc32c.value(data[: FILE_HEADER_SIZE - 4]) != crc:
        raise CorruptLogError("the checksum of the file header fails")
    if version != FORMAT_VERSION:
        raise CorruptLogError(
            f"log format version {version}; this Headrace reads {FORMAT_VERSION}",
            hint="upgrade the reader before the writer",
        )
    return seed_of(salt)


def seed_of(salt: int) -> int:
    """What the checksums of a file with this salt begin from."""
    return int(google_crc32c.value(salt.to_bytes(8, "big")))


def record_header(body: bytes, seed: int) -> bytes:
    """The header that stands before ``body``; raises ``UsageError`` when the body is too long."""
    if len(body) > MAX_BODY:
        raise UsageError(f"a record of {len(body)} bytes; the log takes {MAX_BODY}")
    checked = _CHECKED_PART.pack(MARK, RECORD, len(body), _extend(seed, body))
    return checked + _CHECK.pack(_extend(seed, checked))


def seal_record(seed: int) -> bytes:
    """The record that ends a partition."""
    checked = _CHECKED_PART.pack(MARK, SEAL, 0, seed)
    return checked + _CHECK.pack(_extend(seed, checked))


# -- the fast way: everything is whole -------------------------------------------------------------------


class ScanEnd(Enum):
    """Why a scan ended where it did."""

    END = "end"
    """At a boundary, with all bytes used."""
    INCOMPLETE = "incomplete"
    """The bytes end within a record; ``need`` bytes from ``next`` on would hold all of it."""
    SEALED = "sealed"
    """A seal stands at ``next``."""
    BAD = "bad"
    """What stands at ``next`` doesn't check out; ``diagnose`` says why."""


@dataclass(slots=True)
class Scan:
    """The whole records of a chunk, and where and why it stopped."""

    offsets: list[int]
    payloads: list[bytes]
    next: int
    stop: ScanEnd
    need: int = 0


def scan(chunk: bytes, base: int, seed: int) -> Scan:
    """Read the records of ``chunk``, whose first byte stands at offset ``base`` and begins a record."""
    offsets: list[int] = []
    payloads: list[bytes] = []
    at, size, stop, need = 0, len(chunk), ScanEnd.END, 0
    unpack, extend = HEADER.unpack_from, _extend
    while at < size:
        body_at = at + HEADER_SIZE
        if body_at > size:
            stop, need = ScanEnd.INCOMPLETE, HEADER_SIZE
            break
        mark, kind, length, crc, check = unpack(chunk, at)
        if extend(seed, chunk[at : at + CHECKED]) != check or mark != MARK:
            stop = ScanEnd.BAD
            break
        if kind == SEAL:
            stop = ScanEnd.SEALED
            break
        end = body_at + length
        if end > size:
            stop, need = ScanEnd.INCOMPLETE, end - at
            break
        body = chunk[body_at:end]
        if extend(seed, body) != crc:
            stop = ScanEnd.BAD
            break
        offsets.append(base + at)
        payloads.append(body)
        at = end
    return Scan(offsets, payloads, base + at, stop, need)


# -- the slow way: something isn't -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundHeader:
    """A header that checks out."""

    at: int
    kind: int
    end: int


class TailState(Enum):
    """What is the matter with bytes that aren't a whole record."""

    WAIT = "wait"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``skip`` is how many bytes a torn append left behind; ``reason`` says what is corrupt."""

    verdict: TailState
    skip: int = 0
    reason: str = ""


def header_at(data: bytes, at: int, seed: int) -> FoundHeader | None:
    """The header that stands at ``at``, if it is whole and checks out."""
    if at + HEADER_SIZE > len(data):
        return None
    mark, kind, length, _, check = HEADER.unpack_from(data, at)
    if mark != MARK or _extend(seed, data[at : at + CHECKED]) != check:
        return None
    return FoundHeader(at, kind, at + HEADER_SIZE + length)


def find_header(data: bytes, start: int, stop: int, seed: int, kind: int | None = None) -> FoundHeader | None:
    """The first header (of ``kind``) that begins in ``start <= at < stop``."""
    at = data.find(MARK, start, stop + len(MARK) - 1)
    while at >= 0:
        found = header_at(data, at, seed)
        if found is not None and kind in (None, found.kind):
            return found
        at = data.find(MARK, at + 1, stop + len(MARK) - 1)
    return None


def find_last_header(data: bytes, seed: int) -> FoundHeader | None:
    """The last header in ``data``."""
    at = data.rfind(MARK)
    while at >= 0:
        found = header_at(data, at, seed)
        if found is not None:
            return found
        at = data.rfind(MARK, 0, at + len(MARK) - 1)
    return None


def claimed_size(data: bytes, seed: int) -> int:
    """How many bytes from the start of ``data`` ``diagnose`` wants to see, if the file has them."""
    found = header_at(data, 0, seed)
    return (found.end if found else HEADER_SIZE) + HEADER_SIZE


def diagnose(data: bytes, seed: int) -> Diagnosis:
    """Say why no whole record stands at the start of ``data``.

    ``data`` holds ``claimed_size`` bytes, or all that the file has from there on.
    """
    found = header_at(data, 0, seed)
    if found is None:
        return _without_header(data, seed)
    other = find_header(data, HEADER_SIZE, min(found.end, len(data)), seed)
    if other is not None:
        return Diagnosis(TailState.TORN, skip=other.at)
    if len(data) < found.end or _header_begins(data, found.end):
        return Diagnosis(TailState.WAIT)
    return Diagnosis(TailState.CORRUPT, reason=f"the checksum of a record of {found.end - HEADER_SIZE} bytes fails")


def _without_header(data: bytes, seed: int) -> Diagnosis:
    # A whole record is never shorter than its header, so another header nearer than that proves a tear. (Two
    # tears in a row that are both shorter than a header may be taken for damage: then they are reported.)
    other = find_header(data, 1, min(HEADER_SIZE, len(data)), seed)
    if other is not None and data.startswith(MARK[:1]):
        return Diagnosis(TailState.TORN, skip=other.at)
    begins = MARK.startswith(data[: len(MARK)])
    if begins and (len(data) < HEADER_SIZE or _header_begins(data, HEADER_SIZE)):
        return Diagnosis(TailState.WAIT)
    return Diagnosis(TailState.CORRUPT, reason=f"no record begins there, but {data[:HEADER_SIZE]!r}")


def _header_begins(data: bytes, stop: int) -> bool:
    """Whether the file ends within what may become a header that begins before ``stop``.

    The mark and the kind must be there: fewer bytes would make a damaged record look like one in the making.
    """
    start = max(1, len(data) - HEADER_SIZE + 1)
    at = max(data.rfind(MARK + bytes([kind]), start, stop + len(MARK)) for kind in (RECORD, SEAL))
    return 0 <= at < stop
