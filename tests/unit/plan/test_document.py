"""The JSON: Samza's fields where its viewer expects them, and Headrace's own."""

from __future__ import annotations

import json

from graph_builder import AppBuilder

from headrace.api.operators.spec import EventTime
from headrace.plan.render import render, to_json


def an_app() -> AppBuilder:
    app = AppBuilder(intermediate_partitions=2)
    t = app.table("t", app.side_input("side", 2))
    s = app.input("s", 4, event_time=EventTime("ts"), lateness_ms=5000)
    joined = app.join("j", app.partition_by("by-k", s), app.broadcast("all", app.input("rules", 1)))
    app.output("out", app.table_join("look-up", joined, t))
    return app


def test_it_has_the_shape_of_samzas_plan():
    document = to_json(render(an_app().plan()))
    assert document["applicationName"] == "test-app"
    assert document["applicationId"] == "1"
    assert [job["jobName"] for job in document["jobs"]] == ["rules", "s", "all"]
    assert {group: sorted(document[group]) for group in document if group.endswith("Streams")} == {
        "sourceStreams": ["rules", "s", "side"],
        "sinkStreams": ["out"],
        "intermediateStreams": ["all", "by-k"],
    }
    edge = document["intermediateStreams"]["by-k"]
    assert (edge["sourceJobs"], edge["targetJobs"]) == (["s"], ["all"])
    spec = edge["streamSpec"]
    assert (spec["id"], spec["systemName"], spec["physicalName"]) == ("by-k", "log", "by-k")
    assert (spec["partitionCount"], spec["isBroadcast"]) == (2, False)
    assert document["intermediateStreams"]["all"]["streamSpec"]["isBroadcast"] is True
    table = document["tables"]["t"]
    assert (table["id"], table["tableProviderFactory"], table["config"]) == ("t", "headrace.local", {})


def test_a_job_has_its_operator_graph():
    job = to_json(render(an_app().plan()))["jobs"][2]
    assert job["jobId"] == "1"
    graph = job["operatorGraph"]
    assert graph["inputStreams"] == [
        {"streamId": "all", "nextOperatorIds": ["j"]},
        {"streamId": "by-k", "nextOperatorIds": ["j"]},
    ]
    assert [stream["streamId"] for stream in graph["outputStreams"]] == ["out"]
    samzas = ("opCode", "opId", "sourceLocation", "nextOperatorIds", "outputStreamId", "tableId", "ttlMs")
    operators = {
        id_: {name: operator[name] for name in samzas if name in operator}
        for id_, operator in graph["operators"].items()
    }
    assert operators == {
        "j": {
            "opCode": "JOIN",
            "opId": "j",
            "sourceLocation": "pipeline.py:13",
            "nextOperatorIds": ["look-up"],
            "ttlMs": 1000,
        },
        "look-up": {
            "opCode": "JOIN",
            "opId": "look-up",
            "sourceLocation": "pipeline.py:14",
            "nextOperatorIds": ["look-up-to-out"],
            "tableId": "t",
        },
        "look-up-to-out": {
            "opCode": "SEND_TO",
            "opId": "look-up-to-out",
            "sourceLocation": "pipeline.py:16",
            "nextOperatorIds": [],
            "outputStreamId": "out",
        },
    }
    for operator in graph["operators"].values():
        assert set(operator["nextOperatorIds"]) <= graph["operators"].keys()


def test_our_own_fields_stand_beside_them():
    document = to_json(render(an_app().plan()))
    assert (document["guarantee"], document["grouping"]) == ("at-least-once", "partition")
    job = document["jobs"][2]
    assert (job["sideInputs"], job["tables"]) == (["side"], ["t"])
    assert job["tasks"][0]["inputs"] == ["log.all[0]", "log.all[1]", "log.by-k[0]", "log.side[0]"]
    producers = [task["producer"] for job in document["jobs"] for task in job["tasks"]]
    assert len(set(producers)) == len(producers) == 1 + 4 + 2
    spec = document["sourceStreams"]["s"]["streamSpec"]
    assert (spec["eventTime"], spec["latenessMs"], spec["sourceText"]) == ("ts", 5000, 'app.input("s")')
    assert document["tables"]["t"]["sideInputs"] == ["side"]


def test_it_is_json():
    document = to_json(render(an_app().plan()))
    assert json.loads(json.dumps(document)) == document


def test_every_field_of_ours_is_documented():
    import headrace.plan.render as module

    document = to_json(render(an_app().plan()))

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for inner in value.values() for key in keys(inner)}
        if isinstance(value, list):
            return {key for inner in value for key in keys(inner)}
        return set()

    ids = {"t", "s", "j", "side", "rules", "out", "all", "by-k", "k", "ts", "id", "streamId"}
    names = {key for key in keys(document) - ids if "-" not in key}
    undocumented = {
        name
        for name in names - {"systemName", "physicalName", "partitionCount", "opId"}
        if f"``{name}``" not in module.__doc__
    }
    assert undocumented == set()
