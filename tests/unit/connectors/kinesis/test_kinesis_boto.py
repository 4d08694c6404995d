"""What boto3's client makes of answers that servers for tests never give: errors, lies, and none at all."""

from __future__ import annotations

import json
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.connectors.kinesis import amazon as boto
from headrace.connectors.kinesis.amazon import BotoKinesis
from headrace.connectors.kinesis.api import OLDEST, Access, IteratorExpired, Position, Put, PutResult, Shard
from headrace.connectors.kinesis.system import open_kinesis_api
from headrace.core.errors import (
    HeadraceError,
    InfrastructureError,
    StreamNotFoundError,
    ThrottledError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cret-key",
    "AWS_SESSION_TOKEN": "s3cret-token",
    "AWS_ACCESS_KEY_ID": "AKIAS3CRET",
}
OPEN = {
    "ShardId": "shardId-000000000000",
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    "SequenceNumberRange": {"StartingSequenceNumber": "1"},
}
CLOSED = OPEN | {"SequenceNumberRange": {"StartingSequenceNumber": "1", "EndingSequenceNumber": "5"}}


class Answers(ThreadingHTTPServer):
    """A server that gives prepared answers in Kinesis's wire format, in order, and keeps the questions."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prepared: deque[tuple[int, dict[str, Any]]] = deque()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def error(self, code: str, message: str = "", status: int = 400) -> None:
        self.prepared.append((status, {"__type": f"com.amazonaws.kinesis#{code}", "message": message}))

    def answer(self, **body: Any) -> None:
        self.prepared.append((200, body))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Answers)
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.headers["X-Amz-Target"].partition(".")[2], question))
        status, body = server.prepared.popleft()
        if body.get("message") == "ECHO":  # as Amazon does: it shows what it has expected to be signed
            body["message"] = f"The Canonical String should have been '{self.headers}'"
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def environment(aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()
    assert not running.prepared, "the client asked less often than the test thought"


@pytest.fixture
def client(server: Answers) -> Iterator[BotoKinesis]:
    found = BotoKinesis("orders", Access(region="eu-central-1", endpoint_url=f"http://127.0.0.1:{server.server_port}"))
    yield found
    found.close()


ITERATOR = "shardId-000000000000 place"


@pytest.mark.parametrize(
    ("code", "status", "wanted", "retry"),
    [
        ("ProvisionedThroughputExceededException", 400, ThrottledError, True),
        ("LimitExceededException", 400, ThrottledError, True),
        ("KMSThrottlingException", 400, ThrottledError, True),
        ("ResourceNotFoundException", 400, StreamNotFoundError, False),
        ("InvalidArgumentException", 400, UsageError, False),
        ("InternalFailure", 500, UnavailableError, True),
        ("ServiceUnavailable", 503, UnavailableError, True),
        ("SomethingNew", 502, UnavailableError, True),
        ("ResourceInUseException", 400, UnavailableError, True),
        ("AccessDeniedException", 400, InfrastructureError, False),
        ("KMSAccessDeniedException", 400, InfrastructureError, False),
        ("ExpiredTokenException", 400, InfrastructureError, False),
        ("SomethingNew", 400, InfrastructureError, False),
    ],
)
def test_each_error_of_kinesis_becomes_one_of_headrace(
    server: Answers, client: BotoKinesis, code: str, status: int, wanted: type[HeadraceError], retry: bool
) -> None:
    server.error(code, "what Amazon says", status)
    with pytest.raises(HeadraceError, match=f"'orders'.*shardId-000000000000.*get_records.*{code}") as caught:
        client.records(ITERATOR, 10)
    assert type(caught.value) is wanted
    assert caught.value.retry == retry
    assert len(server.asked) == 1, "boto3 must not try again by itself: the caller knows how long to wait"


def test_an_expired_iterator_is_the_callers_to_replace(server: Answers, client: BotoKinesis) -> None:
    server.error("ExpiredIteratorException", "Iterator expired.")
    with pytest.raises(IteratorExpired):
        client.records(ITERATOR, 10)


@pytest.mark.parametrize("code", ["InvalidSignatureException", "IncompleteSignatureException", "SomethingNew"])
def test_an_error_never_shows_what_was_signed(server: Answers, client: BotoKinesis, code: str) -> None:
    server.error(code, "ECHO", 403)
    with pytest.raises(InfrastructureError, match="credentials") as caught:
        client.describe()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(client)
    assert [secret for secret in SECRETS.values() if secret in shown] == []
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_what_amazon_says_about_the_call_is_shown(server: Answers, client: BotoKinesis) -> None:
    server.error("AccessDeniedException", "User: someone is not authorized to perform: kinesis:PutRecords")
    with pytest.raises(InfrastructureError, match=r"not authorized to perform: kinesis:PutRecords\n *hint: grant"):
        client.put([Put("key", b"x")])


def test_a_refused_sequence_number_is_of_another_stream(server: Answers, client: BotoKinesis) -> None:
    server.error("InvalidArgumentException", "it did not come from this stream")
    with pytest.raises(TrimmedOffsetError, match="did not come from this stream"):
        client.iterator("shardId-000000000000", Position(7))


def test_a_moment_after_amazons_clock_is_asked_for_as_now(server: Answers, client: BotoKinesis) -> None:
    server.error("InvalidArgumentException", "Timestamp cannot be in the future")
    server.answer(ShardIterator="tip")
    assert client.iterator("shardId-000000000000", Position(time_ms=1_700_000_000_123)) == "shardId-000000000000 tip"
    (_, first), (_, second) = server.asked
    assert (first["Timestamp"], second["ShardIteratorType"]) == (1_700_000_000.123, "LATEST")


@pytest.mark.parametrize(("shard", "believed"), [(CLOSED, True), (OPEN, False)])
def test_an_end_without_children_is_believed_of_a_closed_shard_only(
    server: Answers, client: BotoKinesis, shard: dict[str, Any], believed: bool
) -> None:
    server.answer(Records=[], MillisBehindLatest=0)
    server.answer(Shards=[shard])
    if believed:
        assert client.records(ITERATOR, 10).iterator is None
    else:
        with pytest.raises(UnavailableError, match="but lists it as open"):
            client.records(ITERATOR, 10)


def test_an_end_with_children_is_believed_at_once(server: Answers, client: BotoKinesis) -> None:
    child = {"ShardId": "shardId-000000000001", "ParentShards": [OPEN["ShardId"]], "HashKeyRange": OPEN["HashKeyRange"]}
    server.answer(Records=[], MillisBehindLatest=0, ChildShards=[child])
    assert client.records(ITERATOR, 10).iterator is None


def test_a_list_of_shards_has_several_pages(server: Answers, client: BotoKinesis) -> None:
    parents = {"ParentShardId": "shardId-000000000000", "AdjacentParentShardId": "shardId-000000000009"}
    server.answer(Shards=[CLOSED], NextToken="more")
    server.answer(Shards=[OPEN | parents | {"ShardId": "shardId-000000000010"}])
    assert client.shards() == [
        Shard("shardId-000000000000", 0, 9, (), True),
        Shard("shardId-000000000010", 0, 9, ("shardId-000000000000", "shardId-000000000009"), False),
    ]
    assert server.asked[1] == ("ListShards", {"NextToken": "more", "MaxResults": 1000})


def test_a_list_without_an_end_is_given_up(server: Answers, client: BotoKinesis) -> None:
    for _ in range(100):
        server.answer(Shards=[OPEN], NextToken="more")
    with pytest.raises(InfrastructureError, match="more than 100 shards"):
        client.shards()


def test_some_records_of_a_write_may_fail(server: Answers, client: BotoKinesis) -> None:
    server.answer(
        FailedRecordCount=1,
        Records=[
            {"SequenceNumber": "21", "ShardId": "shardId-000000000000"},
            {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Rate exceeded"},
        ],
    )
    assert client.put([Put("a", b"x"), Put("b", b"y", 5)]) == [
        PutResult("shardId-000000000000", 21),
        PutResult(error="ProvisionedThroughputExceededException: Rate exceeded"),
    ]
    assert [record.get("ExplicitHashKey") for record in server.asked[0][1]["Records"]] == [None, "5"]


def test_a_stream_may_be_named_by_its_arn(server: Answers) -> None:
    arn = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"
    client = BotoKinesis(arn, Access(region="eu-central-1", endpoint_url=f"http://127.0.0.1:{server.server_port}"))
    server.answer(Shards=[])
    client.shards()
    assert server.asked == [("ListShards", {"StreamARN": arn, "MaxResults": 1000})]
    client.close()


def refuse(listening: socket.socket) -> None:
    """Nobody listens any more."""
    listening.close()


def keep_silent(listening: socket.socket) -> None:
    """Connections wait in the queue, and nobody answers."""
    listening.listen()


@pytest.mark.parametrize("behave", [refuse, keep_silent])
def test_a_server_that_does_not_answer_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, behave: Callable[[socket.socket], None]
) -> None:
    monkeypatch.setattr(boto, "_ANSWER_S", 0.2)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        behave(listening)
        client = BotoKinesis("orders", Access(region="eu-central-1", endpoint_url=f"http://127.0.0.1:{port}"))
        with pytest.raises(UnavailableError, match="no answer from Kinesis"):
            client.iterator("shardId-000000000000", OLDEST)
        client.close()


def test_missing_credentials_are_named(server: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.delenv(name)
    client = BotoKinesis("orders", Access(region="eu-central-1", endpoint_url=f"http://127.0.0.1:{server.server_port}"))
    with pytest.raises(InfrastructureError, match=r"(?s)NoCredentialsError.*AWS_PROFILE"):
        client.describe()
    client.close()


def test_a_missing_region_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InfrastructureError, match=r"(?s)no region.*region="):
        BotoKinesis("orders", Access())


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(HeadraceError, match="localhost 4566"):
        BotoKinesis("orders", Access(region="eu-central-1", endpoint_url="localhost 4566"))


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headrace.connectors.kinesis.amazon")
    monkeypatch.delattr("headrace.connectors.kinesis.amazon")
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(InfrastructureError, match=r'(?s)boto3.*pip install "headrace\[kinesis\]"'):
        open_kinesis_api("orders", Access())
