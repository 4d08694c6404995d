"""A small world for ``Dealing``: a stream that reshards, slots that commit and die, and messages that are late or lost.

The slots follow the table in ``dealing``. What they commit is judged at once: each record counts once, after all
records of the shards that its shard has come from, and no record comes after the event time of its slot.

Reports and orders travel in order, each slot's in its own queue, and are lost from the front. A report that is taken
from the queue stays known to the driver. A dealer may be replaced while reports and orders are under way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.connectors.kinesis.api import (
    DONE,
    EXPECTED,
    HASH_END,
    OLDEST,
    Phase,
    Position,
    Shard,
    ShardState,
    ended_before,
    reading,
    released,
)
from headrace.connectors.kinesis.dealing import Dealing
from headrace.connectors.kinesis.slot import Do, ShardOrder, parse_order
from headrace.systems.slot_reports import SlotReport


def shard_id(number: int) -> str:
    return f"shardId-{number:012}"


@dataclass
class SimShard:
    """A shard: the event times of its records, which rise through the whole stream."""

    about: Shard
    records: list[int] = field(default_factory=list)
    trimmed: bool = False

    def index(self, position: Position) -> int:
        """The record that comes next; a sequence number is the index of a record, plus 1."""
        if position.sequence is not None:
            return position.sequence
        since = position.time_ms or 0
        return next((i for i, time in enumerate(self.records) if time >= since), len(self.records))


@dataclass
class Memory:
    """What a generation of a slot has done; a copy of it is its commit. ``times``: how far each shard has come."""

    shards: dict[str, ShardState] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    watermark: int | None = None

    def copy(self) -> Memory:
        return Memory(dict(self.shards), dict(self.times), self.watermark)

    def follow(self, shard: str, order: ShardOrder) -> None:
        state = self.shards.get(shard)
        phase = None if state is None else state.phase
        after = state
        match order.do:
            case Do.READ if phase in (None, Phase.EXPECTED):
                after = reading(order.position)
            case Do.EXPECT if phase is None:
                after = EXPECTED
            case Do.RELEASE if state is not None and phase is Phase.READING:
                assert order.to is not None
                after = released(state.position, order.to)
            case Do.FORGET if phase is not Phase.READING:
                after = None
        if after is None:
            self.shards.pop(shard, None)
            self.times.pop(shard, None)
        else:
            self.shards[shard] = after
            if phase is None and self.watermark is not None:
                self.times[shard] = self.watermark
            if after.phase is Phase.RELEASED:
                self.times.pop(shard, None)
        self.advance()

    def advance(self) -> None:
        """The event time of the slot is that of the shard that has come least far; one without any holds it."""
        holding = [shard for shard, state in self.shards.items() if state.phase is not Phase.RELEASED]
        if holding and all(shard in self.times for shard in holding):
            lowest = min(self.times[shard] for shard in holding)
            self.watermark = lowest if self.watermark is None else max(self.watermark, lowest)


class SimSlot:
    """One slot: its last commit, its present generation, and the messages from and to it."""

    def __init__(self) -> None:
        self.generation = 1
        self.committed = Memory()
        self.memory = Memory()
        self.uncommitted: list[tuple[str, int]] = []
        self.reports: deque[SlotReport] = deque(maxlen=8)
        self.orders: deque[tuple[int, dict[str, str]]] = deque(maxlen=8)

    def report(self, *, timed: bool) -> None:
        shards = {shard: str(state) for shard, state in self.committed.shards.items()}
        self.reports.append(SlotReport(self.generation, shards, self.committed.watermark if timed else None))

    def restart(self, *, timed: bool) -> None:
        self.generation += 1
        self.memory, self.uncommitted = self.committed.copy(), []
        self.report(timed=timed)


class World:
    """The stream, the slots and the driver. ``timed``: the input has an event time."""

    def __init__(
        self,
        slots: int,
        shards: int,
        *,
        timed: bool = False,
        latest: bool = False,
        informed: bool = True,
        dealing: type[Dealing] = Dealing,
    ) -> None:
        self.timed = timed
        self.latest = latest
        self.clock = 0
        self.now_ms = 0
        self.shards: dict[str, SimShard] = {}
        self.lists: list[list[Shard]] = []
        self.slots = [SimSlot() for _ in range(slots)]
        self.known: list[SlotReport | None] = [None] * slots
        self.counted: Counter[tuple[str, int]] = Counter()
        self.orderly = True
        """Nothing has happened after which event time may be late: nothing expired unread, no dealer was replaced."""
        self.informed = informed
        self.begun = False
        self.seen: set[str] = set()
        """The shards that a report has shown to be held, or that are known to have ended before."""
        self._dealing = dealing
        self._create([(HASH_END * i // shards, HASH_END * (i + 1) // shards - 1, ()) for i in range(shards)])

    def begin(self) -> None:
        """The app sees the stream first, and starts."""
        self.start = Position(time_ms=self.clock + 1) if self.latest else OLDEST
        ended = ended_before(self.lists[-1], latest=self.latest) if self.informed or self.latest else ()
        self.told = dict.fromkeys(ended, DONE)
        self.begun, self.seen = True, set(ended)
        self.lists = self.lists[-1:]
        self.dealing = self._dealing(len(self.slots), self.start, self.told)
        for slot in self.slots:
            slot.report(timed=self.timed)

    # -- the stream --------------------------------------------------------------------------------

    def _create(self, ranges: list[tuple[int, int, tuple[str, ...]]]) -> None:
        for first, last, parents in ranges:
            about = Shard(shard_id(len(self.shards)), first, last, parents)
            self.shards[about.id] = SimShard(about)
        self.lists.append(self._listed())

    def _listed(self) -> list[Shard]:
        return [shard.about for shard in self.shards.values() if not shard.trimmed]

    def open(self) -> list[SimShard]:
        found = [shard for shard in self.shards.values() if not shard.about.closed]
        return sorted(found, key=lambda shard: shard.about.first)

    def put(self, which: int) -> None:
        self.clock += 1
        self.open()[which % len(self.open())].records.append(self.clock)

    def split(self, which: int) -> None:
        shard = self.open()[which % len(self.open())]
        first, last = shard.about.first, shard.about.last
        middle = (first + last) // 2
        shard.about = replace(shard.about, closed=True)
        self._create([(first, middle, (shard.about.id,)), (middle + 1, last, (shard.about.id,))])

    def merge(self, which: int) -> None:
        if len(self.open()) > 1:
            at = which % (len(self.open()) - 1)
            one, other = self.open()[at : at + 2]
            for shard in (one, other):
                shard.about = replace(shard.about, closed=True)
            self._create([(one.about.first, other.about.last, (one.about.id, other.about.id))])

    def trim(self) -> None:
        """The oldest closed shard expires, whether it was read or not. Not if its parent was lost, too: see there."""
        for shard in self.shards.values():
            if shard.trimmed:
                continue
            parents = set(shard.about.parents)
            lost = self.begun and not parents <= self.seen and shard.about.id not in self.seen
            if not shard.about.closed or lost or any(not self.shards[one].trimmed for one in parents):
                return
            shard.trimmed = True
            self.orderly &= all((shard.about.id, i) in self.counted for i in range(len(shard.records)))
            self.lists.append(self._listed())
            return

    # -- the slots ---------------------------------------------------------------------------------

    def read(self, slot: int, which: int, count: int) -> None:
        """A slot reads some records of one of its shards; at the end of a closed one it has ended."""
        memory = self.slots[slot].memory
        shards = [shard for shard, state in memory.shards.items() if state.phase is Phase.READING]
        if not shards:
            return
        shard = self.shards[shards[which % len(shards)]]
        id_, about = shard.about.id, shard.about
        at = shard.index(memory.shards[id_].position)
        upto = at if shard.trimmed else min(at + count, len(shard.records))
        for index in range(at, upto):
            time = shard.records[index]
            late = memory.watermark is not None and time < memory.watermark
            assert not (self.timed and self.orderly and late), f"record {index} of {id_} is late in slot {slot}"
            self.slots[slot].uncommitted.append((id_, index))
            memory.times[id_] = time
        if upto > at:
            memory.shards[id_] = reading(Position(upto))
        if shard.trimmed or (about.closed and upto == len(shard.records)):
            memory.shards[id_] = DONE
        memory.advance()

    def commit(self, slot: int) -> None:
        one = self.slots[slot]
        for shard, index in one.uncommitted:
            for ancestor in self._ancestors(shard):
                left = range(ancestor.index(self.start), len(ancestor.records))
                unread = [i for i in left if (ancestor.about.id, i) not in self.counted and not ancestor.trimmed]
                assert not unread, f"{shard} is read before {ancestor.about.id} has ended"
            self.counted[shard, index] += 1
            assert self.counted[shard, index] == 1, f"record {index} of {shard} counts twice, now in slot {slot}"
        one.uncommitted = []
        one.committed = one.memory.copy()
        one.report(timed=self.timed)

    def _ancestors(self, shard: str) -> list[SimShard]:
        found, left = [], list(self.shards[shard].about.parents)
        while left:
            one = self.shards[left.pop()]
            found.append(one)
            left += one.about.parents
        return found

    def crash(self, slot: int) -> None:
        self.slots[slot].restart(timed=self.timed)

    def beat(self, slot: int) -> None:
        """A heartbeat: the same report again."""
        self.slots[slot].report(timed=self.timed)

    def take_orders(self, slot: int) -> None:
        one = self.slots[slot]
        if one.orders:
            generation, orders = one.orders.popleft()
            if generation == one.generation:
                for shard, text in orders.items():
                    one.memory.follow(shard, parse_order(text))

    def lose_orders(self, slot: int) -> None:
        if self.slots[slot].orders:
            self.slots[slot].orders.popleft()

    def exchange(self, slot: int) -> None:
        """Everything that is under way to a slot and from it arrives, and the slot commits."""
        one = self.slots[slot]
        while one.orders:
            self.take_orders(slot)
        self.commit(slot)
        while one.reports:
            self.take_report(slot)

    # -- the driver --------------------------------------------------------------------------------

    def take_report(self, slot: int) -> None:
        if self.slots[slot].reports:
            report = self.slots[slot].reports.popleft()
            self.known[slot] = report
            self.seen |= {shard for shard, text in report.shards.items() if text != str(EXPECTED)}

    def lose_report(self, slot: int) -> None:
        if self.slots[slot].reports:
            self.slots[slot].reports.popleft()

    def deal(self, age: int = 0) -> None:
        """Deal with a list that is up to date, or with an earlier one."""
        orders = self.dealing.deal(self.lists[max(0, len(self.lists) - 1 - age)], self.known, self.now_ms)
        for slot, report, one in zip(self.slots, self.known, orders, strict=True):
            if one is not None:
                assert report is not None
                slot.orders.append((report.generation, dict(one)))

    def replace_dealer(self) -> None:
        self.dealing = self._dealing(len(self.slots), self.start, self.told)
        self.orderly = False

    def forget_reports(self) -> None:
        """A dealer that waits for reports again, from generations that live on."""
        self.known = [None] * len(self.slots)
        self.replace_dealer()

    def restart_driver(self) -> None:
        """Another run: every slot has another generation, and what was under way arrives nowhere."""
        for slot in self.slots:
            slot.reports.clear()
            slot.orders.clear()
            slot.restart(timed=self.timed)
        self.forget_reports()

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    # -- rest --------------------------------------------------------------------------------------

    def settle(self, rounds: int = 400) -> None:
        """Nothing fails any more. In the end all is read, and nothing is left to be done."""
        for _ in range(rounds):
            before = self._state()
            self.wait(20_000)
            for slot in range(len(self.slots)):
                self._flow(slot)
            self.deal()
            for slot in range(len(self.slots)):
                self._flow(slot)
            if self._state() == before and not any(any(orders or ()) for orders in self._last_orders()):
                break
        else:
            raise AssertionError("there is no end of it")
        self._judge()

    def _flow(self, slot: int) -> None:
        self.exchange(slot)
        for which in reversed(range(len(self.slots[slot].memory.shards))):  # what ends is read no more
            self.read(slot, which, 1 << 30)
        self.exchange(slot)

    def _last_orders(self) -> list[dict[str, str] | None]:
        orders = self.dealing.deal(self.lists[-1], self.known, self.now_ms)
        return [None if one is None else dict(one) for one in orders]

    def _state(self) -> object:
        return [slot.committed.shards for slot in self.slots], len(self.counted)

    def _judge(self) -> None:
        for shard in self.shards.values():
            if not shard.trimmed:
                for index in range(shard.index(self.start), len(shard.records)):
                    assert self.counted[shard.about.id, index] == 1, f"record {index} of {shard.about.id} is left"
        loads = [0] * len(self.slots)
        for number, slot in enumerate(self.slots):
            for shard_, state in slot.committed.shards.items():
                waits = self.timed and state.phase is Phase.EXPECTED
                assert waits or state.phase is Phase.READING, f"slot {number} still has {shard_}: {state}"
                loads[number] += not waits
        assert sum(loads) == len(self.open())
        assert self.timed or max(loads) - min(loads) <= 1, f"the load is {loads}"
        assert self.dealing.warnings == []


Step = Callable[[World, Callable[[int], int]], None]
"""One step of a world; the function chooses a number below its argument."""

STEPS: dict[str, tuple[int, Step]] = {
    "put": (8, lambda world, chance: world.put(chance(64))),
    "split": (2, lambda world, chance: world.split(chance(64)) if len(world.open()) < 7 else None),
    "merge": (2, lambda world, chance: world.merge(chance(64))),
    "trim": (1, lambda world, chance: world.trim()),
    "read": (16, lambda world, chance: world.read(chance(len(world.slots)), chance(64), 1 + chance(4))),
    "commit": (12, lambda world, chance: world.commit(chance(len(world.slots)))),
    "crash": (2, lambda world, chance: world.crash(chance(len(world.slots)))),
    "beat": (3, lambda world, chance: world.beat(chance(len(world.slots)))),
    "take orders": (16, lambda world, chance: world.take_orders(chance(len(world.slots)))),
    "lose orders": (2, lambda world, chance: world.lose_orders(chance(len(world.slots)))),
    "take report": (16, lambda world, chance: world.take_report(chance(len(world.slots)))),
    "lose report": (2, lambda world, chance: world.lose_report(chance(len(world.slots)))),
    "exchange": (8, lambda world, chance: world.exchange(chance(len(world.slots)))),
    "deal": (14, lambda world, chance: world.deal()),
    "deal by an old list": (2, lambda world, chance: world.deal(1 + chance(6))),
    "replace the dealer": (1, lambda world, chance: world.replace_dealer()),
    "forget reports": (1, lambda world, chance: world.forget_reports()),
    "restart the driver": (1, lambda world, chance: world.restart_driver()),
    "wait": (2, lambda world, chance: world.wait(1 + 10_000 * chance(8))),
}
"""What may happen, and how often."""

EARLY = ("put", "split", "merge", "trim")
"""What may happen before the app starts."""
