"""Asks a registry: one request after another, each with a time limit, without retries. Blocks.

What fails becomes an error that says whether to try again. Neither messages nor tracebacks have the secrets. They are
read again for each request, so that one that was replaced is used at once.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

from headrace.core.errors import DataError, HeadraceError, InfrastructureError, UnavailableError
from headrace.serdes.formats.registry.settings import RegistrySettings

RESPONSE_BYTES_MAX = 8 << 20
_CONTENT = "application/vnd.schemaregistry.v1+json"
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Reference:
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
        """The schema as registries take it."""
        body: dict[str, Any] = {"schema": self.text}
        if self.type != "AVRO":
            body["schemaType"] = self.type
        if self.references:
            body["references"] = [
                {"name": one.name, "subject": one.subject, "version": one.version} for one in self.references
            ]
        return body


class RegistryClient:
    """One registry. One thread uses it at a time."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._opener: OpenerDirector | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return self._settings.url

    def by_id(self, id: int) -> Registered | None:
        """Return the schema with this id; None if it doesn't exist."""
        answer = self._ask("GET", f"/schemas/ids/{id}", missing=True)
        return None if answer is None else self._schema(answer)

    def by_version(self, subject: str, version: int) -> Registered:
        """Return a version of a subject to which another schema refers. Raises ``DataError`` if it doesn't exist."""
        answer = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}", missing=True)
        if answer is None:
            raise DataError(
                f"the schema registry {self.url} has no version {version} of subject {subject!r}, "
                "to which another schema refers",
                hint="register that version again",
            )
        return self._schema(answer)

    def lookup(self, subject: str, schema: Registered) -> tuple[int, int] | None:
        """The id and the version of a schema under a subject; None if it isn't registered there."""
        answer = self._ask("POST", f"/subjects/{_quoted(subject)}", schema.body(), missing=True)
        return None if answer is None else (self._number(answer, "id"), self._number(answer, "version"))

    def register(self, subject: str, schema: Registered) -> int:
        """Register a schema under a subject, or find it there; return its id.

        Raises ``DataError`` if the subject's rule about changes refuses it, or the registry can't read it.
        """
        return self._number(self._ask("POST", f"/subjects/{_quoted(subject)}/versions", schema.body()), "id")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, missing: bool = False
    ) -> dict[str, Any] | None:
        """The answer as JSON. With ``missing``, None for what isn't there."""
        request = Request(  # noqa: S310 - the settings allow http and https only
            self._settings.url.rstrip("/") + path,
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
        if status == HTTPStatus.OK:
            return self._parsed(data)
        if missing and status == HTTPStatus.NOT_FOUND and _code(data) // 100 == HTTPStatus.NOT_FOUND:
            return None
        raise self._refusal(status, data, path)

    def _open(self, request: Request, timeout: float) -> HTTPResponse:
        if self._opener is None:
            self._opener = build_opener(HTTPSHandler(context=self._context()))
        response = self._opener.open(request, timeout=timeout)
        assert isinstance(response, HTTPResponse)
        return response

    def _context(self) -> ssl.SSLContext:
        file = self._settings.ca_file
        try:
            return ssl.create_default_context(cafile=file)
        except OSError as error:
            raise InfrastructureError(
                f"the certificates of the schema registry can't be read from {file}: {error.strerror or error}",
                hint="put a PEM file at this path on each machine that runs drivers or containers",
            ) from None

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
                raise InfrastructureError(
                    f"the schema registry {self.url} answers with more than {RESPONSE_BYTES_MAX >> 20} MB",
                    hint="check that this is the address of a schema registry",
                )
            if time.monotonic() > end:
                raise TimeoutError
        return b"".join(pieces)

    def _read_error(self, error: HTTPError, end: float) -> bytes:
        """The body of a refusal, as far as it can be had: it only explains."""
        try:
            return self._read(error.fp, end) if isinstance(error.fp, HTTPResponse) else b""
        except (OSError, HTTPException):
            return b""

    def _refusal(self, status: int, data: bytes, path: str) -> HeadraceError:
        said = _message(data) or f"HTTP status {status}"
        match status:
            case HTTPStatus.UNAUTHORIZED:
                return InfrastructureError(
                    f"the schema registry {self.url} rejects the login: {said}",
                    hint="check user= and password=, or token=, of hr.io.registry(...)",
                )
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
                return DataError(
                    f"the schema registry {self.url} refuses the schema: {said}", hint="correct the schema"
                )
            case HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.TOO_MANY_REQUESTS:
                return self._unavailable(f"can't answer now: {said}")
            case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                return self._unavailable(f"can't answer now: {said}")
            case _:
                return InfrastructureError(
                    f"{self.url} doesn't answer like a schema registry: {said}",
                    hint="check the address: some registries need a path, such as /apis/ccompat/v7",
                )

    def _unavailable(self, what: str) -> UnavailableError:
        return UnavailableError(
            f"the schema registry {self.url} {what}",
            hint="check its address, and that it is running; Headrace tries again",
        )

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._strange("the answer isn't a JSON object")
        return answer

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

    def _strange(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"{self.url} doesn't answer like a schema registry: {what}", hint="check the address"
        )


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, TimeoutError):
        return "it took too long"
    if isinstance(reason, OSError):
        return reason.strerror or str(reason)
    return str(reason or error) or type(error).__name__


def _code(data: bytes) -> int:
    """Return the registry's error code, which begins with the HTTP status; 0 if there is none."""
    try:
        code = json.loads(data).get("error_code", 0)
    except (ValueError, AttributeError):
        return 0
    return code if isinstance(code, int) else 0


def _message(data: bytes) -> str:
    try:
        message = json.loads(data).get("message")
    except (ValueError, AttributeError):
        return ""
    return " ".join(message.split())[:1000] if isinstance(message, str) else ""
