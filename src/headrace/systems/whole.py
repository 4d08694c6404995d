"""Reading what a partition has up to an offset, from systems that return it at once and from those that fetch it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headrace.core.errors import UnavailableError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Consumer, Polled

ARRIVES_MS = 30_000
"""How long existing records may take to arrive."""


def polled_to(consumer: Consumer, ssp: SSP, end: Offset, max_bytes: int) -> Iterator[Polled]:
    """Poll a registered partition until its position is ``end``, which it has reached, or beyond.

    It stops earlier if there is nothing more to come: the rest is the unfinished end of an append. Raises
    ``UnavailableError`` if existing records don't arrive.
    """
    while consumer.position(ssp) < end:
        found = next_polled(consumer, ssp, end, max_bytes)
        if not found and consumer.position(ssp) < end:
            return
        yield from found


def next_polled(consumer: Consumer, ssp: SSP, end: Offset, max_bytes: int) -> list[Polled]:
    """Poll a registered partition once, and wait for existing records before ``end``; empty if there are none."""
    until = time.monotonic() + ARRIVES_MS / 1000
    while not (found := consumer.poll([ssp], max_bytes)):
        if not consumer.arriving(ssp, end, max(0.0, until - time.monotonic()) * 1000):
            break
        if time.monotonic() > until:
            raise UnavailableError(
                f"{ssp}: no record has arrived for {ARRIVES_MS // 1000} s, though the stream has more",
                hint="check the broker; the same call may succeed later",
            )
    return found
