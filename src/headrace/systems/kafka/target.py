"""A Kafka topic as a target: each version in one transaction with the writer's position, exactly once.

Readers with ``isolation.level=read_committed`` see each row once, in order for each key. ``publishing`` says what is
done when; here it is done. Threads make the calls, one at a time for each writer. The run loop starts them and looks
for their results, and doesn't wait for Kafka, except in ``position``, in the first ``accept``, and in ``close``.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import (
    FencedError,
    HeadraceError,
    InfrastructureError,
    UnavailableError,
)
from headrace.core.log import logger
from headrace.systems.kafka.output_records import RecordMaker, identity
from headrace.systems.kafka.progress_topic import ProgressTopic, progress_topic_of
from headrace.systems.kafka.publishing import GRACE_MS, HOLDING, Action, Publishing, State, Wanted
from headrace.systems.kafka.settings import KafkaSettings
from headrace.systems.kafka.topic_target import TopicTarget, worth_a_retry
from headrace.systems.kafka.writer_session import WriterSession, transactional_id

POSITION_S = 5.0

_log = logger(__name__)


class KafkaTarget(TopicTarget):
    """A topic as a target, with transactions. ``progress_topic`` None: it is named after the app."""

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        records: RecordMaker,
        progress_topic: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(settings, topic, records)
        self._progress_topic = progress_topic
        self._clock = clock or WallClock()
        self._progress: dict[str, ProgressTopic] = {}
        self._writers: dict[str, _Writer] = {}
        self._me = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"

    @override
    def prepare(self, writer: str, published: int) -> float | None:
        """Take the writer's transactional id over, and find its position."""
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
            name = self._progress_topic or progress_topic_of(writer.partition("/")[0])
            if name not in self._progress:
                self._progress[name] = ProgressTopic(self.settings, name, self.topics)
            session = WriterSession(self.settings, writer, self.limits, self._progress[name], self.closing)
            self._writers[writer] = _Writer(writer, self.topic, name, session, Publishing(self._me), self._clock)
        return self._writers[writer]


class _Writer:
    """One writer: performs its machine's actions, and reports the results. One thread at a time uses it."""

    def __init__(
        self, name: str, topic: str, progress_topic: str, session: WriterSession, machine: Publishing, clock: Clock
    ) -> None:
        self.session = session
        self.machine = machine
        self._name = name
        self._topic = topic
        self._progress_topic = progress_topic
        self._clock = clock
        self._rows: Sequence[pl.DataFrame] = ()
        self._wanted: Wanted | None = None
        self._error: HeadraceError | None = None
        self._refused = False

    def prepare(self, published: int) -> float | None:
        """Find the position; a commit says that ``published`` was published."""
        self.machine.trust(published)
        return self._ask(None)

    def publish(self, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        """Publish a version, or find that it was published."""
        if self._wanted is None or self._wanted.version != version:
            self._wanted = Wanted(version, identity(rows))
        self._rows = rows
        try:
            return self._ask(self._wanted)
        finally:
            self._rows = ()

    def _ask(self, wanted: Wanted | None) -> float | None:
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
                    found = session.find(create=machine.floor < 0)
                    return machine.read(found, self._clock.monotonic_ms())
                case Action.SEND:
                    session.send(machine.progress(), self._rows)
                    return machine.sent()
                case _:
                    session.commit()
                    return machine.committed()
        except FencedError as error:
            _log.debug("Kafka refused a producer", writer=self._name, why=error.message)
            elapsed_ms = session.elapsed_ms
            session.drop()  # or its transaction, if it is still open, would hide what is looked for
            return machine.fenced(elapsed_ms)
        except HeadraceError as error:
            self._error = error
            return machine.failed(session.slow_ms)

    def _note(self) -> None:
        """Log once that another process has taken over."""
        replaced = self.machine.state in (State.WAITING, State.REPLACED)
        if replaced and not self._refused:
            _log.warning(
                "another process has taken over the transactional id of a writer, or a transaction took too long",
                writer=self._name,
                other=self.machine.other or None,
            )
        self._refused = replaced

    def _problem(self) -> HeadraceError:
        """Why it isn't done."""
        machine = self.machine
        if machine.state is State.LOST:
            return self._lost()
        if machine.state is State.SHARED:
            who = f" by {machine.other}" if machine.other else ""
            return FencedError(
                f"topic {self._topic!r}: the transactional id {transactional_id(self._name)!r} is also used by "
                f"another process{who}, again and again",
                hint="two apps of this name write to this cluster: rename one of them",
            )
        if self._error is not None:
            return worth_a_retry(self._error)
        return UnavailableError(
            f"topic {self._progress_topic!r}: an open transaction of another writer hides which versions "
            f"{self._name} has published",
            hint="this lasts until that transaction ends or times out; Headrace tries again",
        )

    def _lost(self) -> InfrastructureError:
        found = self.machine.last.version
        what = f"only version {found}" if found >= 0 else "nothing"
        record = '{"format":1,"version":N,"rows":"","by":"me"}'
        return InfrastructureError(
            f"according to topic {self._progress_topic!r}, {what} of {self._name} was published to {self._topic!r}, "
            f"but the app's commits say version {self.machine.floor}: the topic or some of its records were deleted",
            hint=f"find the highest headrace-version N of the records in {self._topic!r} whose headrace-writer is "
            f"{self._name!r}, and write a record with that key and the value {record} to {self._progress_topic!r}; or "
            "rename the app",
        )
