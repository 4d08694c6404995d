"""What a container does with the store of snapshots in the background: a thread that sends, and some that fetch.

Whatever is to be sent waits in one queue of the container, with one snapshot for each task at most. ``close`` ends all
threads at the next piece of a file, or when the call that is under way returns. It doesn't wait for long: a thread that
it leaves behind makes no more calls, keeps nothing of what it was reading, and doesn't keep the process.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, StorageError
from headrace.core.rate import TokenBucket
from headrace.stores.objects.contract import Chunks, ObjectStore
from headrace.stores.objects.queue import Job, Waiting
from headrace.stores.objects.sending import Calls, Work

FETCHES_AT_ONCE = 2
FILES_AT_ONCE = 4
CLOSING_S = 5.0
"""How long ``close`` waits for calls to the store that don't return."""

T = TypeVar("T")


class Depot(Protocol):
    """What the state of tasks needs of the store of snapshots."""

    at_once: int
    """How many files are fetched at a time."""

    def calls(self, warn: Callable[[str], None]) -> Calls:
        """Calls to the store for one task."""
        ...

    def send(self, job: Job) -> None:
        """Do this beside the run loop, in turn."""
        ...

    def fetch(self, steps: Work[None], failed: Callable[[Exception], None]) -> None:
        """Do this beside the run loop, at once; then the run loop is woken."""
        ...

    def together(self, works: Sequence[Work[T]]) -> Work[Sequence[T]]:
        """Do all of this at the same time. It is over when all of it is, also if some of it fails."""
        ...

    def ring(self) -> None:
        """Wake the run loop."""
        ...


class _Closing(Exception):
    """The container ends."""


class _Threads:
    """Some threads, each started when it is needed. Those of a ``ThreadPoolExecutor`` would keep the process."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.started: list[threading.Thread] = []

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make a call when a thread is free. Raises ``_Closing`` after ``close``."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whoever waits for the answer raises it
                future.set_exception(error)

        with self._changed:
            if self._closed:
                raise _Closing
            self._waiting.append(work)
            self._changed.notify()
            if len(self.started) < self._most:
                self.started.append(threading.Thread(target=self._run, name=self._name, daemon=True))
                self.started[-1].start()
        return future

    def close(self) -> None:
        """Let each thread end when there is nothing left to do."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                work = self._waiting.popleft()
            work()


class LiveDepot(Depot):
    """The store of snapshots of one container."""

    at_once = 2 * FILES_AT_ONCE

    def __init__(self, store: ObjectStore, ring: Callable[[], None], clock: Clock, bytes_per_s: float | None) -> None:
        """``ring`` wakes the run loop. ``bytes_per_s`` limits what is sent; None: nothing does."""
        self._stop = threading.Event()
        self._store = _Guarded(store, self._stop, clock, bytes_per_s)
        self._ring = ring
        self._clock = clock
        self._waiting = Waiting()
        self._changed = threading.Condition()
        self._sender: threading.Thread | None = None
        self._fetches = _Threads(FETCHES_AT_ONCE, "fetch-snapshots")
        self._files = _Threads(FILES_AT_ONCE, "fetch-files")

    @override
    def calls(self, warn: Callable[[str], None]) -> Calls:
        return Calls(self._store, warn, random.Random())

    @override
    def ring(self) -> None:
        if not self._stop.is_set():  # otherwise its target may be closed
            self._ring()

    @override
    def send(self, job: Job) -> None:
        with self._changed:
            self._waiting.offer(job)
            self._changed.notify()
            if self._sender is None and not self._stop.is_set():
                self._sender = threading.Thread(target=self._send_all, name="send-snapshots", daemon=True)
                self._sender.start()

    @override
    def fetch(self, steps: Work[None], failed: Callable[[Exception], None]) -> None:
        def work() -> None:
            try:
                self._do(steps)
            except _Closing:
                return
            except Exception as error:  # noqa: BLE001 - the run loop raises it
                failed(error)
            self.ring()

        with suppress(_Closing):
            self._fetches.submit(work)

    @override
    def together(self, works: Sequence[Work[T]]) -> Work[Sequence[T]]:
        yield 0.0
        futures = [self._files.submit(partial(self._do, work)) for work in works]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """End all threads. What isn't sent yet stays on this machine's disk."""
        with self._changed:
            self._stop.set()
            self._changed.notify()
        self._fetches.close()
        self._files.close()
        until_ms = self._clock.monotonic_ms() + CLOSING_S * 1000
        for thread in [*self._fetches.started, *self._files.started, *filter(None, [self._sender])]:
            thread.join(max(0.0, until_ms - self._clock.monotonic_ms()) / 1000)

    def _send_all(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._do(job.steps())
            except _Closing:
                return
            except StorageError as error:  # its folder was deleted or can't be read, and a newer one will be sent
                job.warn(f"a snapshot can't be sent: {error.message}")
                job.dropped()
            except HeadraceError as error:
                job.warn(f"a snapshot can't be sent: {error.message}")
                with self._changed:
                    self._waiting.failed(job, self._clock.monotonic_ms())
            except Exception as error:  # noqa: BLE001 - a mistake of ours, which must not stop the others
                job.warn(f"a snapshot can't be sent: {error!r}")
                job.dropped()
            self.ring()

    def _next(self) -> Job | None:
        """Wait for something to do; None when the container ends."""
        with self._changed:
            while not self._stop.is_set():
                now_ms = self._clock.monotonic_ms()
                job = self._waiting.take(now_ms)
                if job is not None:
                    return job
                due_ms = self._waiting.due_ms(now_ms)
                self._changed.wait(None if due_ms is None else due_ms / 1000)
            return None

    def _do(self, steps: Work[T]) -> T:
        while True:
            try:
                wait_ms = next(steps)
            except StopIteration as stop:
                value: T = stop.value
                return value
            if self._stop.wait(wait_ms / 1000):
                raise _Closing


class _Guarded(ObjectStore):
    """A store whose calls end when the container does, and to which no more than so many bytes per second are sent."""

    def __init__(self, store: ObjectStore, stop: threading.Event, clock: Clock, bytes_per_s: float | None) -> None:
        self._store = store
        self._stop = stop
        self._clock = clock
        self._bucket = None if bytes_per_s is None else TokenBucket(bytes_per_s)

    @override
    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(name, data)

    @override
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        broken: list[Exception] = []

        def paced() -> Iterator[bytes]:
            try:
                for chunk in chunks():
                    wait_ms = 0.0 if self._bucket is None else self._bucket.take(len(chunk), self._clock.monotonic_ms())
                    if self._stop.wait(wait_ms / 1000) if wait_ms else self._stop.is_set():
                        raise _Closing
                    yield chunk
            except Exception as error:
                broken.append(error)
                raise

        try:
            self._store.put(name, size, paced)
        except Exception:
            if broken:  # the store's client has its own words for that
                raise broken[0] from None
            raise

    @override
    def get(self, name: str) -> bytes | None:
        return self._store.get(name)

    @override
    def read(self, name: str, start: int, length: int) -> bytes | None:
        data = self._store.read(name, start, length)
        if self._stop.is_set():  # another process may be writing to the same folder by now
            raise _Closing
        return data

    @override
    def list(self, prefix: str) -> dict[str, int]:
        return self._store.list(prefix)

    @override
    def copy(self, source: str, target: str) -> bool:
        return self._store.copy(source, target)

    @override
    def delete(self, names: Collection[str]) -> None:
        self._store.delete(names)
