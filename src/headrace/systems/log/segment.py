"""The bytes of a log partition: encode and scan records, and distinguish torn appends from damage. Pure.

A partition is one append-only file::

    file header, 32 bytes   "HRACELOG" | version u32 | salt u64 | zeros 8 | crc32c u32
    then records            mark 3 bytes, kind u8 | length u32 | crc32c u32 | time u64 | check u32 | body

All integers are big-endian. An offset is a byte position, so the oldest possible offset is 32. ``time`` says when the
record was appended (ms since the epoch). ``crc`` covers the body, ``check`` the twenty bytes before it; both start from
a seed derived from the file's salt. The salt makes records self-identifying: a message body may contain a copy of
another log's records, and they are not taken for records of this one.

Writers append with one write call each and no lock. A writer that dies in that call, or finds the disk full, leaves the
beginning of a record, and the next writer's records follow it. So bytes that aren't a valid record are one of three
things, which ``diagnose`` distinguishes:

- *incomplete*: the file ends inside the record, and no other header is inside it. It may still be growing.
- *torn*: another header begins before the record's claimed end, or before the end of its own header. The record was
  never acknowledged, so it is skipped and counted.
- *corrupt*: anything else. An acknowledged record was once complete, so it is never skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import google_crc32c

from headrace.core.errors import CorruptLogError, UsageError

FORMAT_VERSION = 2
FILE_HEADER = struct.Struct(">8sIQ8xI")
FILE_HEADER_SIZE = FILE_HEADER.size
FILE_MAGIC = b"HRACELOG"
MARK = b"\xf5HR"
"""The first bytes of every record. 0xF5 occurs in no UTF-8 text, so a search for it has few false matches."""
RECORD = 1
SEAL = 2
HEADER = struct.Struct(">3sBIIQI")
HEADER_SIZE = HEADER.size
CHECKED = HEADER_SIZE - 4
MAX_BODY = 1 << 30
TIME_ENTRY_VERSION = 1
TIME_ENTRY_SIZE = 32  # it divides the size of a block, so readers never see half of an entry that is being appended
_TIME_ENTRY = struct.Struct(">IQQI4x")
_WITHOUT_TIME = struct.Struct(">3sBII8xI")
_CHECKED_PART = struct.Struct(">3sBIIQ")
_CHECK = struct.Struct(">I")
_extend = google_crc32c.extend


def encode_file_header(salt: int) -> bytes:
    checked = FILE_HEADER.pack(FILE_MAGIC, FORMAT_VERSION, salt, 0)[:-4]
    return checked + _CHECK.pack(google_crc32c.value(checked))


def decode_file_header(data: bytes) -> int:
    if len(data) < FILE_HEADER_SIZE or not data.startswith(FILE_MAGIC):
        what = f"not a log partition: it begins with {data[:8]!r}, not {FILE_MAGIC!r}"
        raise CorruptLogError(what, hint="the file was replaced or damaged: restore it from a backup")
    _, version, salt, crc = FILE_HEADER.unpack_from(data)
    if google_crc32c.value(data[: FILE_HEADER_SIZE - 4]) != crc:
        said = "the checksum of the file header is wrong"
        raise CorruptLogError(said, hint="the file was damaged: restore it from a backup")
    if version != FORMAT_VERSION:
        raise CorruptLogError(
            f"log format version {version}; this version of Headrace reads {FORMAT_VERSION}",
            hint="a newer version wrote it; upgrade readers before writers"
            if version > FORMAT_VERSION
            else "an older version wrote it, whose records have no time: write its messages to a new stream",
        )
    return seed_of(salt)


def seed_of(salt: int) -> int:
    return int(google_crc32c.value(salt.to_bytes(8, "big")))


def check_fits(body: bytes) -> None:
    if len(body) > MAX_BODY:
        what = f"a record has {len(body)} bytes; the log takes at most {MAX_BODY}"
        raise UsageError(what, hint="write smaller batches")


def encode_records(bodies: Iterable[bytes], seed: int, time_ms: int) -> list[bytes]:
    pack, pack_check, extend = _CHECKED_PART.pack, _CHECK.pack, _extend
    parts: list[bytes] = []
    for body in bodies:
        checked = pack(MARK, RECORD, len(body), extend(seed, body), time_ms)
        parts.append(checked + pack_check(extend(seed, checked)))
        parts.append(body)
    return parts


def seal_record(seed: int, time_ms: int) -> bytes:
    checked = _CHECKED_PART.pack(MARK, SEAL, 0, seed, time_ms)
    return checked + _CHECK.pack(_extend(seed, checked))


def header_beyond(size: int, seed: int) -> bytes:
    """Return how an append begins that was torn after ``size`` bytes, at most that many: a header that claims more."""
    checked = _CHECKED_PART.pack(MARK, RECORD, max(size - HEADER_SIZE, 0) + 1, 0, 0)
    return (checked + _CHECK.pack(_extend(seed, checked)))[:size]


class ScanEnd(Enum):
    """Why a scan stopped."""

    END = "end"  # the chunk ends at a record boundary
    INCOMPLETE = "incomplete"  # the chunk ends inside a record; ``need`` bytes from ``next`` on would hold all of it
    SEALED = "sealed"  # there is a seal at ``next``
    BAD = "bad"  # the bytes at ``next`` aren't a valid record; ``diagnose`` says why


@dataclass(slots=True)
class Scan:
    """The complete records of a chunk, and where and why the scan stopped."""

    offsets: list[int]
    payloads: list[bytes]
    next: int
    stop: ScanEnd
    need: int = 0


def scan(chunk: bytes, base: int, seed: int) -> Scan:
    """``chunk`` starts at a record boundary, at offset ``base`` of the partition."""
    offsets: list[int] = []
    payloads: list[bytes] = []
    at, size, stop, need = 0, len(chunk), ScanEnd.END, 0
    unpack, extend = _WITHOUT_TIME.unpack_from, _extend
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


def time_of(chunk: bytes, at: int) -> int:
    return int(HEADER.unpack_from(chunk, at)[4])


def check_of(chunk: bytes, at: int) -> int:
    return int(HEADER.unpack_from(chunk, at)[5])


def landmark(at: int, check: int) -> str:
    return f"{at}:{check:08x}"


def latest_time(chunk: bytes, seed: int) -> tuple[int, int, int]:
    """Look at the headers in ``chunk``, which starts with one, up to what is no valid header.

    Returns the latest time in them (0 without any), where the last of them begins, and where the next one would.
    """
    unpack, extend = HEADER.unpack_from, _extend
    latest, last, at, stop = 0, 0, 0, len(chunk) - HEADER_SIZE
    while at <= stop:
        mark, _, length, _, time_ms, check = unpack(chunk, at)
        if mark != MARK or extend(seed, chunk[at : at + CHECKED]) != check:
            break
        latest = max(latest, time_ms)
        last = at
        at += HEADER_SIZE + length
    return latest, last, at


@dataclass(frozen=True, slots=True)
class TimeEntry:
    """A claim: all records below ``offset``, where one with this ``check`` begins, have times up to ``latest_ms``."""

    offset: int
    latest_ms: int
    check: int


def encode_time_entry(entry: TimeEntry, seed: int) -> bytes:
    checked = _TIME_ENTRY.pack(TIME_ENTRY_VERSION, entry.offset, entry.latest_ms, entry.check)
    return checked + _CHECK.pack(_extend(seed, checked))


def decode_time_entry(data: bytes, seed: int) -> TimeEntry | None:
    """Return the entry in these bytes; None if they are damaged, or of another partition or format."""
    if len(data) != TIME_ENTRY_SIZE or _CHECK.unpack_from(data, TIME_ENTRY_SIZE - 4)[0] != _extend(seed, data[:-4]):
        return None
    version, offset, latest_ms, check = _TIME_ENTRY.unpack_from(data)
    return TimeEntry(offset, latest_ms, check) if version == TIME_ENTRY_VERSION else None


@dataclass(frozen=True, slots=True)
class FoundHeader:
    """A valid header. It begins at ``at``, and its record claims to end at ``end``."""

    at: int
    kind: int
    end: int


class TailState(Enum):
    """What bytes that aren't a valid record are: incomplete, torn or corrupt, as the module head says."""

    WAIT = "wait"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of an invalid record. ``skip`` is the length of a torn append; ``reason`` says what is corrupt."""

    state: TailState
    skip: int = 0
    reason: str = ""


def header_at(data: bytes, at: int, seed: int) -> FoundHeader | None:
    if at + HEADER_SIZE > len(data):
        return None
    mark, kind, length, _, _, check = HEADER.unpack_from(data, at)
    if mark != MARK or _extend(seed, data[at : at + CHECKED]) != check:
        return None
    return FoundHeader(at, kind, at + HEADER_SIZE + length)


def find_header(data: bytes, start: int, stop: int, seed: int, kind: int | None = None) -> FoundHeader | None:
    at = data.find(MARK, start, stop + len(MARK) - 1)
    while at >= 0:
        found = header_at(data, at, seed)
        if found is not None and kind in (None, found.kind):
            return found
        at = data.find(MARK, at + 1, stop + len(MARK) - 1)
    return None


def find_last_header(data: bytes, seed: int) -> FoundHeader | None:
    at = data.rfind(MARK)
    while at >= 0:
        found = header_at(data, at, seed)
        if found is not None:
            return found
        at = data.rfind(MARK, 0, at + len(MARK) - 1)
    return None


def claimed_size(data: bytes, seed: int) -> int:
    """How many bytes ``diagnose`` needs: all that the header claims, or a header if there is none, and one more."""
    found = header_at(data, 0, seed)
    return (found.end if found else HEADER_SIZE) + HEADER_SIZE


def diagnose(data: bytes, seed: int) -> Diagnosis:
    """Return why ``data`` (``claimed_size`` bytes, or up to the end) starts with no complete, valid record."""
    found = header_at(data, 0, seed)
    if found is None:
        return _without_header(data, seed)
    other = find_header(data, HEADER_SIZE, min(found.end, len(data)), seed)
    if other is not None:
        return Diagnosis(TailState.TORN, skip=other.at)
    if len(data) < found.end or _header_begins(data, found.end):
        return Diagnosis(TailState.WAIT)
    return Diagnosis(TailState.CORRUPT, reason=f"the checksum of a record of {found.end - HEADER_SIZE} bytes is wrong")


def _without_header(data: bytes, seed: int) -> Diagnosis:
    # A complete record is at least as long as its header, so another header within that distance proves that the
    # append was torn. (Two torn appends in a row, both shorter than a header, may be reported as damage.)
    other = find_header(data, 1, min(HEADER_SIZE, len(data)), seed)
    if other is not None and data.startswith(MARK[:1]):
        return Diagnosis(TailState.TORN, skip=other.at)
    begins = MARK.startswith(data[: len(MARK)])
    if begins and (len(data) < HEADER_SIZE or _header_begins(data, HEADER_SIZE)):
        return Diagnosis(TailState.WAIT)
    return Diagnosis(TailState.CORRUPT, reason=f"no record begins there; the bytes are {data[:HEADER_SIZE]!r}")


def _header_begins(data: bytes, stop: int) -> bool:
    """Whether the file ends inside what may become a header that begins before ``stop``.

    Its mark and kind must be complete: with fewer bytes, a damaged record could pass for one that is being written.
    """
    start = max(1, len(data) - HEADER_SIZE + 1)
    at = max(data.rfind(MARK + bytes([kind]), start, stop + len(MARK)) for kind in (RECORD, SEAL))
    return 0 <= at < stop
