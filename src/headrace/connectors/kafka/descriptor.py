"""The descriptors of a Kafka topic and of a log in Kafka: ``kafka(...)`` and ``kafka_log(...)``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, get_args

import polars as pl

from headrace.api.checks import Declaring, SchemaLike, one_of
from headrace.api.descriptors import (
    FormatName,
    InputUse,
    format_of,
    input_schema,
    place_for_one,
    record_columns_of,
    start_of,
    time_of,
)
from headrace.connectors.kafka.settings import (
    BYTES,
    INPUT,
    OUTPUT,
    PREFIX,
    RECORD_BYTES,
    RECORD_COLUMNS,
    InputEnd,
    KafkaColumn,
    KafkaSettings,
    LogOptions,
    Lost,
    TopicOptions,
    key_dtype,
)
from headrace.core.errors import DeclarationError
from headrace.core.ids import check_id
from headrace.core.secrets import SecretPlace
from headrace.rows.dtypes import instantiate
from headrace.rows.formats import FormatSpec, open_format
from headrace.rows.schema import Schema
from headrace.systems.registry import SystemSpec

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka topic; see ``kafka``. Without a name it is the topic of the stream that it is given to."""

    options: TopicOptions
    of_app: bool = False

    def system(self, stream_id: str) -> SystemSpec:
        return self._spec(stream_id, self._named(stream_id).options())

    def _named(self, stream_id: str) -> TopicOptions:
        return self.options if self.options.topic else replace(self.options, topic=_topic(stream_id))

    def in_format(self, format: FormatSpec) -> Kafka:
        return replace(self, options=replace(self.options, format=format))

    def for_app(self) -> Kafka:
        if self.options.topic:
            raise place_for_one(f"topic {self.options.topic!r}")
        return replace(self, of_app=True)

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        columns = self.options.record_columns
        about = {name: RECORD_COLUMNS[what] for name, what in columns.items()}
        about |= {name: self._key_type(name, schema) for name, what in columns.items() if what == "key"}
        return input_schema(self.options.topic or "of this input", "Kafka", self.options.format, about, columns, schema)

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        topic = self._named(stream_id).topic
        if use.start != "oldest":
            raise DeclarationError(
                f"start={use.start!r}: the start of a Kafka topic belongs in hr.io.kafka(...)",
                hint=f'write system=hr.io.kafka("{topic}", start="upcoming", ...); a time works too',
            )
        outputs = self.options.given(name for name in OUTPUT if name not in INPUT)
        if outputs and not self.of_app:
            hint = 'record_columns={"member": "key"} says which columns an input takes from records'
            raise DeclarationError(f"{', '.join(outputs)} of topic {topic}: only an output can have this", hint=hint)
        return self._spec(stream_id, self._named(stream_id).options(*INPUT))

    def output_system(self, stream_id: str) -> SystemSpec:
        named = self._named(stream_id)
        inputs = named.given(name for name in INPUT if name not in OUTPUT)
        if inputs and not self.of_app:
            raise DeclarationError(
                f"{', '.join(inputs)} of topic {named.topic}: only an input can have this",
                hint="key=, timestamp= and headers= name the columns that an output writes there",
            )
        may_repeat = "" if self.options.transactions else "transactions=False keeps no positions of writers in Kafka"
        return self._spec(stream_id, {**named.options(), "output": named.json(OUTPUT)}, may_repeat)

    def _spec(self, stream_id: str, options: Mapping[str, Any], may_repeat: str = "") -> SystemSpec:
        name = f"kafka-{stream_id}".replace(".", "-")
        return SystemSpec(name, "kafka", options, may_repeat=may_repeat, growing=True, key_hash="kafka")

    def _key_type(self, name: str, schema: SchemaLike | None) -> pl.DataType:
        spec = self.options.key_format
        format = open_format(spec)
        if (own := key_dtype(format)) is not None:
            return own
        declared = None if schema is None else Schema.of(schema).columns.get(name)
        if not isinstance(declared, pl.Struct):
            raise DeclarationError(
                f"record_columns: {name!r} is a key in the format {spec.name!r}, and its type isn't known",
                hint=f'add it to the schema: {{"{name}": pl.Struct({{"member": pl.String}}), ...}}',
            )
        format.decoder({one.name: instantiate(one.dtype, one.name) for one in declared.fields})
        return declared


def kafka(
    topic: str | None = None,
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
    """A topic of Kafka, or of a broker that speaks its protocol: an input or an output, exactly once.

    It needs ``pip install "headrace[kafka]"``. Inputs skip records of aborted transactions, and read those of open ones
    only after their commit. Readers of an output with ``isolation.level=read_committed`` get each row exactly once.

    Parameters
    ----------
    topic
        Its name, by default that of the input or output, so that ``hr.App(..., system=hr.io.kafka(brokers=...))`` says
        the cluster once for all.
    brokers
        The addresses of one broker or several: ``"host1:9092,host2:9092"``.
    format
        The format of a record: ``"json"`` (an object), ``"text"`` (a column of type ``pl.String``), ``"bytes"`` (a
        column of type ``pl.Binary``), or one of ``hr.io`` such as ``hr.io.avro(...)``.
    key_format
        The format of a record's key: ``"bytes"`` (``pl.Binary``), ``"text"`` (``pl.String``), or a format with columns,
        which become a ``pl.Struct``.
    start
        For inputs: where the first run begins. ``"oldest"``, ``"upcoming"`` for records that arrive after it has begun,
        or a time: a ``datetime``, or text such as ``"2026-01-31T12:00:00Z"``. A time without a zone is in UTC.
    end
        For inputs: where to stop. An offset for each partition, ``{0: 1000, 1: 1200}``, or a time: each partition ends
        before its first record of that time or later. By default an input doesn't end.
    record_columns
        For inputs: columns for a record's metadata, by the column's name: ``"key"``, ``"headers"``, ``"timestamp"``,
        ``"partition"`` and ``"offset"``. They are added to the schema unless it has them.
    uncommitted
        For inputs: also read records of open and aborted transactions.
    lost
        For inputs, if records were deleted before the app has read them: ``"stop"`` ends the app with an error that
        names them, ``"skip"`` counts them and continues.
    options
        Options of librdkafka, by its names: login, certificates, sizes. Give secrets as ``hr.secret_env(...)`` or
        ``hr.secret_file(...)``.
    oauth
        For SASL's OAUTHBEARER: ``"module:function"``. Drivers and containers call it without arguments; it returns a
        token, and its expiry time in seconds since the epoch.
    key
        For outputs: the column that becomes a record's key. It stays part of the value. The hash of the key chooses the
        partition, as in Kafka's own clients; rows without a key go to any. Text, numbers and bytes become keys
        directly, unless ``key_format`` says otherwise.
    timestamp
        For outputs: the ``pl.Datetime`` column that becomes a record's timestamp, in UTC if it has no zone. By default
        it is the time of writing.
    headers
        For outputs: a column of headers, of the same type as in inputs. It isn't part of the value.
    transactions
        For outputs: False, for clusters without transactions, writes rows at least once.
    progress_topic
        For outputs: the topic with the positions of writers, by default ``headrace.progress.`` and the app's name.

    Examples
    --------
    >>> orders = hr.io.kafka("orders", brokers="localhost:9092", record_columns={"sent": "timestamp"})
    >>> app.input("orders", {"member": pl.String, "euros": pl.Float64}, system=orders, event_time="sent").schema
    Schema(member: String, euros: Float64, sent: Datetime(time_unit='ms', time_zone=None))
    >>> login = {"security.protocol": "SASL_SSL", "sasl.password": hr.secret_env("KAFKA_PASSWORD")}
    >>> lines = hr.io.kafka("log-lines", brokers="kafka.example.com:9093", format="text", options=login)
    >>> app.input("lines", system=lines).schema
    Schema(value: String)
    >>> shipped = app.output("shipped", system=hr.io.kafka("shipped", brokers="localhost:9092", key="member"))
    """
    with Declaring("kafka", quoting=False):
        settings = KafkaSettings.checked(brokers, options, oauth)
        columns = record_columns_of(record_columns, "Kafka", get_args(KafkaColumn), '{"sent": "timestamp"}')
        of_key = format_of(key_format)
        if of_key != BYTES and "key" not in columns.values() and key is None:
            hint = 'write record_columns={"member": "key"} for an input, key="member" for an output'
            raise DeclarationError(f"key_format={of_key.name!r}, but no column is the key", hint=hint)
        for what, column in (("key", key), ("timestamp", timestamp), ("headers", headers)):
            if column is not None and (not isinstance(column, str) or not column):
                raise DeclarationError(f"{what}={column!r} doesn't name a column", hint=f'write {what}="member"')
        return Kafka(
            TopicOptions(
                topic="" if topic is None else _topic(topic),
                settings=settings,
                format=format_of(format),
                key_format=of_key,
                start=start_of(start),
                end=_end(end),
                record_columns=columns,
                uncommitted=bool(uncommitted),
                lost=one_of("lost", lost, Lost),
                key=key,
                timestamp=timestamp,
                headers=headers,
                transactions=bool(transactions),
                progress_topic=None if progress_topic is None else _topic(progress_topic),
            )
        )


def _topic(topic: object) -> str:
    if isinstance(topic, str) and _TOPIC.fullmatch(topic) and topic not in (".", ".."):
        return topic
    hint = "use 1 to 249 letters, digits, '.', '_' or '-': hr.io.kafka(\"orders\", brokers=...)"
    raise DeclarationError(f"{topic!r} is not the name of a topic", hint=hint)


def _end(end: object) -> InputEnd | None:
    if end is None:
        return None
    if (time_ms := time_of(end)) is not None:
        return InputEnd(time_ms=time_ms)
    if isinstance(end, Mapping) and end and all(type(one) is int and one >= 0 for both in end.items() for one in both):
        return InputEnd(offsets=dict(sorted(end.items())))
    raise DeclarationError(
        f"end={end!r} is not a valid end",
        hint='write an offset for each partition: end={0: 1000, 1: 1200}, or a time: end="2026-01-31T12:00:00Z"; '
        "headrace run --batch --until now reads up to what is there",
    )


KIND = "kafka-log"


@dataclass(frozen=True, slots=True)
class KafkaLog:
    """A log in a Kafka cluster; see ``kafka_log``."""

    log: LogOptions
    name: str

    def system(self, stream_id: str) -> SystemSpec:
        return SystemSpec(self.name, KIND, self.log.options())


def kafka_log(
    brokers: str,
    *,
    prefix: str = PREFIX,
    replication: int | None = None,
    record_bytes: int = RECORD_BYTES,
    options: Mapping[str, str | int | float | bool | SecretPlace] | None = None,
    oauth: str | None = None,
    name: str = "kafka",
) -> KafkaLog:
    """A log for Headrace's own frames in a Kafka cluster, in topics that only Headrace writes.

    As ``internal=`` of ``hr.App``, it holds the app's intermediate streams and changelogs; as ``system=``, also inputs
    and outputs without another ``system=``. Headrace creates topics with the settings that frames need, and checks
    those of existing ones. For other topics, use ``hr.io.kafka``.

    Parameters
    ----------
    brokers
        ``host:port`` of some brokers, separated by commas.
    prefix
        The beginning of the names of all its topics. Logs with different prefixes are independent.
    replication
        The number of replicas of new topics. By default the cluster decides.
    record_bytes
        The largest record of a new topic; the topic's ``max.message.bytes`` follows from it.
    options, oauth
        As in ``hr.io.kafka``.
    name
        The log's name, as part of the names of its streams.

    Examples
    --------
    >>> shared = hr.io.kafka_log("localhost:9092", prefix="page-views.")
    >>> app = hr.App("page-views", system=shared)
    >>> app.settings.internal_system().kind
    'kafka-log'
    """
    with Declaring("kafka_log", quoting=False):
        settings = KafkaSettings.checked(brokers, options, oauth)
        return KafkaLog(LogOptions(settings, prefix, replication, record_bytes), check_id("system name", name))
