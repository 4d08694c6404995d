"""The coordinator's part in startpoints: grants, reports of the current incarnation only, and requests over HTTP."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from conversation import Process, new_ledger
from msgspec import UNSET

from headrace.coordinator import messages as m
from headrace.coordinator.calls import declared, openapi
from headrace.coordinator.client import CoordinatorClient
from headrace.coordinator.messages import ApplyStartpoints, OutcomeReport, SetStartpoint, StartpointTarget
from headrace.coordinator.server import Coordinator
from headrace.coordinator.startpoints import StartpointService
from headrace.core.clock import WallClock
from headrace.core.errors import FencedError, TrimmedOffsetError, UsageError
from headrace.life.inputs import AppInput, AppInputs
from headrace.life.metadata import MemoryMetadata
from headrace.life.startpoints import StartpointKey
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import SystemSpec
from headrace.systems.startpoints import EndOffset, Outcome, StartpointOldest, StartpointSpecific, StartpointUpcoming

DOCUMENT = Path(__file__).parents[3] / "docs" / "openapi.json"


@pytest.fixture
def service(tmp_path):
    """Stage a reads ``views``, one partition in each task; stage b reads all of ``rates``."""
    admin = LogSystem(tmp_path).admin()
    admin.create("views", 2)
    admin.create("rates", 1)
    common = {"side": False, "start": "oldest"}
    inputs = (
        AppInput(id="views", stage="a", kept_as="log.views", stream="log.views", partitions=2, tasks=None, **common),
        AppInput(id="rates", stage="b", kept_as="log.rates", stream="log.rates", partitions=1, tasks=(0,), **common),
    )
    log = SystemSpec("log", "log", {"root": str(tmp_path)})
    return StartpointService(
        MemoryMetadata(), AppInputs("app", inputs, systems={"log": log}), lambda: lambda task: None, WallClock()
    )


@pytest.fixture
def coordinator(service):
    with Coordinator(new_ledger(), MemoryMetadata(), startpoints=service) as coordinator:
        yield coordinator


@pytest.fixture
def client(coordinator):
    client = CoordinatorClient(coordinator.url, coordinator.token)
    yield client
    client.close()


def oldest(input_="views", **target):
    return SetStartpoint(input=input_, startpoint=StartpointOldest(), **target)


def orders(assignment):
    return {grant.name: [order.stream for order in grant.orders] for grant in assignment.tasks}


def report(process, task, order, generation, state="applied", **facts):
    outcome = Outcome(order=order, state=state, generation=generation, **facts)
    return OutcomeReport(container=process.container, incarnation=process.incarnation, task=task, outcomes=(outcome,))


def states(client):
    return {(s.stream, s.partition, s.task): s.state for s in client.startpoints().startpoints}


def test_a_request_may_say_who_sets_one_and_why(client):
    client.set_startpoint(oldest("rates"))
    client.set_startpoint(oldest(partition=0, by="ann@laptop", note="OPS-7"))
    said = {(state.stream, state.by, state.note) for state in client.startpoints().startpoints}
    assert said == {("log.rates", "unnamed", ""), ("log.views", "ann@laptop", "OPS-7")}


def test_a_request_may_have_an_end(coordinator, client):
    body = {"input": "rates", "startpoint": {"kind": "oldest", "until": {"kind": "timestamp", "timeMs": 5}}}
    status, answer = raw(coordinator, "POST", "/startpoints", body)
    message = "no message of 'rates' lies in oldest until 1970-01-01 00:00:00.005Z"
    assert (status, answer["error"]["message"]) == (400, message)


def test_an_order_keeps_where_it_ends_and_where_the_task_would_have_begun(coordinator, client, service):
    until = EndOffset(offset=99)
    point = StartpointOldest(id="s1", created_ms=1, until=until)
    service.book.write({StartpointKey("log.views", 0): point}, 1)
    coordinator.fan_out()
    zero = Process(0, "u0")
    (order,) = client.register(zero.register()).tasks[0].orders
    assert (order.startpoint.until, order.offset, order.until, order.first) == (until, None, UNSET, UNSET)
    client.outcomes(report(zero, "a/0", order, 1, offset=32, until=99, first=40))
    (again,) = client.generation(zero.ask("a/0")).orders
    assert (again.offset, again.until, again.first) == (32, 99, 40)


# -- orders with generations


def test_tasks_get_what_was_fanned_out_with_their_generations(coordinator, client):
    client.set_startpoint(oldest())
    client.set_startpoint(oldest("rates"))
    coordinator.fan_out()
    zero = Process(0, "u0")
    assert orders(client.register(zero.register())) == {"a/0": ["log.views"], "b/0": ["log.rates"]}
    assert orders(client.register(zero.register())) == {"a/0": ["log.views"], "b/0": ["log.rates"]}
    again = client.generation(zero.ask("a/0"))
    assert (again.generation, [order.stream for order in again.orders]) == (2, ["log.views"])
    assert orders(client.register(Process(1, "u1").register())) == {"a/1": ["log.views"]}


def test_what_is_written_later_waits_for_the_next_fan_out(coordinator, client):
    coordinator.fan_out()
    client.set_startpoint(oldest())
    assert orders(client.register(Process(0, "u0").register())) == {"a/0": [], "b/0": []}
    assert states(client) == {("log.views", 0, None): "pending", ("log.views", 1, None): "pending"}


def test_apply_restarts_the_tasks_concerned_until_they_have_a_new_generation(client):
    zero, one = Process(0, "u0"), Process(1, "u1")
    client.register(zero.register())
    client.register(one.register())
    answer = client.set_startpoint(oldest(partition=0, apply=True))
    assert answer.restarted == ("a/0",)
    for _ in range(2):
        assert client.heartbeat(zero.heartbeat(0)) == m.Orders(restart={"a/0": 1})
    assert client.heartbeat(one.heartbeat(0)) == m.Orders()
    (order,) = client.generation(zero.ask("a/0")).orders
    assert client.heartbeat(zero.heartbeat(1)) == m.Orders()
    client.outcomes(report(zero, "a/0", order, 2, offset=32))
    assert states(client) == {("log.views", 0, "a/0"): "applied"}
    client.outcomes(report(zero, "a/0", order, 2, "released", version=7))
    assert states(client) == {("log.views", 0, "a/0"): "released"}
    assert client.apply_startpoints().restarted == ()


def test_apply_names_tasks_that_have_ended_or_run_elsewhere(client):
    zero = Process(0, "u0")
    client.register(zero.register())
    client.finished(zero.finished("a/0"))
    client.set_startpoint(oldest())
    applied = client.apply_startpoints()
    assert (applied.restarted, applied.elsewhere) == ((), ("a/0", "a/1"))


# -- zombies


def test_only_the_current_incarnation_and_generation_may_report(coordinator, client):
    client.set_startpoint(oldest(partition=0))
    coordinator.fan_out()
    old, new = Process(0, "u0"), Process(0, "u1", attempt=1)
    (order,) = next(g.orders for g in client.register(old.register()).tasks if g.name == "a/0")
    client.register(new.register())
    for state in ("applied", "failed", "released"):
        with pytest.raises(FencedError, match="is not the current one"):
            client.outcomes(report(old, "a/0", order, 1, state, offset=32))
        with pytest.raises(FencedError, match="generation 1 of task a/0"):
            client.outcomes(report(new, "a/0", order, 1, state, offset=32))
    assert states(client) == {("log.views", 0, "a/0"): "ordered"}
    client.outcomes(report(new, "a/0", order, 2, offset=32))
    assert states(client) == {("log.views", 0, "a/0"): "applied"}


def test_a_task_that_would_apply_a_deleted_one_is_told_to_stop(service, coordinator, client):
    client.set_startpoint(oldest(partition=0))
    coordinator.fan_out()
    zero = Process(0, "u0")
    (order,) = next(g.orders for g in client.register(zero.register()).tasks if g.name == "a/0")
    with pytest.raises(UsageError, match="task a/0 is about to apply it"):
        client.delete_startpoints(StartpointTarget(input="views"))
    service.delete(StartpointTarget(input="views"), live=False)  # by somebody who takes the app for dead
    with pytest.raises(FencedError, match="has been deleted"):
        client.outcomes(report(zero, "a/0", order, 1, offset=32))


# -- requests of users


def test_set_list_and_delete(client):
    answer = client.set_startpoint(oldest(partition=1, task="a/1"))
    assert [(move.task, move.to_offset) for move in answer.moves] == [("a/1", 32)]
    assert states(client) == {("log.views", 1, "a/1"): "pending"}
    assert len(client.delete_startpoints(StartpointTarget(input="views")).startpoints) == 1
    assert states(client) == {("log.views", 1, "a/1"): "deleted"}


def test_a_dry_run_writes_and_applies_nothing(client):
    client.register(Process(0, "u0").register())
    request = SetStartpoint(input="rates", startpoint=StartpointUpcoming(), dry_run=True, apply=True)
    assert [move.direction for move in client.set_startpoint(request).moves] == ["same"]
    assert states(client) == {}
    assert client.heartbeat(Process(0, "u0").heartbeat(0)) == m.Orders()


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (oldest("clicks"), UsageError, "app 'app' has no input 'clicks'"),
        (oldest(partition=5), UsageError, "has no partition 5"),
        (oldest(task="b/0"), UsageError, "task 'b/0' of app 'app' doesn't read views"),
        (SetStartpoint(input="rates", startpoint=StartpointSpecific(offset=99)), UsageError, "is after the end"),
        (
            SetStartpoint(input="rates", startpoint=StartpointSpecific(offset=3)),
            TrimmedOffsetError,
            "before the oldest",
        ),
    ],
)
def test_wrong_requests_are_answered_with_the_error_itself(client, message, error, text):
    with pytest.raises(error, match=text):
        client.set_startpoint(message)
    assert states(client) == {}


def raw(coordinator, method, path, body=None, token=None):
    """A request as another program sends it."""
    place = urlsplit(coordinator.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    headers = {"Authorization": f"Bearer {token or coordinator.token}"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def test_each_call_needs_the_token(coordinator):
    for call in declared():
        body = {} if call.method == "POST" else None
        status, answer = raw(coordinator, call.method, call.path, body, token="wrong")
        assert (status, answer["error"]["message"]) == (401, "the token is missing or wrong")


def test_plain_json_is_enough(coordinator):
    body = {"input": "views", "partition": 0, "startpoint": {"kind": "oldest"}}
    status, answer = raw(coordinator, "POST", "/startpoints", body)
    assert (status, answer["written"][0]["state"], answer["moves"][0]["toOffset"]) == (200, "pending", 32)
    status, answer = raw(coordinator, "POST", "/startpoints", body | {"startpoint": {"kind": "newest"}})
    assert (status, answer["error"]["type"]) == (400, "ProtocolError")
    status, answer = raw(coordinator, "POST", "/startpoints/delete", {"input": "views"})
    assert (status, len(answer["startpoints"])) == (200, 1)


# -- the OpenAPI document


def test_the_document_in_docs_is_that_of_the_handlers(coordinator):
    assert DOCUMENT.read_bytes() == openapi()
    assert raw(coordinator, "GET", "/openapi.json") == (200, json.loads(openapi()))


def test_each_declared_call_is_served_and_tools_find_theirs_in_the_document(coordinator):
    calls = {(call.method, call.path): call.by for call in declared()}
    assert calls.keys() <= coordinator._routes().keys()
    assert len(calls) == len(list(declared()))
    described = {(method.upper(), path) for path, found in json.loads(openapi())["paths"].items() for method in found}
    assert described == {call for call, by in calls.items() if by == "tool"}


def fits(schema, value, whole):
    """Whether a value is valid by a schema of the document: the part of JSON Schema that it uses."""
    if "$ref" in schema:
        return fits(whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]], value, whole)
    if "anyOf" in schema:
        return any(fits(one, value, whole) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            extra = schema.get("additionalProperties", {})
            return (
                isinstance(value, dict)
                and set(schema.get("required", ())) <= value.keys()
                and all(fits(properties.get(k, extra or {}), v, whole) for k, v in value.items())
                and (not properties or "additionalProperties" in schema or value.keys() <= properties.keys())
            )
        case "array":
            items = schema.get("items", {})
            return isinstance(value, list) and all(fits(items or {}, one, whole) for one in value)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case None:
            return True
        case other:
            raise AssertionError(f"the document uses {other}")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/startpoints", None),
        ("POST", "/startpoints", {"input": "views", "startpoint": {"kind": "oldest"}, "apply": True}),
        ("POST", "/startpoints", {"input": "rates", "startpoint": {"kind": "specific", "offset": 32}, "dryRun": True}),
        ("POST", "/startpoints/delete", {"input": "rates"}),
        ("POST", "/startpoints/apply", {}),
        ("POST", "/startpoints", {"input": "nothing", "startpoint": {"kind": "oldest"}}),
    ],
)
def test_real_requests_and_answers_are_as_the_document_says(coordinator, client, method, path, body):
    client.register(Process(0, "u0").register())
    whole = json.loads(DOCUMENT.read_bytes())
    operation = whole["paths"][path][method.lower()]
    if body is not None:
        assert fits(operation["requestBody"]["content"]["application/json"]["schema"], body, whole)
        assert not fits(operation["requestBody"]["content"]["application/json"]["schema"], body | {"x": 1}, whole)
    client.set_startpoint(oldest("rates", partition=0))
    status, answer = raw(coordinator, method, path, body)
    assert fits(operation["responses"][str(status)]["content"]["application/json"]["schema"], answer, whole), answer


def test_no_schema_is_referred_to_that_isnt_there():
    text = DOCUMENT.read_text()
    named = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert named <= json.loads(text)["components"]["schemas"].keys()


def test_messages_survive_the_wire():
    for message in (oldest(task="a/0"), ApplyStartpoints(), StartpointTarget(input="x", partition=1)):
        assert m.decode(type(message), m.encode(message)) == message
    assert msgspec.json.decode(m.encode(oldest()))["startpoint"]["kind"] == "oldest"
