"""The descriptor of a topic of Kafka: ``kafka(...)``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

import polars as pl

from headrace.api.formats import FormatName, format_of
from headrace.api.literals import one_of
from headrace.api.location import Declaring
from headrace.api.record_schema import input_schema, record_columns_of, start_of, time_of
from headrace.api.rows import SchemaLike
from headrace.api.system_descriptor import InputUse
from headrace.core.errors import DeclarationError
from headrace.core.secret_places import SecretPlace
from headrace.serdes.dtypes import instantiate
from headrace.serdes.formats import FormatSpec, open_format
from headrace.serdes.headers import HEADERS
from headrace.serdes.schema import Schema
from headrace.systems.kafka.settings import KafkaSettings
from headrace.systems.registry import SystemSpec

KafkaColumn = Literal["key", "headers", "timestamp", "partition", "offset"]
Lost = Literal["stop", "skip"]

RECORD_COLUMNS: Mapping[str, pl.DataType] = {
    "headers": HEADERS,
    "timestamp": pl.Datetime("ms"),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
}
"""What Kafka says of a record, apart from its key, and its type."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_BYTES = FormatSpec("bytes")
_MAY_REPEAT = "transactions=False keeps no positions of writers in Kafka"


@dataclass(frozen=True, slots=True)
class Kafka:
    """A topic of Kafka; see ``kafka``. ``start`` may be milliseconds since the epoch; ``end`` is JSON.

    ``client`` has options of librdkafka, as ``SystemSpec`` has them: secrets by their places.
    """

    topic: str
    brokers: str
    format: FormatSpec = field(default_factory=FormatSpec)
    key_format: FormatSpec = _BYTES
    start: str | int = "oldest"
    end: Mapping[str, Any] | None = field(default=None, hash=False)
    record_columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    uncommitted: bool = False
    lost: Lost = "stop"
    client: Mapping[str, Any] = field(default_factory=dict, hash=False)
    oauth: str | None = None
    key: str | None = None
    timestamp: str | None = None
    headers: str | None = None
    transactions: bool = True
    progress_topic: str | None = None

    def system(self, stream_id: str) -> SystemSpec:
        """A system of its own: another stream is another topic."""
        return self._spec(stream_id, self._options())

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """The columns of an input: those of the format, or else of ``schema``, and what Kafka says of a record."""
        about = {
            name: self._key_type(name, schema) if what == "key" else RECORD_COLUMNS[what]
            for name, what in self.record_columns.items()
        }
        return input_schema(self.topic, "Kafka", self.format, about, self.record_columns, schema)

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """The system of an input."""
        if use.start != "oldest":
            raise DeclarationError(
                f"start={use.start!r}: the start of a Kafka topic belongs in hr.io.kafka(...)",
                hint=f'write system=hr.io.kafka("{self.topic}", start="upcoming", ...); a time works too',
            )
        if outputs := self._differing("key", "timestamp", "headers", "transactions", "progress_topic"):
            raise DeclarationError(
                f"{outputs} of topic {self.topic}: only an output can have this",
                hint='record_columns={"member": "key"} says which columns an input takes from records',
            )
        options = {
            **self._options(),
            "key_format": None if self.key_format == _BYTES else self.key_format.under(f"{self.topic}-key").options(),
            "start": None if self.start == "oldest" else self.start,
            "end": self.end,
            "record_columns": dict(self.record_columns) or None,
            "uncommitted": self.uncommitted or None,
            "lost": None if self.lost == "stop" else self.lost,
        }
        return self._spec(stream_id, options)

    def output_system(self, stream_id: str) -> SystemSpec:
        """The system of an output. Raises ``DeclarationError`` for what only inputs have."""
        if inputs := self._differing("start", "end", "record_columns", "uncommitted", "lost"):
            raise DeclarationError(
                f"{inputs} of topic {self.topic}: only an input can have this",
                hint="key=, timestamp= and headers= name the columns that an output writes there",
            )
        given = {
            "key": self.key,
            "timestamp": self.timestamp,
            "headers": self.headers,
            "key_format": None if self.key_format == _BYTES else self.key_format.under(f"{self.topic}-key").options(),
            "transactions": None if self.transactions else False,
            "progress_topic": self.progress_topic,
        }
        output = {name: value for name, value in given.items() if value is not None}
        return self._spec(stream_id, {**self._options(), "output": output}, "" if self.transactions else _MAY_REPEAT)

    def _differing(self, *names: str) -> str:
        """Those of these fields that aren't as they are by default, for messages."""
        usual = Kafka(self.topic, self.brokers)
        return ", ".join(name for name in names if getattr(self, name) != getattr(usual, name))

    def _options(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "brokers": self.brokers,
            "client": dict(self.client) or None,
            "oauth": self.oauth,
            "format": self.format.under(f"{self.topic}-value").options(),
        }

    def _spec(self, stream_id: str, options: Mapping[str, Any], may_repeat: str = "") -> SystemSpec:
        given = {name: value for name, value in options.items() if value is not None}
        return SystemSpec(f"kafka-{stream_id}".replace(".", "-"), "kafka", given, may_repeat=may_repeat)

    def _key_type(self, name: str, schema: SchemaLike | None) -> pl.DataType:
        """The type of a column of keys: its format says it, or else the schema."""
        format = open_format(self.key_format)
        own = format.columns()
        if own is not None:
            return next(iter(own.values())) if len(own) == 1 else pl.Struct(own)
        declared = None if schema is None else Schema.of(schema).columns.get(name)
        if not isinstance(declared, pl.Struct):
            raise DeclarationError(
                f"record_columns: {name!r} is a key in the format {self.key_format.name!r}, and its type isn't known",
                hint=f'add it to the schema: {{"{name}": pl.Struct({{"member": pl.String}}), ...}}',
            )
        format.decoder({one.name: instantiate(one.dtype, one.name) for one in declared.fields})
        return declared


def kafka(
    topic: str,
    *,
    brokers: str,
    format: FormatName | FormatSpec = "json",
    key_format: FormatName | FormatSpec = "bytes",
    start: str | datetime = "oldest",
    end: str | datetime | Mapping[int, int] | None = None,
    record_columns: Mapping[str, KafkaColumn] | None = None,
    uncommitted: bool = False,
    lost: Lost = "stop",
    options: Mapping[str, str | int | float | bool | SecretPlace] | None = None,
    oauth: str | None = None,
    key: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    transactions: bool = True,
    progress_topic: str | None = None,
) -> Kafka:
    """A topic of Kafka, or of whatever speaks its protocol: an input or an output, exactly once.

    It needs ``pip install "headrace[kafka]"``. Records of aborted transactions are never read, and those of open ones
    not before they are committed. What is written, readers with ``isolation.level=read_committed`` get exactly once.

    Parameters
    ----------
    topic
        Its name.
    brokers
        Addresses of one broker or several, as in ``"host1:9092,host2:9092"``.
    format
        What a record is: ``"json"`` (an object), ``"text"`` (a column of type ``pl.String``), ``"bytes"`` (a column of
        type ``pl.Binary``), or one of ``hr.io`` such as ``hr.io.avro(...)``.
    key_format
        What a record's key is, for columns that are keys: ``"bytes"`` (``pl.Binary``), ``"text"`` (``pl.String``), or a
        format with columns of its own. These become a ``pl.Struct``.
    start
        For inputs: where to begin the first time. ``"oldest"``, ``"upcoming"`` for what comes after the app has begun
        to run, or a time: a ``datetime``, or text such as ``"2026-01-31T12:00:00Z"``. Without a zone it is in UTC.
    end
        For inputs: where to end. By default nowhere. An offset for each partition, ``{0: 1000, 1: 1200}``, or a time:
        each partition ends with its first record of that time or later.
    record_columns
        For inputs: columns for what Kafka says of a record, by the name of the column: ``"key"``, ``"headers"``,
        ``"timestamp"``, ``"partition"`` and ``"offset"``. They are added to the schema unless it has them.
    uncommitted
        For inputs: read records of open and aborted transactions, too.
    lost
        For inputs: what happens if records were deleted before the app has read them. ``"stop"`` ends the app with an
        error that says which, ``"skip"`` counts them and reads on.
    options
        Options of librdkafka, by its names: how to log in, certificates, sizes. Secrets are given by where they are:
        ``hr.secret_env(...)``, ``hr.secret_file(...)``.
    oauth
        For SASL's OAUTHBEARER: ``"module:function"``. Drivers and containers call it without arguments for a token; it
        returns the token, and when it expires in seconds since the epoch.
    key
        For outputs: the column that becomes the key of a record. It is part of the value, too. The hash of the key
        chooses the partition, as in Kafka's own clients. Null, and no key at all, go anywhere. Texts, numbers and bytes
        become keys as they are, unless ``key_format`` says otherwise.
    timestamp
        For outputs: the column of type ``pl.Datetime`` that becomes the timestamp of a record, in UTC if it has no
        zone. By default it is when the record is written.
    headers
        For outputs: a column of headers, in the type that inputs have them. It isn't part of the value.
    transactions
        For outputs: whether rows are written in transactions. For clusters that have none: False writes rows at least
        once.
    progress_topic
        For outputs: the topic that keeps what was published, ``headrace.progress.`` and the app's name by default.

    Returns
    -------
    Kafka
        For ``system=``.

    Examples
    --------
    >>> orders = hr.io.kafka("orders", brokers="localhost:9092", record_columns={"sent": "timestamp"})
    >>> app.input("orders", {"member": pl.String, "euros": pl.Float64}, system=orders, event_time="sent").schema
    Schema(member: String, euros: Float64, sent: Datetime(time_unit='ms', time_zone=None))
    >>> login = {
    ...     "security.protocol": "SASL_SSL",
    ...     "sasl.mechanism": "SCRAM-SHA-512",
    ...     "sasl.username": "app",
    ...     "sasl.password": hr.secret_env("KAFKA_PASSWORD"),
    ... }
    >>> shipped = app.output("shipped", system=hr.io.kafka("shipped", brokers="localhost:9092", key="member"))
    >>> lines = hr.io.kafka("log-lines", brokers="kafka.example.com:9093", format="text", options=login)
    >>> app.input("lines", system=lines).schema
    Schema(value: String)
    """
    with Declaring("kafka", quoting=False):
        settings = KafkaSettings.checked(brokers, options, oauth).options()
        columns = record_columns_of(record_columns, "Kafka", get_args(KafkaColumn), '{"sent": "timestamp"}')
        of_key = format_of(key_format)
        if of_key != _BYTES and "key" not in columns.values() and key is None:
            raise DeclarationError(
                f"key_format={of_key.name!r}, but no column is the key",
                hint='write record_columns={"member": "key"} for an input, key="member" for an output',
            )
        for what, column in (("key", key), ("timestamp", timestamp), ("headers", headers)):
            if column is not None and (not isinstance(column, str) or not column):
                raise DeclarationError(f"{what}={column!r} doesn't name a column", hint=f'write {what}="member"')
        return Kafka(
            _topic(topic),
            settings["brokers"],
            format_of(format),
            of_key,
            start_of(start),
            _end(end),
            columns,
            bool(uncommitted),
            one_of("lost", lost, Lost),
            settings.get("client", {}),
            oauth,
            key,
            timestamp,
            headers,
            bool(transactions),
            None if progress_topic is None else _topic(progress_topic),
        )


def _topic(topic: object) -> str:
    if isinstance(topic, str) and _TOPIC.fullmatch(topic) and topic not in (".", ".."):
        return topic
    raise DeclarationError(
        f"{topic!r} is not the name of a topic",
        hint="use 1 to 249 letters, digits, '.', '_' or '-': hr.io.kafka(\"orders\", brokers=...)",
    )


def _end(end: object) -> dict[str, Any] | None:
    """The end as a ``SystemSpec`` has it."""
    if end is None:
        return None
    if (time_ms := time_of(end)) is not None:
        return {"time": time_ms}
    if isinstance(end, Mapping) and end and all(_is_offset(one) for both in end.items() for one in both):
        return {"offsets": {str(partition): offset for partition, offset in sorted(end.items())}}
    raise DeclarationError(
        f"end={end!r} is not a valid end",
        hint='write an offset for each partition: end={0: 1000, 1: 1200}, or a time: end="2026-01-31T12:00:00Z"; '
        "headrace run --batch --until now reads up to what is there",
    )


def _is_offset(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
