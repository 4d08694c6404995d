"""Slots that follow a dealer while the stream is resharded: every record is read once, children after their parents."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from slot_reader import NOW_MS, SSP_0, SSP_1, Reader

from headrace.connectors.kinesis.api import Put
from headrace.connectors.kinesis.dealing import Dealing
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.clock import ManualClock
from headrace.systems.slot_reports import SlotReport

KEYS = 20
SLOTS = (SSP_0, SSP_1)


class Run:
    """Two readers of a slot each. What they have handed out is committed at times, and rolled back at others."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock(NOW_MS)
        self.kinesis = MemoryKinesis("orders", shards=2, clock=self.clock)
        self.kinesis.empty_every = 3
        self.dealing = Dealing(len(SLOTS))
        self.readers = [Reader(self.kinesis, self.clock).begin({}, ssp) for ssp in SLOTS]
        self.generations = [1, 1]
        self.committed: list[dict[str, str]] = [{}, {}]
        self.counts: dict[str, list[int]] = defaultdict(list)
        """The numbers that were committed, of each key in the order of the commits."""
        self.open: list[list[tuple[str, int]]] = [[], []]
        self.put = 0

    def turn(self) -> None:
        self.clock.advance(self.random.choice([50, 500, 2000]))
        match self.random.choice(["write", "write", "reshard", "disturb", "read", "read", "read"]):
            case "write":
                self.write()
            case "reshard":
                self.reshard()
            case "disturb":
                self.disturb()
            case _:
                self.read(self.random.choice([1, 50, 1000]))

    def write(self) -> None:
        numbers = range(self.put, self.put + self.random.randint(1, 20))
        self.put = numbers.stop
        self.kinesis.put([Put(f"k{n % KEYS}", b'{"n": %d}' % n) for n in numbers])

    def reshard(self) -> None:
        shards = sorted((shard for shard in self.kinesis.shards() if not shard.closed), key=lambda shard: shard.first)
        place = self.random.randrange(len(shards))
        if len(shards) < 4 and self.random.random() < 0.5:
            self.kinesis.split(shards[place].id)
        elif place:
            self.kinesis.merge(shards[place - 1].id, shards[place].id)

    def disturb(self) -> None:
        self.kinesis.expire_iterators()
        self.roll_back(self.random.randrange(2))

    def roll_back(self, slot: int) -> None:
        self.generations[slot] += 1
        self.open[slot].clear()
        self.readers[slot].begin(self.committed[slot], SLOTS[slot])

    def read(self, max_bytes: int) -> None:
        for slot, reader in enumerate(self.readers):
            for rows in reader.poll(max_bytes=max_bytes):
                self.open[slot] += [(f"k{n % KEYS}", n) for n in (rows.frame["n"] if rows.frame.height else [])]
            if self.random.random() < 0.7:
                self.commit(slot)
        self.deal()

    def commit(self, slot: int) -> None:
        self.committed[slot] = dict(self.readers[slot].shards[SLOTS[slot]])
        for key, n in self.open[slot]:
            self.counts[key].append(n)
        self.open[slot].clear()

    def deal(self) -> None:
        reports = [SlotReport(*said, watermark=0) for said in zip(self.generations, self.committed, strict=True)]
        orders = self.dealing.deal(self.kinesis.shards(), reports, int(self.clock.monotonic_ms()))
        for ssp, reader, order in zip(SLOTS, self.readers, orders, strict=True):
            if order is not None and self.random.random() < 0.8:
                reader.consumer.direct(ssp, order)


@pytest.mark.parametrize("seed", range(30))
def test_every_record_is_read_once_and_those_of_a_key_in_order(seed: int) -> None:
    run = Run(seed)
    for _ in range(150):
        run.turn()
    for _ in range(100):
        run.clock.advance(1000)
        run.read(1 << 20)
    wanted = {f"k{key}": [*range(key, run.put, KEYS)] for key in range(KEYS)}
    assert {key: run.counts[key] for key in wanted} == wanted
    assert run.dealing.warnings == []
    assert all(reader.consumer.lag(ssp) == 0 for ssp, reader in zip(SLOTS, run.readers, strict=True))
