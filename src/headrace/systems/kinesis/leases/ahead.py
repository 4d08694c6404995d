"""Whether another application has continued in a lease table since the app's last commits. Pure.

==================================================================  ====================================================
the table, without what the app itself has written                  what the other application has read
==================================================================  ====================================================
the shard's row has a number                                        the shard up to there
the shard's row says SHARD_END                                      all of it
the shard has no row, but a shard that comes from it has one        all of it: KCL has deleted the row
anything else                                                       nothing
==================================================================  ====================================================

The app compares that with where it stands itself. Rows that it has written are marked: if a savepoint or a startpoint
has moved the app back, its rows are ahead of it, too, but no other application has read these records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.systems.kinesis.leases.row import Lease
from headrace.systems.kinesis.shard_position import DONE, OLDEST, Phase, ShardState, reading
from headrace.systems.kinesis.shard_tree import ShardTree


def others(leases: Collection[Lease], app: str) -> dict[str, ShardState]:
    """What other applications than this one have written last, by shard, if they have read any of it."""
    return {
        lease.shard: DONE if lease.checkpoint.finished else reading(lease.checkpoint.position(OLDEST))
        for lease in leases
        if lease.checkpoint.begun and not lease.is_marked(app)
    }


def ahead(
    standing: Mapping[str, ShardState], read: Mapping[str, ShardState], rows: Collection[str], tree: ShardTree
) -> dict[str, ShardState]:
    """Return how far others have read where that is further than the app has: ``standing`` is where it stands.

    ``read`` is what others have read, and ``rows`` are the shards that have a row.
    """
    passed = tree.ancestors(read.keys()) - set(rows)
    theirs = {**read, **dict.fromkeys(passed, DONE)}
    return {
        shard: state for shard, state in theirs.items() if shard in standing and _is_further(state, standing[shard])
    }


def _is_further(theirs: ShardState, ours: ShardState) -> bool:
    if ours.phase is Phase.DONE or theirs.phase is Phase.DONE:
        return ours.phase is not Phase.DONE
    return theirs.position.order > ours.position.order
