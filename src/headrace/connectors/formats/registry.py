"""Schema registries with Confluent's interface: settings, requests, schemas, and the header of records.

``RegistryClient`` blocks, and makes each request once, with a time limit. Neither messages nor tracebacks have the
secrets, which are read again for each request, so that one that was replaced is used at once.

``SchemaSource`` fetches each schema once, in a thread. A decoder must not wait for long: so it waits a moment, and is
then asked to return later. A registry that is away is asked again after pauses that grow. An id that it doesn't know is
asked for several times, as copies of a registry may lag, and then counts as unknown for a while.

The header of a record is a zero byte, and the id of its schema in four bytes.
"""

from __future__ import annotations

import base64
import json
import os
import random
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from operator import itemgetter
from typing import Any, NamedTuple, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.calls import Retry
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import DataError, DeclarationError, HeadraceError, InfrastructureError, UnavailableError
from headrace.core.log import Throttle, logger
from headrace.core.secrets import SecretPlace, check_no_credentials
from headrace.rows.dtypes import Columns
from headrace.rows.formats import Decoded, Decoder, Format, FormatSpec, Payload, all_values, gathered, without_nulls

TIMEOUT_MS = 5_000
_KNOWN = ("url", "user", "password", "token", "ca_file", "timeout_ms")


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """A registry at ``url``. Either ``user`` and ``password`` log in, or ``token`` does, or nothing.

    ``ca_file`` has the certificates to trust instead of the machine's. ``timeout_ms`` is for each request.
    """

    url: str
    user: str | None = None
    password: SecretPlace | None = None
    token: SecretPlace | None = None
    ca_file: str | None = None
    timeout_ms: int = TIMEOUT_MS

    def __post_init__(self) -> None:
        check_no_credentials(self.url)
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            hint = 'write "http://localhost:8081"'
            raise DeclarationError(f"{self.url!r} isn't the address of a schema registry", hint=hint)
        if (self.user is None) != (self.password is None):
            hint = "give both, token=, or none of them"
            raise DeclarationError("a schema registry needs user= and password= together", hint=hint)
        if self.user is not None and self.token is not None:
            raise DeclarationError("a schema registry takes a password or a token, not both", hint="leave one out")
        if self.user is not None and ":" in self.user:
            raise DeclarationError("user= can't contain a colon", hint="check user=")

    def options(self) -> dict[str, Any]:
        given = {name: value for name in _KNOWN if (value := getattr(self, name)) is not None}
        if self.timeout_ms == TIMEOUT_MS:
            del given["timeout_ms"]
        return {name: value.options() if isinstance(value, SecretPlace) else value for name, value in given.items()}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        unknown = sorted(set(options) - set(_KNOWN))
        if unknown or "url" not in options:
            wrong = f"unknown settings {unknown}" if unknown else "no url"
            raise DeclarationError(f"schema registry: {wrong}", hint=f"known settings: {', '.join(_KNOWN)}")
        given = dict(options)
        for name in ("password", "token"):
            if given.get(name) is not None:
                given[name] = SecretPlace.of(given[name] if isinstance(given[name], Mapping) else {})
        return cls(**given)


# -- client ------------------------------------------------------------------------------------------
RESPONSE_BYTES_MAX = 8 << 20
_CONTENT = "application/vnd.schemaregistry.v1+json"
_PIECE = 1 << 16


class Reference(NamedTuple):
    """A schema that another one needs, and the name by which it does."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as a registry has it. ``type`` is ``AVRO``, ``JSON`` or ``PROTOBUF``."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"schema": self.text}
        if self.type != "AVRO":
            body["schemaType"] = self.type
        if self.references:
            body["references"] = [one._asdict() for one in self.references]
        return body


class RegistryClient:
    """One registry. One thread uses it at a time."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.url = settings.url
        self._settings = settings
        self._opener: OpenerDirector | None = None

    def by_id(self, id: int) -> Registered | None:
        answer = self._ask("GET", f"/schemas/ids/{id}", missing=True)
        return None if answer is None else self._schema(answer)

    def by_version(self, subject: str, version: int) -> Registered:
        answer = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}", missing=True)
        if answer is None:
            raise DataError(
                f"the schema registry {self.url} has no version {version} of subject {subject!r}, "
                "to which another schema refers",
                hint="register that version again",
            )
        return self._schema(answer)

    def lookup(self, subject: str, schema: Registered) -> tuple[int, int] | None:
        answer = self._ask("POST", f"/subjects/{_quoted(subject)}", schema.body(), missing=True)
        return None if answer is None else (self._number(answer, "id"), self._number(answer, "version"))

    def register(self, subject: str, schema: Registered) -> int:
        return self._number(self._ask("POST", f"/subjects/{_quoted(subject)}/versions", schema.body()), "id")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, missing: bool = False
    ) -> dict[str, Any] | None:
        request = Request(  # noqa: S310 - the settings allow http and https only
            self.url.rstrip("/") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": f"{_CONTENT}, application/json", "User-Agent": "headrace"},
            method=method,
        )
        if body is not None:
            request.add_header("Content-Type", _CONTENT)
        if (login := self._login()) is not None:
            request.add_unredirected_header("Authorization", login)
        timeout = self._settings.timeout_ms / 1000
        end = time.monotonic() + timeout
        try:
            with self._open(request, timeout) as response:
                status, data = response.status, self._read(response, end)
        except HTTPError as error:
            with error:
                status, data = error.code, self._read_error(error, end)
        except (OSError, HTTPException) as error:
            if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
                raise InfrastructureError(
                    f"the certificate of the schema registry {self.url} isn't trusted: {_why(error)}",
                    hint="name the certificates to trust: hr.io.registry(..., ca_file=...)",
                ) from None
            why = "it took too long" if isinstance(error, TimeoutError) else _why(error)
            raise self._unavailable(f"doesn't answer: {why}") from None
        answer = _fields(data)
        if status == HTTPStatus.OK:
            if answer is None:
                raise self._strange("the answer isn't a JSON object")
            return answer
        # An error code of the registry begins with the HTTP status; a server that is no registry has none.
        code = (answer or {}).get("error_code")
        if missing and status == HTTPStatus.NOT_FOUND and isinstance(code, int) and code // 100 == status:
            return None
        message = (answer or {}).get("message")
        said = " ".join(message.split())[:1000] if isinstance(message, str) else ""
        raise self._refusal(status, said or f"HTTP status {status}", path)

    def _open(self, request: Request, timeout: float) -> HTTPResponse:
        if self._opener is None:
            file = self._settings.ca_file
            try:
                context = ssl.create_default_context(cafile=file)
            except OSError as error:
                raise InfrastructureError(
                    f"the certificates of the schema registry can't be read from {file}: {error.strerror or error}",
                    hint="put a PEM file at this path on each machine that runs drivers or containers",
                ) from None
            self._opener = build_opener(HTTPSHandler(context=context))
        response = self._opener.open(request, timeout=timeout)
        assert isinstance(response, HTTPResponse)
        return response

    def _login(self) -> str | None:
        settings = self._settings
        if settings.token is not None:
            return f"Bearer {settings.token.read(os.environ)}"
        if settings.password is None:
            return None
        pair = f"{settings.user}:{settings.password.read(os.environ)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"

    def _read(self, response: HTTPResponse, end: float) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > RESPONSE_BYTES_MAX:
                said = f"the schema registry {self.url} answers with more than {RESPONSE_BYTES_MAX >> 20} MB"
                raise InfrastructureError(said, hint="check that this is the address of a schema registry")
            if time.monotonic() > end:
                raise TimeoutError
        return b"".join(pieces)

    def _read_error(self, error: HTTPError, end: float) -> bytes:
        try:
            return self._read(error.fp, end) if isinstance(error.fp, HTTPResponse) else b""
        except (OSError, HTTPException):
            return b""

    def _refusal(self, status: int, said: str, path: str) -> HeadraceError:
        match status:
            case HTTPStatus.UNAUTHORIZED:
                hint = "check user= and password=, or token=, of hr.io.registry(...)"
                return InfrastructureError(f"the schema registry {self.url} rejects the login: {said}", hint=hint)
            case HTTPStatus.FORBIDDEN:
                return InfrastructureError(
                    f"the schema registry {self.url} forbids {path}: {said}",
                    hint="grant this user the right to read schemas, and with register=True also to write to the "
                    "subject",
                )
            case HTTPStatus.CONFLICT:
                return DataError(
                    f"the schema registry {self.url} refuses the schema, because it breaks the subject's compatibility "
                    f"rule: {said}",
                    hint="make a compatible change, such as a new field with a default, or use another subject",
                )
            case HTTPStatus.UNPROCESSABLE_ENTITY | HTTPStatus.BAD_REQUEST:
                hint = "correct the schema"
                return DataError(f"the schema registry {self.url} refuses the schema: {said}", hint=hint)
        if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or status >= 500:
            return self._unavailable(f"can't answer now: {said}")
        return self._strange(said, "check the address: some registries need a path, such as /apis/ccompat/v7")

    def _unavailable(self, what: str) -> UnavailableError:
        hint = "check its address, and that it is running; Headrace tries again"
        return UnavailableError(f"the schema registry {self.url} {what}", hint=hint)

    def _schema(self, answer: Mapping[str, Any]) -> Registered:
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._strange("the answer has no schema")
        references = answer.get("references") or []
        try:
            found = tuple(Reference(str(one["name"]), str(one["subject"]), int(one["version"])) for one in references)
        except (KeyError, TypeError, ValueError):
            raise self._strange("the answer has unreadable references") from None
        return Registered(text, str(answer.get("schemaType") or "AVRO"), found)

    def _number(self, answer: Mapping[str, Any] | None, name: str) -> int:
        number = (answer or {}).get(name)
        if not isinstance(number, int):
            raise self._strange(f"the answer has no {name}")
        return number

    def _strange(self, what: str, hint: str = "check the address") -> InfrastructureError:
        return InfrastructureError(f"{self.url} doesn't answer like a schema registry: {what}", hint=hint)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, TimeoutError):
        return "it took too long"
    if isinstance(reason, OSError):
        return reason.strerror or str(reason)
    return str(reason or error) or type(error).__name__


def _fields(data: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


# -- schemas -----------------------------------------------------------------------------------------
KEPT_MAX = 1000
WAIT_MS = 500.0
UNKNOWN_TRIES, UNKNOWN_PAUSE_MS, UNKNOWN_FOR_MS = 3, 300.0, 60_000.0
"""How often an id that isn't there is asked for, after which pauses; and how long it is unknown then."""
REFERENCES_MAX = 100
_RETRY = Retry(None, 100.0, 10_000.0)
_Key = tuple[str, int]  # the subject and the version of a schema
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A schema with those that it refers to, each after those it needs itself. ``problem`` says which are missing."""

    schema: Registered
    needed: tuple[Registered, ...] = ()
    problem: str = ""


class SchemaSource:
    """The schemas of one registry. Any thread may use it."""

    def __init__(self, client: RegistryClient, clock: Clock | None = None, *, wait_ms: float | None = None) -> None:
        self._client = client
        self._clock = clock or WallClock()
        self._wait_ms = WAIT_MS if wait_ms is None else wait_ms
        self._throttle = Throttle(_log)
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._known: OrderedDict[int, Fetched] = OrderedDict()
        self._unknown: dict[int, tuple[int, float]] = {}  # how often asked for, and until when unknown
        self._error: HeadraceError | None = None
        self._failures = 0
        self._not_before_ms = 0.0

    def schemas(self, ids: Collection[int]) -> Mapping[int, Fetched | None]:
        """The schema of each id; None if there is none. ``UnavailableError``: one hasn't come after a moment."""
        with self._lock:
            missing = self._missing(ids)
            if missing:
                self._begin(missing)
        if missing:
            self._idle.wait(self._wait_ms / 1000)
            with self._lock:
                missing = self._missing(ids)
                if missing:
                    raise _again(self._error) or UnavailableError(
                        f"schema {missing[0]} is being fetched from {self._client.url}",
                        hint="Headrace waits for it; check that the registry is running",
                    )
        with self._lock:
            found = {id: self._known.get(id) for id in ids}
            for id in self._known.keys() & set(ids):
                self._known.move_to_end(id)
            keep = max(KEPT_MAX, len(ids))  # all of this call, or a batch with many ids would never be read
            while len(self._known) > keep:
                self._known.popitem(last=False)
            while len(self._unknown) > keep:
                del self._unknown[next(iter(self._unknown))]
        return found

    def _missing(self, ids: Collection[int]) -> list[int]:
        now = self._clock.monotonic_ms()
        unknown = {id for id, (tries, until_ms) in self._unknown.items() if tries >= UNKNOWN_TRIES and now < until_ms}
        return [id for id in ids if id not in self._known and id not in unknown]

    def _begin(self, ids: list[int]) -> None:
        if not self._idle.is_set():
            return
        now = self._clock.monotonic_ms()
        if now < self._not_before_ms and (error := _again(self._error)):
            raise error
        self._idle.clear()
        threading.Thread(target=self._fetch, args=(ids,), name="schemas", daemon=True).start()

    def _fetch(self, ids: list[int]) -> None:
        try:
            for id in ids:
                if not self._fetch_one(id):
                    return
            with self._lock:
                if self._failures:
                    _log.info("the schema registry answers again", url=self._client.url)
                self._error, self._failures = None, 0
        except HeadraceError as error:
            self._failed(error)
        except BaseException as error:
            self._failed(UnavailableError(f"fetching a schema failed: {type(error).__name__}"))
            raise
        finally:
            self._idle.set()

    def _fetch_one(self, id: int) -> bool:
        """Whether the registry has answered with a schema, or so often with none that it has none."""
        schema = self._client.by_id(id)
        fetched = None if schema is None else self._complete(schema)
        with self._lock:
            if fetched is not None:
                self._known[id] = fetched
                self._unknown.pop(id, None)
                return True
            before, _ = self._unknown.get(id, (0, 0.0))
            now = self._clock.monotonic_ms()
            tries = 1 if before >= UNKNOWN_TRIES else before + 1
            self._unknown[id] = tries, now + UNKNOWN_FOR_MS
            if tries >= UNKNOWN_TRIES:
                return True
            self._error = UnavailableError(
                f"the schema registry {self._client.url} has no schema {id} yet", hint="Headrace asks again"
            )
            self._not_before_ms = now + UNKNOWN_PAUSE_MS
            return False

    def _complete(self, schema: Registered) -> Fetched:
        needed: dict[_Key, Registered] = {}
        try:
            self._follow(schema, needed, set())
        except DataError as error:
            return Fetched(schema, problem=error.message)
        return Fetched(schema, tuple(needed.values()))

    def _follow(self, schema: Registered, needed: dict[_Key, Registered], above: set[_Key]) -> None:
        for one in schema.references:
            key = (one.subject, one.version)
            if key in needed or key in above or len(needed) + len(above) >= REFERENCES_MAX:
                continue
            found = self._client.by_version(one.subject, one.version)
            self._follow(found, needed, above | {key})
            needed[key] = found

    def _failed(self, error: HeadraceError) -> None:
        with self._lock:
            self._error = error
            self._failures += 1
            pause = _RETRY.pause_ms(self._failures, random.random())
            self._not_before_ms = self._clock.monotonic_ms() + (pause or 0.0)
        if error.retry:
            self._throttle.warning("can't fetch a schema, so its records wait", why=error.message)


def _again(error: HeadraceError | None) -> HeadraceError | None:
    """A copy, as an error that is raised several times collects tracebacks."""
    return None if error is None else type(error)(error.message, hint=error.hint)


# -- framing -----------------------------------------------------------------------------------------
HEADER_BYTES = 5
_MAGIC = b"\x00"
_HEAD = itemgetter(slice(0, HEADER_BYTES))


def header(id: int) -> bytes:
    return _MAGIC + id.to_bytes(4, "big")


def _no_header(head: bytes) -> str:
    if len(head) < HEADER_BYTES and head[:1] in (b"", _MAGIC):
        return "too short for the header of a schema registry"
    return f"no header of a schema registry: it begins with 0x{head[:1].hex()} instead of 0x00"


def ids_in(payloads: Sequence[bytes]) -> dict[bytes, int | None]:
    return {
        head: int.from_bytes(head[1:], "big") if len(head) == HEADER_BYTES and head[:1] == _MAGIC else None
        for head in dict.fromkeys(map(_HEAD, payloads))
    }


def decode_by_id(
    payloads: Sequence[bytes], ids: Mapping[bytes, int | None], decode: Callable[[int | None, Sequence[bytes]], Decoded]
) -> Decoded:
    """Decode the records of each id separately, and those without one. ``ids`` are the non-empty ids of ``ids_in``."""
    groups = list(dict.fromkeys(ids.values()))
    if len(groups) == 1:
        return decode(groups[0], payloads)
    numbers = {head: groups.index(id) for head, id in ids.items()}
    belongs = np.fromiter(map(numbers.__getitem__, map(_HEAD, payloads)), dtype=np.int64, count=len(payloads))
    parts = []
    for number, id in enumerate(groups):
        places = np.flatnonzero(belongs == number)
        parts.append((places, decode(id, [payloads[place] for place in places.tolist()])))
    return gathered(parts)


def without_header(payloads: Sequence[bytes], columns: Columns) -> Decoded:
    reasons = ((index, _no_header(payload[:HEADER_BYTES])) for index, payload in enumerate(payloads))
    return Decoded(pl.DataFrame(schema=columns), list(reasons))


class FramedFormat(Format):
    """Records of ``inner`` after the header of a registry and one of ``leads``, of which the first is written."""

    def __init__(self, inner: Format, writer: SubjectWriter | None, leads: Sequence[bytes] = (b"",)) -> None:
        self._inner = inner
        self._writer = writer
        self._leads = leads

    @override
    def columns(self) -> Columns | None:
        return self._inner.columns()

    @override
    def decoder(self, columns: Columns) -> Decoder:
        return _FramedDecoder(self._inner.decoder(columns), columns, self._leads)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        payloads = self._inner.encode(rows)
        assert self._writer is not None
        before = self._writer.header() + self._leads[0]
        return [before + payload for payload in payloads if payload is not None]


class _FramedDecoder(Decoder):
    def __init__(self, inner: Decoder, columns: Columns, leads: Sequence[bytes]) -> None:
        self._inner = inner
        self._columns = columns
        self._leads = leads

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        if not all_values(payloads):
            return without_nulls(payloads, self.decode)
        for lead in self._leads:  # most of the time, all have the same
            size = HEADER_BYTES + len(lead)
            leads = set(map(itemgetter(slice(HEADER_BYTES, size)), payloads))
            if leads == {lead} and set(map(itemgetter(slice(0, 1)), payloads)) == {_MAGIC}:
                return self._inner.decode(list(map(itemgetter(slice(size, None)), payloads)))
        sizes = list(map(self._size, payloads))
        good = [index for index, one in enumerate(sizes) if isinstance(one, int)]
        wrong = [(index, one) for index, one in enumerate(sizes) if isinstance(one, str)]
        places = np.array([index for index, _ in wrong], dtype=np.int64)
        reasons = [(number, reason) for number, (_, reason) in enumerate(wrong)]
        found = self._inner.decode([payloads[index][sizes[index] :] for index in good])  # type: ignore[index]
        bad = Decoded(pl.DataFrame(schema=self._columns), reasons)
        return gathered([(np.array(good, dtype=np.int64), found), (places, bad)])

    def _size(self, payload: bytes) -> int | str:
        if payload[:1] != _MAGIC or len(payload) < HEADER_BYTES:
            return _no_header(payload[:HEADER_BYTES])
        sizes = (HEADER_BYTES + len(lead) for lead in self._leads if payload.startswith(lead, HEADER_BYTES))
        return next(sizes, "the record has another message of its schema")


# -- writing -----------------------------------------------------------------------------------------
RETRY = Retry(6, 200.0, 4_000.0)  # for about ten seconds, once in a writer's life


@dataclass(eq=False)
class SubjectWriter:
    """Finds the id of ``schema`` under ``subject``, or registers it, and ``needed``: those it refers to, by subject."""

    client: RegistryClient
    schema: Registered
    subject: str | None
    register: bool = field(default=False, kw_only=True)
    needed: Mapping[str, Registered] = field(default_factory=dict, kw_only=True)
    wait: Callable[[float], object] = field(default=time.sleep, kw_only=True)
    _header: bytes | None = None

    def header(self) -> bytes:
        """The first bytes of each record. The first call asks the registry, and waits some seconds for it."""
        if self._header is None:
            if self.subject is None:
                said = "writing records with a schema's id needs a subject of the registry, but none is given"
                raise DeclarationError(said, hint='write subject="orders-value"')
            self._header = header(self._asking(self.subject))
        return self._header

    def _asking(self, subject: str) -> int:
        failures = 0
        while True:
            try:
                return self._id(subject)
            except HeadraceError as error:
                failures += 1
                pause_ms = RETRY.pause_ms(failures, random.random())
                if not error.retry or pause_ms is None:
                    raise
                self.wait(pause_ms / 1000)

    def _id(self, subject: str) -> int:
        references = []
        for name, one in self.needed.items():
            # The name by which a schema imports another one is its subject, as Confluent's serializers have it.
            found = self.client.lookup(name, one)
            if found is None and self.register:
                self.client.register(name, one)
                found = self.client.lookup(name, one)
            if found is None:
                raise self._missing(name)
            references.append(Reference(name, name, found[1]))
        schema = Registered(self.schema.text, self.schema.type, tuple(references))
        there = self.client.lookup(subject, schema)
        if there is not None:
            return there[0]
        if not self.register:
            raise self._missing(subject)
        id = self.client.register(subject, schema)
        _log.info("registered a schema", subject=subject, id=id, url=self.client.url)
        return id

    def _missing(self, subject: str) -> InfrastructureError:
        return InfrastructureError(
            f"the schema isn't registered under subject {subject!r} of {self.client.url}",
            hint="register it, set register=True so that the app does, or give the registered schema",
        )


def client_of(spec: FormatSpec) -> RegistryClient:
    return RegistryClient(RegistrySettings.of(spec.settings["registry"]))


def writer_of(spec: FormatSpec, schema: Registered, needed: Mapping[str, Registered] | None = None) -> SubjectWriter:
    """The writer of a format with a registry. ``needed`` are the schemas that ``schema`` refers to, by subject."""
    subject, register = spec.settings.get("subject"), spec.settings.get("register", False)
    return SubjectWriter(client_of(spec), schema, subject, register=register, needed=needed or {})
