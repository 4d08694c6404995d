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
        """Return the one system for all streams of this log."""
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
    """A log for Headrace's own frames in a Kafka cluster, in topics that only Headrace writes.

    As ``system=`` of ``hr.App``, it holds the app's intermediate streams and changelogs, and inputs and outputs without
    another ``system=``. Headrace creates topics with the settings that frames need, and checks the settings of existing
    topics. To read and write other topics, use ``hr.io.kafka``.

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
    options
        Options of librdkafka, such as those for TLS and SASL. Give secrets as ``hr.secret_env(name)`` or
        ``hr.secret_file(path)``.
    oauth
        ``module:function``, which returns tokens for SASL's OAUTHBEARER.
    name
        The log's name, as part of the names of its streams.

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
