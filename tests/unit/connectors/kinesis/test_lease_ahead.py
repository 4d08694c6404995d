"""KCL, the app, KCL, the same app: whether the table is ahead of the app's commits, and what follows from it."""

from __future__ import annotations

import logging
from random import Random

import pytest
from slot_reader import NOW_MS, SSP_0, SSP_1, Reader

from headrace.connectors.kinesis import leases as to
from headrace.connectors.kinesis.api import OLDEST, LeaseAhead, Put, Shard, ShardState, ShardTree, parse_state
from headrace.connectors.kinesis.dealer import KinesisDealer
from headrace.connectors.kinesis.dealing import Dealing
from headrace.connectors.kinesis.lease_mirror import LeaseMirror
from headrace.connectors.kinesis.leases import SHARD_END, Checkpoint, Lease, ahead, mark_of, others
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.clock import ManualClock
from headrace.core.errors import DeploymentError
from headrace.systems.slot_reports import SlotReport
from servers.lease_tables import Leases, LeasesInMemory

SLOTS = (SSP_0, SSP_1)
TREE = ShardTree([Shard("p", 0, 99, closed=True), Shard("q", 0, 49, ("p",)), Shard("r", 50, 99, ("p",))])


@pytest.mark.parametrize(
    ("rows", "standing", "found"),
    [
        ({"p": "7"}, {"p": "5"}, {"p": "7"}),
        ({"p": "7"}, {"p": "7"}, {}),
        ({"p": "5"}, {"p": "7"}, {}),
        ({"p": "7"}, {"p": "TRIM_HORIZON"}, {"p": "7"}),
        ({"p": "7"}, {"p": "AT_TIMESTAMP 5"}, {"p": "7"}),
        ({"p": "7"}, {"p": "RELEASED 1 5"}, {"p": "7"}),
        ({"p": "7"}, {"p": "SHARD_END"}, {}),
        ({"p": "7"}, {}, {}),  # it isn't there any more
        ({"p": "SHARD_END"}, {"p": "7"}, {"p": "SHARD_END"}),
        ({"p": "SHARD_END"}, {"p": "SHARD_END"}, {}),
        ({"p": "TRIM_HORIZON"}, {"p": "AT_TIMESTAMP 5"}, {}),
        ({"p": "5", "q": "TRIM_HORIZON"}, {"p": "5", "q": "TRIM_HORIZON"}, {}),
        ({"q": "9"}, {"p": "5", "q": "TRIM_HORIZON", "r": "TRIM_HORIZON"}, {"p": "SHARD_END", "q": "9"}),
        ({"p": "SHARD_END", "q": "9"}, {"p": "5", "q": "TRIM_HORIZON"}, {"p": "SHARD_END", "q": "9"}),
        ({}, {"p": "5"}, {}),
    ],
)
def test_what_others_have_read_is_compared_with_where_the_app_stands(
    rows: dict[str, str], standing: dict[str, str], found: dict[str, str]
) -> None:
    leases = [Lease(shard, Checkpoint(text)) for shard, text in rows.items()]
    states = {shard: parse_state(text) for shard, text in standing.items()}
    result = ahead(states, others(leases, "shop/orders"), rows, TREE)
    assert {shard: str(state).removesuffix(" 0") for shard, state in result.items()} == found


def test_what_the_app_has_written_itself_says_nothing_about_others() -> None:
    at, worker = Checkpoint("7", 3), "shop/orders/1"
    mine = Lease("p", at, mark=mark_of(at, worker))
    assert mine.mark == "7 3 shop/orders"
    assert others([mine], "shop/orders") == {}
    assert others([mine], "shop/order").keys() == {"p"}
    assert others([Lease("p", Checkpoint("8"), mark=mine.mark)], "shop/orders").keys() == {"p"}


class Scene:
    """A stream, a lease table, and the commits of the app."""

    def __init__(self, leases: Leases) -> None:
        self.clock = ManualClock(NOW_MS)
        self.kinesis = MemoryKinesis("orders", shards=2, clock=self.clock)
        self.leases = leases
        self.commits: list[dict[str, str]] = [{}, {}]
        self.known: dict[str, ShardState] = {}
        self.seen: list[int] = []
        self.count = 0

    def put(self, count: int) -> range:
        numbers = range(self.count, self.count + count)
        self.count = numbers.stop
        self.kinesis.put([Put(f"k{n}", b'{"n": %d}' % n) for n in numbers])
        self.clock.advance(1000)
        return numbers

    def split(self) -> None:
        self.kinesis.split(next(shard.id for shard in self.kinesis.shards() if not shard.closed))

    def open(self) -> LeaseMirror:
        return LeaseMirror.open(self.leases.table(), "shop/orders", self.clock, lambda _: False)

    def read_by_kcl(self) -> None:
        """KCL reads all that there is, and stops."""
        table = self.leases.table()
        table.ensure()
        for shard in self.kinesis.shards():
            rows = {lease.shard: lease for lease in table.leases()}
            row = rows.get(shard.id)
            if row is None:
                gone = any(shard.id in one.parents for one in self.kinesis.shards() if one.id in rows)
                if gone:
                    continue
                row = Lease(shard.id, Checkpoint("TRIM_HORIZON"))
                table.write(to.create(row))
            if row.checkpoint.finished:
                continue
            page = self.kinesis.records(self.kinesis.iterator(shard.id, row.checkpoint.position(OLDEST)), 10_000)
            at = SHARD_END if shard.closed else Checkpoint(str(page.records[-1].sequence)) if page.records else None
            if at is not None and at != row.checkpoint:
                write = to.checkpoint(row, at)
                del write.put["headraceCheckpoint"]  # type: ignore[attr-defined]
                assert table.write(write).made
        for lease in table.leases():
            children = [one.id for one in self.kinesis.shards() if lease.shard in one.parents]
            begun = {one.shard for one in table.leases() if one.checkpoint.begun}
            if lease.checkpoint.finished and set(children) <= begun:
                assert table.write(to.delete(lease)).made
        table.close()

    def begin(self) -> None:
        """The first run takes over."""
        mirror = self.open()
        self.known = mirror.found(OLDEST)
        mirror.close()

    def run(self, lease_ahead: LeaseAhead = "stop", turns: int = 12, chance: Random | None = None) -> None:
        """One run of the app, until it is stopped; with ``chance`` it may die at any time."""
        dealing = Dealing(2, OLDEST, self.known)
        dealer = KinesisDealer("orders", self.kinesis, dealing, self.clock, self.open, lease_ahead)
        readers = [
            Reader(self.kinesis, self.clock, waits=True).begin(commit, ssp)
            for ssp, commit in zip(SLOTS, self.commits, strict=True)
        ]
        for _ in range(turns):
            orders = dealer.deal([SlotReport(1, commit, watermark=0) for commit in self.commits])
            for slot, (ssp, reader, order) in enumerate(zip(SLOTS, readers, orders, strict=True)):
                if order is not None and (chance is None or chance.random() < 0.6):
                    reader.consumer.direct(ssp, order)
                if chance is not None and chance.random() < 0.1:
                    return  # killed: nobody says goodbye
                self._read(slot, reader, commits=chance is None or chance.random() < 0.6)
            self.clock.advance(1000)
        dealer.close()

    def _read(self, slot: int, reader: Reader, *, commits: bool) -> None:
        if not commits:
            return
        for rows in reader.poll():
            self.seen += rows.frame["n"].to_list() if rows.frame.height else []
        self.commits[slot] = dict(reader.shards[SLOTS[slot]])

    def committed(self) -> list[int]:
        seen, self.seen = self.seen, []
        return sorted(seen)


def test_kcl_the_app_kcl_and_the_same_app(leases: Leases, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(leases)
    scene.put(300)
    scene.read_by_kcl()
    first = scene.put(300)
    scene.begin()
    scene.run()
    assert scene.committed() == [*first]
    again = scene.put(300)
    scene.read_by_kcl()
    last = scene.put(10)
    with pytest.raises(DeploymentError, match="another application has continued since the app stopped") as caught:
        scene.run("stop")
    assert "In 2 shards it has read further than the app: shardId-000000000000: the table says " in str(caught.value)
    assert scene.committed() == []
    before = [dict(commit) for commit in scene.commits], leases.items()
    with caplog.at_level(logging.WARNING, "headrace"):
        scene.run("continue")
    assert scene.committed() == [*last]
    assert "and the app goes on behind that" in caplog.text
    scene.run("stop")  # that was settled
    assert scene.committed() == []
    scene.commits = before[0]
    for item in before[1].values():
        leases.put(item)
    with caplog.at_level(logging.WARNING, "headrace"):
        scene.run("repeat")
    assert scene.committed() == [*again, *last]
    assert "and the app reads its records again" in caplog.text
    scene.run("stop")
    assert scene.committed() == []


def test_kcl_reads_on_while_shards_split() -> None:
    scene = Scene(LeasesInMemory())
    scene.put(20)
    scene.begin()
    scene.run()
    scene.put(20)
    for _ in range(3):
        scene.split()
        scene.put(20)
        scene.read_by_kcl()
    scene.committed()
    last = scene.put(20)
    scene.run("continue", turns=40)
    assert scene.committed() == [*last]
    assert sum(len(commit) for commit in scene.commits) == 5


def test_an_app_that_was_moved_back_is_not_told_that_another_one_was_there(leases: Leases) -> None:
    """As after the restore of a savepoint: the table has what the app itself wrote after it."""
    scene = Scene(leases)
    scene.put(20)
    scene.run()
    savepoint = [dict(commit) for commit in scene.commits]
    scene.put(20)
    scene.run()
    scene.committed()
    scene.commits = savepoint
    scene.run("stop")
    assert scene.committed() == [*range(20, 40)]


@pytest.mark.parametrize("seed", range(40))
def test_a_driver_that_dies_while_the_app_skips_is_followed_by_one_that_goes_on(seed: int) -> None:
    chance = Random(seed)
    scene = Scene(LeasesInMemory())
    scene.put(20)
    scene.run()
    scene.put(20)
    if chance.random() < 0.5:
        scene.split()
        scene.put(20)
    scene.read_by_kcl()
    scene.committed()
    last = scene.put(20)
    for _ in range(4):
        scene.run("continue", chance=chance)
    scene.run("continue", turns=40)
    assert scene.committed() == [*last]


def test_nothing_is_read_before_the_table_was_looked_at() -> None:
    scene = Scene(LeasesInMemory())
    scene.put(5)
    reader = Reader(scene.kinesis, scene.clock, waits=True).begin({"shardId-000000000000": "TRIM_HORIZON"})
    assert reader.read().numbers == {}
    reader.order()
    assert reader.read().numbers.keys() == {"shardId-000000000000"}
