"""The body of simulated user frames: id, key, event time."""

from __future__ import annotations

import struct

from headrace.core.frame import Bytes

_MESSAGE = struct.Struct(">qiq")


def encode_message(message: int, key: int, time: int) -> bytes:
    """A message as bytes."""
    return _MESSAGE.pack(message, key, time)


def decode_message(body: Bytes) -> tuple[int, int, int]:
    """Id, key, time."""
    message, key, time = _MESSAGE.unpack(body)
    return message, key, time
