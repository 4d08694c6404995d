"""What an app that reads Kinesis says when something is wrong, and what it does about records that can't be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_thread import running
from kinesis_program import ORDERS, REGION, put, shop

import headrace as hr
from chaos.kinesis_server import KinesisServer
from headrace.connectors.kinesis.api import Put
from headrace.core.errors import HeadraceError
from servers.kinesis_streams import StreamOnServer
from servers.moto import ENVIRONMENT

SECRETS = [ENVIRONMENT[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def orders(kinesis_local: KinesisServer) -> Iterator[StreamOnServer]:
    stream = StreamOnServer(kinesis_local, 2)
    yield stream
    stream.close()


def said_by(app: hr.App) -> str:
    """The error with which the app doesn't start. It has no credentials in it."""
    with pytest.raises(HeadraceError) as caught:
        app.run(local=True, progress=False)
    return checked(caught.value)


def checked(error: BaseException) -> str:
    said = str(error)
    assert not any(secret in said for secret in SECRETS)
    return " ".join(said.split())


def test_what_is_wrong_with_the_place_of_a_stream(
    kinesis_local: KinesisServer, orders: StreamOnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = said_by(shop(tmp_path, "nothing", endpoint_url=kinesis_local.endpoint))
    assert "app.input(" in said
    assert "doesn't exist" in said
    assert f"check the name 'nothing', the region {REGION} and the account, or create it" in said
    said = said_by(shop(tmp_path, orders.name, endpoint_url="http://127.0.0.1:9"))
    assert "no answer from Kinesis at http://127.0.0.1:9 or from the service that issues credentials" in said
    assert "hint: check the region, endpoint_url= and proxy=" in said
    app = hr.App("shop", home=tmp_path)
    app.input("orders", ORDERS, system=hr.io.kinesis("orders")).send_to(app.output("copies"))
    assert "no region is configured hint: set region=, or the variable AWS_DEFAULT_REGION" in said_by(app)
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    said = said_by(shop(tmp_path, orders.name, endpoint_url=kinesis_local.endpoint))
    assert f"the stream '{orders.name}' of Kinesis" in said
    assert "boto3 finds no usable credentials hint: check the credentials" in said


def test_a_stream_that_is_deleted_and_created_again(
    kinesis_local: KinesisServer, orders: StreamOnServer, tmp_path: Path
) -> None:
    app = shop(tmp_path, orders.name, endpoint_url=kinesis_local.endpoint)
    with running(app, tmp_path) as run:
        put(orders.api, range(10))
        run.until(lambda: len(run.numbers()) == 10)
        orders.delete()
        run.until_failed()
    said = checked(run.errors[0])
    assert f"the Kinesis stream '{orders.name}' doesn't exist any more" in said
    assert f"the stream '{orders.name}' of Kinesis: describe_stream_summary: ResourceNotFoundException" in said_by(app)
    again = StreamOnServer(kinesis_local, 1, name=orders.name)
    said = said_by(app)
    assert "isn't the one that the app read before" in said
    again.delete()
    again.close()


@pytest.mark.parametrize("policy", ["skip", "dead_letter", "fail"])
def test_records_that_are_no_json(
    kinesis_local: KinesisServer, orders: StreamOnServer, tmp_path: Path, policy: str
) -> None:
    app = hr.App("shop", home=tmp_path, checkpoint_interval="100ms")
    letters = {"dead_letter": app.output("bad-orders")} if policy == "dead_letter" else {}
    source = hr.io.kinesis(orders.name, region=REGION, endpoint_url=kinesis_local.endpoint)
    app.input("orders", ORDERS, system=source, on_error=policy, **letters).send_to(app.output("copies"))
    put(orders.api, range(3))
    (refused,) = orders.api.put([Put("ann", b'{"member": "ann", "n": ')])
    put(orders.api, range(3, 6))
    with running(app, tmp_path) as run:
        if policy == "fail":
            run.until_failed()
        else:
            run.until(lambda: run.numbers() == list(range(6)))
    if policy == "fail":
        said = checked(run.errors[0])
        assert f"{orders.name}, {refused.shard}, record {refused.sequence}" in said
        return
    assert run.errors == []
    if policy == "dead_letter":
        letters = run.committed("bad-orders")
        assert letters is not None
        (letter,) = letters.to_dicts()
        assert f"{orders.name}, {refused.shard}, record {refused.sequence}" in letter["reason"]
