"""One row of a lease table in the format of KCL 3, from and to the item that DynamoDB keeps. Pure.

An item has typed values, as in DynamoDB's API: ``{"leaseCounter": {"N": "7"}}``. Attributes that aren't named here
(``throughputKBps``, ``pendingCheckpoint``...) are KCL's own: they are not read, and writes leave them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import InfrastructureError
from headrace.systems.kinesis.shard_position import DONE, OLDEST, Phase, Position, ShardState, reading

Value = Mapping[str, Any]
Item = Mapping[str, Value]

KEY = "leaseKey"
OWNER = "leaseOwner"
COUNTER = "leaseCounter"
SWITCHES = "ownerSwitchesSinceCheckpoint"
CHECKPOINT = "checkpoint"
SUB = "checkpointSubSequenceNumber"
PENDING = ("pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState")
PARENTS = "parentShardId"
CHILDREN = "childShardIds"
FIRST_HASH = "startingHashKey"
LAST_HASH = "endingHashKey"
CHECKPOINT_OWNER = "checkpointOwner"
ENTITY = "entityType"
MARK = "headraceCheckpoint"
"""The checkpoint that an app wrote last, and the app. KCL doesn't know it, and leaves it as it is."""

_LEASE = "LEASE"
_STREAM = "streamName"
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
        """Whether records were processed."""
        return self.sequence not in _NOT_BEGUN

    @property
    def finished(self) -> bool:
        """Whether the shard was read to its end."""
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
    """What a row says of a shard in this state; one that is only expected has none yet."""
    at = state.position
    match state.phase:
        case Phase.DONE:
            return SHARD_END
        case Phase.EXPECTED:
            raise ValueError("an expected shard has no checkpoint")
        case Phase.READING | Phase.RELEASED:
            if at.sequence is not None:
                return Checkpoint(str(at.sequence), _WHOLE if at.sub is None else at.sub)
            return Checkpoint("TRIM_HORIZON" if at.time_ms is None else "AT_TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Lease:
    """One row: the owner of a shard and its position. ``counter`` moves with each sign of life.

    While a lease is handed over in KCL 3, ``owner`` is already the next one, and ``checkpoint_owner`` still has it.
    """

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

    def is_marked(self, app: str) -> bool:
        """Whether it was this app that wrote the checkpoint."""
        return self.mark == mark_of(self.checkpoint, f"{app}/")

    @property
    def holder(self) -> str | None:
        """Who may write checkpoints."""
        return self.checkpoint_owner or self.owner

    def item(self) -> Item:
        """The whole row, as KCL creates it."""
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
    """How a worker of an app (``app/slot``) marks a checkpoint as the app's."""
    return f"{at.sequence} {at.sub} {worker.rpartition('/')[0]}"


def text(value: str) -> Value:
    """A text for DynamoDB."""
    return {"S": value}


def texts(values: Iterable[str]) -> Value:
    """A set of texts for DynamoDB. It keeps no order."""
    return {"SS": sorted(values)}


def number(value: int) -> Value:
    """A number for DynamoDB."""
    return {"N": str(value)}


def parse_lease(item: Item) -> Lease | None:
    """Read a row; None if it is something else that KCL keeps in the same table. Raises ``InfrastructureError``."""
    if _optional(item, ENTITY) not in (None, _LEASE):
        return None
    shard = _required(item, KEY, "S")
    if _STREAM in item:
        raise InfrastructureError(
            f"lease {shard}: the table belongs to a KCL application that reads several streams",
            hint="use a separate table for each stream",
        )
    checkpoint = Checkpoint(_required(item, CHECKPOINT, "S"), _whole_number(item, SUB, 0))
    if checkpoint.begun and not checkpoint.finished and not checkpoint.sequence.isdecimal():
        raise _unreadable(item, CHECKPOINT)
    hashes = None
    if FIRST_HASH in item and LAST_HASH in item:
        hashes = (_whole_number(item, FIRST_HASH), _whole_number(item, LAST_HASH))
    return Lease(
        shard,
        checkpoint,
        _optional(item, OWNER),
        _whole_number(item, COUNTER),
        _whole_number(item, SWITCHES, 0),
        _set(item, PARENTS),
        _set(item, CHILDREN),
        hashes,
        _optional(item, CHECKPOINT_OWNER),
        _optional(item, MARK),
    )


def takeover(leases: Iterable[Lease], start: Position) -> dict[str, ShardState]:
    """Where each shard is after the application that wrote these rows: for the first start of an app in its place.

    ``start`` is where the app begins, and so where it begins in shards that KCL would read from LATEST or a moment.
    """
    return {
        lease.shard: DONE if lease.checkpoint.finished else reading(lease.checkpoint.position(start))
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
    return InfrastructureError(
        f"lease {shard}: {name} is {dict(item.get(name, {})) or 'missing'}, which KCL never writes",
        hint="name another table, or delete this row if nothing needs it",
    )
