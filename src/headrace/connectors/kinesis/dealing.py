"""Which slot reads which shard: the rules by which a dealer answers reports with orders. Pure.

A slot *holds* a shard that it reads, has released or has read to its end. One that it only expects is not held. What a
slot does with an order about a shard:

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

Why no record is read by two slots, or twice by one: reports and orders may be late or lost, and slots and dealers may
die at any time. So a dealer never knows what a slot does at present, and nothing here depends on what a dealer
remembers. It relies on commits alone:

1. A slot leaves a shard that it has *held* only when it is ordered to, and it is ordered to only after its report has
   shown what it leaves. So if the reports don't show that a slot holds a shard, it has not come to it yet, or holds it
   already, and then READ changes nothing.
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

A parent that is neither listed nor held is *lost*: either it expired unread, or a slot is about to read it. Its
children begin in the slot in which it would begin, and only after no slot holds a shard that might be its parent but
isn't listed either: then it would begin there. What such a slot commits next shows whether it does. ``known`` says
which parents ended before the app began: they are not lost, and their children needn't begin together.

Another application that shares the lease table may have read more meanwhile. Then SKIP and END bring slots behind that
(``go_on``). Until a commit shows it, they come before all other orders about a shard.

What isn't covered: a shard *and* a child of it expire, both after a slot was ordered to read them and before a report
shows that it does. The place of the child's children would then be unknown, and two dealers might see it differently.

Shards *move* from slots with many to slots with few, one at a time from each and to each. While the giver reads it, the
taker is to EXPECT it; its event time stands still from then on. The giver is to RELEASE it as soon as its event time
has come as far as the taker's. What is remembered of moves only sets the pace: a shard that isn't released within half
a minute stays where it is, and is tried again later, later each time. Forgetting it does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.connectors.kinesis import api
from headrace.connectors.kinesis.api import DONE, OLDEST, Phase, Position, Shard, ShardState, ShardTree
from headrace.connectors.kinesis.slot import END, EXPECT, FORGET, ShardOrder, read_from, release_to, skip_to
from headrace.systems.slot_reports import SlotOrders, SlotReport


class Holdings:
    """The reports of all slots at one time, by shard."""

    def __init__(self, reports: Sequence[SlotReport]) -> None:
        self.reports = reports
        self._of: dict[str, dict[int, ShardState]] = {}
        for slot, report in enumerate(reports):
            for shard, text in report.shards.items():
                self._of.setdefault(shard, {})[slot] = api.parse_state(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def state(self, shard: str, slot: int) -> ShardState | None:
        return self._of.get(shard, {}).get(slot)

    def slots(self, shard: str, *phases: Phase) -> list[int]:
        return [slot for slot, state in self._of.get(shard, {}).items() if state.phase in phases]

    def held(self, shard: str) -> bool:
        return any(state.phase is not Phase.EXPECTED for state in self._of.get(shard, {}).values())

    def furthest(self, shard: str) -> ShardState | None:
        held = [state for state in self._of.get(shard, {}).values() if state.phase is not Phase.EXPECTED]
        return max(held, key=lambda state: state.rank, default=None)

    def ended_in(self, shard: str) -> int | None:
        return next(iter(self.slots(shard, Phase.DONE)), None)

    def leaving(self, shard: str) -> Iterator[tuple[int, ShardState]]:
        for slot in self.slots(shard, Phase.RELEASED):
            state = self._of[shard][slot]
            if not self.arrived(shard, state):
                yield slot, state

    def arrived(self, shard: str, released: ShardState) -> bool:
        assert released.to is not None
        taken = self.state(shard, released.to)
        return taken is not None and taken.phase is not Phase.EXPECTED


PATIENCE_MS = 30_000  # how long a giver may take to come as far in event time as the taker
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 60_000, 960_000
Give = Callable[[int, str, ShardOrder], None]  # gives a slot an order about a shard


@dataclass(slots=True)
class Move:
    """A shard that moves from one slot to another. ``released``: the giver was ordered to release it permanently."""

    giver: int
    taker: int
    since_ms: int
    released: bool = False


class Moves:
    """The moves that are under way."""

    def __init__(self) -> None:
        self._moves: dict[str, Move] = {}
        self._pauses: dict[str, tuple[int, int]] = {}  # until when shards stay that couldn't move, and how long that is

    def go_on(self, holdings: Holdings, give: Give, now_ms: int) -> None:
        self._pauses = {shard: pause for shard, pause in self._pauses.items() if shard in holdings}
        self._moves = {shard: move for shard, move in self._moves.items() if _possible(holdings, shard, move)}
        self._adopt(holdings, now_ms)
        for shard, move in list(self._moves.items()):
            expected = holdings.state(shard, move.taker) is not None
            if expected and (move.released or _caught_up(holdings, move)):
                move.released = True
                give(move.giver, shard, release_to(move.taker))
            elif now_ms - move.since_ms >= PATIENCE_MS:
                self._give_up(shard, now_ms)
            elif not expected:
                give(move.taker, shard, EXPECT)

    def awaited(self, shard: str, slot: int) -> bool:
        return shard in self._moves and self._moves[shard].taker == slot

    def balance(self, holdings: Holdings, tree: ShardTree, load: list[int], give: Give, now_ms: int) -> None:
        """Begin moves until no slot has two shards more than another. ``load``: how many each has without any move."""
        busy = {slot for move in self._moves.values() for slot in (move.giver, move.taker)}
        for shard in holdings:
            for slot, state in holdings.leaving(shard):
                busy |= {slot, state.to if state.to is not None else slot}
        for move in self._moves.values():
            load[move.giver] -= 1
            load[move.taker] += 1
        free = [slot for slot in range(len(load)) if slot not in busy]
        for giver in sorted(free, key=lambda slot: (-load[slot], slot)):
            takers = [slot for slot in free if slot not in busy and load[giver] - load[slot] >= 2]
            moving = self._movable(holdings, tree, giver, now_ms) if takers and giver not in busy else None
            if moving is not None:
                taker = min(takers, key=lambda slot: (load[slot], _time(holdings, slot), slot))
                self._moves[moving] = Move(giver, taker, now_ms)
                busy |= {giver, taker}
                give(taker, moving, EXPECT)

    def _movable(self, holdings: Holdings, tree: ShardTree, giver: int, now_ms: int) -> str | None:
        """Choose a shard that the slot reads and no other slot knows. Open ones come first, as the others end soon."""
        shards = [
            shard
            for shard in holdings.reports[giver].shards
            if holdings.slots(shard, *Phase) == holdings.slots(shard, Phase.READING) == [giver]
            and not self._pausing(shard, now_ms)
        ]
        return max(shards, key=lambda shard: (tree.is_open(shard), api.age(shard)), default=None)

    def _adopt(self, holdings: Holdings, now_ms: int) -> None:
        # Moves that another dealer began.
        for shard in holdings:
            givers, takers = holdings.slots(shard, Phase.READING), holdings.slots(shard, Phase.EXPECTED)
            if len(givers) == 1 and takers and shard not in self._moves and not self._pausing(shard, now_ms):
                self._moves[shard] = Move(givers[0], takers[0], now_ms)

    def _give_up(self, shard: str, now_ms: int) -> None:
        _, before = self._pauses.get(shard, (0, 0))
        length = min(2 * before, LONGEST_PAUSE_MS) or FIRST_PAUSE_MS
        self._pauses[shard] = now_ms + length, length
        del self._moves[shard]

    def _pausing(self, shard: str, now_ms: int) -> bool:
        return shard in self._pauses and now_ms < self._pauses[shard][0]


class Arrivals:
    """When the shards that were released have arrived, by the versions of their takers.

    Readers downstream process what tasks send in the order of its versions. The giver holds event time back until it
    has dropped the shard. If it did so in an earlier version than the one in which the taker wakes up for the shard,
    readers would pass the taker's time before they learn that it has one. So the giver has to commit as high a version
    first. This only sets the pace, too.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[str, int], int] = {}

    def hand_over(self, holdings: Holdings, orders: _Orders, jumping: Collection[str]) -> None:
        """Have released shards read by their next slots, and then dropped. Those that jump have to do that first."""
        now: dict[tuple[str, int], int] = {}
        for shard in holdings:
            for giver in holdings.slots(shard, Phase.RELEASED):
                state = holdings.state(shard, giver)
                assert state is not None and state.to is not None
                arrived = holdings.arrived(shard, state)
                if arrived:
                    now[shard, giver] = self._versions.get((shard, giver), holdings.reports[state.to].version)
                if shard in jumping:
                    continue
                if not arrived:
                    orders.give(state.to, shard, read_from(state.position))
                elif holdings.reports[giver].version >= now[shard, giver]:
                    orders.give(giver, shard, FORGET)
        self._versions = now


def _possible(holdings: Holdings, shard: str, move: Move) -> bool:
    taken = holdings.state(shard, move.taker)
    return holdings.slots(shard, Phase.READING) == [move.giver] and (taken is None or taken.phase is Phase.EXPECTED)


def _caught_up(holdings: Holdings, move: Move) -> bool:
    giver, taker = holdings.reports[move.giver].watermark, holdings.reports[move.taker].watermark
    return taker is None or (giver is not None and giver >= taker)


def _time(holdings: Holdings, slot: int) -> float:
    watermark = holdings.reports[slot].watermark
    return float("-inf") if watermark is None else watermark


class Beginnings:
    """What follows from a list of shards, from what slots hold, and from what is known without them."""

    def __init__(self, tree: ShardTree, holdings: Holdings, start: Position, known: Mapping[str, ShardState]) -> None:
        self._tree = tree
        self._holdings = holdings
        self._start = start
        self._known = known
        self._held = {shard for shard in holdings if holdings.held(shard)}
        self._followed = tree.ancestors(self._held)
        self._known_to_have_ended = {shard for shard, state in known.items() if state.phase is Phase.DONE}
        self._known_to_have_ended |= tree.ancestors(known.keys()) - known.keys()
        self._settled = not any(self._may_have_lost_children(shard) for shard in self._held)

    def now(self) -> Iterator[tuple[str, int, Position]]:
        for shard in self._tree.ids:
            parents = self._tree.parents(shard)
            if shard in self._held or self.over(shard) or not all(map(self._out_of_the_way, parents)):
                continue
            if self._settled or not any(map(self._lost, parents)):
                known = self._known.get(shard)
                yield shard, self._slot(shard), self._start if known is None else known.position

    def over(self, shard: str) -> bool:
        """Whether no slot holds the shard or ever will, because it ended before, and others may have followed it."""
        return shard not in self._held and (shard in self._followed or shard in self._known_to_have_ended)

    def followed(self, shard: str) -> bool:
        """Whether all shards that come from this one are held, or are over. One that is listed may get some."""
        children = self._tree.children(shard)
        known = bool(children) or shard not in self._tree
        return known and all(child in self._held or self.over(child) for child in children)

    def _out_of_the_way(self, parent: str) -> bool:
        return self._holdings.ended_in(parent) is not None or self.over(parent) or self._lost(parent)

    def _lost(self, parent: str) -> bool:
        """Whether it is unknown if a slot is about to read the parent, or if the parent expired unread."""
        return not (parent in self._tree or parent in self._held or parent in self._known_to_have_ended)

    def _may_have_lost_children(self, shard: str) -> bool:
        """The shard is held but not listed. If a merge of it is, that is its only child."""
        children = self._tree.children(shard)
        return shard not in self._tree and not any(len(self._tree.parents(child)) > 1 for child in children)

    def _slot(self, shard: str) -> int:
        slots = self._holdings.reports
        for parent in self._tree.parents(shard):
            ended_in = self._holdings.ended_in(parent)
            if ended_in is not None:
                return ended_in
            if self._lost(parent):
                return api.home(parent, len(slots))
        return api.home(shard, len(slots))


AUDIT_MS = 60_000
AUDITS = 3  # a hole in the hashes is reported when this many audits in a row have found it, a minute apart


class Dealing:
    """Deals the shards of one stream to a number of slots.

    ``start`` is where an unread shard begins. ``known`` are the known facts about shards without commits: those that
    had ended before the app began (``ended_before``), and how far another application had come that is taken over from.
    Both stay the same for as long as the app has its slots. ``warnings`` are what is wrong after the last call.
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
        """Where each listed or held shard stands; None before all slots have reported, and with an older list."""
        reports = [report for report in slots if report is not None]
        tree, holdings = ShardTree(shards), Holdings(reports)
        if len(reports) < len(slots) or tree.is_older_than(shard for shard in holdings if holdings.held(shard)):
            return None
        beginnings = Beginnings(tree, holdings, self._start, self._known)
        unread = {
            shard: DONE if beginnings.over(shard) else self._known.get(shard, api.reading(self._start))
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
        """The orders for each slot; None before all slots have reported, and for one without any if the list is old."""
        self._reports = [_later(before, now) for before, now in zip(self._reports, slots, strict=True)]
        reports = [report for report in self._reports if report is not None]
        if len(reports) < len(self._reports):
            return [None] * len(self._reports)
        tree, holdings = ShardTree(shards), Holdings(reports)
        stale = tree.is_older_than(shard for shard in holdings if holdings.held(shard))
        orders = _Orders(len(reports))
        self._jumps = {shard: jump for shard, jump in self._jumps.items() if holdings.furthest(shard) == jump.seen}
        for shard, jump in self._jumps.items():
            order = END if jump.to.phase is Phase.DONE else skip_to(jump.to.position)
            for slot in [*holdings.slots(shard, Phase.READING), *(slot for slot, _ in holdings.leaving(shard))]:
                orders.give_first(slot, shard, order)
        self._arrivals.hand_over(holdings, orders, self._jumps)
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
    def __init__(self, slots: int) -> None:
        self._orders: list[dict[str, ShardOrder]] = [{} for _ in range(slots)]
        self._first: set[tuple[int, str]] = set()

    def give_first(self, slot: int, shard: str, order: ShardOrder) -> None:
        self._orders[slot][shard] = order
        self._first.add((slot, shard))

    def give(self, slot: int, shard: str, order: ShardOrder) -> None:
        if (slot, shard) in self._first:
            return
        before = self._orders[slot].setdefault(shard, order)
        assert before == order, f"slot {slot} has two orders for shard {shard}: {before} and {order}"

    def given(self, slot: int, shard: str) -> bool:
        return shard in self._orders[slot]

    def texts(self, *, sure: bool) -> list[SlotOrders | None]:
        """The orders for each slot; None for a slot without orders, unless the list is current (``sure``)."""
        texts = [{shard: str(order) for shard, order in orders.items()} for orders in self._orders]
        return [orders if orders or sure else None for orders in texts]


def _later(before: SlotReport | None, now: SlotReport | None) -> SlotReport | None:
    """The report that counts: an earlier generation has nothing more to say, and silence changes nothing."""
    return before if now is None or (before is not None and before.generation > now.generation) else now


def _forget_ended(holdings: Holdings, beginnings: Beginnings, orders: _Orders) -> None:
    for shard in holdings:
        slot = holdings.ended_in(shard)
        if slot is not None and not holdings.slots(shard, Phase.RELEASED) and beginnings.followed(shard):
            orders.give(slot, shard, FORGET)


def _forget_expected(holdings: Holdings, moves: Moves, orders: _Orders) -> None:
    for shard in holdings:
        for slot in holdings.slots(shard, Phase.EXPECTED):
            if not (orders.given(slot, shard) or moves.awaited(shard, slot)):
                orders.give(slot, shard, FORGET)


def _load(holdings: Holdings) -> list[int]:
    load = [0] * len(holdings.reports)
    for shard in holdings:
        for slot in [*holdings.slots(shard, Phase.READING), *(state.to for _, state in holdings.leaving(shard))]:
            load[slot if slot is not None else 0] += 1
    return load


def _read_twice(holdings: Holdings) -> list[str]:
    # It can't happen, unless commits were restored that don't belong together.
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
        if self._last_ms is None or now_ms - self._last_ms >= AUDIT_MS:
            self._times = self._times + 1 if tree.holes == self._found else 1
            self._found, self._last_ms = tree.holes, now_ms
        if self._times < AUDITS:
            return []
        return [
            f"no open shard covers the hashes {first} to {last}: Kinesis has listed none for minutes"
            for first, last in self._found
        ]
