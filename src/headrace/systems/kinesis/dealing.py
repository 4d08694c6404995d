"""Which slot reads which shard: the rules by which a dealer answers reports with orders. Pure.

What a slot does with an order about a shard:

=========  ======================  ==============  ============  ====================
order      it doesn't have it      it expects it   it reads it   it has released it,
                                                                 or read it to its end
=========  ======================  ==============  ============  ====================
READ       reads it                reads it        -             -
EXPECT     expects it              -               -             -
RELEASE    -                       -               releases it   -
FORGET     -                       drops it        -             drops it
SKIP       -                       -               goes on       says where others
                                                   further on    go on, further on
END        -                       -               is done       is done
=========  ======================  ==============  ============  ====================

Why no record is read by two slots, or twice by one
---------------------------------------------------
Reports and orders may be late or lost, and slots and dealers may die at any time. So a dealer never knows what a slot
does at present, and nothing here depends on what a dealer remembers. It relies on commits alone:

1. A slot leaves a shard that it has *held* (read, released or read to its end) only when it is ordered to, and it is
   ordered to only after its report has shown what it leaves. So if the reports don't show that a slot holds a shard, it
   has not come to it yet, or holds it already, and then READ changes nothing.
2. Who reads a shard next, and from where, follows from facts that stay until a report shows that it is read:

   - The shard was *released*: the commit that released it names the next slot and the position.
   - Its *parent* has ended in a slot: it begins there. A slot keeps a shard that has ended until all its children are
     held, and until then no other slot gets orders to read them. So event time is safe, too.
   - *No slot* has held it or a descendant of it: it begins in the slot that its id determines (``home``).

   So two dealers, or one that has forgotten everything, order the same slot to read it.
3. A slot drops what it has released only after the next slot holds the shard, and what has ended only after all its
   children are held, and after every slot that had released it has dropped it. So what shows that a shard is done stays
   in sight as long as the shard may be listed.
4. A list that is older than the reports is not used: it may show a shard as new whose children are done already.

A parent that is neither listed nor held is *lost*: either it expired unread, or a slot is about to read
it. Its children begin in the slot in which it would begin, and only after no slot holds a shard that might be its
parent but isn't listed either: then it would begin there. What such a slot commits next shows whether it does.
``known`` says which parents ended before the app began: they are not lost, and their children needn't begin together.

Another application that shares the lease table may have read more meanwhile. Then SKIP and END bring slots behind that
(``go_on``). Until a commit shows it, they come before all other orders about a shard.

What isn't covered: a shard *and* a child of it expire, both after a slot was ordered to read them and before a report
shows that it does. The place of the child's children would then be unknown, and two dealers might see it differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.systems.kinesis.api import Shard
from headrace.systems.kinesis.beginnings import Beginnings
from headrace.systems.kinesis.holdings import Holdings
from headrace.systems.kinesis.moves import Arrivals, Moves
from headrace.systems.kinesis.shard_position import DONE, OLDEST, Phase, Position, ShardState, reading
from headrace.systems.kinesis.shard_tree import ShardTree
from headrace.systems.kinesis.slot_orders import END, FORGET, ShardOrder, read_from, skip_to
from headrace.systems.slot_reports import SlotOrders, SlotReport

AUDIT_MS = 60_000
AUDITS = 3
"""A hole in the hashes is reported when this many audits in a row have found it, a minute apart."""


class Dealing:
    """Deals the shards of one stream to a number of slots.

    ``start`` is where an unread shard begins. ``known`` are the known facts about shards without commits:
    those that had ended before the app began (``ended_before``), and how far another application had come that is
    taken over from. Both stay the same for as long as the app has its slots.

    ``warnings`` are what is wrong after the last call.
    """

    def __init__(self, slots: int, start: Position = OLDEST, known: Mapping[str, ShardState] | None = None) -> None:
        self._start = start
        self._known = dict(known or {})
        self._reports: list[SlotReport | None] = [None] * slots
        self._moves = Moves()
        self._arrivals = Arrivals()
        self._audit = _Audit()
        self._jumps: dict[str, _Jump] = {}
        self.warnings: list[str] = []

    def standing(self, shards: Sequence[Shard], slots: Sequence[SlotReport | None]) -> dict[str, ShardState] | None:
        """Where each listed or held shard stands. None: that isn't known before all slots have reported, and a list is
        as new as their reports.
        """
        reports = [report for report in slots if report is not None]
        tree, holdings = ShardTree(shards), Holdings(reports)
        if len(reports) < len(slots) or tree.is_older_than(shard for shard in holdings if holdings.held(shard)):
            return None
        beginnings = Beginnings(tree, holdings, self._start, self._known)
        unread = {
            shard: DONE if beginnings.over(shard) else self._known.get(shard, reading(self._start))
            for shard in tree.ids
        }
        return unread | {shard: state for shard in holdings if (state := holdings.furthest(shard)) is not None}

    def go_on(self, standing: Mapping[str, ShardState], ahead: Mapping[str, ShardState]) -> None:
        """Go on behind what another application has read: ``ahead`` of where these shards are ``standing``."""
        for shard, state in ahead.items():
            self._known[shard] = state
            self._jumps[shard] = _Jump(standing[shard], state)

    @property
    def jumping(self) -> bool:
        """Whether commits don't show yet that all was skipped that another application has read."""
        return bool(self._jumps)

    def deal(self, shards: Sequence[Shard], slots: Sequence[SlotReport | None], now_ms: int) -> list[SlotOrders | None]:
        """Return the orders for each slot. ``shards`` are all that are listed, ``now_ms`` is a clock for pauses.

        Nothing is said before every slot has reported, and a slot that gets no orders isn't told so while the list is
        out of date.
        """
        self._reports = [_later(before, now) for before, now in zip(self._reports, slots, strict=True)]
        reports = [report for report in self._reports if report is not None]
        if len(reports) < len(self._reports):
            return [None] * len(self._reports)
        tree, holdings = ShardTree(shards), Holdings(reports)
        stale = tree.is_older_than(shard for shard in holdings if holdings.held(shard))
        orders = _Orders(len(reports))
        self._jumps = {shard: jump for shard, jump in self._jumps.items() if holdings.furthest(shard) == jump.seen}
        for shard, jump in self._jumps.items():
            _jump(holdings, shard, jump.to, orders)
        _hand_over(holdings, self._arrivals, orders, self._jumps)
        self._moves.go_on(holdings, orders.give, now_ms)
        if not stale:
            beginnings = Beginnings(tree, holdings, self._start, self._known)
            _forget_ended(holdings, beginnings, orders)
            load = _load(holdings)
            for shard, slot, position in beginnings.now():
                orders.give(slot, shard, read_from(position))
                load[slot] += 1
            self._moves.balance(holdings, tree, load, orders.give, now_ms)
        _forget_expected(holdings, self._moves, orders)
        self.warnings = [*_read_twice(holdings), *(() if stale else self._audit.warnings(tree, now_ms))]
        return orders.texts(sure=not stale)


@dataclass(frozen=True, slots=True)
class _Jump:
    """A shard that another application has read further: where it was seen to stand, and where it goes on."""

    seen: ShardState
    to: ShardState


class _Orders:
    """The orders of one round. At most one for each shard of a slot."""

    def __init__(self, slots: int) -> None:
        self._orders: list[dict[str, ShardOrder]] = [{} for _ in range(slots)]
        self._first: set[tuple[int, str]] = set()

    def give_first(self, slot: int, shard: str, order: ShardOrder) -> None:
        """Give an order, and no other about the shard to this slot."""
        self._orders[slot][shard] = order
        self._first.add((slot, shard))

    def give(self, slot: int, shard: str, order: ShardOrder) -> None:
        """Order a slot to do something with a shard. Orders are given again until they are followed."""
        if (slot, shard) in self._first:
            return
        before = self._orders[slot].setdefault(shard, order)
        assert before == order, f"slot {slot} has two orders for shard {shard}: {before} and {order}"

    def given(self, slot: int, shard: str) -> bool:
        """The slot is ordered to do something with the shard."""
        return shard in self._orders[slot]

    def texts(self, *, sure: bool) -> list[SlotOrders | None]:
        """Return the orders for each slot; None for a slot without orders, unless the list is current (``sure``)."""
        return [
            {shard: str(order) for shard, order in orders.items()} if orders or sure else None
            for orders in self._orders
        ]


def _later(before: SlotReport | None, now: SlotReport | None) -> SlotReport | None:
    """The report that counts: an earlier generation has nothing more to say, and silence changes nothing."""
    if now is None or (before is not None and before.generation > now.generation):
        return before
    return now


def _jump(holdings: Holdings, shard: str, to: ShardState, orders: _Orders) -> None:
    """Have whoever goes on with a shard do that behind what another application has read."""
    order = END if to.phase is Phase.DONE else skip_to(to.position)
    for slot in holdings.slots(shard, Phase.READING):
        orders.give_first(slot, shard, order)
    for slot, _ in holdings.leaving(shard):
        orders.give_first(slot, shard, order)


def _hand_over(holdings: Holdings, arrivals: Arrivals, orders: _Orders, jumping: Collection[str]) -> None:
    """Have shards that were released read by those whom they were released to, and dropped once these hold them.

    Those that jump are handed over when they have done so.
    """
    arrivals.look(holdings)
    for shard in holdings:
        if shard in jumping:
            continue
        for slot in holdings.slots(shard, Phase.RELEASED):
            state = holdings.state(shard, slot)
            assert state is not None and state.to is not None
            if holdings.arrived(shard, state):
                if arrivals.known_after(holdings, shard, slot):
                    orders.give(slot, shard, FORGET)
            else:
                orders.give(state.to, shard, read_from(state.position))


def _forget_ended(holdings: Holdings, beginnings: Beginnings, orders: _Orders) -> None:
    """Have shards dropped that have ended, once everything that shows it is in sight without them."""
    for shard in holdings:
        slot = holdings.ended_in(shard)
        if slot is not None and not holdings.slots(shard, Phase.RELEASED) and beginnings.followed(shard):
            orders.give(slot, shard, FORGET)


def _forget_expected(holdings: Holdings, moves: Moves, orders: _Orders) -> None:
    """Have slots expect no longer what doesn't come."""
    for shard in holdings:
        for slot in holdings.slots(shard, Phase.EXPECTED):
            if not (orders.given(slot, shard) or moves.awaited(shard, slot)):
                orders.give(slot, shard, FORGET)


def _load(holdings: Holdings) -> list[int]:
    """How many shards each slot reads, or will read as they were released to it. Those that have ended don't count."""
    load = [0] * len(holdings.reports)
    for shard in holdings:
        for slot in [*holdings.slots(shard, Phase.READING), *(state.to for _, state in holdings.leaving(shard))]:
            load[slot if slot is not None else 0] += 1
    return load


def _read_twice(holdings: Holdings) -> list[str]:
    """Say which shards several slots read. It can't happen, unless commits were restored that don't belong together."""
    return [
        f"shard {shard} is read by slots {' and '.join(map(str, slots))}, so its records count twice"
        for shard in holdings
        if len(slots := holdings.slots(shard, Phase.READING)) > 1
    ]


class _Audit:
    """Looks again and again whether open shards take all hashes: a list that is incomplete for long is an error."""

    def __init__(self) -> None:
        self._found: tuple[tuple[int, int], ...] = ()
        self._times = 0
        self._last_ms: int | None = None

    def warnings(self, tree: ShardTree, now_ms: int) -> list[str]:
        """What is wrong for a while already."""
        if self._last_ms is None or now_ms - self._last_ms >= AUDIT_MS:
            self._times = self._times + 1 if tree.holes == self._found else 1
            self._found, self._last_ms = tree.holes, now_ms
        if self._times < AUDITS:
            return []
        return [
            f"no open shard covers the hashes {first} to {last}: Kinesis has listed none for minutes"
            for first, last in self._found
        ]
