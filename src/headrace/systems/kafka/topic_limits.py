"""What an output has to know of its topic: its partitions, and how large a record can be.

Both may change while the app runs, and are looked at now and then. More partitions are taken in with the next version,
as Kafka's own producers do. Keys then go to other partitions than before, so a warning says so.
"""

from __future__ import annotations

import threading
import time

from headrace.core.errors import StreamNotFoundError, UnavailableError
from headrace.core.log import logger
from headrace.systems.kafka.topic_settings import topic_settings
from headrace.systems.kafka.topics import Topics

RECORD_BYTES = 1_048_588
"""What a topic takes unless its settings or the broker's say otherwise."""
LOOK_S = 30.0

_log = logger(__name__)


class TopicLimits:
    """The partitions and the limit of one topic. The threads of several writers use it."""

    def __init__(self, topic: str, topics: Topics) -> None:
        self.topic = topic
        self.partitions = 0
        self.record_bytes = RECORD_BYTES
        self._topics = topics
        self._lock = threading.Lock()
        self._next_s = float("-inf")

    @property
    def known(self) -> bool:
        """Whether the topic was looked at."""
        return self.partitions > 0

    def look(self) -> None:
        """Look at the topic, unless that was done a moment ago. Raises ``StreamNotFoundError`` if it isn't there."""
        with self._lock:
            if time.monotonic() < self._next_s:
                return
            try:
                found = self._topics.partitions(self.topic)
                settings = topic_settings(self._topics, self.topic)
            except StreamNotFoundError as error:
                error.hint = f"{error.hint}; committed rows wait until the topic exists"
                raise
            except UnavailableError as error:
                if not self.known:
                    raise
                _log.debug("can't find out whether a topic has changed", topic=self.topic, why=error.message)
            else:
                if self.known and found != self.partitions:
                    _log.warning(
                        "the topic's partition count has changed: from now on, keys go to other partitions",
                        topic=self.topic,
                        before=self.partitions,
                        now=found,
                    )
                self.partitions = found
                self.record_bytes = int(settings.get("max.message.bytes", RECORD_BYTES))
            self._next_s = time.monotonic() + LOOK_S
