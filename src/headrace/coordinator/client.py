"""The client of the coordinator, with a persistent connection, bounded waits and retries; and the heartbeat thread.

A call blocks its thread for at most ``patience_s`` plus one attempt. The run loop and the heartbeats have separate
clients, so that neither waits for the other. When the driver has died, calls raise ``UnavailableError`` and the
container ends, because another driver may have taken over.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit

from typing_extensions import override

from headrace.coordinator import messages
from headrace.coordinator.calls import CoordinatorCalls, Declared
from headrace.core.errors import FencedError, HeadraceError, ProtocolError, UnavailableError, UsageError
from headrace.core.log import logger
from headrace.core.worker import WorkerThread

_log = logger(__name__)

_A = TypeVar("_A", bound=messages.Message)
_LOOK = "the driver has ended or can't be reached from here; see its output"
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_REFUSED_PATIENCE_S = 1.0
"""The patience after a refused connection: nothing listens there, and a coordinator never returns to its port."""
_ERRORS: dict[int, type[HeadraceError]] = {
    HTTPStatus.CONFLICT: FencedError,
    HTTPStatus.UNAUTHORIZED: UsageError,
    HTTPStatus.NOT_FOUND: ProtocolError,
    HTTPStatus.BAD_REQUEST: ProtocolError,
}


class CoordinatorClient(CoordinatorCalls):
    """Calls one coordinator, one call at a time; threads may share it, and any thread may ``close`` it.

    ``timeout_s`` bounds one attempt; no attempt starts after ``patience_s``. All calls are idempotent and are retried.
    Raises ``UnavailableError`` if the driver doesn't answer, and ``FencedError`` if the caller was replaced.
    """

    def __init__(
        self, url: str, token: str, *, timeout_s: float = 5.0, patience_s: float = 10.0, hint: str = _LOOK
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise UsageError(f"{url!r} is not the address of a coordinator", hint="write http://host:port")
        self._url = url
        self._token = token
        self._host, self._port = parts.hostname, parts.port
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._hint = hint
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connection: http.client.HTTPConnection | None = None

    def sibling(self, *, timeout_s: float | None = None) -> CoordinatorClient:
        return CoordinatorClient(
            self._url, self._token, timeout_s=timeout_s or self._timeout_s, patience_s=self._patience_s, hint=self._hint
        )

    def close(self) -> None:
        """Close the connection. A call in progress in another thread ends with ``UnavailableError``. Idempotent."""
        self._closing.set()
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with suppress(OSError):  # the connection has ended already
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._hang_up()

    def send(self, call: Declared[_A], message: messages.Message | None) -> _A:
        path = call.path
        body = messages.encode(message) if message is not None else None
        with self._lock:
            deadline = time.monotonic() + self._patience_s
            pause, tries = _FIRST_PAUSE_S, 1
            while True:
                fresh = self._connection is None
                try:
                    status, data = self._exchange(call.method, path, body)
                except (OSError, http.client.HTTPException) as error:
                    self._hang_up()
                    if not fresh and not self._closing.is_set():
                        continue  # the server closed the connection while it was idle: retry on a new one
                    why: Exception = error
                    if isinstance(error, ConnectionRefusedError):
                        deadline = min(deadline, time.monotonic() + _REFUSED_PATIENCE_S)
                else:
                    if status == HTTPStatus.OK:
                        if tries > 1:
                            _log.info("the coordinator answers again", url=self._url, path=path, tries=tries)
                        return messages.decode(call.answer, data)
                    why = self._refusal(path, status, data, plain=call.by == "tool")
                    if status != HTTPStatus.SERVICE_UNAVAILABLE:
                        raise why
                if self._closing.is_set() or time.monotonic() + pause > deadline:
                    raise self._gone(path, why) from why
                if tries == 1:  # once per call, because the line above or the error reports the end
                    left_s = round(deadline - time.monotonic() + self._timeout_s)
                    said = "the coordinator doesn't answer; trying again"
                    _log.warning(said, url=self._url, path=path, at_most_s=left_s, error=str(why))
                tries += 1
                self._closing.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            self._connection.connect()
        # Checked after close() can see the connection, so either close() cuts it or this check notices the call.
        if self._closing.is_set():
            raise ConnectionAbortedError("this client was closed")
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        data = response.read()
        if response.will_close:
            self._hang_up()
        return response.status, data

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _refusal(self, path: str, status: int, data: bytes, *, plain: bool) -> HeadraceError:
        where = f"the coordinator at {self._url} answered {path} with status {status}"
        try:
            report = messages.decode(messages.Refusal, data).error
        except ProtocolError as error:
            return ProtocolError(f"{where} and an unreadable reason: {data[:200]!r}", hint=error.hint)
        if plain and status in (HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR):
            return report.as_error()
        return _ERRORS.get(status, HeadraceError)(f"{where}: {report.message}", hint=report.hint)

    def _gone(self, path: str, why: Exception) -> UnavailableError:
        if self._closing.is_set():
            return UnavailableError(f"this client of the coordinator at {self._url} was closed")
        reason = why.message if isinstance(why, HeadraceError) else f"{why or type(why).__name__}"
        return UnavailableError(f"the coordinator at {self._url} doesn't answer {path}: {reason}", hint=self._hint)


class HeartbeatThread(WorkerThread):
    """Sends ``snapshot()`` every ``interval_s`` and after every ``poke``, and passes the orders to ``on_orders``.

    All callables run on this thread. ``on_lost`` gets any error, and the thread ends. The container must then end, too.
    """

    def __init__(
        self,
        send: Callable[[messages.Heartbeat], messages.Orders],
        hang_up: Callable[[], None],
        snapshot: Callable[[], messages.Heartbeat | None],
        on_orders: Callable[[messages.Orders], None],
        on_lost: Callable[[Exception], None],
        interval_s: float,
    ) -> None:
        """``send`` may block; after ``hang_up``, it must return or raise soon. Without a snapshot, nothing is sent."""
        super().__init__("headrace-heartbeat")
        self._send = send
        self._hang_up = hang_up
        self._snapshot = snapshot
        self._on_orders = on_orders
        self._on_lost = on_lost
        self._interval_s = interval_s
        self._due = threading.Event()

    @classmethod
    def over(
        cls,
        client: CoordinatorClient,
        snapshot: Callable[[], messages.Heartbeat],
        on_orders: Callable[[messages.Orders], None],
        on_lost: Callable[[Exception], None],
        interval_s: float,
    ) -> HeartbeatThread:
        own = client.sibling()
        return cls(own.heartbeat, own.close, snapshot, on_orders, on_lost, interval_s)

    @override
    def start(self) -> None:
        self._due.set()
        super().start()

    def poke(self) -> None:
        self._due.set()

    @override
    def wake(self) -> None:
        self._due.set()
        self._hang_up()

    @override
    def work(self) -> None:
        while True:
            self._due.wait(self._interval_s)
            self._due.clear()
            if self.closing.is_set():
                return
            if (heartbeat := self._snapshot()) is not None:
                self._on_orders(self._send(heartbeat))

    @override
    def failed(self, error: Exception) -> None:
        if not self.closing.is_set():
            self._on_lost(error)
