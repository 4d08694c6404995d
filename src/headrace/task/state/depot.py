"""What a container and its tasks do with the store of snapshots in the background.

A container has a thread that sends, and some that fetch. ``close`` ends all threads at the next piece of a file, or
when the call that is under way returns. A thread that it leaves behind makes no more calls, keeps nothing, and doesn't
keep the process. A task's run loop learns later that snapshots have arrived; only then may the changelog be trimmed. It
trusts only snapshots that this incarnation has sent, has fetched, or has found complete when it began.
``RemoteSnapshots`` is on the run-loop thread; its generators run on other threads, leave notes and wake the run loop.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from typing_extensions import override

from headrace.core.calls import TokenBucket
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, StorageError
from headrace.core.ids import Offset
from headrace.protocol.record import LocalCheckpoint
from headrace.stores.snapshots import Chunks, Manifest, ObjectStore, trimmable
from headrace.stores.transfer import Calls, Fetch, Job, Receiver, Sender, Waiting, Work
from headrace.task.state.disk import Disk, Snapshot

FETCHES_AT_ONCE = 2
FILES_AT_ONCE = 4
CLOSING_S = 5.0  # how long ``close`` waits for calls to the store that don't return
T = TypeVar("T")


class Depot(Protocol):
    """What the state of tasks needs of the store of snapshots."""

    at_once: int  # how many files are fetched at a time

    def calls(self, warn: Callable[[str], None]) -> Calls:
        """Calls to the store for one task."""

    def send(self, job: Job) -> None:
        """Do this beside the run loop, in turn."""

    def fetch(self, steps: Work[None], failed: Callable[[Exception], None]) -> None:
        """Do this beside the run loop, at once; then the run loop is woken."""

    def together(self, works: Sequence[Work[T]]) -> Work[Sequence[T]]:
        """Do all of this at the same time. It is over when all of it is, also if some of it fails."""

    def ring(self) -> None:
        """Wake the run loop."""


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
    """A store whose calls end when the container does, and that limits the bytes per second that are sent."""

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


FRUITLESS_MAX = 2  # how often in a row nothing may be found before a task believes that there is nothing


class RemoteSnapshots:
    """One task's folder in the store of snapshots. ``folder`` ends in a slash; ``local`` has the snapshots on disk."""

    def __init__(self, depot: Depot, folder: str, local: Path, disk: Disk, warn: Callable[[str], None]) -> None:
        self._depot = depot
        self._folder = folder
        self._local = local
        self._disk = disk
        self._warn = warn
        self._sender = Sender(depot.calls(warn), folder)
        self._notes: deque[Callable[[], None]] = deque()
        self._complete: set[Offset] = set()
        self._trimmed: Offset = -1
        self._fetch: Fetch | None = None
        self._over = False
        self._error: Exception | None = None
        self._came: Manifest | None = None
        self._unfit: set[str] = set()
        self._fruitless = 0
        self._looked = False
        self._histories = 0  # how many changelogs there have been that didn't fit
        self.pending: set[str] = set()  # snapshots that wait to be sent or are: their folders are needed

    def fetched(self, above: Offset) -> bool:
        """False while the newest snapshot above this offset is looked for or fetched, which the first call begins."""
        if self._fetch is None:
            receiver = _ToDisk(self._disk, self._local)
            calls = self._depot.calls(self._warn)
            self._fetch = fetch = Fetch(calls, self._folder, receiver, self._depot.together, self._depot.at_once)
            self._over, self._error, self._came = False, None, None
            self._depot.fetch(self._fetching(fetch, above), self._failed)
        if not self._over:
            return False
        if self._error is not None:
            error, self._error, self._fetch = self._error, None, None
            raise error
        return True

    @property
    def progress(self) -> tuple[int, int] | None:
        return None if self._fetch is None or self._over else self._fetch.progress

    @property
    def may_have(self) -> bool:
        return self._fruitless < FRUITLESS_MAX

    def begun(self, local: LocalCheckpoint | None) -> None:
        came, fetch = self._came, self._fetch
        self._fetch = self._came = None
        if fetch is not None:
            self._unfit |= fetch.damaged
            self._fruitless = 0 if came is not None else self._fruitless + 1
        if came is not None and local is not None and came.snapshot == Snapshot.name(local):
            self._looked = True
            self._complete.add(came.offset)
            self._depot.send(Job((self._folder, "base"), lambda: self._basing(came), self._warn))
        elif local is not None and not self._looked:
            self._looked = True
            offset, history = local.offset, self._histories
            self._depot.send(Job((self._folder, "base"), lambda: self._looking(offset, history), self._warn))

    def misfit(self, restored: str | None) -> None:
        """What is known may be of another changelog, and so is this snapshot, if the state comes from it."""
        if restored is not None:
            self._unfit.add(restored)
        self._complete.clear()
        self._histories += 1

    def taken(self, snapshot: Snapshot) -> None:
        name, local = snapshot.folder.name, snapshot.local
        self.pending.add(name)

        def steps() -> Work[None]:
            files = self._disk.snapshot_files(snapshot.folder)
            return self._sender.send(local.offset, local.generation, local.version, files, self._arrived)

        def dropped() -> None:
            self._note(lambda: self.pending.discard(name))

        self._depot.send(Job((self._folder, "snapshot"), steps, self._warn, dropped))

    def learned(self) -> bool:
        news = False
        while self._notes:
            self._notes.popleft()()
            news = True
        return news

    def trimmable(self) -> Offset | None:
        offset = trimmable(self._complete)
        if offset is None or offset <= self._trimmed:
            return None
        self._trimmed = offset
        return offset

    @property
    def newest(self) -> Offset:
        return max(self._complete, default=0)

    def _fetching(self, fetch: Fetch, above: Offset) -> Work[None]:
        self._came = yield from fetch.newest(above, self._unfit)
        self._over = True

    def _failed(self, error: Exception) -> None:
        self._error = error
        self._over = True

    def _basing(self, manifest: Manifest) -> Work[None]:
        yield 0.0
        self._sender.take_base(manifest)

    def _looking(self, at_most: Offset, history: int) -> Work[None]:
        manifest = yield from self._sender.look(at_most)
        if manifest is None:
            return
        offset = manifest.offset

        def note() -> None:
            if history == self._histories:
                self._complete.add(offset)

        self._note(note)

    def _arrived(self, manifest: Manifest) -> None:
        def note() -> None:
            self.pending.discard(manifest.snapshot)
            self._complete.add(manifest.offset)

        self._note(note)

    def _note(self, note: Callable[[], None]) -> None:
        self._notes.append(note)
        self._depot.ring()


class _ToDisk(Receiver):
    def __init__(self, disk: Disk, snapshots: Path) -> None:
        self._disk = disk
        self._snapshots = snapshots
        self._folder = snapshots

    @override
    def begin(self, snapshot: str) -> None:
        self._folder = self._snapshots / snapshot
        self._disk.begin_draft(self._folder)

    @override
    def take(self, name: str, start: int, data: bytes) -> None:
        self._disk.fill_draft(self._folder, name, start, data)

    @override
    def complete(self) -> None:
        self._disk.complete_draft(self._folder)
