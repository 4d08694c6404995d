"""The descriptor of a Kinesis stream: ``kinesis(...)``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args

from headrace.api.checks import Declaring, SchemaLike, one_of
from headrace.api.descriptors import (
    FormatName,
    InputUse,
    check_partitions,
    format_of,
    input_schema,
    record_columns_of,
    start_of,
)
from headrace.connectors.kinesis.api import POLL_MS, READ_RECORDS, RECORD_COLUMNS, Access, LeaseAhead
from headrace.core.clock import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.secrets import SecretPlace, check_no_credentials
from headrace.rows.formats import FormatSpec
from headrace.rows.schema import Schema
from headrace.systems.registry import SystemSpec

RecordColumn = Literal["partition_key", "sequence_number", "arrival_time", "shard"]
Lost = Literal["stop", "skip"]
_STREAM = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_TABLE = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_ARN = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):\d{12}:stream/[a-zA-Z0-9_.-]{1,128}")
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
_PROFILE = re.compile(r"[^\s\[\]]([^\[\]\r\n]*[^\s\[\]])?")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[a-zA-Z0-9+=,.@_/-]{1,512}")
_PROXY = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9._-]+)(:\d{1,5})?/?")
_MEMORY = "memory://"
_OF_ALL = (
    "stream", "region", "endpoint_url", "format", "profile", "role", "proxy", "connect_timeout_ms", "read_timeout_ms",
)  # fmt: skip
_OF_INPUTS = (
    "start", "slots", "record_columns", "lease_table", "lost", "lease_ahead", "records_per_call", "poll_interval_ms",
    "failover_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kinesis(Access):
    """A Kinesis stream; see ``kinesis``. ``start`` may be milliseconds since the epoch."""

    stream: str
    format: FormatSpec = field(default_factory=FormatSpec)
    start: str | int = "oldest"
    slots: int | None = None
    record_columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    key: str | None = None
    lease_table: str | None = None
    lost: Lost = "stop"
    lease_ahead: LeaseAhead = "stop"
    records_per_call: int | None = None
    poll_interval_ms: int | None = None
    failover_ms: int | None = None

    def system(self, stream_id: str) -> SystemSpec:
        options: dict[str, Any] = {name: getattr(self, name) for name in _OF_ALL} | {"format": self.format.options()}
        if isinstance(self.proxy, SecretPlace):
            options["proxy"] = self.proxy.options()
        return self._spec(stream_id, options)

    def in_format(self, format: FormatSpec) -> Kinesis:
        return replace(self, format=format)

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        about = {name: RECORD_COLUMNS[what] for name, what in self.record_columns.items()}
        return input_schema(self.stream, "Kinesis", self.format, about, self.record_columns, schema)

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        if use.start != "oldest":
            raise DeclarationError(
                f"start={use.start!r}: the start of a Kinesis stream belongs in hr.io.kinesis(...)",
                hint=f'write system=hr.io.kinesis("{self.stream}", start="upcoming"); a time works too',
            )
        if use.broadcast:
            said = f"the Kinesis stream {self.stream} can't be read by every task: its shards are divided among tasks"
            raise DeclarationError(said, hint="read it without broadcast=True, then .broadcast(id=...)")
        if self.key is not None:
            raise DeclarationError("key= is for an output: it chooses the shard of a record", hint="leave it out")
        options = {
            **self.system(stream_id).options,
            **{name: getattr(self, name) for name in _OF_INPUTS},
            "record_columns": dict(self.record_columns) or None,
            "lost": None if self.lost == "stop" else self.lost,
            "lease_ahead": None if self.lease_ahead == "stop" else self.lease_ahead,
            "memo": f"{use.home}/kinesis/{use.app}/{stream_id}.json",
        }
        return self._spec(stream_id, options)

    def output_system(self, stream_id: str) -> SystemSpec:
        usual = Kinesis(self.stream)
        wrong = [name for name in _OF_INPUTS if getattr(self, name) != getattr(usual, name)]
        if wrong:
            names = ", ".join(name.removesuffix("_ms") for name in wrong)
            raise DeclarationError(f"{names} of Kinesis stream {self.stream}: only an input can have this")
        options = {**self.system(stream_id).options, "key": self.key}
        return self._spec(stream_id, options, "Kinesis keeps no positions of writers")

    def checked(self) -> Kinesis:
        about_table = {"failover": self.failover_ms is not None, "lease_ahead": self.lease_ahead != "stop"}
        if self.lease_table is None and (wrong := [name for name, given in about_table.items() if given]):
            hint = "name it with lease_table=, or leave it out"
            raise DeclarationError(f"{wrong[0]}= is about a lease table", hint=hint)
        needless = [name for name in ("profile", "role", "proxy") if getattr(self, name) is not None]
        if needless and self.endpoint_url == _MEMORY:
            said = f"{needless[0]}= is for Amazon's streams, not for one in memory"
            raise DeclarationError(said, hint="leave it out")
        return self

    def _spec(self, stream_id: str, options: Mapping[str, Any], may_repeat: str = "") -> SystemSpec:
        given = {name: value for name, value in options.items() if value is not None}
        name = f"kinesis-{stream_id}".replace(".", "-")
        return SystemSpec(name, "kinesis", given, may_repeat=may_repeat, slots=True)


def kinesis(
    stream: str,
    *,
    region: str | None = None,
    format: FormatName | FormatSpec = "json",
    start: str | datetime = "oldest",
    slots: int | None = None,
    record_columns: Mapping[str, RecordColumn] | None = None,
    key: str | None = None,
    lease_table: str | None = None,
    endpoint_url: str | None = None,
    lost: Lost = "stop",
    lease_ahead: LeaseAhead = "stop",
    profile: str | None = None,
    role: str | None = None,
    proxy: str | SecretPlace | None = None,
    connect_timeout: Duration | None = None,
    read_timeout: Duration | None = None,
    records_per_call: int | None = None,
    poll_interval: Duration | None = None,
    failover: Duration | None = None,
) -> Kinesis:
    """An Amazon Kinesis stream: an input, exactly once; or an output, at least once.

    It needs ``pip install "headrace[kinesis]"``. boto3 finds the credentials in the environment, in ``~/.aws``, or
    through the role of the machine. Shards may split and merge while an app is running.

    Parameters
    ----------
    stream
        The stream's name, or its ARN.
    region
        Its region, such as ``"eu-west-1"``. By default that of the ARN, of the environment, or of ``~/.aws/config``.
    format
        The format of a record: ``"json"`` (an object), ``"text"`` (a column of type ``pl.String``), ``"bytes"`` (a
        column of type ``pl.Binary``), or ``hr.io.avro(...)``. What the Kinesis Producer Library has aggregated is
        unpacked.
    start
        For inputs: where the first run begins. ``"oldest"``, ``"upcoming"`` for records that arrive after it has begun,
        or a time: a ``datetime``, or text such as ``"2026-01-31T12:00:00Z"``. A time without a zone is in UTC.
    slots
        For inputs: the number of slots, which are the input's partitions and share the stream's shards. By default the
        number of open shards at the first run. It never changes afterwards.
    record_columns
        For inputs: columns for a record's metadata, by the column's name: ``"partition_key"``, ``"sequence_number"``,
        ``"arrival_time"`` and ``"shard"``. They are added to the schema unless it has them.
    key
        For outputs: the column with the partition key. Records with the same key stay in order. By default records are
        spread over the shards, in no order. ``"text"`` and ``"bytes"`` write one column; the key may then be a second
        one, which isn't written.
    lease_table
        For inputs: a DynamoDB table in which the app records its progress, in the form of the Kinesis Client Library
        (KCL). If a KCL application that was stopped has left the table, the app continues where it stopped.
    endpoint_url
        An address other than Amazon's, such as that of a test server. ``"memory://"`` is a stream in the memory of this
        process, see ``headrace.connectors.kinesis.memory``.
    lost
        For inputs, where Kinesis may have deleted records before the app has read them: ``"stop"`` ends the app with an
        error that names the place, ``"skip"`` counts the place, warns, and continues.
    lease_ahead
        For inputs with a lease table, if another application has continued there since the app's last commits:
        ``"stop"`` ends the run with an error, ``"continue"`` goes on behind what the other has read, ``"repeat"`` reads
        it again. The last two log a warning.
    profile
        A profile of ``~/.aws/config`` or ``~/.aws/credentials``, wherever drivers and containers run.
    role
        The ARN of a role that the app assumes with these credentials, for the stream and its lease table.
    proxy
        The URL of an HTTP proxy. With a user and a password in it, give its place: ``hr.secret_env("PROXY_URL")``.
    connect_timeout, read_timeout
        How long a call waits for a connection and for an answer, up to a minute: by default ``"3s"`` and ``"10s"``, and
        ``"2s"`` and ``"3s"`` for a lease table. A call that takes longer is repeated.
    records_per_call
        For inputs: how many records a call returns at most, 10,000 by default.
    poll_interval
        For inputs: how often a shard is read while records arrive, ``"200ms"`` by default. Kinesis allows all readers
        of a shard together five reads a second.
    failover
        For inputs with a lease table: how long a lease may stand still before its owner counts as dead, ``"10s"`` by
        default. Use the same time as the KCL application (``failoverTimeMillis``).

    Examples
    --------
    >>> orders = hr.io.kinesis("orders", region="eu-west-1", record_columns={"arrived": "arrival_time"})
    >>> app.input("orders", {"member": pl.String, "euros": pl.Float64}, system=orders, event_time="arrived").schema
    Schema(member: String, euros: Float64, arrived: Datetime(time_unit='ms', time_zone=None))
    >>> shipped = app.output("shipped", system=hr.io.kinesis("shipped", key="member"))
    """
    with Declaring("kinesis"):
        return Kinesis(
            name := _name(stream),
            format_of(format),
            start_of(start),
            check_partitions(slots, "slots"),
            record_columns_of(record_columns, "Kinesis", get_args(RecordColumn), '{"arrived": "arrival_time"}'),
            _key(key),
            _matching("lease_table", lease_table, _TABLE, "use 3 to 255 letters, digits, '.', '_' or '-'"),
            one_of("lost", lost, Lost),
            one_of("lease_ahead", lease_ahead, LeaseAhead),
            _records_per_call(records_per_call),
            _ms("poll_interval", poll_interval, POLL_MS, 60_000),
            _ms("failover", failover, 1000, 3_600_000),
            region=_region(region, name),
            endpoint_url=_endpoint(endpoint_url, lease_table),
            profile=_matching("profile", profile, _PROFILE, "write the name of a profile in ~/.aws/config"),
            role=_matching("role", role, _ROLE, 'write its ARN: "arn:aws:iam::123456789012:role/reader"'),
            proxy=_proxy(proxy),
            connect_timeout_ms=_ms("connect_timeout", connect_timeout, 100, 60_000),
            read_timeout_ms=_ms("read_timeout", read_timeout, 100, 60_000),
        ).checked()


def _name(stream: object) -> str:
    if isinstance(stream, str) and (_STREAM.fullmatch(stream) or _ARN.fullmatch(stream)):
        return stream
    hint = 'write its name and region: hr.io.kinesis("orders", region="eu-west-1"), or its ARN'
    raise DeclarationError(f"{stream!r} is not the name of a Kinesis stream", hint=hint)


def _region(region: object, stream: str) -> str | None:
    named = _matching("region", region, _REGION, 'write "eu-west-1"')
    arn = _ARN.fullmatch(stream)
    if arn and named not in (None, arn[1]):
        raise DeclarationError(f"region={region!r} is not the region of {stream}", hint="leave region= out")
    return arn[1] if arn else named


def _matching(what: str, value: object, pattern: re.Pattern[str], hint: str) -> str | None:
    if value is None or (isinstance(value, str) and pattern.fullmatch(value)):
        return value
    raise DeclarationError(f"{what}={value!r} is not the name of a {what.replace('_', ' ')}", hint=hint)


def _key(key: object) -> str | None:
    if key is None or (isinstance(key, str) and key):
        return key
    if isinstance(key, Sequence) and not isinstance(key, str):
        hint = 'combine them: with_columns(key=pl.concat_str("member", "country", separator="/"))'
        raise DeclarationError("key= takes one column: a record of Kinesis has one partition key", hint=hint)
    raise DeclarationError(f"key={key!r} is not the name of a column", hint='write key="member"')


def _proxy(proxy: object) -> str | SecretPlace | None:
    if proxy is None or isinstance(proxy, SecretPlace):
        return proxy
    if isinstance(proxy, str) and "@" in proxy:
        hint = 'put the URL into a variable or a file, and write proxy=hr.secret_env("PROXY_URL")'
        raise DeclarationError("proxy= has an '@' in it, as if it contained credentials", hint=hint)
    if not isinstance(proxy, str) or not _PROXY.fullmatch(proxy):
        raise DeclarationError(f"proxy={proxy!r} is not the URL of a proxy", hint='write "http://example.com:3128"')
    return proxy


def _ms(what: str, value: Duration | None, least_ms: int, most_ms: int) -> int | None:
    if value is None:
        return None
    ms = to_ms(value, what)
    if not least_ms <= ms <= most_ms:
        hint = f"use {format_ms(least_ms)} to {format_ms(most_ms)}"
        raise DeclarationError(f"{what}={value!r} is out of range", hint=hint)
    return ms


def _records_per_call(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= READ_RECORDS):
        return value
    hint = f"use 1 to {READ_RECORDS}, Kinesis' limit"
    raise DeclarationError(f"records_per_call={value!r} is not a number of records", hint=hint)


def _endpoint(url: object, lease_table: str | None) -> str | None:
    if url is None:
        return None
    if url == _MEMORY and lease_table is not None:
        raise DeclarationError("lease_table= is for Amazon's streams, not for one in memory", hint="leave it out")
    if not isinstance(url, str) or not (url.startswith(("http://", "https://")) or url == _MEMORY):
        hint = f'write "http://localhost:4567", or "{_MEMORY}"'
        raise DeclarationError(f"endpoint_url={url!r} is not a URL", hint=hint)
    check_no_credentials(url)
    return url
