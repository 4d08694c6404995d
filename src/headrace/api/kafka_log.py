"""The descriptor of a log in Kafka: ``kafka_log(...)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.api.location import Declaring
from headrace.core.ids import check_id
from headrace.core.secret_places import SecretPlace
from headrace.systems.kafka.log_topics import PREFIX, RECORD_BYTES, LogOptions
from headrace.systems.kafka.settings import KafkaSettings
from headrace.systems.registry import SystemSpec

KIND = "kafka-log"


@dataclass(frozen=True, slots=True)
class KafkaLog:
    """A log in a Kafka cluster; see ``kafka_log``."""

    log: LogOptions
    name: str

    def system(self, stream_id: str) -> SystemSpec:
        """One system for all streams of this log."""
        del stream_id
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
    """Streams of Headrace's own frames in a Kafka cluster, in topics that only Headrace writes.

    As ``system=`` of ``hr.App`` it has the app's intermediate streams and changelogs, and the inputs and outputs that
    name no other system. Topics are created with the settings that frames need, and checked when they are there. To
    read and write topics of others, use ``hr.io.kafka``.

    Parameters
    ----------
    brokers
        ``host:port`` of some brokers, separated by commas.
    prefix
        What the names of all its topics begin with. Logs with different prefixes have nothing to do with each other.
    replication
        How many replicas new topics have; by default as many as the cluster says.
    record_bytes
        How large a record of a new topic may be; the topic's ``max.message.bytes`` follows from it.
    options
        Options of librdkafka, such as those of TLS and SASL. Secrets are given by ``hr.secret_env(name)`` or
        ``hr.secret_file(path)``.
    oauth
        ``module:function`` that gets tokens for SASL's OAUTHBEARER.
    name
        What the log is called in ids of streams.

    Returns
    -------
    KafkaLog

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
