"""What a lease table does: it is read as a whole, and rows are written under conditions.

The writes are those of KCL, with its conditions. ``leaseCounter`` is the lock: who writes says which value it has seen,
and counts it up. Pure, apart from the tables that implement the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from typing_extensions import override

from headrace.systems.kinesis.leases.row import (
    CHECKPOINT,
    CHECKPOINT_OWNER,
    CHILDREN,
    COUNTER,
    KEY,
    MARK,
    OWNER,
    PENDING,
    SUB,
    SWITCHES,
    Checkpoint,
    Lease,
    Value,
    mark_of,
    number,
    text,
    texts,
)


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

    @property
    def name(self) -> str:
        """What the table is called in errors."""
        ...

    def ensure(self) -> None:
        """Create the table unless it exists; return when it can be used."""
        ...

    def leases(self) -> list[Lease]:
        """Return all leases. What else KCL keeps in the table is left out."""
        ...

    def write(self, write: Write) -> Written:
        """Make a change if its conditions hold, and say whether they did."""
        ...

    def close(self) -> None:
        """Release everything. Called once."""
        ...


def create(lease: Lease) -> Write:
    """Add a row, unless there is one."""
    return Write(Kind.CREATE, lease.shard, {KEY: None}, lease.item())


def renew(lease: Lease) -> Write:
    """Show that the owner is alive."""
    return Write(Kind.RENEW, lease.shard, _unmoved(lease) | {CHECKPOINT_OWNER: None}, _moved(lease))


def take(lease: Lease, owner: str) -> Write:
    """Make ``owner`` the owner, whoever it was before."""
    switched = {SWITCHES: 1} if lease.owner not in (None, owner) or lease.checkpoint_owner == owner else {}
    put = _moved(lease) | {OWNER: text(owner)}
    return Write(Kind.TAKE, lease.shard, _unmoved(lease), put, (CHECKPOINT_OWNER,), switched)


def checkpoint(lease: Lease, at: Checkpoint) -> Write:
    """Say how far the shard is. It is also a sign of life."""
    put = {
        CHECKPOINT: text(at.sequence),
        SUB: number(at.sub),
        SWITCHES: number(0),
        MARK: text(mark_of(at, lease.owner or "")),
    }
    return Write(Kind.CHECKPOINT, lease.shard, _unmoved(lease), _moved(lease) | put, PENDING)


def set_children(lease: Lease, children: Sequence[str]) -> Write:
    """Name the child shards."""
    return Write(Kind.CHILDREN, lease.shard, {KEY: text(lease.shard)}, {CHILDREN: texts(children)})


def evict(lease: Lease) -> Write:
    """Give the lease up, so that another worker needn't wait until it expires."""
    seen = {OWNER: lease.owner, CHECKPOINT_OWNER: lease.checkpoint_owner}
    when = {name: None if value is None else text(value) for name, value in seen.items()}
    removed = (CHECKPOINT_OWNER,) if lease.checkpoint_owner else (OWNER,)
    return Write(Kind.EVICT, lease.shard, when | {KEY: text(lease.shard)}, {}, removed, {COUNTER: 1})


def delete(lease: Lease) -> Write:
    """Remove the row."""
    return Write(Kind.DELETE, lease.shard, _unmoved(lease))


def _unmoved(lease: Lease) -> dict[str, Value | None]:
    return {COUNTER: number(lease.counter)}


def _moved(lease: Lease) -> dict[str, Value]:
    return {COUNTER: number(lease.counter + 1)}
