"""One inotify instance for all consumers of a log that one thread uses.

A user may have 128 instances by default, and a thread that hosts hundreds of tasks must not ask each of them whether
something has come. So the files of all consumers are watched together, and each event names its consumers.

Writers on another machine cause no event, and a stream may have been removed. So twice a second some consumers look at
their files, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from typing_extensions import override

from headrace.systems.base import Wakeups
from headrace.systems.log.consumer import LogConsumer, Watched
from headrace.systems.log.file_watcher import FileWatcher
from headrace.systems.log.open_files import OpenFiles

LOOK_S = 0.5
LOOKS = 100
"""How many consumers look at their files at a time. A thousand have looked after five seconds."""


class LogWakeups(Wakeups):
    """The consumers of the log in the folder ``root`` that one thread uses."""

    def __init__(self, root: Path, watcher: FileWatcher) -> None:
        self._root = root
        self._watcher = watcher
        self.files = OpenFiles()
        self._watched: dict[int, list[Watched]] = {}
        self._consumers: dict[LogConsumer, None] = {}
        self._looked = time.monotonic()

    @override
    def consumer(self) -> LogConsumer:
        consumer = LogConsumer(self._root, self)
        self._consumers[consumer] = None
        return consumer

    @override
    def fileno(self) -> int:
        return self._watcher.fd

    @override
    def stirred(self) -> Collection[LogConsumer]:
        self.files.trim()
        changed = self._watcher.drain()
        now = time.monotonic()
        if changed is None:
            self._looked = now
            for consumer in self._consumers:
                consumer.look_at_all()
            return list(self._consumers)
        stirred: dict[LogConsumer, None] = {}
        for number in changed:
            for watched in self._watched.get(number, ()):
                watched.look = True
                stirred[watched.consumer] = None
        if now - self._looked > LOOK_S:
            self._looked = now
            for consumer in list(islice(self._consumers, LOOKS)):
                del self._consumers[consumer]
                self._consumers[consumer] = None  # behind all others
                if consumer.has_news():
                    stirred[consumer] = None
        return stirred.keys()

    def watch(self, path: Path, watched: Watched) -> int:
        """Have a file's events reach a reading; several may read one file."""
        number = self._watcher.watch(path)
        self._watched.setdefault(number, []).append(watched)
        return number

    def unwatch(self, number: int, watched: Watched) -> None:
        """Forget a reading."""
        readings = self._watched[number]
        readings.remove(watched)
        if not readings:
            del self._watched[number]
            self._watcher.unwatch(number)

    def forget(self, consumer: LogConsumer) -> None:
        """A consumer was closed."""
        self._consumers.pop(consumer, None)

    @override
    def close(self) -> None:
        self._watcher.close()
