"""What each lease table does with KCL's writes: their conditions, and what they leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.connectors.kinesis import leases as to
from headrace.connectors.kinesis.leases import Checkpoint, Item, Lease, LeaseTable, Written
from servers.lease_tables import Leases

SHARD = "shardId-000000000001"
NEW = Lease(SHARD, Checkpoint("TRIM_HORIZON"), "a", parents=("p1", "p2"), hashes=(0, 2**128 - 1))

LEADER: Item = {
    "leaseKey": {"S": "Leader"},
    "entityType": {"S": "LEADER"},
    "leaderHostName": {"S": "h"},
    "leaseCounter": {"N": "1"},
}


@pytest.fixture
def table(leases: Leases) -> Iterator[LeaseTable]:
    found = leases.table()
    found.ensure()
    yield found
    found.close()


def made(written: Written) -> Lease:
    assert written.made
    assert written.lease is not None
    return written.lease


def test_a_new_row_has_everything(leases: Leases, table: LeaseTable) -> None:
    assert made(table.write(to.create(NEW))) == NEW
    assert leases.item(SHARD) == {
        "leaseKey": SHARD,
        "leaseOwner": "a",
        "leaseCounter": "0",
        "ownerSwitchesSinceCheckpoint": "0",
        "checkpoint": "TRIM_HORIZON",
        "checkpointSubSequenceNumber": "0",
        "parentShardId": ["p1", "p2"],
        "startingHashKey": "0",
        "endingHashKey": str(2**128 - 1),
        "entityType": "LEASE",
    }
    assert table.leases() == [NEW]


def test_a_row_is_created_once(table: LeaseTable) -> None:
    table.write(to.create(NEW))
    again = table.write(to.create(Lease(SHARD, Checkpoint("7"), "b")))
    assert again == Written(False, NEW)


def test_only_who_has_seen_the_counter_may_write(table: LeaseTable) -> None:
    lease = made(table.write(to.create(NEW)))
    renewed = made(table.write(to.renew(lease)))
    assert renewed.counter == 1
    for late in (to.renew(lease), to.take(lease, "b"), to.checkpoint(lease, Checkpoint("9")), to.delete(lease)):
        assert table.write(late) == Written(False, renewed), late


def test_rows_that_are_gone_are_not_written(leases: Leases, table: LeaseTable) -> None:
    for late in (to.renew(NEW), to.take(NEW, "b"), to.checkpoint(NEW, Checkpoint("9")), to.evict(NEW), to.delete(NEW)):
        assert table.write(late) == Written(False, None), late
    assert table.write(to.set_children(NEW, ["c"])) == Written(False, None)
    assert leases.items() == {}


def test_taking_changes_the_owner_and_counts_the_switch(leases: Leases, table: LeaseTable) -> None:
    lease = made(table.write(to.create(NEW)))
    taken = made(table.write(to.take(lease, "b")))
    assert (taken.owner, taken.counter, taken.switches) == ("b", 1, 1)
    assert made(table.write(to.take(taken, "b"))).switches == 1
    free = made(table.write(to.evict(made(table.write(to.renew(table.leases()[0]))))))
    assert made(table.write(to.take(free, "c"))).switches == 1, "it had no owner"
    assert leases.item(SHARD)["leaseOwner"] == "c"


def test_a_checkpoint_ends_what_was_pending(leases: Leases, table: LeaseTable) -> None:
    pending: Item = {
        "pendingCheckpoint": {"S": "12"},
        "pendingCheckpointSubSequenceNumber": {"N": "0"},
        "pendingCheckpointState": {"B": b"x"},
        "throughputKBps": {"N": "1.25"},
        "ofSomebody": {"S": "else"},
    }
    leases.put(NEW.item() | pending | {"ownerSwitchesSinceCheckpoint": {"N": "3"}})
    done = made(table.write(to.checkpoint(NEW, Checkpoint("12", 4))))
    assert (done.checkpoint, done.counter, done.switches) == (Checkpoint("12", 4), 1, 0)
    left = leases.item(SHARD)
    assert not left.keys() & {name for name in pending if name.startswith("pending")}
    assert (left["throughputKBps"], left["ofSomebody"]) == ("1.25", "else")


def test_naming_children_does_not_move_the_counter(table: LeaseTable) -> None:
    lease = made(table.write(to.create(NEW)))
    named = made(table.write(to.set_children(lease, ["c2", "c1"])))
    assert (named.children, named.counter) == (("c1", "c2"), 0)
    assert table.write(to.renew(lease)).made


def test_a_row_that_is_handed_over_is_not_renewed(leases: Leases, table: LeaseTable) -> None:
    handed = NEW.item() | {"leaseOwner": {"S": "next"}, "checkpointOwner": {"S": "a"}}
    leases.put(handed)
    shown = table.write(to.renew(NEW))
    assert not shown.made
    assert shown.lease is not None
    assert (shown.lease.owner, shown.lease.holder) == ("next", "a")
    assert table.write(to.checkpoint(NEW, Checkpoint("5"))).made, "the old owner may still say how far it is"


def test_giving_up_leaves_the_next_owner(leases: Leases, table: LeaseTable) -> None:
    leases.put(NEW.item() | {"leaseOwner": {"S": "next"}, "checkpointOwner": {"S": "a"}})
    assert not table.write(to.evict(NEW)).made, "it has seen another owner"
    given = made(table.write(to.evict(table.leases()[0])))
    assert (given.owner, given.checkpoint_owner, given.counter) == ("next", None, 1)
    free = made(table.write(to.evict(given)))
    assert (free.owner, free.counter) == (None, 2)


def test_taking_ends_a_hand_over_that_is_stuck(leases: Leases, table: LeaseTable) -> None:
    leases.put(NEW.item() | {"leaseOwner": {"S": "next"}, "checkpointOwner": {"S": "a"}})
    taken = made(table.write(to.take(table.leases()[0], "b")))
    assert (taken.owner, taken.checkpoint_owner, taken.switches) == ("b", None, 1)


def test_a_row_is_deleted(leases: Leases, table: LeaseTable) -> None:
    lease = made(table.write(to.create(NEW)))
    assert table.write(to.delete(lease)) == Written(True, None)
    assert leases.items() == {}


def test_what_else_is_in_the_table_is_no_lease(leases: Leases, table: LeaseTable) -> None:
    leases.put(LEADER)
    table.write(to.create(NEW))
    assert table.leases() == [NEW]
    assert leases.items()["Leader"] == LEADER


def test_many_rows_are_all_read(table: LeaseTable) -> None:
    shards = [f"shardId-{n:012}" for n in range(150)]
    for shard in shards:
        table.write(to.create(Lease(shard, Checkpoint("1"))))
    assert sorted(lease.shard for lease in table.leases()) == shards


def test_a_table_that_exists_is_opened(leases: Leases, table: LeaseTable) -> None:
    table.write(to.create(NEW))
    other = leases.table()
    other.ensure()
    assert other.leases() == [NEW]
    other.close()


def test_no_renewal_is_lost_among_clients(leases: Leases, table: LeaseTable) -> None:
    table.write(to.create(NEW))

    def renew_often(times: int) -> None:
        client = leases.table()
        seen, done = client.leases()[0], 0
        while done < times:
            written = client.write(to.renew(seen))
            assert written.lease is not None
            seen, done = written.lease, done + written.made
        client.close()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(renew_often, 10) for _ in range(4)]:
            future.result(60)
    assert table.leases()[0].counter == 40
