"""How a Kafka cluster is reached, the options of a topic and of a log, and the registry of a log. Pure.

In a log's topics nothing may be deleted but what Headrace trims, and nothing may be dropped by key: frames have no
keys, and are counted by place. So a topic is neither compacted nor limited in time or size. Kafka stamps the records,
so their times rise.

Which streams a log has, a topic of orders says. All read the same orders in the same sequence, and so agree on which
of them count: of two that create a stream, the first. An order that doesn't fit what was decided before it changes
nothing, nor does one that is there twice. So the topic is not compacted: an order that changes nothing could drop one
that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, Self, get_args

import msgspec
import polars as pl

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
from headrace.core.secrets import SecretPlace, is_secret
from headrace.rows.dtypes import columns_from_json, columns_to_json
from headrace.rows.formats import Format, FormatSpec
from headrace.rows.given import HEADERS
from headrace.systems.base import StreamInfo
from headrace.systems.registry import KAFKA_LOG_PREFIX, check_option_names
from headrace.systems.shape import new_columns, with_columns

Value = str | SecretPlace
_BROKER = re.compile(r"([a-zA-Z][a-zA-Z0-9_+]*://)?(\[[0-9a-fA-F:.%]+\]|[a-zA-Z0-9._-]+)(:\d{1,5})?")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
OURS: Mapping[str, str] = {
    name: why
    for why, names in {
        "brokers= names them": ("bootstrap.servers", "metadata.broker.list"),
        "groups are named after the app and the stage": ("group.id",),
        "Headrace assigns partitions to tasks itself": (
            "group.instance.id",
            "group.protocol",
            "partition.assignment.strategy",
        ),
        "positions are part of the app's checkpoints": (
            "enable.auto.commit",
            "auto.commit.interval.ms",
            "enable.auto.offset.store",
        ),
        "start= sets where reading begins": ("auto.offset.reset",),
        "Headrace needs to know where a partition ends": ("enable.partition.eof",),
        "use uncommitted=True": ("isolation.level",),
        "Headrace always turns it on": ("enable.idempotence",),
        "Headrace always turns enable.idempotence on": ("enable.gapless.guarantee",),
        "Headrace always waits for all replicas": ("acks", "request.required.acks"),
        "enable.idempotence sets it": (
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "message.send.max.retries",
            "retries",
        ),
        "each writer of an app has its own": ("transactional.id",),
        "Headrace's transactions are short": ("transaction.timeout.ms",),
        "key= chooses the partition of a row": ("partitioner",),
        "oauth= names the function": ("sasl.oauthbearer.token.refresh.cb",),
    }.items()
    for name in names
}
"""Options that users don't set, and why."""
_JAVA: Mapping[str, str] = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "sasl.mechanism.name": "sasl.mechanism",
    "ssl.truststore.location": "ssl.ca.location (PEM)",
    "ssl.truststore.password": "ssl.ca.location (PEM needs no password)",
    "ssl.keystore.type": "ssl.keystore.location (PKCS#12), or ssl.certificate.location and ssl.key.location (PEM)",
    "key.serializer": "key_format=",
    "value.serializer": "format=",
    "key.deserializer": "key_format=",
    "value.deserializer": "format=",
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "security.protocol": ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    "sasl.mechanism": ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How a cluster is reached. ``client`` has options of librdkafka by name; ``oauth`` is a ``module:function``."""

    brokers: str
    client: tuple[tuple[str, Value], ...] = ()
    oauth: str | None = None

    @classmethod
    def checked(cls, brokers: object, client: object = None, oauth: object = None) -> Self:
        checked = {} if client is None else _check_client(client)
        return cls(_check_brokers(brokers), tuple(sorted(checked.items())), _check_oauth(oauth, checked))

    def options(self) -> dict[str, Any]:
        client = {name: value.options() if isinstance(value, SecretPlace) else value for name, value in self.client}
        given = {"brokers": self.brokers, "client": client, "oauth": self.oauth}
        return {name: value for name, value in given.items() if value}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        given = options.get("client", {}).items()
        client = {name: SecretPlace.of(value) if isinstance(value, Mapping) else value for name, value in given}
        return cls.checked(options.get("brokers"), client, options.get("oauth"))

    def tuned(self, usual: Mapping[str, str]) -> Self:
        return replace(self, client=tuple(sorted({**usual, **dict(self.client)}.items())))


SETTINGS = ("brokers", "client", "oauth")  # the names of ``KafkaSettings.options()``


def _check_brokers(brokers: object) -> str:
    example = 'write brokers="host:9092", or several: "host1:9092,host2:9092"'
    if not isinstance(brokers, str) or not brokers.strip():
        raise DeclarationError(f"brokers={brokers!r} names no broker", hint=example)
    if "@" in brokers:
        hint = 'write options={"sasl.username": ..., "sasl.password": hr.secret_env("KAFKA_PASSWORD")}'
        raise DeclarationError("brokers= has an '@' in it, as if it contained credentials", hint=hint)
    found = [one.strip() for one in brokers.split(",")]
    for one in found:
        match = _BROKER.fullmatch(one)
        if not match or (match[3] is not None and not 0 < int(match[3][1:]) <= 65_535):
            raise DeclarationError(f"brokers={brokers!r}: {one!r} isn't the address of a broker", hint=example)
        if match[3] is None:
            raise DeclarationError(f"brokers={brokers!r}: {one!r} has no port", hint=f'write "{one}:9092"')
    return ",".join(found)


def _check_client(options: object) -> dict[str, Value]:
    """Return options of librdkafka as texts. Raises ``DeclarationError`` for ours, and for secrets in plain text."""
    if not isinstance(options, Mapping):
        raise DeclarationError(f"options= takes a dict, not a {type(options).__name__}", hint=_EXAMPLE)
    checked: dict[str, Value] = {}
    for given, value in options.items():
        name = _name(given)
        if name in checked:
            raise DeclarationError(f"options: {name} is given twice, under two names", hint="leave one out")
        checked[name] = _value(name, value)
    mechanism, protocol = checked.get("sasl.mechanism"), checked.get("security.protocol", "plaintext")
    if mechanism is not None and str(protocol).lower() not in ("sasl_ssl", "sasl_plaintext"):
        said = f"options: sasl.mechanism is {mechanism}, but security.protocol is {protocol}, which has no SASL"
        raise DeclarationError(said, hint='write {"security.protocol": "SASL_SSL", ...}')
    return checked


def _check_oauth(oauth: object, client: Mapping[str, Value]) -> str | None:
    if oauth is None:
        return None
    if not isinstance(oauth, str) or not _FUNCTION.fullmatch(oauth):
        raise DeclarationError(
            f"oauth={oauth!r} doesn't name a function",
            hint='write oauth="tokens:kafka_token", a function without arguments of a module that drivers and '
            "containers can import; it returns a token, and when it expires in seconds since the epoch",
        )
    if client.get("sasl.mechanism") != "OAUTHBEARER":
        hint = 'write options={"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}'
        raise DeclarationError(f"oauth={oauth!r} needs sasl.mechanism OAUTHBEARER", hint=hint)
    return oauth


_EXAMPLE = 'write options={"security.protocol": "SASL_SSL", "sasl.password": hr.secret_env("KAFKA_PASSWORD")}'


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"options: {name!r} isn't the name of an option", hint=_EXAMPLE)
    if name in OURS:
        raise DeclarationError(f"options: {name} can't be set: {OURS[name]}", hint="leave it out")
    if name in _JAVA:
        said = f"options: {name} is an option of Kafka's Java client; librdkafka has another name for it"
        raise DeclarationError(said, hint=f"use {_JAVA[name]}")
    if name.endswith("_cb") or name in ("logger", "on_delivery"):
        raise DeclarationError(f"options: {name} is a callback, which only Headrace can set", hint="leave it out")
    if "_" in name and "." not in name:
        raise DeclarationError(f"options: librdkafka has no option {name}", hint=f"write {name.replace('_', '.')!r}")
    return "sasl.mechanism" if name == "sasl.mechanisms" else name


def _value(name: str, value: object) -> Value:
    if isinstance(value, SecretPlace):
        return value
    if is_secret(name):
        variable = re.sub(r"\W", "_", f"kafka_{name.rpartition('.')[2]}").upper()
        hint = f'write hr.secret_env("{variable}"), or hr.secret_file(path): then it appears in no plan, log or file'
        raise DeclarationError(f"options: {name} is a secret, but is written in plain text", hint=hint)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        hint = "write a string, a number, True, False or a reference to a secret: hr.secret_env(name)"
        raise DeclarationError(f"options: the value of {name} is a {type(value).__name__}", hint=hint)
    text, choices = str(value), _CHOICES.get(name)
    if choices is None:
        return text
    same = next((one for one in choices if one.lower() == text.lower()), None)
    if same is None:
        close = get_close_matches(text.lower(), [one.lower() for one in choices], n=1)
        meant = next((one for one in choices if close and one.lower() == close[0]), None)
        hint = f"did you mean {meant!r}?" if meant else f"use {', '.join(choices)}"
        raise DeclarationError(f"options: {name} can't be {text!r}", hint=hint)
    return same


# -- options -----------------------------------------------------------------------------------------
KafkaColumn = Literal["key", "headers", "timestamp", "partition", "offset"]
Lost = Literal["stop", "skip"]  # what happens if records were deleted before the app has read them
BYTES = FormatSpec("bytes")
RECORD_COLUMNS: Mapping[str, pl.DataType] = {
    "key": pl.Binary(), "headers": HEADERS, "timestamp": pl.Datetime("ms"), "partition": pl.Int32(),
    "offset": pl.Int64(),
}  # fmt: skip
"""What can be known of a record, and its type; a key has the type of its format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEnd:
    """Where a bounded input ends: at the first record of this time or later, or at an offset of each partition."""

    time_ms: int | None = None
    offsets: Mapping[int, Offset] = field(default_factory=dict, hash=False)

    def options(self) -> dict[str, Any]:
        if self.time_ms is not None:
            return {"time": self.time_ms}
        return {"offsets": {str(partition): offset for partition, offset in sorted(self.offsets.items())}}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        offsets = {int(partition): offset for partition, offset in options.get("offsets", {}).items()}
        return cls(time_ms=options.get("time"), offsets=offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """What the app says of a topic; ``kafka`` explains it. ``start`` may be milliseconds since the epoch."""

    topic: str
    settings: KafkaSettings
    format: FormatSpec = field(default_factory=FormatSpec)
    key_format: FormatSpec = BYTES
    # of inputs
    start: str | int = "oldest"
    end: InputEnd | None = None
    record_columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    uncommitted: bool = False
    lost: Lost = "stop"
    # of outputs
    key: str | None = None
    timestamp: str | None = None
    headers: str | None = None
    transactions: bool = True
    progress_topic: str | None = None

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        usual = type(self)(topic=self.topic, settings=self.settings)
        return {name: value for name in names if (value := getattr(self, name)) != getattr(usual, name)}

    def options(self, *names: str) -> dict[str, Any]:
        """How the topic is reached, its format, and of these options those that were given: JSON."""
        format = self.format.under(f"{self.topic}-value").options()
        return {"topic": self.topic, **self.settings.options(), "format": format, **self.json(names)}

    def json(self, names: Iterable[str]) -> dict[str, Any]:
        found = self.given(names)
        for name, value in found.items():
            if isinstance(value, FormatSpec):
                found[name] = value.under(f"{self.topic}-key").options()
            elif isinstance(value, InputEnd):
                found[name] = value.options()
        return found

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Self:
        known = ["topic", "format", *INPUT, *SETTINGS]
        output = options.get("output", {})
        inputs = {one: value for one, value in options.items() if one != "output"}
        check_option_names(name, "kafka", inputs, known, "topic", "brokers")
        check_option_names(name, "kafka", output, OUTPUT)
        given = {one: value for one, value in {**inputs, **output}.items() if one not in SETTINGS}
        for one in ("format", "key_format"):
            if one in given:
                given[one] = FormatSpec(**given[one])
        if "end" in given:
            given["end"] = InputEnd.of(given["end"])
        if given.get("lost", "stop") not in get_args(Lost):
            raise DeclarationError(f"system {name!r} (kafka): lost={given['lost']!r}", hint='use "stop" or "skip"')
        return cls(settings=KafkaSettings.of(options), **given)


INPUT = ("key_format", "start", "end", "record_columns", "uncommitted", "lost")
OUTPUT = ("key", "timestamp", "headers", "key_format", "transactions", "progress_topic")
"""The options of inputs, and of outputs; a ``SystemSpec`` has the latter in ``output``."""


def key_dtype(format: Format) -> pl.DataType | None:
    columns = format.columns()
    if columns is None:
        return None
    return next(iter(columns.values())) if len(columns) == 1 else pl.Struct(columns)


# -- log topics --------------------------------------------------------------------------------------
PREFIX = KAFKA_LOG_PREFIX
RECORD_BYTES = 64 << 20  # how large a record may be: a frame has up to 65,536 rows
# With a stream's name of up to 128 characters it is no longer than the 249 that Kafka allows.
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """A log in a Kafka cluster. ``replication`` and ``record_bytes`` are for topics that are created."""

    settings: KafkaSettings
    prefix: str = PREFIX
    replication: int | None = None
    record_bytes: int = RECORD_BYTES

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        own = {"prefix", "replication", "record_bytes"}
        if unknown := sorted(set(options) - own - set(SETTINGS)):
            hint = f"known: {', '.join(sorted({*own, *SETTINGS}))}"
            raise DeclarationError(f"unknown options of a log in Kafka: {', '.join(unknown)}", hint=hint)
        settings = KafkaSettings.of({name: options[name] for name in SETTINGS if name in options})
        return cls(settings, **{name: options[name] for name in own if name in options})

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not _PREFIX.fullmatch(self.prefix):
            hint = "use 1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or a digit"
            raise DeclarationError(f"prefix={self.prefix!r} can't be the beginning of a topic's name", hint=hint)
        if self.replication is not None and (type(self.replication) is not int or self.replication < 1):
            said = f"replication={self.replication!r} isn't a number of replicas"
            raise DeclarationError(said, hint="write a number such as 3")
        if type(self.record_bytes) is not int or self.record_bytes < 1 << 16:
            said = f"record_bytes={self.record_bytes!r} is too small for a frame"
            raise DeclarationError(said, hint="write at least 65536")

    def options(self) -> dict[str, Any]:
        usual = type(self)(self.settings)
        own = {name: getattr(self, name) for name in ("prefix", "replication", "record_bytes")}
        given = {name: value for name, value in own.items() if value != getattr(usual, name)}
        return {**self.settings.options(), **given}

    @property
    def registry(self) -> str:
        """The topic that says which streams there are. No stream has its name: names of streams don't begin so."""
        return f"{self.prefix}_streams"

    def topic(self, stream: str) -> str:
        return f"{self.prefix}{check_id('stream', stream)}"

    def topic_settings(self) -> dict[str, str]:
        largest = str(self.record_bytes + 4096)  # with what Kafka adds to a record
        return {**_NEEDED, "message.timestamp.type": "LogAppendTime", "max.message.bytes": largest}


_NEEDED = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_WHY = {
    "cleanup.policy": "compaction would drop frames",
    "retention.ms": "frames would be deleted before they are read",
    "retention.bytes": "frames would be deleted before they are read",
}


def check_settings(topic: str, found: Mapping[str, str | None]) -> None:
    wrong = {name: found[name] for name, needed in _NEEDED.items() if found.get(name, needed) != needed}
    if wrong:
        said = "; ".join(f"{name} is {value}: {_WHY[name]}" for name, value in wrong.items())
        right = ",".join(f"{name}={_NEEDED[name]}" for name in wrong)
        hint = f"run kafka-configs --alter --entity-type topics --entity-name {topic} --add-config {right}"
        raise DeploymentError(f"Headrace can't keep frames in the topic {topic!r}: {said}", hint=hint)


# -- log registry ------------------------------------------------------------------------------------
FORMAT = 1
What = Literal["create", "columns", "sealing", "sealed"]


class StreamOrder(msgspec.Struct, frozen=True):
    """What is to be done. From ``sealing`` on the stream takes no records; ``sealed`` says where partitions end."""

    what: What
    stream: str
    partitions: int = 0
    columns: dict[str, Any] | None = None
    ends: tuple[Offset, ...] = ()
    key: tuple[str, ...] = ()
    format: int = FORMAT


def creation(info: StreamInfo) -> StreamOrder:
    columns = None if info.columns is None else columns_to_json(info.columns)
    return StreamOrder("create", info.name, partitions=info.partitions, columns=columns, key=info.key)


def addition(stream: str, columns: dict[str, Any]) -> StreamOrder:
    return StreamOrder("columns", stream, columns=columns_to_json(columns))


_decoder = msgspec.json.Decoder(StreamOrder)


def encode_order(order: StreamOrder) -> bytes:
    return msgspec.json.encode(order)


def decode_order(data: bytes, where: str) -> StreamOrder:
    return decode_record(_decoder, data, f"the order at {where}", FORMAT)


@dataclass(frozen=True, slots=True)
class StreamEntry:
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
        if self.sealing:
            said = f"stream {self.info.name!r} was sealed: it takes no more records or partitions"
            raise StreamSealedError(said, hint="a seal is permanent: use another stream")


class Registry:
    """The result of the orders so far."""

    def __init__(self) -> None:
        self.entries: dict[str, StreamEntry] = {}

    def require(self, stream: str) -> StreamEntry:
        entry = self.entries.get(stream)
        if entry is None:
            hint = f"create it (headrace stream create {stream}), or check its name, the brokers and the prefix"
            raise StreamNotFoundError(f"this log in Kafka has no stream {stream!r}", hint=hint)
        return entry

    def apply(self, order: StreamOrder) -> None:
        entry = self.entries.get(order.stream)
        match order.what:
            case "create":
                columns = None if order.columns is None else columns_from_json(order.columns)
                info = StreamInfo(order.stream, order.partitions, columns, key=order.key)
                self.entries.setdefault(order.stream, StreamEntry(info))
            case _ if entry is None:
                return
            case "columns":
                self.entries[order.stream] = replace(entry, info=_grown(entry.info, order))
            case "sealing":
                self.entries[order.stream] = replace(entry, sealing=True)
            case "sealed" if entry.ends is None:
                self.entries[order.stream] = replace(entry, sealing=True, ends=order.ends)


def _grown(info: StreamInfo, order: StreamOrder) -> StreamInfo:
    try:
        more = new_columns(info, columns_from_json(order.columns or {}))
    except (StreamExistsError, UsageError):
        return info
    return with_columns(info, more) if more else info
