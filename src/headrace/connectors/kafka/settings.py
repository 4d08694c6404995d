"""How a Kafka cluster is reached, and the options of a topic. Pure; JSON in ``SystemSpec.options``.

settings
    How a Kafka cluster is reached: its brokers, and options for librdkafka. Pure; JSON in ``SystemSpec.options``.

    Options that say what exactly-once rests on are Headrace's, and secrets are given by where they are.

options
    The options of a topic, as a ``SystemSpec`` has them: JSON. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, Self, get_args

from headrace.core.errors import DeclarationError
from headrace.core.ids import Offset
from headrace.core.secrets import SecretPlace, is_secret
from headrace.rows.formats import FormatSpec
from headrace.systems.registry import check_option_names

# -- settings ----------------------------------------------------------------------------------------
Value = str | SecretPlace

_BROKER = re.compile(r"([a-zA-Z][a-zA-Z0-9_+]*://)?(\[[0-9a-fA-F:.%]+\]|[a-zA-Z0-9._-]+)(:\d{1,5})?")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PORT_MAX = 65_535

OURS: Mapping[str, str] = {
    "bootstrap.servers": "brokers= names them",
    "metadata.broker.list": "brokers= names them",
    "group.id": "groups are named after the app and the stage",
    "group.instance.id": "Headrace assigns partitions to tasks itself",
    "group.protocol": "Headrace assigns partitions to tasks itself",
    "partition.assignment.strategy": "Headrace assigns partitions to tasks itself",
    "enable.auto.commit": "positions are part of the app's checkpoints",
    "auto.commit.interval.ms": "positions are part of the app's checkpoints",
    "enable.auto.offset.store": "positions are part of the app's checkpoints",
    "auto.offset.reset": "start= sets where reading begins",
    "enable.partition.eof": "Headrace needs to know where a partition ends",
    "isolation.level": "use uncommitted=True",
    "enable.idempotence": "Headrace always turns it on",
    "enable.gapless.guarantee": "Headrace always turns enable.idempotence on",
    "acks": "Headrace always waits for all replicas",
    "request.required.acks": "Headrace always waits for all replicas",
    "max.in.flight": "enable.idempotence sets it",
    "max.in.flight.requests.per.connection": "enable.idempotence sets it",
    "message.send.max.retries": "enable.idempotence sets it",
    "retries": "enable.idempotence sets it",
    "transactional.id": "each writer of an app has its own",
    "transaction.timeout.ms": "Headrace's transactions are short",
    "partitioner": "key= chooses the partition of a row",
    "sasl.oauthbearer.token.refresh.cb": "oauth= names the function",
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
_SAME = {"sasl.mechanisms": "sasl.mechanism"}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How a cluster is reached. ``client`` has options of librdkafka by name; ``oauth`` is a ``module:function``."""

    brokers: str
    client: tuple[tuple[str, Value], ...] = ()
    oauth: str | None = None

    @classmethod
    def checked(cls, brokers: object, client: object = None, oauth: object = None) -> Self:
        """The settings that a user has written. Raises ``DeclarationError`` for what can't work."""
        checked = {} if client is None else check_client(client)
        return cls(check_brokers(brokers), tuple(sorted(checked.items())), check_oauth(oauth, checked))

    def options(self) -> dict[str, Any]:
        """The settings as JSON, without secrets."""
        client = {name: value.options() if isinstance(value, SecretPlace) else value for name, value in self.client}
        given = {"brokers": self.brokers, "client": client, "oauth": self.oauth}
        return {name: value for name, value in given.items() if value}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The settings of ``options()``. Raises ``DeclarationError``, as ``checked`` does."""
        client = {
            name: SecretPlace.of(value) if isinstance(value, Mapping) else value
            for name, value in options.get("client", {}).items()
        }
        return cls.checked(options.get("brokers"), client, options.get("oauth"))

    def tuned(self, usual: Mapping[str, str]) -> Self:
        """The settings of a client, with other usual values for what the user hasn't set."""
        return replace(self, client=tuple(sorted({**usual, **dict(self.client)}.items())))


SETTINGS = ("brokers", "client", "oauth")
"""The names of ``KafkaSettings.options()``."""


def check_brokers(brokers: object) -> str:
    """Return the addresses, each with a port. Raises ``DeclarationError`` for anything else."""
    example = 'write brokers="host:9092", or several: "host1:9092,host2:9092"'
    if not isinstance(brokers, str) or not brokers.strip():
        raise DeclarationError(f"brokers={brokers!r} names no broker", hint=example)
    if "@" in brokers:
        raise DeclarationError(
            "brokers= has an '@' in it, as if it contained credentials",
            hint='write options={"sasl.username": ..., "sasl.password": hr.secret_env("KAFKA_PASSWORD")}',
        )
    found = [one.strip() for one in brokers.split(",")]
    for one in found:
        match = _BROKER.fullmatch(one)
        if not match or (match[3] is not None and not 0 < int(match[3][1:]) <= _PORT_MAX):
            raise DeclarationError(f"brokers={brokers!r}: {one!r} isn't the address of a broker", hint=example)
        if match[3] is None:
            raise DeclarationError(f"brokers={brokers!r}: {one!r} has no port", hint=f'write "{one}:9092"')
    return ",".join(found)


def check_client(options: object) -> dict[str, Value]:
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
        raise DeclarationError(
            f"options: sasl.mechanism is {mechanism}, but security.protocol is {protocol}, which has no SASL",
            hint='write {"security.protocol": "SASL_SSL", ...}',
        )
    return checked


def check_oauth(oauth: object, client: Mapping[str, Value]) -> str | None:
    """Return the ``module:function`` for tokens. Raises ``DeclarationError`` if it isn't one, or isn't used."""
    if oauth is None:
        return None
    if not isinstance(oauth, str) or not _FUNCTION.fullmatch(oauth):
        raise DeclarationError(
            f"oauth={oauth!r} doesn't name a function",
            hint='write oauth="tokens:kafka_token", a function without arguments of a module that drivers and '
            "containers can import; it returns a token, and when it expires in seconds since the epoch",
        )
    if client.get("sasl.mechanism") != "OAUTHBEARER":
        raise DeclarationError(
            f"oauth={oauth!r} needs sasl.mechanism OAUTHBEARER",
            hint='write options={"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}',
        )
    return oauth


_EXAMPLE = 'write options={"security.protocol": "SASL_SSL", "sasl.password": hr.secret_env("KAFKA_PASSWORD")}'


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"options: {name!r} isn't the name of an option", hint=_EXAMPLE)
    if name in OURS:
        raise DeclarationError(f"options: {name} can't be set: {OURS[name]}", hint="leave it out")
    if name in _JAVA:
        raise DeclarationError(
            f"options: {name} is an option of Kafka's Java client; librdkafka has another name for it",
            hint=f"use {_JAVA[name]}",
        )
    if name.endswith("_cb") or name in ("logger", "on_delivery"):
        raise DeclarationError(f"options: {name} is a callback, which only Headrace can set", hint="leave it out")
    if "_" in name and "." not in name:
        raise DeclarationError(f"options: librdkafka has no option {name}", hint=f"write {name.replace('_', '.')!r}")
    return _SAME.get(name, name)


def _value(name: str, value: object) -> Value:
    if isinstance(value, SecretPlace):
        return value
    if is_secret(name):
        variable = re.sub(r"\W", "_", f"kafka_{name.rpartition('.')[2]}").upper()
        raise DeclarationError(
            f"options: {name} is a secret, but is written in plain text",
            hint=f'write hr.secret_env("{variable}"), or hr.secret_file(path): then it appears in no plan, log or file',
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise DeclarationError(
            f"options: the value of {name} is a {type(value).__name__}",
            hint="write a string, a number, True, False or a reference to a secret: hr.secret_env(name)",
        )
    text = str(value)
    choices = _CHOICES.get(name)
    if choices is None:
        return text
    same = next((one for one in choices if one.lower() == text.lower()), None)
    if same is None:
        close = get_close_matches(text.lower(), [one.lower() for one in choices], n=1)
        meant = next((one for one in choices if close and one.lower() == close[0]), None)
        raise DeclarationError(
            f"options: {name} can't be {text!r}",
            hint=f"did you mean {meant!r}?" if meant else f"use {', '.join(choices)}",
        )
    return same


# -- options -----------------------------------------------------------------------------------------
Lost = Literal["stop", "skip"]
"""What happens if records were deleted before the app has read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a bounded input ends: at the first record of this time or later, or at an offset of each partition."""

    time_ms: int | None = None
    offsets: Mapping[int, Offset] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The end as JSON."""
        if self.time_ms is not None:
            return {"time": self.time_ms}
        return {"offsets": {str(partition): offset for partition, offset in self.offsets.items()}}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> End:
        """The end of ``options()``."""
        offsets = {int(partition): offset for partition, offset in options.get("offsets", {}).items()}
        return cls(time_ms=options.get("time"), offsets=offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the app says of the topic. ``start`` may be milliseconds since the epoch.

    ``key_format`` is of the records' keys; ``uncommitted``: records of open and aborted transactions are read, too.
    """

    topic: str
    settings: KafkaSettings
    format: FormatSpec = field(default_factory=FormatSpec)
    key_format: FormatSpec = field(default_factory=lambda: FormatSpec("bytes"))
    record_columns: Mapping[str, str] = field(default_factory=dict)
    start: str | int = "oldest"
    end: End | None = None
    uncommitted: bool = False
    lost: Lost = "stop"

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Options:
        """The options of the system ``name``. Raises ``DeclarationError`` for unknown ones."""
        known = [one.name for one in fields(cls) if one.name != "settings"] + list(SETTINGS)
        check_option_names(name, "kafka", options, known, "topic", "brokers")
        given = {one: value for one, value in options.items() if one not in SETTINGS}
        for one in ("format", "key_format"):
            if one in given:
                given[one] = FormatSpec(**given[one])
        if "end" in given:
            given["end"] = End.of(given["end"])
        if given.get("lost", "stop") not in get_args(Lost):
            raise DeclarationError(f"system {name!r} (kafka): lost={given['lost']!r}", hint='use "stop" or "skip"')
        return cls(settings=KafkaSettings.of(options), **given)
