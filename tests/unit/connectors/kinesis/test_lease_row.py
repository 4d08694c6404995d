"""Rows as KCL 3.5 writes them. The golden items are what its DynamoDBLeaseSerializer makes of a lease."""

from __future__ import annotations

import pytest

from headrace.connectors.kinesis.api import DONE, EXPECTED, OLDEST, Position, reading, released
from headrace.connectors.kinesis.leases import Checkpoint, Item, Lease, checkpoint_of, parse_lease, takeover
from headrace.core.errors import InfrastructureError

SEQUENCE = "49590338271490256608559692538361571095921575989136588898"

NEW: Item = {
    "leaseKey": {"S": "shardId-000000000006"},
    "leaseCounter": {"N": "0"},
    "leaseOwner": {"S": "orders/0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "parentShardId": {"SS": ["shardId-000000000000", "shardId-000000000001"]},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "340282366920938463463374607431768211455"},
    "entityType": {"S": "LEASE"},
}
"""A lease that was just created."""

IN_USE: Item = {
    "leaseKey": {"S": "shardId-000000000007"},
    "leaseCounter": {"N": "8812"},
    "leaseOwner": {"S": "ip-10-0-0-7:5b1d"},
    "checkpointOwner": {"S": "ip-10-0-0-6:77aa"},
    "ownerSwitchesSinceCheckpoint": {"N": "2"},
    "checkpoint": {"S": SEQUENCE},
    "checkpointSubSequenceNumber": {"N": "3"},
    "pendingCheckpoint": {"S": SEQUENCE},
    "pendingCheckpointSubSequenceNumber": {"N": "5"},
    "pendingCheckpointState": {"B": b"\x00\x01"},
    "childShardIds": {"SS": ["shardId-000000000010", "shardId-000000000009"]},
    "throughputKBps": {"N": "12.345678"},
    "entityType": {"S": "LEASE"},
}
"""A lease that is being handed over, with everything that a worker may have written."""

OLD: Item = {
    "leaseKey": {"S": "shardId-000000000008"},
    "leaseCounter": {"N": "17"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "SHARD_END"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "parentShardId": {"SS": ["shardId-000000000002"]},
}
"""A finished lease that nobody owns, from before there were kinds of rows and ranges of hashes."""


def test_a_new_lease_is_written_as_kcl_writes_it() -> None:
    lease = Lease(
        "shardId-000000000006",
        Checkpoint("TRIM_HORIZON"),
        "orders/0",
        parents=("shardId-000000000001", "shardId-000000000000"),
        hashes=(0, 2**128 - 1),
    )
    assert lease.item() == NEW


def test_rows_of_kcl_are_read() -> None:
    used = parse_lease(IN_USE)
    assert used == Lease(
        "shardId-000000000007",
        Checkpoint(SEQUENCE, 3),
        "ip-10-0-0-7:5b1d",
        8812,
        2,
        children=("shardId-000000000009", "shardId-000000000010"),
        checkpoint_owner="ip-10-0-0-6:77aa",
    )
    assert used.holder == "ip-10-0-0-6:77aa"
    assert parse_lease(OLD) == Lease(
        "shardId-000000000008", Checkpoint("SHARD_END"), None, 17, parents=("shardId-000000000002",)
    )


@pytest.mark.parametrize("item", [NEW, IN_USE], ids=["new", "in use"])
def test_what_is_read_is_written_the_same(item: Item) -> None:
    lease = parse_lease(item)
    assert lease is not None
    again = lease.item()
    assert parse_lease(again) == lease
    ignored = {name for name in item if name.startswith("pending")} | {"throughputKBps"}
    assert again.keys() == item.keys() - ignored


@pytest.mark.parametrize(
    "kind", ["LEADER", "WORKER_METRIC_STATS", "STREAM", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "OF_KCL_4"]
)
def test_other_kinds_of_rows_are_none(kind: str) -> None:
    assert parse_lease({"leaseKey": {"S": "Leader"}, "entityType": {"S": kind}}) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"checkpoint": {"S": "SOON"}}, "checkpoint is {'S': 'SOON'}"),
        ({"checkpoint": {"N": "5"}}, "checkpoint is {'N': '5'}"),
        ({"checkpoint": {}}, "checkpoint is missing"),
        ({"leaseCounter": {"S": "many"}}, "leaseCounter is {'S': 'many'}"),
        ({"leaseCounter": {}}, "leaseCounter is missing"),
        ({"parentShardId": {"S": "p"}}, "parentShardId is {'S': 'p'}"),
        ({"streamName": {"S": "orders"}}, "several streams"),
    ],
)
def test_unreadable_rows_are_named(wrong: Item, said: str) -> None:
    with pytest.raises(InfrastructureError) as caught:
        parse_lease(NEW | wrong)
    assert said in caught.value.message
    assert "shardId-000000000006" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("state", "checkpoint"),
    [
        (reading(OLDEST), Checkpoint("TRIM_HORIZON")),
        (reading(Position(time_ms=1_700_000_000_000)), Checkpoint("AT_TIMESTAMP")),
        (reading(Position(int(SEQUENCE), 3)), Checkpoint(SEQUENCE, 3)),
        (reading(Position(int(SEQUENCE))), Checkpoint(SEQUENCE, 2**63 - 1)),
        (released(Position(77, 0), 1), Checkpoint("77", 0)),
        (DONE, Checkpoint("SHARD_END")),
    ],
    ids=str,
)
def test_states_have_checkpoints(state: object, checkpoint: Checkpoint) -> None:
    assert checkpoint_of(state) == checkpoint  # type: ignore[arg-type]


def test_an_expected_shard_has_none() -> None:
    with pytest.raises(ValueError, match="expected"):
        checkpoint_of(EXPECTED)


START = Position(time_ms=1_700_000_000_000)


@pytest.mark.parametrize(
    ("checkpoint", "position"),
    [
        (Checkpoint("TRIM_HORIZON"), OLDEST),
        (Checkpoint("LATEST"), START),
        (Checkpoint("AT_TIMESTAMP"), START),
        (Checkpoint(SEQUENCE), Position(int(SEQUENCE), 0)),
        (Checkpoint(SEQUENCE, 3), Position(int(SEQUENCE), 3)),
        (Checkpoint(SEQUENCE, 2**63 - 1), Position(int(SEQUENCE))),
    ],
)
def test_an_app_goes_on_where_kcl_has_stopped(checkpoint: Checkpoint, position: Position) -> None:
    assert takeover([Lease("s", checkpoint)], START) == {"s": reading(position)}


def test_finished_shards_stay_finished() -> None:
    assert takeover([Lease("s", Checkpoint("SHARD_END"))], START) == {"s": DONE}


@pytest.mark.parametrize("position", [Position(5), Position(5, 0), Position(5, 9), OLDEST])
def test_a_position_comes_back_from_its_checkpoint(position: Position) -> None:
    assert checkpoint_of(reading(position)).position(START) == position
