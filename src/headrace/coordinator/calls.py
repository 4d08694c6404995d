"""The calls to the coordinator. The client's method, the server's route and OpenAPI follow from the declaration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, overload

import msgspec
from typing_extensions import override

from headrace.coordinator.books import CutOrder, CutReport
from headrace.coordinator.messages import (
    FORMAT,
    Answers,
    Applied,
    ApplyStartpoints,
    AppStatus,
    Ask,
    Assignment,
    Failure,
    Finished,
    GenerationRequest,
    Heartbeat,
    Listening,
    Message,
    Orders,
    OutcomeReport,
    Questions,
    Refusal,
    Register,
    SetAnswer,
    SetStartpoint,
    StartpointList,
    StartpointTarget,
    TableList,
    TaskGrant,
    decode,
    encode,
)

Caller = Literal["container", "command", "tool"]
"""Who makes a call. Tools are other people's programs, and a refusal of theirs is the user's mistake."""
_Q = TypeVar("_Q", bound=Message)
_A = TypeVar("_A", bound=Message)
_Served = tuple[tuple[str, str], Callable[[bytes], bytes]]


class CallSender(Protocol):
    """What sends a call and returns its answer."""

    def send(self, call: Declared[_A], message: Message | None) -> _A: ...


@dataclass(frozen=True, slots=True)
class Declared(Generic[_A]):
    """A call: its path, the type of its answer, who makes it, and what it does. It has to be idempotent."""

    path: str
    answer: type[_A]
    by: Caller
    summary: str

    @property
    def takes(self) -> type[Message] | None:
        raise NotImplementedError

    @property
    def method(self) -> str:
        return "GET" if self.takes is None else "POST"


@dataclass(frozen=True, slots=True)
class Call(Declared[_A], Generic[_Q, _A]):
    """A call with a message. As an attribute of a client it is the function that makes the call."""

    message: type[_Q]

    @property
    @override
    def takes(self) -> type[Message] | None:
        return self.message

    @overload
    def __get__(self, client: None, kind: type) -> Self: ...
    @overload
    def __get__(self, client: CallSender, kind: type) -> Callable[[_Q], _A]: ...
    def __get__(self, client: CallSender | None, kind: type) -> Self | Callable[[_Q], _A]:
        return self if client is None else lambda message: client.send(self, message)

    def served(self, handle: Callable[[_Q], _A]) -> _Served:
        return (self.method, self.path), lambda body: encode(handle(decode(self.message, body)))


@dataclass(frozen=True, slots=True)
class Request(Declared[_A]):
    """A call that needs nothing from its caller: its body, if it has any, is always the same."""

    body: Message | None = None

    @property
    @override
    def takes(self) -> type[Message] | None:
        return None if self.body is None else type(self.body)

    @overload
    def __get__(self, client: None, kind: type) -> Self: ...
    @overload
    def __get__(self, client: CallSender, kind: type) -> Callable[[], _A]: ...
    def __get__(self, client: CallSender | None, kind: type) -> Self | Callable[[], _A]:
        return self if client is None else lambda: client.send(self, self.body)

    def served(self, handle: Callable[[], _A]) -> _Served:
        def route(body: bytes) -> bytes:
            if self.takes is not None:
                decode(self.takes, body)
            return encode(handle())

        return (self.method, self.path), route


class CoordinatorCalls:
    """All calls to a coordinator. A client inherits them, and a server has a route for each."""

    register = Call(
        "/register", Assignment, "container", "Become the container's current incarnation; return its tasks.", Register
    )
    heartbeat = Call(
        "/heartbeat", Orders, "container", "Report the status of the container's tasks; return its orders.", Heartbeat
    )
    generation = Call(
        "/generation", TaskGrant, "container", "Get a new generation for a task that rolls back.", GenerationRequest
    )
    finished = Call("/finished", Orders, "container", "Report tasks that have ended.", Finished)
    failure = Call("/failure", Orders, "container", "Report the error that ends the container.", Failure)
    outcomes = Call("/outcomes", Orders, "container", "Report what happened to a task's startpoints.", OutcomeReport)
    listen = Call(
        "/questions",
        Questions,
        "container",
        "Send an answer and wait for the next question. The client's timeout must exceed ``server.HOLD_MS``.",
        Listening,
    )
    tables = Request("/tables", TableList, "command", "Return the tables that can be queried.")
    ask = Call(
        "/tables", Answers, "command", "Query a table. The client's timeout must exceed the query's own limit.", Ask
    )
    status = Request("/status", AppStatus, "command", "Return the status of the app.")
    drain = Request("/drain", Orders, "command", "Order the app to drain.", Orders(drain=True))
    cut = Call(
        "/cut", CutReport, "command", "Order a cut of all tasks, or cancel it; return the present progress.", CutOrder
    )
    startpoints = Request(
        "/startpoints", StartpointList, "tool", "List the startpoints, also the last ones that are done with."
    )
    set_startpoint = Call(
        "/startpoints", SetAnswer, "tool", "Set startpoints, or show what they would do.", SetStartpoint
    )
    delete_startpoints = Call("/startpoints/delete", StartpointList, "tool", "Delete startpoints.", StartpointTarget)
    apply_startpoints = Request(
        "/startpoints/apply",
        Applied,
        "tool",
        "Restart the tasks that have new startpoints, in place. The others go on.",
        ApplyStartpoints(),
    )


def declared() -> Iterator[Declared[Any]]:
    return (call for call in vars(CoordinatorCalls).values() if isinstance(call, Declared))


_REFUSALS = {
    "400": "The request is wrong: the error says why, and what to do.",
    "401": "The token is missing or wrong.",
    "500": "Something else went wrong.",
    "503": "It may succeed later.",
}


@cache
def openapi() -> bytes:
    calls = [call for call in declared() if call.by == "tool"]
    kinds = [Refusal, *(kind for call in calls for kind in (call.takes, call.answer) if kind is not None)]
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for schema in components.values():
        if "description" in schema:  # a docstring, which is indented before Python 3.13
            schema["description"] = cleandoc(schema["description"])
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        operation: dict[str, Any] = {
            "summary": call.summary,
            "operationId": (call.method.lower() + call.path).replace("/", "_"),
            "responses": {
                "200": {"description": "It is done.", **_json(call.answer)},
                **{status: {"description": why, **_json(Refusal)} for status, why in _REFUSALS.items()},
            },
        }
        if call.takes is not None:
            operation["requestBody"] = {"required": True, **_json(call.takes)}
        paths.setdefault(call.path, {})[call.method.lower()] = operation
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace: startpoints of a running app",
            "version": str(FORMAT),
            "description": "Served by the coordinator of a running app. headrace startpoint address "
            "prints its URL and its token.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(components.items())),
        },
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def _json(message: type[Message]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{message.__name__}"}}}}
