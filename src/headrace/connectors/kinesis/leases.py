"""Leases: the rows in DynamoDB by which the Kinesis Client Library (KCL) and its tools see who reads which shard.

Commits are what counts; the rows follow them. So a KCL application can go on where a Headrace app has stopped, and the
other way round. All of this is pure, apart from tables.

Items have typed values, as in DynamoDB's API: ``{"leaseCounter": {"N": "7"}}``. Attributes that aren't named here are
KCL's own, and stay as they are. The writes are those of KCL 3, with its conditions. ``leaseCounter`` is the lock: who
writes says which value it has seen, and counts it up. What is written where a row differs from the commits:

=====================  ===========================  ==========================================
the row                the commits                  what is written
=====================  ===========================  ==========================================
there is none          a slot has the shard         create it, with owner and checkpoint
another's, or free     a slot has the shard         take it
the slot's             done, children are listed    childShardIds first
the slot's             done                         checkpoint SHARD_END, at once
the slot's, due        further, or further back     checkpoint
the slot's, due        the same position            renew
says SHARD_END         done                         nothing: it isn't needed
says SHARD_END         no slot, children begun      delete it
the app's, unlisted    no slot has it               delete it: the shard was trimmed
the app's              no slot has it               evict: no slot reads it
the app's, due         some slot hasn't reported    renew
=====================  ===========================  ==========================================

A row is due when it wasn't written for a third of the time after which KCL considers it abandoned. Each due row costs
one write, however often its slot commits.

How far another application has read since, the rows say that the app hasn't written itself: up to their number; all
where one says SHARD_END, or where only a later shard has a row. The app's own rows are marked: they are ahead of it,
too, if a savepoint or a startpoint has moved it back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from typing_extensions import override

from headrace.connectors.kinesis import api
from headrace.connectors.kinesis.api import DONE, FAILOVER_MS, OLDEST, Phase, Position, Shard, ShardState, ShardTree
from headrace.core.errors import InfrastructureError
from headrace.systems.slot_reports import SlotReport

Value = Mapping[str, Any]
Item = Mapping[str, Value]
KEY, OWNER, COUNTER, SWITCHES = "leaseKey", "leaseOwner", "leaseCounter", "ownerSwitchesSinceCheckpoint"
CHECKPOINT, SUB = "checkpoint", "checkpointSubSequenceNumber"
PENDING = ("pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState")
PARENTS, CHILDREN = "parentShardId", "childShardIds"
FIRST_HASH, LAST_HASH = "startingHashKey", "endingHashKey"
CHECKPOINT_OWNER, ENTITY = "checkpointOwner", "entityType"
MARK = "headraceCheckpoint"  # the checkpoint that an app wrote last, and the app. KCL leaves it as it is.
_LEASE, _STREAM = "LEASE", "streamName"
_WHOLE = 2**63 - 1
_NOT_BEGUN = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a shard is, in KCL's words: a sequence number or a word, and a user record inside an aggregate.

    KCL's number of a user record is 0 where there is no aggregate, and it skips the records up to that number when it
    goes on. So the highest number that it can read stands for "all of the aggregate".
    """

    sequence: str
    sub: int = 0

    @property
    def begun(self) -> bool:
        return self.sequence not in _NOT_BEGUN

    @property
    def finished(self) -> bool:
        return self.sequence == SHARD_END.sequence

    def position(self, start: Position) -> Position:
        """Where to go on. ``start`` is where the app begins: the table doesn't keep the moment of AT_TIMESTAMP."""
        if self.sequence == "TRIM_HORIZON":
            return OLDEST
        if not self.begun:
            return start
        return Position(int(self.sequence), None if self.sub == _WHOLE else self.sub)


SHARD_END = Checkpoint(Phase.DONE.value)


def checkpoint_of(state: ShardState) -> Checkpoint:
    at = state.position
    match state.phase:
        case Phase.DONE:
            return SHARD_END
        case Phase.EXPECTED:
            raise ValueError("an expected shard has no checkpoint")
        case _ if at.sequence is not None:
            return Checkpoint(str(at.sequence), _WHOLE if at.sub is None else at.sub)
        case _:
            return Checkpoint("TRIM_HORIZON" if at.time_ms is None else "AT_TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Lease:
    """A shard's row. While KCL 3 hands it over, ``owner`` is the next one, and ``checkpoint_owner`` still has it."""

    shard: str
    checkpoint: Checkpoint
    owner: str | None = None
    counter: int = 0
    switches: int = 0
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    hashes: tuple[int, int] | None = None
    checkpoint_owner: str | None = None
    mark: str | None = None

    @property
    def holder(self) -> str | None:
        return self.checkpoint_owner or self.owner

    def item(self) -> Item:
        optional = {OWNER: self.owner, CHECKPOINT_OWNER: self.checkpoint_owner, MARK: self.mark}
        item = {
            KEY: text(self.shard),
            COUNTER: number(self.counter),
            SWITCHES: number(self.switches),
            CHECKPOINT: text(self.checkpoint.sequence),
            SUB: number(self.checkpoint.sub),
            ENTITY: text(_LEASE),
        } | {name: text(value) for name, value in optional.items() if value}
        if self.parents:
            item[PARENTS] = texts(self.parents)
        if self.children:
            item[CHILDREN] = texts(self.children)
        if self.hashes:
            item[FIRST_HASH], item[LAST_HASH] = (text(str(hash_)) for hash_ in self.hashes)
        return item


def mark_of(at: Checkpoint, worker: str) -> str:
    return f"{at.sequence} {at.sub} {worker.rpartition('/')[0]}"


def text(value: str) -> Value:
    return {"S": value}


def texts(values: Iterable[str]) -> Value:
    return {"SS": sorted(values)}


def number(value: int) -> Value:
    return {"N": str(value)}


def parse_lease(item: Item) -> Lease | None:
    """Read a row; None if it is something else that KCL keeps in the same table. Raises ``InfrastructureError``."""
    if _optional(item, ENTITY) not in (None, _LEASE):
        return None
    shard = _required(item, KEY, "S")
    if _STREAM in item:
        said = f"lease {shard}: the table belongs to a KCL application that reads several streams"
        raise InfrastructureError(said, hint="use a separate table for each stream")
    checkpoint = Checkpoint(_required(item, CHECKPOINT, "S"), _whole_number(item, SUB, 0))
    if checkpoint.begun and not checkpoint.finished and not checkpoint.sequence.isdecimal():
        raise _unreadable(item, CHECKPOINT)
    hashed = FIRST_HASH in item and LAST_HASH in item
    return Lease(
        shard,
        checkpoint,
        owner=_optional(item, OWNER),
        counter=_whole_number(item, COUNTER),
        switches=_whole_number(item, SWITCHES, 0),
        parents=_set(item, PARENTS),
        children=_set(item, CHILDREN),
        hashes=(_whole_number(item, FIRST_HASH), _whole_number(item, LAST_HASH)) if hashed else None,
        checkpoint_owner=_optional(item, CHECKPOINT_OWNER),
        mark=_optional(item, MARK),
    )


def takeover(leases: Iterable[Lease], start: Position) -> dict[str, ShardState]:
    return {
        lease.shard: DONE if lease.checkpoint.finished else api.reading(lease.checkpoint.position(start))
        for lease in leases
    }


def _optional(item: Item, name: str) -> str | None:
    return _required(item, name, "S") if name in item else None


def _whole_number(item: Item, name: str, default: int | None = None) -> int:
    if name not in item and default is not None:
        return default
    value = _required(item, name, *item.get(name, {}))
    if not value.isdecimal():
        raise _unreadable(item, name)
    return int(value)


def _set(item: Item, name: str) -> tuple[str, ...]:
    values = item.get(name, {"SS": ()}).get("SS")
    if values is None:
        raise _unreadable(item, name)
    return tuple(sorted(values))


def _required(item: Item, name: str, *kinds: str) -> str:
    for kind in kinds:
        value = item.get(name, {}).get(kind)
        if isinstance(value, str):
            return value
    raise _unreadable(item, name)


def _unreadable(item: Item, name: str) -> InfrastructureError:
    shard = item.get(KEY, {}).get("S", "?")
    said = f"lease {shard}: {name} is {dict(item.get(name, {})) or 'missing'}, which KCL never writes"
    return InfrastructureError(said, hint="name another table, or delete this row if nothing needs it")


# -- table -------------------------------------------------------------------------------------------
class Kind(Enum):
    """The writes that there are."""

    CREATE = "create"
    RENEW = "renew"
    TAKE = "take"
    CHECKPOINT = "checkpoint"
    CHILDREN = "children"
    EVICT = "evict"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Write:
    """A change of one row, made only if each attribute of ``when`` has that value; None: if it is absent."""

    kind: Kind
    shard: str
    when: Mapping[str, Value | None]
    put: Mapping[str, Value] = field(default_factory=dict)
    remove: Sequence[str] = ()
    add: Mapping[str, int] = field(default_factory=dict)

    @override
    def __str__(self) -> str:
        return f"{self.kind.value} {self.shard}"


@dataclass(frozen=True, slots=True)
class Written:
    """Whether a write was made, and the present row; None if there is none."""

    made: bool
    lease: Lease | None


class LeaseTable(Protocol):
    """A table of leases. Each call is bounded in time. One thread uses it.

    The calls raise ``UnavailableError`` or ``ThrottledError`` if the same call may succeed later (and then a write may
    have been made), and ``InfrastructureError`` if not. No error names a credential.
    """

    name: str  # what the table is called in errors

    def ensure(self) -> None:
        """Create the table unless it exists; return when it can be used."""

    def leases(self) -> list[Lease]:
        """All leases. What else KCL keeps in the table is left out."""

    def write(self, write: Write) -> Written:
        """Make a change if its conditions hold, and say whether they did."""

    def close(self) -> None:
        """Release everything. Called once."""


def create(lease: Lease) -> Write:
    return Write(Kind.CREATE, lease.shard, {KEY: None}, lease.item())


def renew(lease: Lease) -> Write:
    return Write(Kind.RENEW, lease.shard, _unmoved(lease) | {CHECKPOINT_OWNER: None}, _moved(lease))


def take(lease: Lease, owner: str) -> Write:
    switched = {SWITCHES: 1} if lease.owner not in (None, owner) or lease.checkpoint_owner == owner else {}
    put = _moved(lease) | {OWNER: text(owner)}
    return Write(Kind.TAKE, lease.shard, _unmoved(lease), put, (CHECKPOINT_OWNER,), switched)


def checkpoint(lease: Lease, at: Checkpoint) -> Write:
    put = {CHECKPOINT: text(at.sequence), SUB: number(at.sub), SWITCHES: number(0)}
    put[MARK] = text(mark_of(at, lease.owner or ""))
    return Write(Kind.CHECKPOINT, lease.shard, _unmoved(lease), _moved(lease) | put, PENDING)


def set_children(lease: Lease, children: Sequence[str]) -> Write:
    return Write(Kind.CHILDREN, lease.shard, {KEY: text(lease.shard)}, {CHILDREN: texts(children)})


def evict(lease: Lease) -> Write:
    seen = {OWNER: lease.owner, CHECKPOINT_OWNER: lease.checkpoint_owner}
    when = {name: None if value is None else text(value) for name, value in seen.items()}
    removed = (CHECKPOINT_OWNER,) if lease.checkpoint_owner else (OWNER,)
    return Write(Kind.EVICT, lease.shard, when | {KEY: text(lease.shard)}, {}, removed, {COUNTER: 1})


def delete(lease: Lease) -> Write:
    return Write(Kind.DELETE, lease.shard, _unmoved(lease))


def _unmoved(lease: Lease) -> dict[str, Value | None]:
    return {COUNTER: number(lease.counter)}


def _moved(lease: Lease) -> dict[str, Value]:
    return {COUNTER: number(lease.counter + 1)}


# -- following ---------------------------------------------------------------------------------------
RENEW_MS = FAILOVER_MS / 3 - 25  # how old the last sign of life may become, as in KCL


def worker(app: str, slot: int) -> str:
    return f"{app}/{slot}"


@dataclass(frozen=True, slots=True)
class Committed:
    """What the commits say of one shard: the worker that has it, and how far it is."""

    worker: str
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Followed:
    """What the rows are to say. ``complete``: all slots have reported, so what isn't ``committed`` is in no slot.

    ``renew_ms`` is how old the last sign of life may become.
    """

    app: str
    committed: Mapping[str, Committed]
    listed: Mapping[str, Shard]
    complete: bool
    renew_ms: float = RENEW_MS

    def due(self, row: Row, now_ms: float) -> bool:
        return now_ms - row.moved_ms >= self.renew_ms

    def ours(self, owner: str | None) -> bool:
        """Whether an owner is a worker of this app, in this run or an earlier one."""
        return owner is not None and owner.startswith(worker(self.app, 0)[:-1])


@dataclass(frozen=True, slots=True)
class Row:
    """A lease, and when its counter was last seen to move, by the monotonic clock."""

    lease: Lease
    moved_ms: float


Rows = Mapping[str, Row]


def followed(
    app: str, slots: Sequence[SlotReport | None], listed: Sequence[Shard], renew_ms: float = RENEW_MS
) -> Followed:
    """The reports of all slots together. A shard that two slots name is with the one that is further."""
    furthest: dict[str, tuple[int, ShardState]] = {}
    for slot, report in enumerate(slots):
        for shard, text in ({} if report is None else report.shards).items():
            state = api.parse_state(text)
            if state.phase is Phase.EXPECTED:
                continue
            other = furthest.get(shard)
            if other is None or state.rank > other[1].rank:
                furthest[shard] = (slot, state)
    committed = {shard: Committed(worker(app, slot), checkpoint_of(state)) for shard, (slot, state) in furthest.items()}
    return Followed(app, committed, {shard.id: shard for shard in listed}, None not in slots, renew_ms)


_ALIVE = (Kind.CHECKPOINT, Kind.RENEW)
_URGENCY = {Kind.CREATE: 0, Kind.TAKE: 0, Kind.CHILDREN: 1, **dict.fromkeys(_ALIVE, 3), Kind.EVICT: 4, Kind.DELETE: 4}


def writes(wanted: Followed, rows: Rows, now_ms: float) -> list[Write]:
    """What to write, at most one write for a row: what changes hands first, then ends, then signs of life."""
    children: dict[str, list[str]] = {}
    for listed in wanted.listed.values():
        for parent in listed.parents:
            children.setdefault(parent, []).append(listed.id)
    found: list[tuple[int, float, Write]] = []
    for shard in sorted({*wanted.committed, *rows}):
        row = rows.get(shard)
        write = _write(wanted, rows, shard, tuple(sorted(children.get(shard, ()))), now_ms)
        if write is not None:
            committed = wanted.committed.get(shard)
            ends = write.kind in _ALIVE and committed is not None and committed.checkpoint.finished
            found.append((2 if ends else _URGENCY[write.kind], row.moved_ms if row is not None else 0, write))
    found.sort(key=lambda one: one[:2])
    return [write for _, _, write in found]


def _write(wanted: Followed, rows: Rows, shard: str, children: tuple[str, ...], now_ms: float) -> Write | None:
    committed, row = wanted.committed.get(shard), rows.get(shard)
    if committed is not None:
        if row is None:
            return create(_new(shard, committed, wanted.listed.get(shard), children))
        return _followed(committed, row, children, due=wanted.due(row, now_ms))
    return None if row is None else _left(wanted, rows, row, children, now_ms)


def _new(shard: str, committed: Committed, listed: Shard | None, children: tuple[str, ...]) -> Lease:
    at = committed.checkpoint
    return Lease(
        shard,
        at,
        None if at.finished else committed.worker,
        parents=tuple(sorted(listed.parents)) if listed is not None else (),
        children=children if at.finished else (),
        hashes=(listed.first, listed.last) if listed is not None else None,
        mark=mark_of(at, committed.worker),
    )


def _followed(committed: Committed, row: Row, children: tuple[str, ...], *, due: bool) -> Write | None:
    lease, at = row.lease, committed.checkpoint
    if at.finished and set(children) - set(lease.children):
        return set_children(lease, children)
    if at.finished and lease.checkpoint == at:
        return None
    if lease.owner != committed.worker or lease.checkpoint_owner is not None:
        return take(lease, committed.worker)
    if lease.checkpoint != at and (at.finished or due):
        return checkpoint(lease, at)
    return renew(lease) if due else None


def _left(wanted: Followed, rows: Rows, row: Row, children: tuple[str, ...], now_ms: float) -> Write | None:
    # As far as is known, the shard is in no slot.
    lease, ours = row.lease, wanted.ours(row.lease.holder)
    if not wanted.complete:
        return renew(lease) if ours and not lease.checkpoint.finished and wanted.due(row, now_ms) else None
    if lease.checkpoint.finished and _passed_on(wanted, rows, lease, children):
        return delete(lease)
    if ours and wanted.listed and lease.shard not in wanted.listed:
        return delete(lease)
    return evict(lease) if ours and not lease.checkpoint.finished else None


def _passed_on(wanted: Followed, rows: Rows, lease: Lease, children: tuple[str, ...]) -> bool:
    """Whether KCL needs the row of a finished shard no more, which keeps it from reading that again."""
    after = {*lease.children, *children}
    if any(parent in rows for parent in lease.parents) or not after:
        return False
    return all(_begun(wanted, rows, child) for child in after)


def _begun(wanted: Followed, rows: Rows, shard: str) -> bool:
    if shard in wanted.committed:
        return wanted.committed[shard].checkpoint.begun
    return rows[shard].lease.checkpoint.begun if shard in rows else shard not in wanted.listed


# -- ahead -------------------------------------------------------------------------------------------
def others(leases: Collection[Lease], app: str) -> dict[str, ShardState]:
    """What other applications than this one have written last, by shard, if they have read any of it."""
    return {
        lease.shard: DONE if lease.checkpoint.finished else api.reading(lease.checkpoint.position(OLDEST))
        for lease in leases
        if lease.checkpoint.begun and lease.mark != mark_of(lease.checkpoint, f"{app}/")
    }


def ahead(
    standing: Mapping[str, ShardState], read: Mapping[str, ShardState], rows: Collection[str], tree: ShardTree
) -> dict[str, ShardState]:
    """How far others have ``read`` where that is further than the app is ``standing``. ``rows``: shards with a row."""
    passed = tree.ancestors(read.keys()) - set(rows)
    further = {}
    for shard, theirs in {**read, **dict.fromkeys(passed, DONE)}.items():
        ours = standing.get(shard, DONE)
        if ours.phase is not Phase.DONE and (theirs.phase is Phase.DONE or theirs.position.order > ours.position.order):
            further[shard] = theirs
    return further
