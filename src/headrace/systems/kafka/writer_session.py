"""One writer's producer, and what the actions of ``publishing`` are in terms of Kafka's client.

A thread of the target uses it, one at a time; each call may block for as long as a transaction may take. Whatever was
begun when a producer is dropped, Kafka aborts: now, if it can be told, or when the transaction times out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import polars as pl

from headrace.core.errors import HeadraceError, InfrastructureError, UnavailableError
from headrace.core.log import logger
from headrace.systems.kafka.client import KafkaClient, KafkaError, KafkaException, Producer, open_producer
from headrace.systems.kafka.producing import Sender, producer_limits
from headrace.systems.kafka.progress_topic import PARTITION, ProgressTopic, encode_progress
from headrace.systems.kafka.publishing import Progress
from headrace.systems.kafka.settings import KafkaSettings
from headrace.systems.kafka.topic_limits import TopicLimits

OPEN_S, COMMIT_S, ABORT_S, SLICE_S = 15.0, 10.0, 1.0, 0.5
"""How long these calls wait at most; and after how long they look whether the target is being closed."""

_log = logger(__name__)


def transactional_id(writer: str) -> str:
    """Return the id of a writer's transactions, the same in each of its lives."""
    return f"headrace.{writer}"


class WriterSession:
    """The producer of one writer, if it has one."""

    def __init__(
        self,
        settings: KafkaSettings,
        writer: str,
        limits: TopicLimits,
        progress: ProgressTopic,
        closing: threading.Event,
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._limits = limits
        self._progress = progress
        self._closing = closing
        self._sender = Sender(limits.topic, closing)
        self._client: KafkaClient[Producer] | None = None
        self._timeout_s = 0.0
        self._began_s: float | None = None
        self._undelivered: KafkaError | None = None

    @property
    def elapsed_ms(self) -> float:
        """Return the age of the transaction; 0 if there is none."""
        return 0.0 if self._began_s is None else (time.monotonic() - self._began_s) * 1000

    @property
    def slow_ms(self) -> float:
        """The age of the transaction; 0 if the client has reported trouble, which explains it."""
        return 0.0 if self._client is None or self._client.troubles.last is not None else self.elapsed_ms

    def open(self, timeout_ms: int) -> None:
        """Take the transactional id over, for transactions that take no longer than ``timeout_ms``."""
        self.drop()
        self._limits.look()
        client = open_producer(
            self._settings,
            transactional_id(self._writer),
            self._heard,
            transaction_timeout_ms=timeout_ms,
            **producer_limits(self._limits.record_bytes),
        )
        self._timeout_s = timeout_ms / 1000
        doing = f"taking over the transactional id {transactional_id(self._writer)!r}"
        try:
            self._patiently(client, doing, client.raw.init_transactions, time.monotonic() + OPEN_S)
        except InfrastructureError as error:
            if not error.retry:
                error.hint = (
                    f"the app's user needs the rights to Describe and Write for the transactional ids of the app: "
                    f"kafka-acls.sh --add --transactional-id headrace.{self._writer.partition('/')[0]}/ "
                    "--resource-pattern-type prefixed --operation All --allow-principal User:...; without them: "
                    "hr.io.kafka(..., transactions=False), which may write rows twice"
                )
            raise
        self._client = client

    def find(self, *, create: bool) -> Progress | None:
        """What the progress topic says of the writer; None if it is hidden. The topic is created only if asked for."""
        if not self._progress.ensure(create=create):
            return Progress()
        return self._progress.read(self._writer)

    def send(self, progress: Progress, pieces: Sequence[pl.DataFrame]) -> None:
        """Begin a transaction, send the records and then the progress, and wait until Kafka has them."""
        client = self._opened()
        self._limits.look()
        self._began_s = time.monotonic()
        self._undelivered = None
        end_s = self._began_s + self._timeout_s
        with client.translating("beginning a transaction"):
            client.raw.begin_transaction()
        try:
            self._sender.send(client, self._writer, progress.version, pieces, self._limits.partitions, end_s)
            with client.translating(f"writing to topic {self._progress.name!r}"):
                value = encode_progress(progress)
                client.raw.produce(self._progress.name, value, self._writer.encode(), PARTITION)
            self._sender.flush(client, end_s)
            self._raise_undelivered(client)
        except HeadraceError as error:
            raise self._explained(client, error) from error

    def commit(self) -> None:
        """Commit. Whatever is raised but ``FencedError``, the transaction may be committed."""
        client = self._opened()
        self._patiently(client, "committing", client.raw.commit_transaction, time.monotonic() + COMMIT_S)
        self._began_s = None
        client.troubles.over()

    def drop(self) -> None:
        """Do without the producer. An open transaction is aborted, if that goes quickly."""
        client, self._client = self._client, None
        if client is None:
            return
        client.raw.purge()
        if self._began_s is not None:
            self._began_s = None
            try:
                with client.translating("aborting a transaction"):
                    client.raw.abort_transaction(ABORT_S)
            except HeadraceError as error:
                _log.debug("a transaction is left for Kafka to abort", writer=self._writer, why=error.message)

    def _heard(self, error: KafkaError) -> None:
        # When a record is refused, the records after it are purged, which may be reported first.
        if self._undelivered is None or self._undelivered.name().startswith("_PURGE"):
            self._undelivered = error

    def _raise_undelivered(self, client: KafkaClient[Producer]) -> None:
        """Raise if a record was refused: the client's own calls say only that there was one."""
        if self._undelivered is not None:
            raise client.problem(self._undelivered, f"writing to topic {self._limits.topic!r}")

    def _explained(self, client: KafkaClient[Producer], error: HeadraceError) -> HeadraceError:
        """Return why the transaction has failed, if librdkafka knows more than what was raised.

        If a broker refuses the transaction, librdkafka purges the waiting records without a reason. The next invalid
        call then raises that reason instead of its own.
        """
        if error.retry:
            try:
                client.raw.begin_transaction()
            except KafkaException as reason:
                if reason.args[0].code() != KafkaError._STATE:
                    error = client.problem(reason.args[0], f"writing to topic {self._limits.topic!r}")
        if "AUTHORIZATION_FAILED" in error.message:
            error.hint = (
                f"the app's user needs these rights: kafka-acls.sh --add --topic {self._limits.topic} --operation "
                "Write --operation Describe --allow-principal User:...; and for "
                f"--topic {self._progress.name} the same and --operation Read"
            )
        return error

    def _patiently(
        self, client: KafkaClient[Producer], doing: str, call: Callable[[float], object], end_s: float
    ) -> None:
        """Make a call that goes on where it was when it has waited in vain and is made again."""
        while True:
            began_s = time.monotonic()
            try:
                with client.translating(doing):
                    call(SLICE_S)
                return
            except HeadraceError as error:
                now_s = time.monotonic()
                answered = now_s - began_s < SLICE_S
                if answered or not error.retry or self._closing.is_set() or now_s > end_s:
                    raise

    def _opened(self) -> KafkaClient[Producer]:
        if self._client is None:
            raise UnavailableError(f"{self._writer} has no open producer")
        return self._client
