"""The coordinator: the ledger behind a lock, on the wire, and at the driver's hand.

It lives in the driver. Requests come in on the connections' threads, the driver waits and orders on its own.
One lock guards the ledger and is held for microseconds. Generations are issued under a second one, so that a
registration can't come between the check who is current and the number that is issued on its account.
"""

from __future__ import annotations

import ipaddress
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import UsageError
from headrace.core.log import logger
from headrace.core.recent_warnings import RecentWarnings
from headrace.metadata.generations import Generations
from headrace.metadata.store import MetadataStore
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.coordination.listener import Listener
from headrace.runners.coordination.messages import (
    AppState,
    AppStatus,
    Assignment,
    ContainerState,
    ErrorReport,
    Failure,
    Finished,
    GenerationRequest,
    Heartbeat,
    Orders,
    Register,
    TaskGrant,
    decode,
    encode,
    warning_statuses,
)
from headrace.runners.coordination.query_broker import QueryBroker
from headrace.runners.coordination.query_messages import Ask, Listening, Questions, TableList

LOOPBACK = "127.0.0.1"

_log = logger(__name__)


class Coordinator:
    """Serves one run of an app. ``url`` and ``token`` are what a container needs to find and convince it.

    It listens on this machine alone. A cluster's containers need ``host`` (what to bind to) and
    ``advertised_host`` (how they reach it; by default the same): then the token crosses the network in the clear.
    """

    def __init__(
        self,
        ledger: Ledger,
        metadata: MetadataStore,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        advertised_host: str | None = None,
        token: str | None = None,
        clock: Clock | None = None,
        tables: TableList | None = None,
    ) -> None:
        """``tables`` is what can be asked about."""
        reachable = advertised_host or host
        if _is_wildcard(reachable):
            raise UsageError(
                f"containers can't call {reachable!r}",
                hint="give advertised_host: a name or address of this machine that they can reach",
            )
        self.token = token or secrets.token_urlsafe(32)
        self._ledger = ledger
        self._generations = Generations(metadata, ledger.app)
        self._clock = clock or WallClock()
        self._changed = threading.Condition()
        self._granting = threading.Lock()
        self._tables = tables or TableList(app=ledger.app)
        self._warnings = [
            RecentWarnings(self._clock, app=ledger.app, container=number) for number in range(len(ledger.assignments))
        ]
        self._desk = QueryBroker(ledger.assignments, self._check_current, self._state_of, self._clock)
        self._listener = Listener(host, port, self.token, self._routes())
        name = f"[{reachable}]" if ":" in reachable else reachable
        self.url = f"http://{name}:{self._listener.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._listener.start()

    def close(self) -> None:
        """Stop answering; containers that are still there will find the driver gone, and end. Idempotent."""
        self.hang_up()
        self._listener.close()

    def __enter__(self) -> Coordinator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for the driver ----------------------------------------------------------------------------

    def status(self) -> AppStatus:
        """How everything is now."""
        with self._noticing() as now_ms:
            self._ledger.tick(now_ms)
            status = self._ledger.status(now_ms)
        containers = [
            msgspec.structs.replace(container, warnings=warning_statuses(self._warnings[container.id]))
            for container in status.containers
        ]
        return msgspec.structs.replace(status, containers=containers, queries=self._desk.status())

    @property
    def state(self) -> AppState:
        """The state of the app now."""
        with self._changed:
            return self._ledger.state

    def wait(self, timeout_s: float) -> AppState:
        """Return when the app is finished or failed, or after the timeout: its state."""
        self._wait(lambda: self._ledger.state in {"finished", "failed"}, timeout_s)
        return self.state

    def wait_for_change(self, revision: int, timeout_s: float) -> int:
        """Return the newest revision: as soon as it differs from ``revision`` (0 at first), or after the timeout.

        It rises with everything but counters and times.
        """
        self._wait(lambda: self._ledger.revision != revision, timeout_s)
        with self._changed:
            return self._ledger.revision

    def drain(self) -> None:
        """Have every container finish what it has, commit, and end. They hear of it at their next heartbeat."""
        with self._noticing():
            self._ledger.drain()

    def stop(self) -> None:
        """Have every container end at once, without a commit."""
        with self._noticing():
            self._ledger.stop()

    def fail(self, error: BaseException) -> None:
        """End the app with this error; an error that a container reported before stays the one that is told."""
        with self._noticing():
            self._ledger.fail(ErrorReport.of(error))

    # -- for containers: on the wire, or in this process ----------------------------------------------

    def register(self, message: Register) -> Assignment:
        """A container's process has started: what it is to run."""
        with self._granting:
            with self._noticing() as now_ms:
                seat = self._ledger.register(message, now_ms)
            # Not under the ledger's lock: the metadata store may take its time, heartbeats shouldn't.
            issued = self._generations.issue([task for task in seat.tasks if task not in seat.grants])
            with self._noticing():
                self._ledger.granted(message, issued)
                orders = self._ledger.orders
        grants = {**seat.grants, **issued}
        return Assignment(
            tasks=[TaskGrant(name=str(task), generation=grants[task]) for task in seat.tasks],
            heartbeat_ms=self._ledger.heartbeat_ms,
            orders=orders,
            superseded=seat.superseded,
        )

    def generation(self, message: GenerationRequest) -> TaskGrant:
        """A new generation for a task that rolls back in place."""
        with self._granting:
            with self._noticing() as now_ms:
                task = self._ledger.check_request(message, now_ms)
            issued = self._generations.issue([task])
            with self._noticing():
                self._ledger.granted(message, issued)
        return TaskGrant(name=message.task, generation=issued[task])

    def heartbeat(self, message: Heartbeat) -> Orders:
        """How a container's tasks are doing; its orders."""
        with self._noticing() as now_ms:
            return self._ledger.heartbeat(message, now_ms)

    def finished(self, message: Finished) -> Orders:
        """These tasks are over."""
        with self._noticing() as now_ms:
            return self._ledger.finished(message, now_ms)

    def failure(self, message: Failure) -> Orders:
        """A container dies."""
        with self._noticing() as now_ms:
            return self._ledger.failed(message, now_ms)

    def listen(self, message: Listening) -> Questions:
        """Take in an answer, and block until there is a question for that container, or for some seconds."""
        return self._desk.listen(message)

    def hang_up(self) -> None:
        """Let nobody wait for a question any more, or for an answer. Idempotent."""
        self._desk.close()

    # -- for the wire ------------------------------------------------------------------------------

    def _routes(self) -> dict[tuple[str, str], Callable[[bytes], bytes]]:
        return {
            ("POST", "/register"): lambda body: encode(self.register(decode(Register, body))),
            ("POST", "/heartbeat"): lambda body: encode(self.heartbeat(decode(Heartbeat, body))),
            ("POST", "/generation"): lambda body: encode(self.generation(decode(GenerationRequest, body))),
            ("POST", "/finished"): lambda body: encode(self.finished(decode(Finished, body))),
            ("POST", "/failure"): lambda body: encode(self.failure(decode(Failure, body))),
            ("POST", "/drain"): self._on_drain,
            ("POST", "/stop"): self._on_stop,
            ("POST", "/questions"): lambda body: encode(self.listen(decode(Listening, body))),
            ("POST", "/tables"): lambda body: encode(self._desk.ask(decode(Ask, body))),
            ("GET", "/tables"): lambda _: encode(self._tables),
            ("GET", "/status"): lambda _: encode(self.status()),
        }

    def _on_drain(self, body: bytes) -> bytes:
        decode(Orders, body)
        self.drain()
        return encode(self._ledger.orders)

    def _on_stop(self, body: bytes) -> bytes:
        decode(Orders, body)
        self.stop()
        return encode(self._ledger.orders)

    # -- inside ------------------------------------------------------------------------------------

    def _check_current(self, container: int, incarnation: str) -> None:
        with self._changed:
            self._ledger.check_current(container, incarnation)

    def _state_of(self, container: int) -> ContainerState:
        with self._changed:
            return self._ledger.state_of(container)

    @contextmanager
    def _noticing(self) -> Iterator[float]:
        """Hold the ledger's lock; the time. Afterwards wake who waits, if the revision rose, and log what happened."""
        try:
            with self._changed, self._changing() as now_ms:
                yield now_ms
        finally:
            self._log_notes()

    @contextmanager
    def _changing(self) -> Iterator[float]:
        before = self._ledger.revision
        try:
            yield self._clock.monotonic_ms()
        finally:
            if self._ledger.revision != before:
                self._changed.notify_all()

    def _log_notes(self) -> None:
        """Without the lock: writing a log line may block."""
        with self._changed:
            notes = self._ledger.take_notes()
        app = self._ledger.app
        for note in notes:
            if note.level == "info":
                _log.info(note.what, app=app, container=note.container, **note.fields)
            elif note.container is None:
                _log.warning(note.what, app=app, **note.fields)
            else:
                self._warnings[note.container].add(_log, note.what, **note.fields)

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> None:
        deadline_ms = self._clock.monotonic_ms() + timeout_s * 1000
        with self._changed:
            while True:
                with self._changing() as now_ms:
                    look_again_ms = self._ledger.tick(now_ms)
                if reached() or now_ms >= deadline_ms:
                    break
                until_ms = deadline_ms if look_again_ms is None else min(deadline_ms, look_again_ms)
                self._changed.wait((until_ms - now_ms) / 1000)
        self._log_notes()


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
