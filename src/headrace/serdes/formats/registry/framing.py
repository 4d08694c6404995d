"""The header of a record whose schema is in a registry: a zero byte, and the schema's id in four bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import numpy as np
import polars as pl

from headrace.serdes.dtypes import Columns
from headrace.serdes.formats.contract import Decoded, gathered

HEADER_BYTES = 5
_MAGIC = b"\x00"
_HEAD = itemgetter(slice(0, HEADER_BYTES))


def header(id: int) -> bytes:
    """The header of a record of this schema."""
    return _MAGIC + id.to_bytes(4, "big")


def id_in(head: bytes) -> int | None:
    """Return the id in the first bytes of a record; None if they aren't a header."""
    return int.from_bytes(head[1:], "big") if len(head) == HEADER_BYTES and head[:1] == _MAGIC else None


def no_header(head: bytes) -> str:
    """What is wrong with a record that begins like this."""
    if len(head) < HEADER_BYTES and head[:1] in (b"", _MAGIC):
        return "too short for the header of a schema registry"
    return f"no header of a schema registry: it begins with 0x{head[:1].hex()} instead of 0x00"


def ids_in(payloads: Sequence[bytes]) -> dict[bytes, int | None]:
    """The different first bytes of the records, in the order in which they come, and the id in each."""
    return {head: id_in(head) for head in dict.fromkeys(map(_HEAD, payloads))}


def decode_by_id(
    payloads: Sequence[bytes],
    ids: Mapping[bytes, int | None],
    decode: Callable[[int | None, Sequence[bytes]], Decoded],
) -> Decoded:
    """Decode the records of each id separately, and those without one. ``ids`` are the non-empty ids of ``ids_in``."""
    groups = list(dict.fromkeys(ids.values()))
    if len(groups) == 1:
        return decode(groups[0], payloads)
    numbers = {head: groups.index(id) for head, id in ids.items()}
    belongs = np.fromiter(map(numbers.__getitem__, map(_HEAD, payloads)), dtype=np.int64, count=len(payloads))
    parts = []
    for number, id in enumerate(groups):
        places = np.flatnonzero(belongs == number)
        parts.append((places, decode(id, [payloads[place] for place in places.tolist()])))
    return gathered(parts)


def without_header(payloads: Sequence[bytes], columns: Columns) -> Decoded:
    """Records that have no header: all are bad."""
    reasons = ((index, no_header(payload[:HEADER_BYTES])) for index, payload in enumerate(payloads))
    return Decoded(pl.DataFrame(schema=columns), list(reasons))


def decode_framed(
    payloads: Sequence[bytes],
    columns: Columns,
    size: Callable[[bytes], int | str],
    decode: Callable[[Sequence[bytes]], Decoded],
) -> Decoded:
    """Decode what comes after the headers. ``size`` says how long one is, or why its record is bad."""
    sizes = list(map(size, payloads))
    good = [index for index, one in enumerate(sizes) if isinstance(one, int)]
    wrong = [(index, one) for index, one in enumerate(sizes) if isinstance(one, str)]
    places = np.array([index for index, _ in wrong], dtype=np.int64)
    bad = Decoded(pl.DataFrame(schema=columns), [(number, reason) for number, (_, reason) in enumerate(wrong)])
    found = decode([payloads[index][sizes[index] :] for index in good])  # type: ignore[index]
    return gathered([(np.array(good, dtype=np.int64), found), (places, bad)])


def message_indexes(indexes: Sequence[int]) -> bytes:
    """What a record of protobuf has after its header: how many indexes there are, and each, as zigzag varints."""
    out = bytearray()
    for number in (len(indexes), *indexes):
        rest = number << 1
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)
