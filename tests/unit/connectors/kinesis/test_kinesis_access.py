"""How Amazon is reached, for each input by itself: profiles, roles, proxies and timeouts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3.session
import pytest
from slot_reader import Reader, put, stream
from test_kinesis_boto import Answers, server  # noqa: F401 - a fixture

from headrace.connectors.kinesis.amazon import BotoKinesis
from headrace.connectors.kinesis.api import Access, Options
from headrace.connectors.kinesis.feed import Pace
from headrace.connectors.kinesis.lease_mirror import dynamo_table
from headrace.connectors.kinesis.system import open_kinesis
from headrace.core.errors import HeadraceError, InfrastructureError, StreamNotFoundError, UnavailableError
from headrace.core.secrets import SecretPlace
from servers.moto import ENVIRONMENT, MotoServer

ROLE = "arn:aws:iam::{}:role/reader"
OURS, THEIRS = "111111111111", "222222222222"


@pytest.fixture
def accounts(moto: MotoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MotoServer]:
    """Two accounts of Amazon with a stream each, which is named after it; a profile for each of them."""
    config = tmp_path / "config"
    for account in (OURS, THEIRS):
        with config.open("a") as file:
            file.write(f"[profile p{account}]\nrole_arn = {ROLE.format(account)}\nsource_profile = source\n\n")
        sts = boto3.session.Session().client("sts", region_name=moto.region, endpoint_url=moto.endpoint)
        made = sts.assume_role(RoleArn=ROLE.format(account), RoleSessionName="tests")["Credentials"]
        kinesis = boto3.session.Session().client(
            "kinesis",
            region_name=moto.region,
            endpoint_url=moto.endpoint,
            aws_access_key_id=made["AccessKeyId"],
            aws_secret_access_key=made["SecretAccessKey"],
            aws_session_token=made["SessionToken"],
        )
        if f"of-{account}" not in kinesis.list_streams()["StreamNames"]:
            kinesis.create_stream(StreamName=f"of-{account}", ShardCount=1)
        kinesis.close()
        sts.close()
    with config.open("a") as file:
        file.write("[profile source]\naws_access_key_id = AKIASOURCE\naws_secret_access_key = s3cret\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.endpoint)
    yield moto


def reads(moto: MotoServer, account: str, **access: str) -> bool:
    """Whether a client of an input finds the stream of an account."""
    given = {"stream": f"of-{account}", "region": moto.region, "endpoint_url": moto.endpoint, **access}
    with closing(open_kinesis("in", given)._open()) as api:
        try:
            return api.describe().open_shards == 1
        except StreamNotFoundError:
            return False


def test_each_input_has_its_own_profile(accounts: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert [reads(accounts, OURS, profile=f"p{account}") for account in (OURS, THEIRS)] == [True, False]
    assert [reads(accounts, THEIRS, profile=f"p{account}") for account in (OURS, THEIRS)] == [False, True]


def test_each_input_has_its_own_role(accounts: MotoServer) -> None:
    assert [reads(accounts, OURS, role=ROLE.format(account)) for account in (OURS, THEIRS)] == [True, False]
    assert [reads(accounts, THEIRS, role=ROLE.format(account)) for account in (OURS, THEIRS)] == [False, True]
    assert not reads(accounts, OURS), "without a role it's the account of the credentials"


def test_the_lease_table_is_reached_in_the_same_way(accounts: MotoServer) -> None:
    wait = threading.Event().wait
    access = Access(region=accounts.region, endpoint_url=accounts.endpoint, role=ROLE.format(OURS))
    with closing(dynamo_table("leases-of-a-role", access, wait=wait)) as table:
        table.ensure()
    client = boto3.session.Session().client("dynamodb", region_name=accounts.region, endpoint_url=accounts.endpoint)
    with closing(client):
        assert "leases-of-a-role" not in client.list_tables()["TableNames"]


def test_a_profile_that_is_missing_is_named() -> None:
    with pytest.raises(InfrastructureError, match=r"(?s)ProfileNotFound: boto3 finds no usable credentials.*profile="):
        BotoKinesis("orders", Access(region="eu-west-1", profile="shop"))


class _Denying(BaseHTTPRequestHandler):
    """STS, as it refuses."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        why = f"<Code>AccessDenied</Code><Message>{self.headers}</Message>"
        body = f"<ErrorResponse><Error><Type>Sender</Type>{why}</Error></ErrorResponse>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("answers", "message", "retry"),
    [
        (True, "the role can't be assumed: STS answers AccessDenied", False),
        (False, "no answer from Kinesis at http://127.0.0.1:9 or from the service that issues credentials", True),
    ],
)
def test_a_role_that_cannot_be_assumed_is_named(
    aws_environment: None, monkeypatch: pytest.MonkeyPatch, answers: bool, message: str, retry: bool
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Denying) as sts:
        thread = threading.Thread(target=sts.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{sts.server_port}" if answers else "http://127.0.0.1:9"
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", address)
        access = Access(region="eu-west-1", endpoint_url="http://127.0.0.1:9", role=ROLE.format(OURS))
        with closing(BotoKinesis("orders", access)) as client, pytest.raises(HeadraceError, match=message) as caught:
            client.describe()
        sts.shutdown()
        thread.join()
    assert caught.value.retry is retry
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert ENVIRONMENT["AWS_ACCESS_KEY_ID"] not in str(caught.value)
    assert ("trust policy" in (caught.value.hint or "")) is answers


@pytest.mark.parametrize("secret", [False, True])
def test_calls_go_through_a_proxy(
    server: Answers,  # noqa: F811
    aws_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    secret: bool,
) -> None:
    proxy = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("PROXY_URL", proxy.replace("//", "//x:pa55word@"))
    access = Access(
        region="eu-west-1",
        endpoint_url="http://example.com",
        proxy=SecretPlace("env", "PROXY_URL") if secret else proxy,
    )
    server.answer(Shards=[])
    with closing(BotoKinesis("orders", access)) as client:
        assert client.shards() == []
    assert server.asked == [("ListShards", {"StreamName": "orders", "MaxResults": 1000})]
    assert "pa55word" not in repr(access)


@pytest.mark.parametrize("url", ["pa55word", "http://x:pa55word@127.0.0.1:9"])
def test_no_error_shows_the_password_of_a_proxy(
    aws_environment: None, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("PROXY_URL", url)
    access = Access(
        region="eu-west-1",
        endpoint_url="http://example.com",
        proxy=SecretPlace("env", "PROXY_URL"),
        connect_timeout_ms=500,
    )
    with pytest.raises(InfrastructureError, match="prox") as caught, closing(BotoKinesis("orders", access)) as client:
        client.shards()
    assert "pa55word" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"


def test_a_call_takes_no_longer_than_it_may(aws_environment: None) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        access = Access(region="eu-west-1", endpoint_url=endpoint, connect_timeout_ms=100, read_timeout_ms=200)
        with closing(BotoKinesis("orders", access)) as client, pytest.raises(UnavailableError):
            began = time.monotonic()
            client.describe()
    assert time.monotonic() - began < 3


def test_the_options_of_an_input_set_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    kinesis, clock = stream()
    put(kinesis, 0, *range(10))
    limits: list[int] = []
    records = kinesis.records
    monkeypatch.setattr(kinesis, "records", lambda iterator, limit: (limits.append(limit), records(iterator, limit))[1])
    reader = Reader(kinesis, clock, pace=Pace(5000, 5000, 3)).begin({}).order(s0="READ TRIM_HORIZON")
    times = []
    for _ in range(30):
        before = len(limits)
        reader.poll()
        times += [clock.monotonic_ms()] * (len(limits) - before)
        clock.advance(1000)
    assert reader.numbers["shardId-000000000000"] == [*range(10)]
    assert set(limits) == {3}
    assert {after - before for before, after in pairwise(times)} == {5000}


def test_what_an_input_says_arrives_at_its_clients() -> None:
    options = Options.of(
        "in",
        {
            "stream": "orders",
            "region": "eu-west-1",
            "profile": "shop",
            "role": ROLE,
            "proxy": {"env": "PROXY_URL"},
            "connect_timeout_ms": 1,
            "read_timeout_ms": 2,
        },
    )
    access = Access(**{one.name: getattr(options, one.name) for one in fields(Access)})
    assert access == Access(
        region="eu-west-1",
        profile="shop",
        role=ROLE,
        proxy=SecretPlace("env", "PROXY_URL"),
        connect_timeout_ms=1,
        read_timeout_ms=2,
    )
