"""A topic of Kafka as an output: each version exactly once, or at least once without transactions.

Rows become records before their commit. With transactions, each version is in one together with the writer's position;
``publishing`` says what is done when. Without, what no commit says to be written is written again after a restart.
Records of a key are in order, apart from repetitions, and their headers say which row each is.

Threads make the calls, one at a time for each writer. The run loop doesn't wait for Kafka, except in ``position``, in
the first ``accept``, and in ``close``.
"""

from __future__ import annotations

import builtins
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.connectors.kafka import writer_session
from headrace.connectors.kafka.client import KafkaClient, KafkaError, NewTopic, Producer, open_producer
from headrace.connectors.kafka.publishing import GRACE_MS, HOLDING, Action, Publishing, State, WantedVersion
from headrace.connectors.kafka.rows import RecordMaker, Roles, identity
from headrace.connectors.kafka.settings import BYTES, KafkaSettings, TopicOptions
from headrace.connectors.kafka.topics import TopicLimits, Topics
from headrace.connectors.kafka.writer_session import ProgressTopic, VersionSender, WriterSession
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import (
    FencedError,
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    UnavailableError,
    UsageError,
)
from headrace.core.log import logger
from headrace.rows.formats import open_format
from headrace.systems.base import Consumer, Creation, RowSystem, StreamInfo, Target, WriteOnlyAdmin

LOOK_MS = 2.0  # how soon the run loop looks for a result
_log = logger(__name__)
Job = Callable[[], float | None]


class Turns:
    """The jobs of some writers. One thread uses it."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._jobs: dict[str, tuple[Hashable, Future[float | None]]] = {}

    def take(self, writer: str, what: Hashable, job: Job) -> float | None:
        """Start a job of a writer, or return the outcome of the same one: its result, or when to call again (ms)."""
        under_way = self._jobs.get(writer)
        if under_way is not None:
            asked, future = under_way
            if not future.done():
                return LOOK_MS
            del self._jobs[writer]
            if asked == what:
                return future.result()
            if (error := future.exception()) is not None:
                _log.debug("a call failed, and its caller has stopped waiting", writer=writer, error=str(error))
        self._jobs[writer] = what, self._threads.submit(job)
        return LOOK_MS

    def wait(self, writer: str, seconds: float, ask: Callable[[], float | None]) -> None:
        """Ask until there is a result. Raises ``UnavailableError`` if that takes longer than ``seconds``."""
        end_s = time.monotonic() + seconds
        while (again_ms := ask()) is not None:
            if time.monotonic() > end_s:
                said = f"Kafka didn't report within {seconds:g} s what {writer} has published"
                raise UnavailableError(said, hint="Headrace tries again")
            under_way = self._jobs.get(writer)
            if under_way is not None and not under_way[1].done():
                wait([under_way[1]], end_s - time.monotonic())
            elif again_ms > LOOK_MS:
                threading.Event().wait(again_ms / 1000)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


THREADS_MAX, ANSWER_S = 16, 3.0
LOOK_AGAIN_S = 30.0  # how long commits don't wait for a cluster that hasn't answered one of them


def worth_a_retry(error: HeadraceError) -> HeadraceError:
    """Turn an unknown outcome into an error that may be retried: the writer then checks, or sends the rows again."""
    if isinstance(error, IndeterminateWriteError):
        return UnavailableError(error.message, hint="Headrace checks what was written, then continues")
    return error


def _roles_of(options: TopicOptions) -> Roles:
    return Roles(options.key, options.timestamp, options.headers)


class TopicTarget(Target):
    """A topic as a target. What a thread does ends when ``closing`` is set."""

    def __init__(self, options: TopicOptions) -> None:
        self.options = options
        self.topic = options.topic
        self.closing = threading.Event()
        self.topics = Topics(options.settings, uncommitted=True, answer_s=ANSWER_S)
        self.limits = TopicLimits(self.topic, self.topics)
        self.turns = Turns(ThreadPoolExecutor(THREADS_MAX, thread_name_prefix=f"kafka-{self.topic}"))
        key_format = None if options.key_format == BYTES else open_format(options.key_format)
        self._records = RecordMaker(self.topic, _roles_of(options), open_format(options.format), key_format)
        self._next_look_s = float("-inf")

    @override
    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The records of the rows. The first call waits for Kafka, which says how large they can be."""
        try:
            if not self.limits.partitions and time.monotonic() >= self._next_look_s:
                self._next_look_s = time.monotonic() + LOOK_AGAIN_S
                self.limits.look()
        except UnavailableError as error:
            _log.debug("can't find out how large records may be", topic=self.topic, why=error.message)
        return self._records.records(rows, self.limits.record_bytes)

    @override
    def close(self) -> None:
        self.closing.set()
        self.turns.close()
        self.topics.close()


POSITION_S = 5.0


class KafkaTarget(TopicTarget):
    """A topic as a target, with transactions."""

    def __init__(self, options: TopicOptions, clock: Clock | None = None) -> None:
        super().__init__(options)
        self._clock = clock or WallClock()
        self._progress: dict[str, ProgressTopic] = {}
        self._writers: dict[str, _Writer] = {}
        self._me = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"

    @override
    def prepare(self, writer: str, published: int) -> float | None:
        one = self._writer(writer)
        return self.turns.take(writer, f"prepare {published}", lambda: one.prepare(published))

    @override
    def position(self, writer: str) -> int:
        """Return the position. Waits for seconds, unless ``prepare`` has found it."""
        self.turns.wait(writer, POSITION_S, lambda: self.prepare(writer, -1))
        position = self._writer(writer).machine.position
        return -1 if position is None else position

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        """Start a transaction, or look how it is doing; the next call with the same version goes on."""
        one = self._writer(writer)
        return self.turns.take(writer, version, lambda: one.publish(version, rows))

    @override
    def close(self) -> None:
        """Wait for the calls under way, for seconds at most; what isn't committed will be published again."""
        super().close()
        for one in self._writers.values():
            one.session.drop()

    def _writer(self, writer: str) -> _Writer:
        if writer not in self._writers:
            name = self.options.progress_topic or writer_session.progress_topic_of(writer.partition("/")[0])
            if name not in self._progress:
                self._progress[name] = ProgressTopic(self.options.settings, name, self.topics)
            session = WriterSession(self.options.settings, writer, self.limits, self._progress[name], self.closing)
            self._writers[writer] = _Writer(session, Publishing(self._me), self._clock)
        return self._writers[writer]


class _Writer:
    """One writer: performs its machine's actions, and reports the results. One thread at a time uses it."""

    def __init__(self, session: WriterSession, machine: Publishing, clock: Clock) -> None:
        self.session = session
        self.machine = machine
        self._clock = clock
        self._rows: Sequence[pl.DataFrame] = ()
        self._wanted: WantedVersion | None = None
        self._error: HeadraceError | None = None
        self._refused = False

    def prepare(self, published: int) -> float | None:
        self.machine.trust(published)
        return self._ask(None)

    def publish(self, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        if self._wanted is None or self._wanted.version != version:
            self._wanted = WantedVersion(version, identity(rows))
        self._rows = rows
        try:
            return self._ask(self._wanted)
        finally:
            self._rows = ()

    def _ask(self, wanted: WantedVersion | None) -> float | None:
        machine = self.machine
        self._error = None
        action = machine.ask(wanted, self._clock.monotonic_ms())
        while action is not Action.REST:
            action = self._perform(action)
        if machine.state not in HOLDING:
            self.session.drop()
        self._note()
        if machine.ready if wanted is None else machine.there(wanted.version):
            return None
        if machine.state is State.WAITING and self._error is None:
            return GRACE_MS
        raise self._problem()

    def _perform(self, action: Action) -> Action:
        machine, session = self.machine, self.session
        try:
            match action:
                case Action.OPEN:
                    session.open(machine.timeout_ms)
                    return machine.opened()
                case Action.FIND | Action.LOOK:
                    return machine.read(session.find(create=machine.floor < 0), self._clock.monotonic_ms())
                case Action.SEND:
                    session.send(machine.progress(), self._rows)
                    return machine.sent()
                case _:
                    session.commit()
                    return machine.committed()
        except FencedError as error:
            _log.debug("Kafka refused a producer", writer=self.session.writer, why=error.message)
            elapsed_ms = session.elapsed_ms
            session.drop()  # or its transaction, if it is still open, would hide what is looked for
            return machine.fenced(elapsed_ms)
        except HeadraceError as error:
            self._error = error
            return machine.failed(session.slow_ms)

    def _note(self) -> None:
        replaced = self.machine.state in (State.WAITING, State.REPLACED)
        if replaced and not self._refused:
            said = "another process has taken over the transactional id of a writer, or a transaction took too long"
            _log.warning(said, writer=self.session.writer, other=self.machine.other or None)
        self._refused = replaced

    def _problem(self) -> HeadraceError:
        machine, writer = self.machine, self.session.writer
        topic, progress = self.session.limits.topic, self.session.progress.name
        if machine.state is State.LOST:
            what = f"only version {machine.last.version}" if machine.last.version >= 0 else "nothing"
            record = '{"format":1,"version":N,"rows":"","by":"me"}'
            return InfrastructureError(
                f"according to topic {progress!r}, {what} of {writer} was published to {topic!r}, but the app's "
                f"commits say version {machine.floor}: the topic or some of its records were deleted",
                hint=f"find the highest headrace-version N of the records in {topic!r} whose headrace-writer is "
                f"{writer!r}, and write a record with that key and the value {record} to {progress!r}; or rename the "
                "app",
            )
        if machine.state is State.SHARED:
            who = f" by {machine.other}" if machine.other else ""
            id_ = writer_session.transactional_id(writer)
            return FencedError(
                f"topic {topic!r}: the transactional id {id_!r} is also used by another process{who}, again and again",
                hint="two apps of this name write to this cluster: rename one of them",
            )
        if self._error is not None:
            return worth_a_retry(self._error)
        said = f"topic {progress!r}: an open transaction of another writer hides which versions {writer} has published"
        return UnavailableError(said, hint="this lasts until that transaction ends or times out; Headrace tries again")


VERSION_S = 30.0  # how long a version may take until it is sent again


class PlainKafkaTarget(TopicTarget):
    """A topic as a target, at least once."""

    def __init__(self, options: TopicOptions) -> None:
        super().__init__(options)
        self._writers: dict[str, _PlainWriter] = {}

    @override
    def position(self, writer: str) -> int:
        return -1

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        if writer not in self._writers:
            self._writers[writer] = _PlainWriter(self.options.settings, writer, self.limits, self.closing)
        one = self._writers[writer]
        return self.turns.take(writer, version, lambda: one.publish(version, rows))


class _PlainWriter:
    """The producer of one writer. After a failure there is another one."""

    def __init__(self, settings: KafkaSettings, writer: str, limits: TopicLimits, closing: threading.Event) -> None:
        self._settings = settings
        self._limits = limits
        self._sender = VersionSender(writer, limits, closing)
        self._client: KafkaClient[Producer] | None = None
        self._undelivered: KafkaError | None = None

    def publish(self, version: int, rows: Sequence[pl.DataFrame]) -> None:
        self._limits.look()
        self._undelivered = None
        limits = writer_session.producer_limits(self._limits.record_bytes)
        client = self._client = self._client or open_producer(self._settings, None, self._heard, **limits)
        try:
            end_s = time.monotonic() + VERSION_S
            self._sender.send(client, version, rows, end_s)
            self._sender.flush(client, end_s)
            if self._undelivered is not None:
                raise client.problem(self._undelivered, f"writing to topic {self._limits.topic!r}")
            client.troubles.over()
        except BaseException as error:
            self._client = None
            client.raw.purge()
            if isinstance(error, HeadraceError):
                raise worth_a_retry(error) from error
            raise

    def _heard(self, error: KafkaError) -> None:
        self._undelivered = self._undelivered or error


_ANSWER_S = 10.0


@dataclass(frozen=True)
class KafkaOutput(RowSystem):
    """A system with one topic, as an output of any name."""

    options: TopicOptions

    @override
    def admin(self) -> KafkaOutputAdmin:
        return KafkaOutputAdmin(self.options)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> Consumer:
        raise _refused(f"the topic {self.options.topic!r} is an output in this app, so it can't be read")

    @override
    def target(self, stream: str) -> Target:
        return KafkaTarget(self.options) if self.options.transactions else PlainKafkaTarget(self.options)


class KafkaOutputAdmin(WriteOnlyAdmin):
    """Describes the topic, and creates it."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._topics = Topics(options.settings, answer_s=_ANSWER_S)

    @override
    def list(self) -> builtins.list[str]:
        return self._topics.names()

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        found = self._topics.find(self._options.topic)
        return None if found is None else StreamInfo(stream, found)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Create the topic if there is none, with the broker's defaults; an existing one isn't changed."""
        due, topic = self.would_create(stream, partitions, columns), self._options.topic
        hint = (
            f"ask an administrator to create it: kafka-topics.sh --create --topic {topic} --partitions {partitions}; "
            "the app needs the rights Write and Describe for it"
        )
        if due.new and not self._topics.create(NewTopic(topic, partitions), "", hint):
            _log.debug("another client created the topic at the same time", topic=topic)
        return StreamInfo(stream, due.partitions, columns)

    @override
    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        if columns is not None:
            _roles_of(self._options).check(columns, self._options.topic)
        found = self._topics.find(self._options.topic)
        return Creation(partitions if found is None else found, new=found is None)

    @override
    def close(self) -> None:
        self._topics.close()

    @override
    def refused(self, why: str) -> UsageError:
        return _refused(f"the topic {self._options.topic!r} {why}")


def _refused(what: str) -> UsageError:
    return UsageError(what, hint="to read it, declare it as an input: app.input(..., system=hr.io.kafka(...))")
