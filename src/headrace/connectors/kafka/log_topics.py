"""Which topics a log in Kafka has, and what its registry says of streams. Pure.

log topics
    Which topics a log in Kafka has, and their settings. Pure.

    Nothing may be deleted but what Headrace trims, and nothing may be dropped by key: frames have no keys, and are
    counted by place. So a topic is neither compacted nor limited in time or size. Kafka stamps the records, so their
    times rise.

log registry
    Which streams a log in Kafka has, with their columns and their ends: what a topic of orders says. Pure.

    Whoever wants something appends an order, and then reads what has come before it. All read the same orders in the
    same sequence, and so agree on which of them count: of two that create a stream, the first. An order that doesn't
    fit what was decided before it changes nothing, and neither does one that is there twice. Who has sent it sees the
    result. The topic is not compacted: an order that changes nothing could drop one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import msgspec

from headrace.connectors.kafka.settings import SETTINGS, KafkaSettings
from headrace.core.errors import (
    DeclarationError,
    DeploymentError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSealedError,
    UsageError,
)
from headrace.core.files import decode_record
from headrace.core.ids import Offset, check_id
from headrace.rows.dtypes import columns_from_json, columns_to_json
from headrace.systems.base import StreamInfo
from headrace.systems.registry import KAFKA_LOG_PREFIX
from headrace.systems.shape import new_columns, with_columns

# -- log topics --------------------------------------------------------------------------------------
PREFIX = KAFKA_LOG_PREFIX
RECORD_BYTES = 64 << 20
"""How large a record may be: a frame has up to 65,536 rows."""

# With a stream's name of up to 128 characters it is no longer than the 249 that Kafka allows.
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REGISTRY = "_streams"
_MARGIN = 4096
"""What Kafka adds to a record, and more."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """A log in a Kafka cluster, as ``SystemSpec.options`` has it. Its topics begin with ``prefix``.

    ``replication`` and ``record_bytes`` are for topics that are created. None: as many replicas as the brokers decide.
    """

    settings: KafkaSettings
    prefix: str = PREFIX
    replication: int | None = None
    record_bytes: int = RECORD_BYTES

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The options of a ``SystemSpec``. Raises ``DeclarationError`` for what can't be."""
        own = {"prefix", "replication", "record_bytes"}
        if unknown := sorted(set(options) - own - set(SETTINGS)):
            raise DeclarationError(
                f"unknown options of a log in Kafka: {', '.join(unknown)}",
                hint=f"known: {', '.join(sorted({*own, *SETTINGS}))}",
            )
        settings = KafkaSettings.of({name: options[name] for name in SETTINGS if name in options})
        return cls(settings, **{name: options[name] for name in own if name in options})

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not _PREFIX.fullmatch(self.prefix):
            raise DeclarationError(
                f"prefix={self.prefix!r} can't be the beginning of a topic's name",
                hint="use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or a digit",
            )
        if self.replication is not None and (type(self.replication) is not int or self.replication < 1):
            raise DeclarationError(
                f"replication={self.replication!r} isn't a number of replicas", hint="write a number such as 3"
            )
        if type(self.record_bytes) is not int or self.record_bytes < 1 << 16:
            raise DeclarationError(
                f"record_bytes={self.record_bytes!r} is too small for a frame", hint="write at least 65536"
            )

    def options(self) -> dict[str, Any]:
        """The options as JSON, without those that have not been given."""
        usual = type(self)(self.settings)
        own = {name: getattr(self, name) for name in ("prefix", "replication", "record_bytes")}
        given = {name: value for name, value in own.items() if value != getattr(usual, name)}
        return {**self.settings.options(), **given}

    @property
    def registry(self) -> str:
        """The topic that says which streams there are. No stream has its name: names of streams don't begin so."""
        return f"{self.prefix}{_REGISTRY}"

    def topic(self, stream: str) -> str:
        """The topic of a stream."""
        return f"{self.prefix}{check_id('stream', stream)}"

    def topic_settings(self) -> dict[str, str]:
        """The settings of a topic that is created."""
        return {
            **_NEEDED,
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(self.record_bytes + _MARGIN),
        }


_NEEDED = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_WHY = {
    "cleanup.policy": "compaction would drop frames",
    "retention.ms": "frames would be deleted before they are read",
    "retention.bytes": "frames would be deleted before they are read",
}


def check_settings(topic: str, found: Mapping[str, str | None]) -> None:
    """Raise ``DeploymentError`` if frames can't be kept in a topic with these settings."""
    wrong = {name: found[name] for name, needed in _NEEDED.items() if found.get(name, needed) != needed}
    if wrong:
        said = "; ".join(f"{name} is {value}: {_WHY[name]}" for name, value in wrong.items())
        right = ",".join(f"{name}={_NEEDED[name]}" for name in wrong)
        raise DeploymentError(
            f"Headrace can't keep frames in the topic {topic!r}: {said}",
            hint=f"run kafka-configs --alter --entity-type topics --entity-name {topic} --add-config {right}",
        )


# -- log registry ------------------------------------------------------------------------------------
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
