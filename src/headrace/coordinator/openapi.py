"""The OpenAPI document of the requests about startpoints, generated from the classes of the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from headrace.coordinator.messages import (
    FORMAT,
    Applied,
    ApplyStartpoints,
    Message,
    Refusal,
    SetAnswer,
    SetStartpoint,
    StartpointList,
    StartpointTarget,
)

ROUTES: Mapping[tuple[str, str], tuple[type[Message] | None, type[Message], str]] = {
    ("GET", "/startpoints"): (None, StartpointList, "List the startpoints, also the last ones that are done with."),
    ("POST", "/startpoints"): (SetStartpoint, SetAnswer, "Set startpoints, or show what they would do."),
    ("POST", "/startpoints/delete"): (StartpointTarget, StartpointList, "Delete startpoints."),
    ("POST", "/startpoints/apply"): (
        ApplyStartpoints,
        Applied,
        "Restart the tasks that have new startpoints, in place. The others go on.",
    ),
}
"""The body, the answer and the summary of each request."""

_REFUSALS = {
    "400": "The request is wrong: the error says why, and what to do.",
    "401": "The token is missing or wrong.",
    "500": "Something else went wrong.",
    "503": "It may succeed later.",
}


@cache
def openapi() -> bytes:
    """Return the document as JSON."""
    return json.dumps(document(), indent=2).encode() + b"\n"


def document() -> dict[str, Any]:
    """Return the document."""
    messages = [Refusal, *(kind for body, answer, _ in ROUTES.values() for kind in (body, answer) if kind is not None)]
    _, components = msgspec.json.schema_components(messages, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), (body, answer, summary) in ROUTES.items():
        operation: dict[str, Any] = {
            "summary": summary,
            "operationId": (method.lower() + path).replace("/", "_"),
            "responses": {
                "200": _content("It is done.", answer),
                **{status: _content(why, Refusal) for status, why in _REFUSALS.items()},
            },
        }
        if body is not None:
            operation["requestBody"] = {"required": True, **_json(body)}
        paths.setdefault(path, {})[method.lower()] = operation
    return {
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


def _content(description: str, message: type[Message]) -> dict[str, Any]:
    return {"description": description, **_json(message)}


def _json(message: type[Message]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{message.__name__}"}}}}
