"""What targets in Kafka share: rows become records before their commit, and threads make the calls."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import polars as pl
from typing_extensions import override

from headrace.core.errors import HeadraceError, IndeterminateWriteError, UnavailableError
from headrace.core.log import logger
from headrace.systems.base import Target
from headrace.systems.kafka.output_records import RecordMaker
from headrace.systems.kafka.settings import KafkaSettings
from headrace.systems.kafka.topic_limits import TopicLimits
from headrace.systems.kafka.topics import Topics
from headrace.systems.kafka.turns import Turns

THREADS_MAX = 16
ANSWER_S = 3.0
LOOK_AGAIN_S = 30.0
"""How long commits don't wait for a cluster that hasn't answered one of them."""

_log = logger(__name__)


def worth_a_retry(error: HeadraceError) -> HeadraceError:
    """Return the error to raise instead: if the outcome of a call is unknown, the same call may succeed later.

    The writer then checks the topic's contents, or the rows are sent again.
    """
    if isinstance(error, IndeterminateWriteError):
        return UnavailableError(error.message, hint="Headrace checks what was written, then continues")
    return error


class TopicTarget(Target):
    """A topic as a target. What a thread does ends when ``closing`` is set."""

    def __init__(self, settings: KafkaSettings, topic: str, records: RecordMaker) -> None:
        self.settings = settings
        self.topic = topic
        self.closing = threading.Event()
        self.topics = Topics(settings, uncommitted=True, answer_s=ANSWER_S)
        self.limits = TopicLimits(topic, self.topics)
        self.turns = Turns(ThreadPoolExecutor(THREADS_MAX, thread_name_prefix=f"kafka-{topic}"))
        self._records = records
        self._next_look_s = float("-inf")

    @override
    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the records of the rows. Waits for Kafka the first time: it says how large they can be.

        If no broker answers, Kafka's default limit applies, and the error is raised when they are published.
        """
        try:
            if not self.limits.known and time.monotonic() >= self._next_look_s:
                self._next_look_s = time.monotonic() + LOOK_AGAIN_S
                self.limits.look()
        except UnavailableError as error:
            _log.debug("can't find out how large records may be", topic=self.topic, why=error.message)
        return self._records.records(rows, self.limits.record_bytes)

    @override
    def close(self) -> None:
        """Wait for the calls under way, for seconds at most."""
        self.closing.set()
        self.turns.close()
        self.topics.close()
