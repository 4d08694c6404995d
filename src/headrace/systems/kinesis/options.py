"""The options of a Kinesis stream, as a ``SystemSpec`` has them: JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from headrace.core.errors import UsageError
from headrace.core.secret_places import SecretPlace
from headrace.serdes.formats import FormatSpec
from headrace.systems.kinesis.api import READ_RECORDS
from headrace.systems.option_names import check_option_names

LeaseAhead = Literal["stop", "continue", "repeat"]

POLL_MS = 200
"""How often a shard is read while records arrive: Kinesis allows all of its readers together five reads a second."""

FAILOVER_MS = 10_000
"""A lease whose counter hasn't moved for this long counts as abandoned: KCL's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How Amazon's services are reached. ``endpoint`` is an address instead of Amazon's.

    Credentials are those of ``profile``, or else those that boto3 finds; with ``role``, they are for assuming it. What
    isn't said, each client knows by itself.
    """

    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    role: str | None = None
    proxy: str | SecretPlace | None = None
    connect_ms: int | None = None
    answer_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the app says of the stream. ``start`` may be milliseconds since the epoch; ``key`` is an output's.

    ``lost`` says what happens where records may have expired unread: ``"stop"`` or ``"skip"``. ``lease_ahead`` says
    what happens if another application has continued in the lease table since the last commits.

    ``memo`` is the file in which an app remembers an input, ``remembered`` what it has remembered: the contents.
    """

    stream: str
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role: str | None = None
    proxy: str | SecretPlace | None = None
    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None
    records_per_call: int = READ_RECORDS
    poll_interval_ms: int = POLL_MS
    failover_ms: int = FAILOVER_MS
    format: FormatSpec = field(default_factory=FormatSpec)
    start: str | int = "oldest"
    slots: int | None = None
    record_columns: Mapping[str, str] = field(default_factory=dict)
    lease_table: str | None = None
    lost: str = "stop"
    lease_ahead: LeaseAhead = "stop"
    memo: str | None = None
    remembered: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Options:
        """The options of the system ``name``. Raises ``DeclarationError`` for unknown ones."""
        check_option_names(name, "kinesis", options, (one.name for one in fields(cls)), "stream")
        given = dict(options)
        given["format"] = FormatSpec(**given.get("format", {}))
        if isinstance(given.get("proxy"), Mapping):
            given["proxy"] = SecretPlace.of(given["proxy"])
        return cls(**given)

    @property
    def access(self) -> Access:
        """How the stream and the lease table are reached."""
        return Access(
            region=self.region,
            endpoint=self.endpoint_url,
            profile=self.profile,
            role=self.role,
            proxy=self.proxy,
            connect_ms=self.connect_timeout_ms,
            answer_ms=self.read_timeout_ms,
        )

    def memo_path(self) -> Path:
        """Where the app remembers the stream. Raises ``UsageError`` if no app reads it."""
        if self.memo is None:
            raise UsageError(
                f"the Kinesis stream {self.stream!r} isn't an input of an app here, so its slots aren't known",
                hint='declare it as an input: app.input("orders", ..., system=hr.io.kinesis("orders"))',
            )
        return Path(self.memo)
