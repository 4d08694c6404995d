"""A topic of Kafka as an output."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import DeclarationError, StreamNotFoundError, UsageError
from headrace.core.log import logger
from headrace.serdes.formats import FormatSpec, open_format
from headrace.systems.base import Consumer, Creation, RowSystem, StreamInfo, Target
from headrace.systems.kafka.client import NewTopic
from headrace.systems.kafka.output_records import RecordMaker, Roles
from headrace.systems.kafka.plain_target import PlainKafkaTarget
from headrace.systems.kafka.settings import SETTINGS, KafkaSettings
from headrace.systems.kafka.target import KafkaTarget
from headrace.systems.kafka.topics import Topics
from headrace.systems.write_only import WriteOnlyAdmin

_ANSWER_S = 10.0
_OUTPUT = ("key", "key_format", "timestamp", "headers", "transactions", "progress_topic")

_log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """The app's options for the topic. Without ``key_format``, keys are written directly.

    ``transactions`` False: at least once. ``progress_topic`` None: it is named after the app.
    """

    topic: str
    settings: KafkaSettings
    format: FormatSpec = field(default_factory=FormatSpec)
    key_format: FormatSpec | None = None
    roles: Roles = field(default_factory=Roles)
    transactions: bool = True
    progress_topic: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> OutputOptions:
        """The options of a ``SystemSpec``: those that only outputs have are in ``output``."""
        output = dict(options["output"])
        if strange := sorted(set(output) - set(_OUTPUT)):
            raise DeclarationError(
                f"kafka: unknown options {strange} of an output", hint=f"known options: {', '.join(_OUTPUT)}"
            )
        key_format = output.pop("key_format", None)
        roles = Roles(**{name: output.pop(name, None) for name in ("key", "timestamp", "headers")})
        settings = KafkaSettings.of({name: value for name, value in options.items() if name in SETTINGS})
        return cls(
            topic=options["topic"],
            settings=settings,
            format=FormatSpec(**options["format"]),
            key_format=None if key_format is None else FormatSpec(**key_format),
            roles=roles,
            **output,
        )


@dataclass(frozen=True)
class KafkaOutput(RowSystem):
    """A system with one topic, as an output of any name."""

    options: OutputOptions

    @override
    def admin(self) -> KafkaOutputAdmin:
        return KafkaOutputAdmin(self.options)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> Consumer:
        """Refuse: who reads the topic declares it as an input."""
        raise _refused(f"the topic {self.options.topic!r} is an output in this app, so it can't be read")

    @override
    def target(self, stream: str) -> Target:
        options = self.options
        key_format = None if options.key_format is None else open_format(options.key_format)
        records = RecordMaker(options.topic, options.roles, open_format(options.format), key_format)
        if not options.transactions:
            return PlainKafkaTarget(options.settings, options.topic, records)
        return KafkaTarget(options.settings, options.topic, records, options.progress_topic)


class KafkaOutputAdmin(WriteOnlyAdmin):
    """Describes the topic, and creates it."""

    def __init__(self, options: OutputOptions) -> None:
        self._options = options
        self._topics = Topics(options.settings, answer_s=_ANSWER_S)

    @override
    def list(self) -> builtins.list[str]:
        return self._topics.names()

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        """Return the topic's partitions if it exists. What its records are, their readers know."""
        found = self._partitions()
        return None if found is None else StreamInfo(stream, found)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Create the topic if it doesn't exist, with the broker's defaults. Check that it fits what is written.

        An existing topic isn't changed, whatever its partition count.
        """
        due = self.would_create(stream, partitions, columns)
        if due.new:
            self._create(partitions)
        return StreamInfo(stream, due.partitions, columns)

    @override
    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        if columns is not None:
            self._options.roles.check(columns, self._options.topic)
        found = self._partitions()
        return Creation(partitions if found is None else found, new=found is None)

    @override
    def close(self) -> None:
        self._topics.close()

    def _partitions(self) -> int | None:
        try:
            return self._topics.partitions(self._options.topic)
        except StreamNotFoundError:
            return None

    def _create(self, partitions: int) -> None:
        topic = self._options.topic
        hint = (
            f"ask an administrator to create it: kafka-topics.sh --create --topic {topic} --partitions {partitions}; "
            "the app needs the rights Write and Describe for it"
        )
        if not self._topics.create(NewTopic(topic, partitions), "", hint):
            _log.debug("another client created the topic at the same time", topic=topic)

    @override
    def refused(self, why: str) -> UsageError:
        return _refused(f"the topic {self._options.topic!r} {why}")


def _refused(what: str) -> UsageError:
    return UsageError(what, hint="to read it, declare it as an input: app.input(..., system=hr.io.kafka(...))")


def open_kafka_output(options: Mapping[str, Any]) -> KafkaOutput:
    """The system of a ``SystemSpec`` with ``output``."""
    return KafkaOutput(OutputOptions.of(options))
