"""The messages of queries, byte for byte."""

from __future__ import annotations

import pytest

from headrace.coordinator import messages as q
from headrace.coordinator.messages import ErrorReport, decode, encode
from headrace.core.errors import ProtocolError


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (
            q.TableList(
                app="shop",
                tables=(
                    q.TableFacts(
                        id="prices",
                        kind="local",
                        stage="by-article",
                        key={"article": "String"},
                        values={"euros": {"Decimal": {"precision": 10, "scale": 2}}},
                        tasks=["by-article/0", "by-article/1"],
                        owned_by=["article"],
                        ttl_ms=60_000,
                    ),
                ),
                others={"per-10s": "a window"},
            ),
            b'{"version":1,"app":"shop","tables":[{"id":"prices","kind":"local","stage":"by-article",'
            b'"key":{"article":"String"},"values":{"euros":{"Decimal":{"precision":10,"scale":2}}},'
            b'"tasks":["by-article/0","by-article/1"],"ownedBy":["article"],"ttlMs":60000,"storage":"disk","versionsMs":null}],'
            b'"others":{"per-10s":"a window"}}',
        ),
        (
            q.Ask(table="prices", tasks=["by-article/1"], keys=(b"\x01lamp\x00",), limit_ms=250),
            b'{"version":1,"table":"prices","tasks":["by-article/1"],"keys":["AWxhbXAA"],"low":"","high":"",'
            b'"rows":100,"limitMs":250,"atMs":null,"look":null}',
        ),
        (
            q.Answers(
                answers=[
                    q.TaskAnswer(task="by-article/0", version=7, rows=b"\xff\xff\xff\xff", more=True, last=b"\1"),
                    q.TaskAnswer(task="by-article/1", error=ErrorReport(type="UnavailableError", message="away")),
                ]
            ),
            b'{"version":1,"answers":[{"task":"by-article/0","version":7,"rows":"/////w==","more":true,"last":"AQ==","error":null},'
            b'{"task":"by-article/1","version":null,"rows":"","more":false,"last":"","error":{"type":"UnavailableError",'
            b'"message":"away","hint":null,"fault":"headrace","retry":false,"traceback":""}}]}',
        ),
        (
            q.Listening(container=1, incarnation="u", answer=q.Answer(number=3, answers=[q.TaskAnswer(task="a/0")])),
            b'{"version":1,"container":1,"incarnation":"u","answer":{"number":3,"answers":[{"task":"a/0",'
            b'"version":null,"rows":"","more":false,"last":"","error":null}]}}',
        ),
        (
            q.Questions(
                question=q.Question(number=3, table="prices", tasks=["a/0"], low=b"\x01", high=b"\x02", rows=5)
            ),
            b'{"version":1,"question":{"number":3,"table":"prices","tasks":["a/0"],"keys":[],"low":"AQ==",'
            b'"high":"Ag==","rows":5,"bytesMax":1048576,"atMs":null,"look":null}}',
        ),
        (q.Questions(), b'{"version":1,"question":null}'),
        (
            q.Ask(table="", tasks=["a/0"], look=q.ContainerLook(id="u-1", kind="profile", seconds=5.0)),
            b'{"version":1,"table":"","tasks":["a/0"],"keys":[],"low":"","high":"","rows":100,"limitMs":5000,"atMs":null,'
            b'"look":{"id":"u-1","kind":"profile","step":"","seconds":5.0}}',
        ),
    ],
)
def test_golden_bytes(message, golden):
    assert encode(message) == golden
    assert decode(type(message), golden) == message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"version":2,"table":"t","tasks":[]}', "format 2; this version of Headrace reads 1"),
        (b'{"table":"t","tasks":["a/0"],"keys":["not base64!"]}', "not a message of type Ask"),
        (b'{"tasks":["a/0"]}', "not a message of type Ask"),
    ],
)
def test_refuses(data, text):
    with pytest.raises(ProtocolError, match=text):
        decode(q.Ask, data)
