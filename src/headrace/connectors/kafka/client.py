"""Clients of a Kafka cluster, and what their errors mean. Only this module imports confluent_kafka.

librdkafka connects by itself, again and again, and says why it can't in callbacks. ``KafkaClient`` keeps the last of
these, for a call that has waited in vain. Secrets are read when a client is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from headrace.connectors.kafka.settings import KafkaSettings
from headrace.core.errors import (
    DataError,
    DeclarationError,
    FencedError,
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    StorageError,
    StreamExistsError,
    StreamNotFoundError,
    ThrottledError,
    TrimmedOffsetError,
    UnavailableError,
    UserFunctionError,
)
from headrace.core.log import Throttle, logger
from headrace.core.secrets import SecretOptions, SecretPlace

__all__ = [  # what other modules take of confluent_kafka
    "AdminClient", "ConfigResource", "Consumer", "IsolationLevel", "KafkaError", "KafkaException", "Message",
    "NewPartitions", "NewTopic", "OffsetSpec", "Producer", "TopicCollection", "TopicPartition",
]  # fmt: skip

ANSWER_S = 10.0  # how long a call waits for a broker's answer. Those that a run loop makes have to be shorter.
OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
"""What consumers report for an offset that the partition doesn't have."""
_log = logger(__name__)


class _Raw(Protocol):
    def poll(self, timeout: float = -1) -> Any: ...


R = TypeVar("R", bound=_Raw)
T = TypeVar("T")


@dataclass
class Troubles:
    """What a client has reported by itself since it last succeeded, such as why it can't reach a broker."""

    last: KafkaError | None = None
    secret: SecretOptions = field(default_factory=SecretOptions)
    brokers: str = ""
    closed: str = ""
    """The last log line on a connection that a broker has closed: of a broker that expects TLS, there is no more."""

    def __post_init__(self) -> None:
        self._throttle = Throttle(_log)

    def heard(self, error: KafkaError) -> None:
        """ "All brokers are down" is less informative than the reason before it."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last is None:
            self.last = error
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._throttle.warning("no Kafka broker answers; waiting", brokers=self.brokers, why=self.why)
        else:
            _log.debug("the Kafka client reported a problem", code=error.name(), text=self.why)

    @property
    def why(self) -> str:
        if self.last is None:
            return ""
        told = self.last.code() != KafkaError._ALL_BROKERS_DOWN or not self.closed
        return self.secret.clean(self.last.str() if told else f"{self.last.str()}: {self.closed}")

    def over(self) -> None:
        self.last = None
        self.closed = ""


@dataclass(eq=False)
class KafkaClient(Generic[R]):
    """A client of confluent_kafka, and what is known about its connections. ``brokers`` is for messages."""

    raw: R
    brokers: str
    troubles: Troubles

    @contextmanager
    def translating(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self.problem(error.args[0], doing) from None
        except BufferError as error:
            raise UnavailableError(
                f"Kafka at {self.brokers}: {doing}: the queue to the broker is full: {error}",
                hint="records arrive faster than the broker takes them; Headrace tries again",
            ) from None

    def answer(self, future: Future[T], doing: str) -> T:
        error = future.exception()
        if isinstance(error, KafkaException):
            # The error itself stays out of tracebacks. They refer to all callers, some of those to the future, and the
            # future to the error: connections would stay open until garbage is collected.
            raise self.problem(error.args[0], doing)
        return future.result()

    def received(
        self: KafkaClient[Consumer], wait_s: float, most: int = 1
    ) -> tuple[list[Message], list[KafkaError | None]]:
        """Up to ``most`` records that a consumer has fetched, each with its error. Waits for the first one only.

        Ours need no group: that the user has no right to the one that librdkafka looks for isn't returned.
        """
        first = self.raw.poll(wait_s)
        if first is None:
            return [], []
        # With a time to wait, consume would wait until it has as many as it may return.
        found = [first, *self.raw.consume(most - 1, 0)] if most > 1 else [first]
        errors = list(map(Message.error, found))
        if any(errors):
            found = [message for message, error in zip(found, errors, strict=True) if not no_right_to_group(error)]
            errors = list(map(Message.error, found))
        return found, errors

    def problem(self, error: KafkaError, doing: str) -> HeadraceError:
        """What an error of the client means. Some only say that another one, which was reported, stands."""
        if error.code() in _EXPLAINED and not isinstance(self.raw, Consumer):
            try:
                self.raw.poll(0)  # reports wait in a queue
            except KafkaException as reason:  # the error that has stopped the client permanently
                error = reason.args[0]
        return problem_of(error, doing, self.brokers, self.troubles)


def cannot_log_in(client: KafkaClient[Any], doing: str) -> HeadraceError | None:
    """The error if a broker has refused the client's login: it would try forever."""
    heard = client.troubles.last
    if heard is None or not _is_login(heard):
        return None
    error = KafkaError(KafkaError._AUTHENTICATION, heard.str())
    return problem_of(error, doing, client.brokers, client.troubles)


def no_right_to_group(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _is_login(heard: KafkaError) -> bool:
    return _BY_CODE.get(heard.code()) is _LOGIN or "SASL authentication error" in heard.str()


def open_consumer(
    settings: KafkaSettings,
    group: str,
    *,
    uncommitted: bool = False,
    committed: Callable[[KafkaError | None], None] | None = None,
) -> KafkaClient[Consumer]:
    """A consumer that commits nothing by itself, never jumps, and says where a partition ends.

    Without ``uncommitted`` it returns what transactions have committed, and what is in none. ``committed`` is called
    with the outcome of each commit that wasn't waited for, by the thread that polls.
    """
    ours: dict[str, Any] = {
        "group.id": group,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "auto.offset.reset": "error",
        "enable.partition.eof": "true",
        "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
    }
    if committed is not None:
        ours["on_commit"] = lambda error, _: committed(error)
    return _open(settings, Consumer, {"allow.auto.create.topics": "false", "queued.max.messages.kbytes": "32768"}, ours)


def open_producer(
    settings: KafkaSettings,
    transactional_id: str | None = None,
    on_failure: Callable[[KafkaError], object] | None = None,
    **ours: str | int | float,
) -> KafkaClient[Producer]:
    """An idempotent producer. ``ours`` are options with ``_`` for ``.``. ``on_failure`` gets errors of deliveries."""
    options: dict[str, Any] = {name.replace("_", "."): value for name, value in ours.items()}
    options |= {"enable.idempotence": "true", "acks": "all"}
    if transactional_id is not None:
        options["transactional.id"] = transactional_id
    if on_failure is not None:
        options |= {"on_delivery": lambda error, _: on_failure(error), "delivery.report.only.error": True}
    return _open(settings, Producer, {}, options)


def open_plain_producer(settings: KafkaSettings) -> KafkaClient[Producer]:
    """A producer that may write a record twice. An idempotent one has to wait half a second before its first record."""
    ours: dict[str, str | int | float] = {"enable.idempotence": "false", "acks": "all", "linger.ms": 0}
    return _open(settings, Producer, {"message.timeout.ms": str(int(ANSWER_S * 1000))}, ours)


def open_admin(settings: KafkaSettings) -> KafkaClient[AdminClient]:
    return _open(settings, AdminClient, {}, {})


_DEFAULTS = {
    "client.id": "headrace",
    "socket.connection.setup.timeout.ms": "5000",
    "reconnect.backoff.ms": "50",
    "reconnect.backoff.max.ms": "1000",
    "topic.metadata.propagation.max.ms": "5000",
}
"""Ours unless the user says otherwise: a broker that comes back is found within a second."""


def _open(
    settings: KafkaSettings, make: Callable[..., R], usual: Mapping[str, str], ours: Mapping[str, Any]
) -> KafkaClient[R]:
    given, secret = resolved(settings)
    troubles = Troubles(secret=secret, brokers=settings.brokers)
    options: dict[str, Any] = {**_DEFAULTS, **usual, **given, **ours, "bootstrap.servers": settings.brokers}
    if settings.oauth is not None:
        options["oauth_cb"] = _tokens(settings.oauth)
    options["error_cb"] = troubles.heard
    options["logger"] = _Lines(troubles)
    try:
        return KafkaClient(make(options), settings.brokers, troubles)
    except (KafkaException, ValueError, TypeError) as error:
        what = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        files = [value for name, value in given.items() if name in what and name.endswith(".location")]
        gone = [f"; there is no {file}" for file in files if not Path(file).exists()]
        raise DeclarationError(
            f"Kafka at {settings.brokers}: librdkafka can't use these options: {secret.clean(what)}{''.join(gone)}",
            hint="correct options= of hr.io.kafka; librdkafka's CONFIGURATION.md lists their names",
        ) from None


def resolved(settings: KafkaSettings) -> tuple[dict[str, str], SecretOptions]:
    places = {name: value for name, value in settings.client if isinstance(value, SecretPlace)}
    secret = {name: place.read(os.environ) for name, place in places.items()}
    plain = {name: value for name, value in settings.client if not isinstance(value, SecretPlace)}
    return {**plain, **secret}, SecretOptions.of(secret)


def _tokens(function: str) -> Callable[[str], tuple[str, float]]:
    module, _, name = function.partition(":")
    try:
        get = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = "name a function of a module that drivers and containers can import"
        raise DeclarationError(f"oauth={function!r} can't be imported: {error}", hint=hint) from error

    def tokens(_config: str) -> tuple[str, float]:
        found = get()
        match found:
            case (str(token), float() | int() as expires, *_):
                return (token, float(expires), *found[2:])
        said = f"oauth={function!r} returned a {type(found).__name__}, not a token with its expiry time"
        raise UserFunctionError(said, hint="return (token, expires_s), where expires_s is in seconds since the epoch")

    return tokens


class _Lines:
    """Where librdkafka's log lines go, as to a ``logging.Logger``. What matters of them comes as errors, too."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles

    def log(self, _level: int, text: str, *values: object) -> None:
        line = text % values if values else text
        if _CLOSED in line:
            self._troubles.closed = line.rpartition("]: ")[2]
        _log.debug("a log line of librdkafka", line=self._troubles.secret.clean(line))


# -- what errors mean
class _Meaning(NamedTuple):
    error: type[HeadraceError]
    hint: str


_WAIT = _Meaning(UnavailableError, "check brokers=, the network and the broker; Headrace keeps trying")
_BUSY = _Meaning(UnavailableError, "the cluster is moving leaders or lacks replicas; Headrace tries again")
_LOGIN = _Meaning(
    InfrastructureError, "check security.protocol, sasl.mechanism, sasl.username and sasl.password in options="
)
_CERTIFICATE = _Meaning(
    InfrastructureError,
    "set ssl.ca.location in options= to the certificate of the authority that signed the broker's; and the broker's "
    "must be for the host that brokers= names",
)
_CLOSING = _Meaning(
    UnavailableError,
    "check security.protocol in options=: brokers that expect TLS or a login close connections without it, and the "
    "other way round; or check the broker. Headrace keeps trying",
)
_RIGHTS = _Meaning(
    InfrastructureError,
    "ask the cluster's administrators to grant this user the right (kafka-acls), or use another user",
)
_NO_TOPIC = _Meaning(StreamNotFoundError, "check the topic's name and the cluster, or create the topic")
_GONE = _Meaning(TrimmedOffsetError, "read from oldest, or from a later offset")
_FENCED = _Meaning(FencedError, "another producer with the same id has taken over")
_LARGE = _Meaning(
    DataError, "send smaller rows, or raise the topic's max.message.bytes, and message.max.bytes in options="
)
_UNKNOWN = _Meaning(IndeterminateWriteError, "the record may have been written; Headrace checks before it continues")
_NOT_SENT = _Meaning(StorageError, "the record wasn't sent")
_OLD = _Meaning(InfrastructureError, "use a newer broker; Headrace is tested with Kafka 4")
_FAILED = _Meaning(UnavailableError, "the broker failed to handle the request; see its log. Headrace tries again")
_SERVER = _Meaning(InfrastructureError, "the broker refused the request; see its log")
_MEANINGS: Mapping[_Meaning, tuple[str, ...]] = {
    _WAIT: (
        "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_WAIT_COORD", "_RETRY",
        "_NODE_UPDATE", "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE", "REBOOTSTRAP_REQUIRED",
    ),
    _BUSY: (
        "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REPLICA_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "NOT_CONTROLLER", "NOT_ENOUGH_REPLICAS",
        "KAFKA_STORAGE_ERROR", "CONCURRENT_TRANSACTIONS", "UNSTABLE_OFFSET_COMMIT", "OFFSET_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "PREFERRED_LEADER_NOT_AVAILABLE", "_NOENT", "_QUEUE_FULL", "_PREV_IN_PROGRESS",
    ),
    _FAILED: ("UNKNOWN",),  # Kafka's answer to a commit, too, when another producer takes over at that moment
    _LOGIN: (
        "_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE",
        "SECURITY_DISABLED",
    ),
    _RIGHTS: (
        "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "POLICY_VIOLATION",
    ),
    _NO_TOPIC: ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"),
    _GONE: ("OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"),
    _FENCED: (
        "_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "TRANSACTION_COORDINATOR_FENCED",
    ),
    _LARGE: ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD"),
    _UNKNOWN: (
        "_MSG_TIMED_OUT", "_PURGE_INFLIGHT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "DUPLICATE_SEQUENCE_NUMBER", "_GAPLESS_GUARANTEE", "_FATAL", "UNKNOWN_PRODUCER_ID",
        "INVALID_PRODUCER_ID_MAPPING",
    ),
    _NOT_SENT: ("_PURGE_QUEUE",),
    _OLD: ("UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE", "_NOT_IMPLEMENTED"),
    _Meaning(ThrottledError, "the cluster's quota is used up; Headrace tries again"): ("THROTTLING_QUOTA_EXCEEDED",),
    _Meaning(StreamExistsError, "use another name"): ("TOPIC_ALREADY_EXISTS",),
}  # fmt: skip
_BY_CODE = {getattr(KafkaError, name): meaning for meaning, names in _MEANINGS.items() for name in names}
_CLOSED, _HANDSHAKE = "closed by peer", "SSL handshake failed"  # in what librdkafka reports of a connection
_WAITED = {getattr(KafkaError, name) for name in _MEANINGS[_WAIT]}  # codes that only mean that no broker has answered
_EXPLAINED = _WAITED | {KafkaError._FATAL}  # codes whose reason is in a report


def problem_of(error: KafkaError, doing: str, brokers: str, troubles: Troubles) -> HeadraceError:
    """What an error of the client means. A refused login isn't one of brokers that don't answer."""
    heard = troubles.last
    meaning = _BY_CODE.get(error.code())
    text, why = troubles.secret.clean(error.str()), ""
    if error.code() in _WAITED and heard is not None:
        why = f" ({troubles.why})"
        if _is_login(heard):
            meaning = _LOGIN
        elif _CLOSED in why:
            meaning = _CLOSING
    if meaning is _LOGIN and _HANDSHAKE in text + why:
        meaning = _CERTIFICATE
    if meaning is None:
        meaning = _WAIT if error.retriable() else _SERVER
    return meaning.error(f"Kafka at {brokers}: {doing}: {error.name()}: {text}{why}", hint=meaning.hint)
