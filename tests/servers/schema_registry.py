"""A schema registry for tests, over the documented HTTP interface of Confluent's: in memory, on 127.0.0.1, in a thread.

It keeps the rule ``BACKWARD`` for Avro schemas of records, field by field, without looking into nested types. For other
schemas, each change is allowed.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote

_WIDER = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")}
_WIDER |= {("float", "double"), ("string", "bytes"), ("bytes", "string")}


class Refusal(Exception):
    """An answer that is no success: its status, the registry's own code and a message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        self.status, self.code, self.message = status, code, message


@dataclass
class SchemaRegistry:
    """What the server has. ``refuse`` is raised instead of any answer; ``login`` is what a header must say."""

    url: str = ""
    login: str | None = None
    refuse: Refusal | None = None
    slow: threading.Event | None = None
    """Answers wait for it."""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, subject: str, schema: object, type: str = "AVRO", references: object = ()) -> int:
        """Register a schema without a request; return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        with self.lock:
            return self.register(subject, {"schema": text, "schemaType": type, "references": list(references)})  # type: ignore[call-overload]

    def register(self, subject: str, body: Mapping[str, Any]) -> int:
        one = self._checked(body)
        there = self.subjects.setdefault(subject, [])
        for id in there:
            if _same(self.schemas[id], one):
                return id
        if there and (problem := _problem(self.schemas[there[-1]], one)):
            raise Refusal(409, 409, f"Schema being registered is incompatible with an earlier schema: {problem}")
        id = next((id for id, other in self.schemas.items() if _same(other, one)), len(self.schemas) + 1)
        self.schemas[id] = one
        there.append(id)
        return id

    def _checked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        one = {"schema": body.get("schema"), "schemaType": body.get("schemaType") or "AVRO"}
        one["references"] = body.get("references") or []
        if one["schemaType"] not in ("AVRO", "JSON", "PROTOBUF"):
            raise Refusal(422, 42201, f"Invalid schema type {one['schemaType']}")
        for reference in one["references"]:
            self.version(reference["subject"], str(reference["version"]))
        if one["schemaType"] != "PROTOBUF":
            try:
                json.loads(one["schema"])
            except (TypeError, ValueError):
                raise Refusal(422, 42201, f"Invalid schema {one['schema']}") from None
        return one

    def version(self, subject: str, version: str) -> tuple[int, int]:
        """The number of a version, and its schema's id."""
        if subject not in self.subjects:
            raise Refusal(404, 40401, f"Subject '{subject}' not found.")
        there = self.subjects[subject]
        number = len(there) if version == "latest" else int(version)
        if not 1 <= number <= len(there):
            raise Refusal(404, 40402, f"Version {version} not found.")
        return number, there[number - 1]

    def answer(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "GET", ["schemas", "ids", id]:
                if int(id) not in self.schemas:
                    raise Refusal(404, 40403, f"Schema {id} not found")
                return _shown(self.schemas[int(id)])
            case "GET", ["subjects", subject, "versions", version]:
                number, id_ = self.version(subject, version)
                return {"subject": subject, "version": number, "id": id_} | _shown(self.schemas[id_])
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self.register(subject, body)}
            case "POST", ["subjects", subject]:
                self.version(subject, "latest")
                one = self._checked(body)
                for number, id_ in enumerate(self.subjects[subject], 1):
                    if _same(self.schemas[id_], one):
                        return {"subject": subject, "version": number, "id": id_} | _shown(one)
                raise Refusal(404, 40403, "Schema not found")
        raise Refusal(404, 404, "HTTP 404 Not Found")


class _Handler(BaseHTTPRequestHandler):
    registry: ClassVar[SchemaRegistry]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer("GET", {})

    def do_POST(self) -> None:
        self._answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, method: str, body: Mapping[str, Any]) -> None:
        registry = self.registry
        if registry.slow is not None:
            registry.slow.wait(30)
        with registry.lock:
            registry.requests.append(f"{method} {self.path}")
            try:
                if registry.login is not None and self.headers.get("Authorization") != registry.login:
                    raise Refusal(401, 40101, "User cannot be authenticated")
                if registry.refuse is not None:
                    raise registry.refuse
                status, answer = 200, registry.answer(method, self.path, body)
            except Refusal as refusal:
                status, answer = refusal.status, {"error_code": refusal.code, "message": refusal.message}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def schema_registry(tls: ssl.SSLContext | None = None) -> Iterator[SchemaRegistry]:
    """A registry that is empty."""
    registry = SchemaRegistry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    registry.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        if registry.slow is not None:
            registry.slow.set()
        server.shutdown()
        thread.join()
        server.server_close()


def basic(user: str, password: str) -> str:
    """The header of a login by password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _shown(one: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"schema": one["schema"]}
    if one["schemaType"] != "AVRO":
        shown["schemaType"] = one["schemaType"]
    return shown | ({"references": one["references"]} if one["references"] else {})


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(_canonical(one)[key] == _canonical(other)[key] for key in ("schema", "schemaType", "references"))


def _canonical(one: Mapping[str, Any]) -> dict[str, Any]:
    if one["schemaType"] == "PROTOBUF":
        return {**one, "schema": re.sub(r"\s+", " ", one["schema"]).strip()}
    return {**one, "schema": json.loads(one["schema"])}


def _problem(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why a reader with the new schema can't read records of the old one; empty if it can."""
    before, after = json.loads(old["schema"]), json.loads(new["schema"])
    if "AVRO" not in (old["schemaType"], new["schemaType"]) or not isinstance(before, dict):
        return ""
    if old["schemaType"] != new["schemaType"]:
        return "the type of the schema changed"
    types = {one["name"]: one["type"] for one in before.get("fields", [])}
    for one in after.get("fields", []):
        if one["name"] not in types:
            if "default" not in one:
                return f"READER_FIELD_MISSING_DEFAULT_VALUE: {one['name']}"
        elif not _readable(types[one["name"]], one["type"]):
            return f"TYPE_MISMATCH: {one['name']}"
    return ""


def _readable(written: Any, read: Any) -> bool:
    if isinstance(written, list):
        return all(_readable(one, read) for one in written)
    if isinstance(read, list):
        return any(_readable(written, one) for one in read)
    return written == read or (str(written), str(read)) in _WIDER
