"""Follows the commits of a Kinesis input in a lease table. It decides nothing: an app without a table runs the same.

The thread that deals shards calls it. Its calls may block for seconds if DynamoDB doesn't answer, but a round makes a
limited number of them, and ends with the first that fails. Trouble is logged, and the rows follow later. Only another
application that is alive and holds leases ends the run, because both would process the same records.

A row that someone else has written shows in the answer to the next write, because its conditions fail then. If its
owner is of this app, an answer was lost, or the driver before this one wrote it: the mirror goes on from it. Every
write begins with a row as it was last seen, so none is made twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from headrace.connectors.kinesis import leases
from headrace.connectors.kinesis.api import FAILOVER_MS, Access, Position, Shard, ShardState, ShardTree
from headrace.connectors.kinesis.leases import RENEW_MS, Followed, Kind, Lease, LeaseTable, Row, Rows, Write
from headrace.core.calls import Retry
from headrace.core.clock import Clock
from headrace.core.errors import InfrastructureError, LeaseHeldError, UnavailableError, needing
from headrace.core.log import Throttle, logger
from headrace.systems.slot_reports import SlotReport

CALLS_AT_LEAST, CALLS_AT_MOST = 10, 100
"""How many rows a round may write, if it has to renew few or many: a tenth of them, ten rounds make a renewal."""
Wait = Callable[[float], bool]  # for seconds; whether the app stops meanwhile
LOOK_EVERY_MS = 1000
CLOSE_MS = 5000  # how long a clean stop may spend on the table, plus one call
_WRITES_PER_ROW = 3  # a row may have to be taken, get its children, and then its checkpoint
_PAUSES = Retry(attempts=None, first_ms=1000, longest_ms=30_000)
_log = logger(__name__)


class LeaseMirror:
    """Keeps the rows of a lease table as the commits are. ``open`` makes one."""

    def __init__(self, table: LeaseTable, app: str, clock: Clock, rows: Rows, renew_ms: float = RENEW_MS) -> None:
        self.table = table.name
        self.trouble: str | None = None  # what keeps the rows from following; None if nothing does
        self._table = table
        self._clock = clock
        self._rows = dict(rows)
        self._unanswered: dict[str, Row] = {}
        self._found = [row.lease for row in rows.values()]
        self._wanted = Followed(app, {}, {}, complete=False, renew_ms=renew_ms)
        self._throttle = Throttle(_log, lambda: clock.monotonic_ms() / 1000)
        self._failures = 0
        self._resume_ms = 0.0

    @classmethod
    def open(cls, table: LeaseTable, app: str, clock: Clock, wait: Wait, failover_ms: float = FAILOVER_MS) -> Self:
        """Create the table if it doesn't exist, or take over its leases; if this fails, close it.

        If the rows have owners of other apps than ``app``, wait until they have been silent for ``failover_ms``, or
        raise ``LeaseHeldError``. ``wait`` waits for seconds, and says whether the app stops meanwhile, as an event's
        does.
        """
        try:
            rows = _free_rows(table, app, clock, wait, failover_ms)
            return cls(table, app, clock, rows, failover_ms * RENEW_MS / FAILOVER_MS)
        except BaseException:
            table.close()
            raise

    def found(self, start: Position) -> dict[str, ShardState]:
        """Where each shard was when the table was opened, for an app that begins at ``start`` in place of a KCL app."""
        return leases.takeover(self._found, start)

    def ahead(self, standing: Mapping[str, ShardState], tree: ShardTree) -> dict[str, ShardState]:
        """How far other applications had read when the table was opened, where the app stands behind that."""
        return leases.ahead(
            standing, leases.others(self._found, self._wanted.app), {lease.shard for lease in self._found}, tree
        )

    def follow(self, slots: Sequence[SlotReport | None], listed: Sequence[Shard]) -> None:
        """Write what the commits have changed and what is due, or else later. Raises ``LeaseHeldError`` only."""
        self._wanted = leases.followed(self._wanted.app, slots, listed, self._wanted.renew_ms)
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._resume_ms:
            return
        calls = min(CALLS_AT_MOST, max(CALLS_AT_LEAST, len(self._rows) // 10))
        self._write(leases.writes(self._wanted, self._supposed, now_ms)[:calls])

    def close(self) -> None:
        """Write what the commits have changed, and give the leases up, so that others needn't wait for them."""
        until_ms = self._clock.monotonic_ms() + CLOSE_MS
        try:
            for _ in range(_WRITES_PER_ROW):
                due = leases.writes(self._wanted, self._supposed, math.inf)
                self._write((write for write in due if write.kind is not Kind.RENEW), until_ms)
            ours = [row.lease for row in self._supposed.values() if self._wanted.ours(row.lease.holder)]
            self._write((leases.evict(lease) for lease in ours), until_ms)
            left = sum(self._wanted.ours(row.lease.holder) for row in self._supposed.values())
            if left:
                said = "leases weren't released, and have to expire"
                _log.warning(said, table=self.table, leases=left, reason=self.trouble)
        except LeaseHeldError as error:
            _log.warning("leases weren't released", table=self.table, reason=error.message)
        finally:
            self._table.close()

    def _write(self, batch: Iterable[Write], until_ms: float = math.inf) -> None:
        for write in batch:
            if self._clock.monotonic_ms() > until_ms:
                return
            try:
                written = self._table.write(write)
            except InfrastructureError as error:
                self._pause(write, error)
                return
            if not written.made:
                _log.debug("another application changed a lease", table=self.table, write=str(write))
            self._learn(write.shard, written.lease)
            if self.trouble is not None:
                _log.info("the lease table can be written again", table=self.table)
            self._failures, self.trouble = 0, None

    @property
    def _supposed(self) -> Rows:
        return self._rows | self._unanswered if self._unanswered else self._rows

    def _learn(self, shard: str, lease: Lease | None) -> None:
        self._unanswered.pop(shard, None)
        if lease is None:
            self._rows.pop(shard, None)
            return
        before = self._rows.get(shard)
        moved = before is None or before.lease.counter != lease.counter
        self._rows[shard] = Row(lease, self._clock.monotonic_ms() if moved or before is None else before.moved_ms)
        if before is None or _signs_of_life(before.lease) != _signs_of_life(lease):
            for owner in (lease.owner, lease.checkpoint_owner):
                if owner is not None and not self._wanted.ours(owner):
                    raise _held(self.table, shard, owner)

    def _pause(self, write: Write, error: InfrastructureError) -> None:
        self._failures += 1
        # No randomness, because no other writer of these rows has to be avoided.
        self._resume_ms = self._clock.monotonic_ms() + (_PAUSES.pause_ms(self._failures, chance=0.5) or 0)
        self._throttle.warning("can't write leases", table=self.table, write=str(write), reason=error.message)
        self.trouble = error.message
        before = self._supposed.get(write.shard)
        reopens = write.kind is Kind.CHECKPOINT and before is not None and before.lease.checkpoint.finished
        if write.kind not in (Kind.CREATE, Kind.TAKE) and not reopens:
            return
        lease = leases.parse_lease({**({} if before is None else before.lease.item()), **write.put})
        if lease is not None and not lease.checkpoint.finished:
            # The app may have a lease now, and the shard may be in no slot when that is tried again. So it is supposed
            # to have it: the next write of the row finds out. (Of a finished one there may be no next write. It is
            # tried again, and does no harm where it is. A shard that is read again has a checkpoint that reopens it.)
            self._unanswered[write.shard] = Row(replace(lease, checkpoint_owner=None), -math.inf)


def _free_rows(table: LeaseTable, app: str, clock: Clock, wait: Wait, failover_ms: float) -> Rows:
    table.ensure()
    first = rows = _read(table, clock)
    began_ms = clock.monotonic_ms()
    nothing = Followed(app, {}, {}, complete=False)
    while strangers := [row.lease for row in rows.values() if _may_be_held(nothing, row.lease)]:
        for lease in strangers:
            before = first.get(lease.shard)
            if before is None or _signs_of_life(before.lease) != _signs_of_life(lease):
                raise _held(table.name, lease.shard, lease.holder or "?")
        left_ms = began_ms + failover_ms - clock.monotonic_ms()
        if left_ms < 0:
            _log.info("taking over abandoned leases", table=table.name, leases=len(strangers))
            break
        if wait(min(LOOK_EVERY_MS, left_ms + 1) / 1000):
            raise UnavailableError(f"lease table {table.name}: the app was stopped before it knew who owns the table")
        rows = _read(table, clock)
    return rows


def _read(table: LeaseTable, clock: Clock) -> dict[str, Row]:
    return {lease.shard: Row(lease, clock.monotonic_ms()) for lease in table.leases()}


def _may_be_held(app: Followed, lease: Lease) -> bool:
    # A finished lease keeps its owner, and means nothing.
    owners = [owner for owner in (lease.owner, lease.checkpoint_owner) if owner is not None]
    return not lease.checkpoint.finished and any(not app.ours(owner) for owner in owners)


def _signs_of_life(lease: Lease) -> tuple[int, str | None, str | None]:
    """What only the application that has the leases changes. In KCL 3, handing one over doesn't move the counter."""
    return lease.counter, lease.owner, lease.checkpoint_owner


def _held(table: str, shard: str, owner: str) -> LeaseHeldError:
    hint = "stop that application, or name another table; two applications on one table process each record twice"
    return LeaseHeldError(f"lease table {table}: the lease of {shard} belongs to {owner}, which is alive", hint=hint)


def dynamo_table(name: str, access: Access, *, wait: Wait) -> LeaseTable:
    with needing("boto3", "a lease table", "kinesis", "where drivers run"):
        from headrace.connectors.kinesis.dynamo import DynamoLeaseTable
    return DynamoLeaseTable(name, access, wait)
