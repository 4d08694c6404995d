"""The embedded log: a folder of append-only files that several processes of one machine read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from headrace.systems.base import System
from headrace.systems.log.admin import LogAdmin
from headrace.systems.log.consumer import LogConsumer
from headrace.systems.log.file_watcher import FileWatcher
from headrace.systems.log.producer import BUFFER_BYTES, LogProducer
from headrace.systems.log.wakeups import LogWakeups
from headrace.systems.option_names import check_option_names


@dataclass(frozen=True)
class LogSystem(System):
    """The embedded log in the folder ``root``, which must be on a local file system.

    The folder is created together with the first stream.
    """

    root: Path
    buffer_bytes: int = BUFFER_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))

    @override
    def admin(self) -> LogAdmin:
        return LogAdmin(self.root)

    @override
    def consumer(self) -> LogConsumer:
        return LogConsumer(self.root)

    @override
    def reader(self) -> LogConsumer:
        return LogConsumer(self.root, waits=False)

    @override
    def wakeups(self) -> LogWakeups | None:
        watcher = FileWatcher.open()
        return None if watcher is None else LogWakeups(self.root, watcher)

    @override
    def producer(self) -> LogProducer:
        return LogProducer(self.root, self.buffer_bytes)


def open_log(name: str, options: Mapping[str, Any]) -> LogSystem:
    """Open the log of a ``SystemSpec`` of kind ``log``. Options: ``root``; optional ``buffer_bytes``."""
    check_option_names(name, "log", options, ("root", "buffer_bytes"), "root")
    return LogSystem(**options)
