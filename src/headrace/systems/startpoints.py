"""Startpoints: where an input partition is to be read from, whatever was committed, and how that becomes an offset.

A startpoint takes precedence over the committed position, and that over the input's default. The coordinator fans it
out: each task that reads the partition gets an *order*, which it applies when it starts or rolls back. An order is
deleted when a commit covers it (``protocol.machine``).
"""

from __future__ import annotations

from typing import Any, Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.clock import utc_text
from headrace.core.ids import Offset


class EndOffset(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", rename="camel", tag="specific"):
    """Up to this offset, without it."""

    offset: Offset


class EndTime(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", rename="camel", tag="timestamp"):
    """Up to the first message, without it, that arrived at this time (epoch milliseconds) or later."""

    time_ms: int


End = EndOffset | EndTime


class _Base(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", rename="camel"):
    """``created_ms`` says when it was written, by the clock of its writer.

    With ``until``, a task reads up to there, and then goes on where it was before it applied the startpoint.
    """

    id: str = ""
    created_ms: int = 0
    until: End | UnsetType = UNSET


class StartpointSpecific(_Base, frozen=True, kw_only=True, tag="specific"):
    """Read from this offset on."""

    offset: Offset


class StartpointTimestamp(_Base, frozen=True, kw_only=True, tag="timestamp"):
    """Read from the first message on that arrived at this time (epoch ms) or later.

    It fails if messages from then on are gone; with ``or_oldest`` it then means the oldest one that is left.
    """

    time_ms: int
    or_oldest: bool = False


class StartpointOldest(_Base, frozen=True, kw_only=True, tag="oldest"):
    """Read from the oldest message on that is kept."""


class StartpointUpcoming(_Base, frozen=True, kw_only=True, tag="upcoming"):
    """Read what arrives from now on; what is there already is skipped."""


class StartpointCustom(_Base, frozen=True, kw_only=True, tag="custom"):
    """A position of a kind that the app or the system defines: ``name`` says which, ``value`` is any JSON object."""

    name: str
    value: dict[str, Any]


def in_words(point: Startpoint) -> str:
    """Return a startpoint for people: ``oldest``, ``time 2026-01-31 12:00:00Z``, ``offset 7 until offset 4,711``."""
    match point:
        case StartpointSpecific(offset=offset):
            start = f"offset {offset:,}"
        case StartpointTimestamp(time_ms=time_ms, or_oldest=or_oldest):
            start = f"time {utc_text(time_ms)}{' or oldest' if or_oldest else ''}"
        case StartpointCustom(name=name, value=value):
            start = f"{name} {msgspec.json.encode(value).decode()}"
        case StartpointOldest():
            start = "oldest"
        case StartpointUpcoming():
            start = "upcoming"
        case _:
            assert_never(point)
    match point.until:
        case EndOffset(offset=offset):
            return f"{start} until offset {offset:,}"
        case EndTime(time_ms=time_ms):
            return f"{start} until {utc_text(time_ms)}"
        case _:
            return start


Startpoint = StartpointSpecific | StartpointTimestamp | StartpointOldest | StartpointUpcoming | StartpointCustom


class Order(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A startpoint that a task has to apply. ``stream`` is as in ``TaskScope.position_name``.

    ``offset`` is the one that was found when the order was applied for the first time: applied again after a rollback,
    the order means the same. So do ``until`` and ``first``: where the task would have begun without it and without a
    commit.
    """

    stream: str
    partition: int
    startpoint: Startpoint
    offset: Offset | None = None
    until: Offset | UnsetType = UNSET
    first: Offset | UnsetType = UNSET


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened to an order.

    *Applied*: ``generation`` of the task reads from ``offset`` (see ``Order``); no commit covers it yet. *Failed*: for
    this ``reason`` it can't be applied; the task has stopped. *Released*: a commit of ``version`` covers it.
    """

    order: Order
    state: Literal["applied", "failed", "released"]
    generation: int
    offset: Offset | None = None
    until: Offset | UnsetType = UNSET
    first: Offset | UnsetType = UNSET
    version: int | None = None
    reason: str | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the coordinator gives a task that starts or rolls back: a new generation, and the orders to apply.

    ``silent``: a savepoint was restored; the task writes nothing until it has read its inputs up to where it was.
    """

    generation: int
    orders: tuple[Order, ...] = ()
    silent: bool = False


MOMENTS = 1 << 61
"""Offsets from here on are moments: so many milliseconds since the epoch more. The first one: the oldest records."""


def is_moment(offset: Offset) -> bool:
    return offset >= MOMENTS
