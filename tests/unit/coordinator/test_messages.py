"""The wire format, byte for byte, and what is refused."""

from __future__ import annotations

import pytest

from headrace.coordinator import messages as m
from headrace.core.errors import DeclarationError, FencedError, ProtocolError, StorageError, UserFunctionError


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (
            m.Register(container=1, attempt=0, host="h", pid=7, incarnation="u"),
            b'{"version":1,"container":1,"attempt":0,"host":"h","pid":7,"incarnation":"u","left":{}}',
        ),
        (
            m.Assignment(tasks=[m.TaskGrant(name="a/0", generation=3)], heartbeat_ms=500),
            b'{"version":1,"tasks":[{"version":1,"name":"a/0","generation":3,"orders":[],"silent":false}],"heartbeatMs":500,"traced":false,'
            b'"orders":{"version":1,"drain":false,"stop":false,"pauseMs":0,"restart":{},"cut":null,"slots":{},"keep":[]},"superseded":null}',
        ),
        (
            m.Heartbeat(
                container=0,
                incarnation="u",
                sent_ms=1.5,
                tasks=[
                    m.TaskStatus(
                        name="a/0",
                        state="running",
                        rows_in=4,
                        inputs={"log.x[0]": m.InputStatus(position=9, lag=1)},
                        checkpoint=m.CheckpointStatus(version=2, age_ms=3, duration_ms=0.5),
                        series=[m.Series(name="n", labels={"a": "b"}, value=1.5, buckets=[1])],
                    )
                ],
                logs=[
                    m.LogLine(number=7, at_ms=8, level=30, logger="shop", message="slow", fields={"task": "a/0"}),
                ],
                logs_dropped=1,
            ),
            b'{"version":1,"container":0,"incarnation":"u","sentMs":1.5,"tasks":[{"name":"a/0","state":"running",'
            b'"generation":0,"watermark":null,"idle":false,"rowsIn":4,"rowsOut":0,"bytesIn":0,"lag":null,"inputs":{"log.x[0]":'
            b'{"position":9,"lag":1,"watermark":null,"ended":false,"idle":false,"holds":false,"heldBy":""}},"outputs":{},"counters":{},'
            b'"checkpoint":{"version":2,"ageMs":3,"durationMs":0.5},"waitsFor":{},"overdueMs":0,"earlyBytes":0,'
            b'"earlyStreamBytes":0,"blockedBy":null,"holdups":[],"uptimeMs":0,"sideInputsPercent":null,'
            b'"caughtUp":null,"cut":null,"slots":{},"warnings":[],"commits":[],"series":[{"name":"n","kind":"counter",'
            b'"labels":{"a":"b"},"value":1.5,"buckets":[1],"bounds":[],"help":""}]}],'
            b'"cpuMs":0,"rssBytes":0,"wantsShutdown":false,"logs":[{"number":7,"atMs":8,"level":30,"logger":"shop",'
            b'"message":"slow","fields":{"task":"a/0"}}],"logsDropped":1,"standbys":[]}',
        ),
        (
            m.GenerationRequest(container=0, incarnation="u", task="a/0"),
            b'{"version":1,"container":0,"incarnation":"u","task":"a/0"}',
        ),
        (
            m.Finished(container=0, incarnation="u", tasks=["a/0"]),
            b'{"version":1,"container":0,"incarnation":"u","tasks":["a/0"]}',
        ),
    ],
)
def test_golden_bytes(message, golden):
    assert m.encode(message) == golden
    assert m.decode(type(message), golden) == message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a message of type Orders"),
        (b"[1]", "not a message of type Orders"),
        (b'{"drain":"yes"}', r"Expected `bool`"),
        (b'{"version":2}', "format 2; this version of Headrace reads 1"),
    ],
)
def test_refuses(data, text):
    with pytest.raises(ProtocolError, match=text):
        m.decode(m.Orders, data)


def test_ignores_fields_it_doesnt_know():
    assert m.decode(m.Orders, b'{"drain":true,"later":1}') == m.Orders(drain=True)


@pytest.mark.parametrize(
    ("error", "fault", "retry", "fatal"),
    [
        (DeclarationError("x", hint="y"), "user", False, True),
        (UserFunctionError("x"), "user", False, True),
        (StorageError("x"), "environment", True, False),
        (FencedError("x"), "environment", False, False),
        (ZeroDivisionError("x"), "headrace", True, False),
    ],
)
def test_reports_errors(error, fault, retry, fatal):
    try:
        raise error
    except Exception as caught:
        report = m.ErrorReport.of(caught)
    assert (report.type, report.message) == (type(error).__name__, "x")
    assert (report.fault, report.retry, report.fatal) == (fault, retry, fatal)
    assert report.hint == getattr(error, "hint", None)
    assert "test_reports_errors" in report.traceback
    assert m.ErrorReport.of(error, with_traceback=False).traceback == ""
