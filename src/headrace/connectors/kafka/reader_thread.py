"""A thread that alone uses a consumer of Kafka, for one other thread; a pipe says that there is something new.

librdkafka has no descriptor to wait for. The lock guards what both threads look at; it is never held while a broker is
waited for. Calls that wait without letting other threads run, such as those for cached offsets, aren't made at all.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod

from headrace.connectors.kafka.client import Consumer, KafkaClient
from headrace.core.errors import HeadraceError


class ReaderThread(ABC):
    """The thread; it starts with the first order. ``lock`` is notified of what it may wait for."""

    def __init__(self, client: KafkaClient[Consumer], name: str, doing: str) -> None:
        """``doing`` describes the thread's activity in messages."""
        self.client = client
        self.lock = threading.Condition()
        self.closed = False
        self._doing = doing
        self._failed: HeadraceError | None = None
        self._signalled = False
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    def turn(self) -> bool:
        """Follow orders and take arrived records, in the thread; return False when closed. It may wait for orders."""

    def ordered(self) -> None:
        """There is an order. The lock is held."""
        self.lock.notify()
        if self._thread.ident is None:
            self._thread.start()

    def look(self) -> None:
        """Clear the descriptor. Raises if fetching has failed permanently."""
        with self.lock:
            if self._signalled:
                os.read(self._reader, 1)
                self._signalled = False
            if self._failed is not None:
                raise self._failed

    def signal(self) -> None:
        """Make the descriptor readable: there is something left to do."""
        with self.lock:
            self.signal_held()

    def signal_held(self) -> None:
        """``signal``, for who holds the lock."""
        if not self._signalled and not self.closed:
            self._signalled = True  # one byte is enough until the next look, and can't fill the pipe
            os.write(self._writer, b"\0")

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is something new."""
        return self._reader

    def close(self) -> None:
        """End the thread, and release everything, the client too. Called once."""
        with self.lock:
            self.closed = True
            self.lock.notify()
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._reader)
        os.close(self._writer)
        self.client.raw.close()

    def _work(self) -> None:
        try:
            while self.turn():
                pass
        except HeadraceError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - or the run loop would wait for a dead thread
            self._fail(HeadraceError(f"{self._doing}: {type(error).__name__}: {error}"))

    def _fail(self, error: HeadraceError) -> None:
        with self.lock:
            self._failed = error
            self.signal_held()
