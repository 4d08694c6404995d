"""However commits come and go, and calls and their answers are lost: in the end the rows say what the commits say."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.connectors.kinesis.api import FAILOVER_MS, Shard
from headrace.connectors.kinesis.lease_mirror import LeaseMirror
from headrace.connectors.kinesis.leases import RENEW_MS, Write, Written, followed
from headrace.connectors.kinesis.memory import MemoryLeaseTable
from headrace.core.clock import ManualClock
from headrace.core.errors import UnavailableError
from headrace.systems.slot_reports import SlotReport

LISTED = [Shard("p", 0, 99, closed=True), Shard("a", 0, 49, ("p",)), Shard("b", 50, 99, ("p",)), Shard("c", 100, 199)]
STATES = st.sampled_from(
    ["TRIM_HORIZON", "AT_TIMESTAMP 5", "7", "8 2", "9", "SHARD_END", "EXPECTED", "RELEASED 1 8", "RELEASED 1 9"]
)
SHARDS = st.dictionaries(st.sampled_from("pabc"), STATES)
REPORTS = st.lists(st.none() | SHARDS, min_size=2, max_size=2)


class LossyTable(MemoryLeaseTable):
    """Loses calls, and answers of calls, while ``chance`` says so."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.chance = 0.3

    def write(self, write: Write) -> Written:
        if self.random.random() < self.chance:
            raise UnavailableError("the call was lost")
        written = super().write(write)
        if self.random.random() < self.chance:
            raise UnavailableError("the answer was lost")
        return written


def wait(seconds: float) -> bool:
    raise AssertionError("nobody else has leases")


@given(
    turns=st.lists(st.tuples(REPORTS, st.integers(1, 20), st.booleans()), max_size=8),
    last=st.lists(SHARDS, min_size=2, max_size=2),
    random=st.randoms(use_true_random=False),
)
@example(turns=[([None, {"p": "SHARD_END"}], 1, False)], last=[{}, {"p": "SHARD_END"}], random=Random(1))
@example(
    # The answer to the checkpoint that reopens the lease of c is lost, and then nobody reads c.
    turns=[
        ([None, {"p": "TRIM_HORIZON", "a": "TRIM_HORIZON", "b": "TRIM_HORIZON", "c": "SHARD_END"}], 10, True),
        ([None, {"c": "TRIM_HORIZON"}], 15, False),
    ],
    last=[{}, {}],
    random=Random(29),
)
@settings(max_examples=examples(150))
def test_rows_become_what_the_commits_say(
    turns: list[tuple[list[dict[str, str] | None], int, bool]], last: list[dict[str, str]], random: Random
) -> None:
    clock, table = ManualClock(), LossyTable(random)
    mirror = LeaseMirror.open(table, "app", clock, wait)

    def follow(slots: list[dict[str, str] | None], rounds: int) -> None:
        for _ in range(rounds):
            mirror.follow([None if shards is None else SlotReport(1, shards) for shards in slots], LISTED)
            clock.advance(250)

    for slots, rounds, crashes in turns:
        follow(slots, rounds)
        if crashes:
            mirror = LeaseMirror.open(table, "app", clock, wait)
    table.chance = 0.0
    follow([*last], 30_000 // 250 + 2 * FAILOVER_MS // 250)

    wanted = followed("app", [SlotReport(1, shards) for shards in last], LISTED)
    rows = {lease.shard: lease for lease in table.leases()}
    for shard, committed in wanted.committed.items():
        assert rows[shard].checkpoint == committed.checkpoint
        if not committed.checkpoint.finished:
            assert rows[shard].owner == committed.worker
    for shard in rows.keys() - wanted.committed.keys():
        assert rows[shard].owner is None or rows[shard].checkpoint.finished

    before = {shard: lease.counter for shard, lease in rows.items()}
    follow([*last], int(2 * RENEW_MS / 250))
    for lease in table.leases():
        held = lease.owner is not None and not lease.checkpoint.finished
        assert (lease.counter > before[lease.shard]) == held, "who has a lease shows it, and nobody else"


@pytest.mark.parametrize("lost", ["call", "answer"])
def test_a_lease_that_may_have_been_reopened_is_given_up_when_nobody_reads_the_shard(lost: str) -> None:
    clock, table = ManualClock(), LossyTable(Random(1))
    table.chance = 0.0
    mirror = LeaseMirror.open(table, "app", clock, wait)

    def follow(*slots: dict[str, str]) -> None:
        mirror.follow([SlotReport(1, shards) for shards in slots], LISTED)
        clock.advance(250)

    follow({}, {"c": "SHARD_END"})
    follow({}, {"c": "TRIM_HORIZON"})  # reads it again: takes the lease
    with pytest.MonkeyPatch.context() as patch:
        real = table.write

        def write(write: Write) -> Written:
            if lost == "answer":
                real(write)
            raise UnavailableError(f"the {lost} was lost")

        patch.setattr(table, "write", write)
        for _ in range(int(RENEW_MS / 250) + 1):
            follow({}, {"c": "TRIM_HORIZON"})
    assert [lease.checkpoint.finished for lease in table.leases()] == [lost == "call"]
    for _ in range(2 * FAILOVER_MS // 250):
        follow({}, {})
    assert [lease.owner for lease in table.leases() if not lease.checkpoint.finished] == [None] * (lost == "answer")


@pytest.mark.parametrize("lost", ["call", "answer"])
def test_a_lease_that_may_have_been_taken_is_given_up_when_nobody_reads_the_shard(lost: str) -> None:
    clock, table = ManualClock(), LossyTable(Random(1))
    table.chance = 0.0
    mirror = LeaseMirror.open(table, "app", clock, wait)

    def follow(*slots: dict[str, str]) -> None:
        mirror.follow([SlotReport(1, shards) for shards in slots], LISTED)
        clock.advance(250)

    follow({}, {"p": "5"})
    follow({}, {})
    assert [lease.owner for lease in table.leases()] == [None]
    with pytest.MonkeyPatch.context() as patch:
        real = table.write

        def write(write: Write) -> Written:
            if lost == "answer":
                real(write)
            raise UnavailableError(f"the {lost} was lost")

        patch.setattr(table, "write", write)
        follow({}, {"p": "5"})
    assert [lease.owner for lease in table.leases()] == ["app/1" if lost == "answer" else None]
    for _ in range(2 * FAILOVER_MS // 250):
        follow({}, {})
    assert [lease.owner for lease in table.leases()] == [None]
