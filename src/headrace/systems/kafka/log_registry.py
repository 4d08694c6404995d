"""Which streams a log in Kafka has, with their columns and their ends: what a topic of orders says. Pure.

Whoever wants something appends an order, and then reads what has come before it. All read the same orders in the same
sequence, and so agree on which of them count: of two that create a stream, the first. An order that doesn't fit what
was decided before it changes nothing, and neither does one that is there twice. Who has sent it sees the result. The
topic is not compacted: an order that changes nothing could drop one that counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from headrace.core.errors import StreamExistsError, StreamNotFoundError, StreamSealedError, UsageError
from headrace.core.ids import Offset
from headrace.core.records import decode_record
from headrace.serdes.dtypes import columns_from_json, columns_to_json
from headrace.systems.base import StreamInfo
from headrace.systems.shape import new_columns, with_columns

FORMAT = 1
What = Literal["create", "columns", "sealing", "sealed"]


class Order(msgspec.Struct, frozen=True):
    """What is to be done with a stream.

    ``create`` has the partitions, columns and key that it gets, ``columns`` those that are added. From ``sealing`` on
    the stream takes no records, and ``sealed`` says where each partition has ended.
    """

    what: What
    stream: str
    partitions: int = 0
    columns: dict[str, Any] | None = None
    ends: tuple[Offset, ...] = ()
    key: tuple[str, ...] = ()
    format: int = FORMAT


def creation(info: StreamInfo) -> Order:
    """The order that creates a stream of this shape."""
    columns = None if info.columns is None else columns_to_json(info.columns)
    return Order("create", info.name, partitions=info.partitions, columns=columns, key=info.key)


def addition(stream: str, columns: dict[str, Any]) -> Order:
    """The order that adds columns."""
    return Order("columns", stream, columns=columns_to_json(columns))


_decoder = msgspec.json.Decoder(Order)


def encode_order(order: Order) -> bytes:
    """The order as a record."""
    return msgspec.json.encode(order)


def decode_order(data: bytes, where: str) -> Order:
    """Read a record. Raises ``DataError`` if it is malformed, or from a newer version of Headrace."""
    return decode_record(_decoder, data, f"the order at {where}", FORMAT)


@dataclass(frozen=True, slots=True)
class Entry:
    """A stream: its shape as it was created, with the columns that were added, and its ends if it has any."""

    info: StreamInfo
    sealing: bool = False
    ends: tuple[Offset, ...] | None = None

    def end(self, partition: int) -> Offset | None:
        """Where a partition has ended. One that was added while the stream was sealed has no records."""
        if self.ends is None:
            return None
        return self.ends[partition] if partition < len(self.ends) else 0

    def require_open(self) -> None:
        """Raise ``StreamSealedError`` if the stream takes no more records."""
        if self.sealing:
            raise StreamSealedError(
                f"stream {self.info.name!r} was sealed: it takes no more records or partitions",
                hint="a seal is permanent: use another stream",
            )


class Registry:
    """The result of the orders so far."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def names(self) -> list[str]:
        """All streams, sorted."""
        return sorted(self._entries)

    def find(self, stream: str) -> Entry | None:
        """Return a stream; None if it doesn't exist."""
        return self._entries.get(stream)

    def require(self, stream: str) -> Entry:
        """Return a stream. Raises ``StreamNotFoundError`` if it doesn't exist."""
        entry = self._entries.get(stream)
        if entry is None:
            raise StreamNotFoundError(
                f"this log in Kafka has no stream {stream!r}",
                hint=f"create it (headrace stream create {stream}), or check its name, the brokers and the prefix",
            )
        return entry

    def apply(self, order: Order) -> None:
        """Take the next order."""
        entry = self._entries.get(order.stream)
        match order.what:
            case "create":
                columns = None if order.columns is None else columns_from_json(order.columns)
                info = StreamInfo(order.stream, order.partitions, columns, key=order.key)
                self._entries.setdefault(order.stream, Entry(info))
            case _ if entry is None:
                return
            case "columns":
                self._entries[order.stream] = replace(entry, info=_grown(entry.info, order))
            case "sealing":
                self._entries[order.stream] = replace(entry, sealing=True)
            case "sealed" if entry.ends is None:
                self._entries[order.stream] = replace(entry, sealing=True, ends=order.ends)


def _grown(info: StreamInfo, order: Order) -> StreamInfo:
    try:
        more = new_columns(info, columns_from_json(order.columns or {}))
    except (StreamExistsError, UsageError):
        return info
    return with_columns(info, more) if more else info
