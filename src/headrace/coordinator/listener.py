"""A small HTTP server: requests need a token, except those of health checks, bodies are bounded, errors are JSON.

It runs inside a user's driver. So it is the standard library's server, which starts in 5 ms, installs no signal handler
or event loop, and leaves no thread behind. Each connection has its own thread, on which its routes are called. Traffic
isn't encrypted, so anyone who can read the network can read the token.

A connection that hasn't shown the token, a *stranger*, must show it within a few seconds. If there are too many
strangers, the oldest one of the address with the most is closed. So no client can take the places of others.
"""

from __future__ import annotations

import errno
import hmac
import selectors
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from typing_extensions import override

from headrace.coordinator.messages import ErrorReport, Refusal, encode
from headrace.core.errors import (
    DataError,
    FencedError,
    HeadraceError,
    InfrastructureError,
    ProtocolError,
    UnavailableError,
    UsageError,
)
from headrace.core.log import Throttle, logger
from headrace.core.worker import WorkerThread

STRANGERS_MAX = 128
STRANGER_S = 5.0
C = TypeVar("C")


class _Stranger(NamedTuple):
    address: str
    until: float


class Admission(Generic[C]):
    """The connections of a server. The caller has the clock, closes connections, and holds a lock."""

    def __init__(self, known_max: int, strangers_max: int = STRANGERS_MAX, stranger_s: float = STRANGER_S) -> None:
        self._known_max = known_max
        self._strangers_max = strangers_max
        self._stranger_s = stranger_s
        self._strangers: dict[C, _Stranger] = {}  # in order of arrival
        self._known: set[C] = set()

    def arrived(self, connection: C, address: str, now_s: float) -> C | None:
        gone = None
        if len(self._strangers) >= self._strangers_max:
            counts = Counter(stranger.address for stranger in self._strangers.values())
            ((crowded, _),) = counts.most_common(1)
            gone = next(one for one, stranger in self._strangers.items() if stranger.address == crowded)
            del self._strangers[gone]
        self._strangers[connection] = _Stranger(address, now_s + self._stranger_s)
        return gone

    def showed_token(self, connection: C) -> bool:
        """Note that the connection has shown the token. Return whether it may stay, because even these are limited."""
        if connection in self._known:
            return True
        if self._strangers.pop(connection, None) is None or len(self._known) >= self._known_max:
            return False
        self._known.add(connection)
        return True

    def left(self, connection: C) -> None:
        self._strangers.pop(connection, None)
        self._known.discard(connection)

    def overdue(self, now_s: float) -> list[C]:
        late = [one for one, stranger in self._strangers.items() if stranger.until <= now_s]
        for one in late:
            del self._strangers[one]
        return late

    def next_s(self) -> float | None:
        return next((stranger.until for stranger in self._strangers.values()), None)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer that isn't JSON, or has another status than 200."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class EventStream(Protocol):
    """An answer that lasts: server-sent events, as bytes. Waiting for the next one may take some seconds."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """Called once, when the client has disconnected or has received everything."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A browser's request for a page or its resources."""

    path: str
    query: Mapping[str, str]
    cookie: str
    last_event: str


class Pages(Protocol):
    """Pages for browsers. Browsers can't send the token as containers do, so pages check access themselves."""

    def owns(self, path: str) -> bool:
        """Return whether the path belongs to these pages."""

    def knows(self, visit: Visit) -> bool:
        """Return whether the visitor may see them."""

    def answer(self, visit: Visit) -> Response | EventStream:
        """Answer a visitor with access."""

    def refusal(self, visit: Visit) -> Response:
        """Answer a visitor without access."""

    def close(self) -> None:
        """End all events. Idempotent."""


Route = Callable[[bytes], bytes | Response]
"""Takes the body of a request and returns the JSON of its answer, or raises."""
MOST_BYTES = 8 << 20
MOST_CONNECTIONS = 2048
IDLE_S = 60.0
SLOW_S = 10.0
"""A client that reads no events for this long is dropped."""
_log = logger(__name__)


class Readers(NamedTuple):
    """A second token, which opens only these routes."""

    token: str
    routes: frozenset[tuple[str, str]]


NO_READERS = Readers("", frozenset())


class Listener(WorkerThread):
    """Serves ``routes`` (by method and path) from ``start`` to ``close``."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        routes: Mapping[tuple[str, str], Route],
        *,
        most_bytes: int = MOST_BYTES,
        admission: Admission[socket.socket] | None = None,
        public: Container[tuple[str, str]] = (),
        pages: Pages | None = None,
        readers: Readers = NO_READERS,
    ) -> None:
        """``public`` routes need no token. A client without one is disconnected after one answer."""
        super().__init__("headrace-coordinator")
        entry = admission or Admission(MOST_CONNECTIONS)
        try:
            self._server = _Server(host, port, token, routes, most_bytes, entry, public, pages, readers)
        except OSError as error:
            hint = "give an address of this machine, and a port that no other process uses (0 takes a free one)"
            raise InfrastructureError(f"can't listen on {host}:{port}: {_said(error)}", hint=hint) from error
        self.port: int = self._server.server_address[1]
        self._wake_receiver, self._wake_sender = socket.socketpair()

    @override
    def close(self) -> None:
        """Stop accepting, close every connection, and wait until all threads have ended. Idempotent."""
        if self._wake_sender.fileno() == -1:
            return
        super().close()
        self._wake_receiver.close()
        self._server.server_close()
        self._server.cut_connections()

    @override
    def wake(self) -> None:
        self._wake_sender.close()

    @override
    def work(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._server.patience_s())]
                if self._wake_receiver in ready:
                    return
                if self._server in ready:
                    self._server.handle_request()
                self._server.cut_strangers()


class _Server(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 128
    timeout = 0  # handle_request() is called when a client waits; if that one has disconnected, don't wait for another

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        routes: Mapping[tuple[str, str], Route],
        most_bytes: int,
        admission: Admission[socket.socket],
        public: Container[tuple[str, str]],
        pages: Pages | None,
        readers: Readers,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.credentials = f"Bearer {token}".encode()
        self.routes = routes
        self.most_bytes = most_bytes
        self.public = public
        self.pages = pages
        self.readers = readers
        self._throttle = Throttle(_log)
        self._lock = threading.Lock()
        self._admission = admission
        # Only the accepting thread uses this, and close() after that thread has ended.
        self._connections: dict[threading.Thread, socket.socket] = {}
        super().__init__((host, port), _Handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections = {t: c for t, c in self._connections.items() if t.is_alive()}
        with self._lock:
            crowded_out = self._admission.arrived(request, client_address[0], time.monotonic())
        if crowded_out is not None:
            self._throttle.warning("connection closed: too many connections that haven't shown the token are open")
            _cut(crowded_out)
        serving = partial(self._serve, request, client_address)
        thread = threading.Thread(target=serving, name="headrace-connection", daemon=True)
        self._connections[thread] = request
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            with suppress(OSError):  # the client has disconnected, so it can't get an answer
                self.finish_request(request, client_address)
        finally:
            with self._lock:
                self._admission.left(request)
            self.shutdown_request(request)

    def showed_token(self, request: socket.socket) -> bool:
        with self._lock:
            return self._admission.showed_token(request)

    def patience_s(self) -> float | None:
        with self._lock:
            until = self._admission.next_s()
        return None if until is None else max(0.0, until - time.monotonic())

    def cut_strangers(self) -> None:
        with self._lock:
            late = self._admission.overdue(time.monotonic())
        for connection in late:
            _cut(connection)

    def cut_connections(self) -> None:
        for connection in self._connections.values():
            _cut(connection)
        for thread in self._connections:
            thread.join()


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # the connection has ended already
        connection.shutdown(socket.SHUT_RDWR)


class _Refused(Exception):
    def __init__(self, status: int, error: BaseException) -> None:
        self.status = status
        self.error = error


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    disable_nagle_algorithm = True
    wbufsize = -1  # so that head and body are sent in one packet

    def do_GET(self) -> None:
        pages, path = self.server.pages, self.path.partition("?")[0]
        if pages is not None and pages.owns(path):
            self._show(pages)
        else:
            self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _show(self, pages: Pages) -> None:
        url = urlsplit(self.path)
        cookie, last = self.headers.get("cookie", ""), self.headers.get("last-event-id", "")
        visit = Visit(url.path, dict(parse_qsl(url.query)), cookie, last)
        if not pages.knows(visit):
            self.close_connection = True
            _log.info("request for a page refused", client=self.client_address[0])
            self._send(pages.refusal(visit))
            return
        if not self.server.showed_token(self.connection):
            self.close_connection = True
            text = b"too many connections to the coordinator are open\n"
            self._send(Response(text, "text/plain; charset=utf-8", HTTPStatus.SERVICE_UNAVAILABLE))
            return
        try:
            answer = pages.answer(visit)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets it
            self._fail("a page failed unexpectedly", error)
            return
        if isinstance(answer, Response):
            self._send(answer)
        else:
            with closing(answer):
                self._send_events(answer)

    def _send_events(self, events: EventStream) -> None:
        self.close_connection = True
        self.connection.settimeout(SLOW_S)
        self.send_response_only(HTTPStatus.OK)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-store")
        self.send_header("x-accel-buffering", "no")
        self.send_header("connection", "close")
        self.end_headers()
        for data in events:
            self.wfile.write(data)
            self.wfile.flush()

    def _answer(self) -> None:
        try:
            route = self._authorized_route()
            body = self._body()
        except _Refused as refused:
            self.close_connection = True  # its body may not have been read
            # The sender is no secret, but the request may contain one (a token), so it isn't logged.
            _log.info("request refused", client=self.client_address[0], status=int(refused.status))
            self._refuse(refused.status, refused.error)
            return
        try:
            answer = route(body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets it
            self._fail("a request failed unexpectedly", error)
        else:
            self._send(Response(answer) if isinstance(answer, bytes) else answer)

    def _authorized_route(self) -> Route:
        if "authorization" not in self.headers and (self.command, self.path) in self.server.public:
            self.close_connection = True
            return self.server.routes[self.command, self.path]
        given = self.headers.get("authorization", "").encode("latin-1", "replace")
        readers = self.server.readers
        if readers.token and hmac.compare_digest(given, f"Bearer {readers.token}".encode()):
            if (self.command, self.path) not in readers.routes:
                hint = "it is the one for metrics; use the run's own"
                raise _Refused(HTTPStatus.FORBIDDEN, UsageError("this token may only read", hint=hint))
        elif not hmac.compare_digest(given, self.server.credentials):
            hint = "it is in the address that the app has published"
            raise _Refused(HTTPStatus.UNAUTHORIZED, UsageError("the token is missing or wrong", hint=hint))
        if not self.server.showed_token(self.connection):
            what = "too many connections to the coordinator are open, or this one took too long to show the token"
            error = UnavailableError(what, hint="close unused connections; a container needs one or two")
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, error)
        route = self.server.routes.get((self.command, self.path))
        if route is None:
            raise _Refused(HTTPStatus.NOT_FOUND, UsageError(f"no such route: {self.command} {self.path}"))
        return route

    def _body(self) -> bytes:
        text = self.headers.get("content-length", "0" if self.command == "GET" else "")
        if not text or "transfer-encoding" in self.headers:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, ProtocolError("a request must state its content-length"))
        if not (text.isascii() and text.isdigit()):
            raise _Refused(HTTPStatus.BAD_REQUEST, ProtocolError(f"{text[:20]!r} is not a content-length"))
        length = int(text) if len(text) < 16 else self.server.most_bytes + 1
        if length > self.server.most_bytes:
            what = f"a request of {text[:20]} bytes; at most {self.server.most_bytes} are accepted"
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, ProtocolError(what))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError("the request ended early")
        return body

    def _fail(self, what: str, error: Exception) -> None:
        if not isinstance(error, HeadraceError):
            _log.error(what, path=self.path.partition("?")[0], error=repr(error))
        self._refuse(_status_of(error), error)

    def _refuse(self, status: int, error: BaseException) -> None:
        body = encode(Refusal(error=ErrorReport.of(error, with_traceback=False)))
        self._send(Response(body, status=HTTPStatus(status)))

    def _send(self, answer: Response) -> None:
        self.send_response_only(answer.status)
        self.send_header("content-type", answer.content_type)
        self.send_header("content-length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer malformed HTTP and unknown methods in JSON, too. Log nothing, because a header contains the token."""
        self.close_connection = True
        self._refuse(code, ProtocolError(message or HTTPStatus(code).phrase))

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing for successful requests, because the status has the facts that matter."""


def _status_of(error: Exception) -> HTTPStatus:
    match error:
        case FencedError():
            return HTTPStatus.CONFLICT
        case ProtocolError() | UsageError() | DataError():
            return HTTPStatus.BAD_REQUEST
        case HeadraceError(retry=True):
            return HTTPStatus.SERVICE_UNAVAILABLE
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


def _said(error: OSError) -> str:
    return "another process uses this port" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
