"""A whole app shows its progress in a lease table of DynamoDB, and goes on where an application of KCL has stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3.session
import pytest
from in_thread import running
from kinesis_program import order, put, shop

import headrace as hr
from chaos.kinesis_server import KinesisServer
from headrace.connectors.kinesis.api import OLDEST, parse_state
from headrace.connectors.kinesis.leases import Checkpoint, Lease, parse_lease
from headrace.core.errors import LeaseHeldError
from servers.kinesis_streams import StreamOnServer
from servers.moto import MotoServer

Row = dict[str, dict[str, Any]]


class Table:
    """A lease table, as others see it."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name

    def create(self, *leases: Lease) -> None:
        """Have it, as another application left it."""
        self.client.create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        for lease in leases:
            self.client.put_item(TableName=self.name, Item=lease.item())

    def renew(self, shard: str) -> None:
        """Be alive, as an application that holds this lease."""
        self.client.update_item(
            TableName=self.name,
            Key={"leaseKey": {"S": shard}},
            UpdateExpression="ADD leaseCounter :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )

    def rows(self) -> dict[str, Row]:
        """All rows, by shard; none if there is no table."""
        try:
            found = self.client.scan(TableName=self.name, ConsistentRead=True)["Items"]
        except self.client.exceptions.ResourceNotFoundException:
            return {}
        return {row["leaseKey"]["S"]: row for row in found}


@pytest.fixture
def orders(kinesis_local: KinesisServer, moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamOnServer]:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", kinesis_local.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", moto.endpoint)
    stream = StreamOnServer(kinesis_local, 2)
    yield stream
    stream.delete()
    stream.close()


@pytest.fixture
def table(orders: StreamOnServer, moto: MotoServer) -> Iterator[Table]:
    client = boto3.session.Session().client("dynamodb", region_name=moto.region, endpoint_url=moto.endpoint)
    yield Table(client, f"leases-of-{orders.name}")
    client.close()


def test_rows_look_as_those_of_kcl_and_follow_commits(orders: StreamOnServer, table: Table, tmp_path: Path) -> None:
    with running(shop(tmp_path, orders.name, lease_table=table.name), tmp_path) as run:

        def committed() -> dict[str, str]:
            status = run.status()
            slots = [] if status is None else [slot for task in status.tasks for slot in task.slots.values()]
            return {shard: text for slot in slots for shard, text in slot.shards.items()}

        def follows() -> bool:
            """No row is ahead of what was committed when it was read; return whether all are there."""
            leases = [lease for row in table.rows().values() if (lease := parse_lease(row)) is not None]
            rows = {lease.shard: lease.checkpoint.position(OLDEST) for lease in leases}
            states = committed()
            assert all(rows[shard].order <= parse_state(states[shard]).position.order for shard in rows)
            return bool(rows) and {shard: str(position) for shard, position in rows.items()} == states

        for first in range(0, 60, 20):
            put(orders.api, range(first, first + 20))
            run.until(lambda first=first: len(run.numbers()) == first + 20)
            follows()
        run.until(follows)
        rows = table.rows()
        shards = {shard.id: shard for shard in orders.api.shards()}
        assert rows.keys() == shards.keys()
        for shard, row in rows.items():
            assert {name: next(iter(value)) for name, value in row.items()} == {
                "leaseKey": "S",
                "leaseOwner": "S",
                "leaseCounter": "N",
                "ownerSwitchesSinceCheckpoint": "N",
                "checkpoint": "S",
                "checkpointSubSequenceNumber": "N",
                "startingHashKey": "S",
                "endingHashKey": "S",
                "entityType": "S",
                "headraceCheckpoint": "S",
            }
            assert row["leaseOwner"]["S"].startswith("shop/orders/")
            assert (row["startingHashKey"]["S"], row["endingHashKey"]["S"]) == (
                str(shards[shard].first),
                str(shards[shard].last),
            )
        last = {result.shard: str(result.sequence) for result in orders.api.put([order(n) for n in range(60, 80)])}
        run.until(lambda: len(run.numbers()) == 80)
    assert run.errors == []
    after = table.rows()
    assert all("leaseOwner" not in row for row in after.values())
    assert {shard: row["checkpoint"]["S"] for shard, row in after.items()} == last


def test_an_app_goes_on_where_an_application_of_kcl_has_stopped(
    orders: StreamOnServer, table: Table, tmp_path: Path
) -> None:
    shards = orders.api.shards()
    done = {result.shard: result.sequence for result in orders.api.put([order(n) for n in range(30)])}
    put(orders.api, range(30, 50))
    table.create(
        *(Lease(shard.id, Checkpoint(str(done[shard.id])), hashes=(shard.first, shard.last)) for shard in shards)
    )
    with running(shop(tmp_path, orders.name, lease_table=table.name), tmp_path) as run:
        run.until(lambda: len(run.numbers()) >= 20)
        put(orders.api, range(50, 60))
        run.until(lambda: len(run.numbers()) >= 30)
        assert run.numbers() == list(range(30, 60))
    assert run.errors == []


@pytest.mark.parametrize("lease_ahead", ["stop", "continue", "repeat"])
def test_an_app_finds_that_an_application_of_kcl_has_read_on(
    orders: StreamOnServer, table: Table, tmp_path: Path, lease_ahead: str
) -> None:
    def app() -> hr.App:
        return shop(tmp_path, orders.name, lease_table=table.name, lease_ahead=lease_ahead)

    put(orders.api, range(30))
    with running(app(), tmp_path) as run:
        run.until(lambda: run.numbers() == list(range(30)))
    for result in orders.api.put([order(n) for n in range(30, 60)]):
        table.client.update_item(
            TableName=table.name,
            Key={"leaseKey": {"S": result.shard}},
            UpdateExpression="SET checkpoint = :at, checkpointSubSequenceNumber = :zero ADD leaseCounter :one",
            ExpressionAttributeValues={":at": {"S": str(result.sequence)}, ":zero": {"N": "0"}, ":one": {"N": "1"}},
        )
    put(orders.api, range(60, 70))
    after = {"stop": 30, "continue": 60, "repeat": 30}[lease_ahead]
    with running(app(), tmp_path) as run:
        if lease_ahead == "stop":
            run.until_failed()
        else:
            run.until(lambda: run.numbers() == [*range(30), *range(after, 70)])
    if lease_ahead == "stop":
        assert f"lease table {table.name}: another application has continued" in str(run.errors[0])
        assert run.numbers() == list(range(30))
    else:
        assert run.errors == []


def test_an_application_that_is_alive_keeps_its_leases(orders: StreamOnServer, table: Table, tmp_path: Path) -> None:
    shard = orders.api.shards()[0].id
    table.create(Lease(shard, Checkpoint("TRIM_HORIZON"), "java-worker-7"))
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.2):
            table.renew(shard)

    alive = threading.Thread(target=live, name="java-worker-7")
    alive.start()
    try:
        with pytest.raises(LeaseHeldError) as caught:
            shop(tmp_path, orders.name, lease_table=table.name).run(local=True, progress=False)
    finally:
        over.set()
        alive.join()
    assert f"lease table {table.name}: the lease of {shard} belongs to java-worker-7, which is alive" in str(
        caught.value
    )
    assert caught.value.hint is not None
    assert "stop that application" in caught.value.hint
    assert not (tmp_path / "kinesis").exists()  # nothing is decided: the next run may find it stopped
