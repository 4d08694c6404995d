"""Which rows of a lease table differ from what the commits say, and what to write about it. Pure.

========================  =============================  ==========================================================
the row                   the commits                    what is written
========================  =============================  ==========================================================
there is none             a slot has the shard           create it, with owner and checkpoint
another's, or free        a slot has the shard           take it
the slot's                done, children are listed      childShardIds first
the slot's                done                           checkpoint SHARD_END, at once
the slot's, due           it has come further, or back   checkpoint
the slot's, due           the same position              renew
says SHARD_END            done                           nothing: it isn't needed
says SHARD_END            no slot has it, children begun delete it
the app's, unlisted       no slot has it                 delete it: the shard was trimmed
the app's                 no slot has it                 evict: no slot reads it
the app's, due            some slot hasn't reported      renew
========================  =============================  ==========================================================

A row is due when it wasn't written for a third of the time after which KCL considers it abandoned. Each due row costs
one write, however often its slot commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.systems.kinesis.api import Shard
from headrace.systems.kinesis.leases.row import Checkpoint, Lease, checkpoint_of, mark_of
from headrace.systems.kinesis.leases.table import (
    Kind,
    Write,
    checkpoint,
    create,
    delete,
    evict,
    renew,
    set_children,
    take,
)
from headrace.systems.kinesis.options import FAILOVER_MS
from headrace.systems.kinesis.shard_position import Phase, ShardState, parse_state
from headrace.systems.slot_reports import SlotReport

RENEW_MS = FAILOVER_MS / 3 - 25
"""How old the last sign of life may become, as in KCL."""


def worker(app: str, slot: int) -> str:
    """The owner's name that stands in the rows of a slot's shards."""
    return f"{app}/{slot}"


@dataclass(frozen=True, slots=True)
class Committed:
    """What the commits say of one shard: the worker that has it, and how far it is."""

    worker: str
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Followed:
    """What the rows are to say: the shards in commits, and those that are listed.

    ``complete``: every slot has reported, so that a shard that isn't in ``committed`` is in no slot. ``renew_ms`` is
    how old the last sign of life may become.
    """

    app: str
    committed: Mapping[str, Committed]
    listed: Mapping[str, Shard]
    complete: bool
    renew_ms: float = RENEW_MS

    def due(self, row: Row, now_ms: float) -> bool:
        """Whether it is time for a sign of life."""
        return now_ms - row.moved_ms >= self.renew_ms

    def ours(self, owner: str | None) -> bool:
        """Whether an owner is a worker of this app, in this run or an earlier one."""
        return owner is not None and owner.startswith(worker(self.app, 0)[:-1])


@dataclass(frozen=True, slots=True)
class Row:
    """A lease, and when its counter was last seen to move, by the monotonic clock."""

    lease: Lease
    moved_ms: float


def followed(
    app: str, slots: Sequence[SlotReport | None], listed: Sequence[Shard], renew_ms: float = RENEW_MS
) -> Followed:
    """Put the reports of all slots together. A shard that two slots name is with the one that is further."""
    furthest: dict[str, tuple[int, ShardState]] = {}
    for slot, report in enumerate(slots):
        for shard, text in ({} if report is None else report.shards).items():
            state = parse_state(text)
            if state.phase is Phase.EXPECTED:
                continue
            other = furthest.get(shard)
            if other is None or state.rank > other[1].rank:
                furthest[shard] = (slot, state)
    committed = {shard: Committed(worker(app, slot), checkpoint_of(state)) for shard, (slot, state) in furthest.items()}
    return Followed(app, committed, {shard.id: shard for shard in listed}, None not in slots, renew_ms)


def writes(wanted: Followed, rows: Mapping[str, Row], now_ms: float) -> list[Write]:
    """Return what to write, the most urgent first, at most one write for each row."""
    children: dict[str, list[str]] = {}
    for listed in wanted.listed.values():
        for parent in listed.parents:
            children.setdefault(parent, []).append(listed.id)
    found: list[tuple[int, float, Write]] = []
    for shard in sorted({*wanted.committed, *rows}):
        row = rows.get(shard)
        write = _write(wanted, rows, shard, tuple(sorted(children.get(shard, ()))), now_ms)
        if write is not None:
            found.append((_urgency(write, wanted), row.moved_ms if row is not None else 0, write))
    found.sort(key=lambda one: one[:2])
    return [write for _, _, write in found]


def _urgency(write: Write, wanted: Followed) -> int:
    """Rank writes: what changes hands, then ends, then signs of life, then what is only tidied up."""
    match write.kind:
        case Kind.CREATE | Kind.TAKE:
            return 0
        case Kind.CHILDREN:
            return 1
        case Kind.CHECKPOINT | Kind.RENEW:
            committed = wanted.committed.get(write.shard)
            return 2 if committed is not None and committed.checkpoint.finished else 3
        case Kind.EVICT | Kind.DELETE:
            return 4


def _write(
    wanted: Followed, rows: Mapping[str, Row], shard: str, children: tuple[str, ...], now_ms: float
) -> Write | None:
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
    """What to write about a shard that a slot has."""
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


def _left(
    wanted: Followed, rows: Mapping[str, Row], row: Row, children: tuple[str, ...], now_ms: float
) -> Write | None:
    """What to write about a row whose shard is in no slot, as far as is known."""
    lease, ours = row.lease, wanted.ours(row.lease.holder)
    if not wanted.complete:
        return renew(lease) if ours and not lease.checkpoint.finished and wanted.due(row, now_ms) else None
    if lease.checkpoint.finished and _passed_on(wanted, rows, lease, children):
        return delete(lease)
    if ours and wanted.listed and lease.shard not in wanted.listed:
        return delete(lease)
    return evict(lease) if ours and not lease.checkpoint.finished else None


def _passed_on(wanted: Followed, rows: Mapping[str, Row], lease: Lease, children: tuple[str, ...]) -> bool:
    """Return whether a finished lease is no longer needed: all children have begun, and its parents' leases are gone.

    While a row stays, it keeps KCL from reading the shard again.
    """
    after = {*lease.children, *children}
    if any(parent in rows for parent in lease.parents) or not after:
        return False
    return all(_begun(wanted, rows, child) for child in after)


def _begun(wanted: Followed, rows: Mapping[str, Row], shard: str) -> bool:
    committed, row = wanted.committed.get(shard), rows.get(shard)
    if committed is not None:
        return committed.checkpoint.begun
    if row is not None:
        return row.lease.checkpoint.begun
    return shard not in wanted.listed
