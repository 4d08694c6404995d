"""Which topics a log in Kafka has, and their settings. Pure.

Nothing may be deleted but what Headrace trims, and nothing may be dropped by key: frames have no keys, and are counted
by place. So a topic is neither compacted nor limited in time or size. Kafka stamps the records, so their times rise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.core.errors import DeclarationError, DeploymentError
from headrace.core.ids import check_id
from headrace.systems.kafka.settings import SETTINGS, KafkaSettings
from headrace.systems.option_names import KAFKA_LOG_PREFIX

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
