"""A page of a shard as user records, column by column. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from headrace.systems.kinesis.api import KinesisRecord
from headrace.systems.kinesis.buffer import Fetched
from headrace.systems.kinesis.kpl import MAGIC, unpack
from headrace.systems.kinesis.shard_position import Position


def unpacked(
    records: Sequence[KinesisRecord], after: Position, hashes: Callable[[], tuple[int, int]]
) -> tuple[Fetched, int]:
    """Return the user records after a position, and how many were left out, since they belong to other shards.

    ``hashes`` says which the first and the last hash of the shard are. Only aggregates make it necessary.
    """
    records = _following(records, after)
    end = Position(records[-1].sequence) if records else after
    if MAGIC in {record.data[:4] for record in records}:
        return _with_aggregates(records, after, *hashes(), end)
    if after.sub is not None:  # KCL also numbers records that aren't aggregates
        records = _following(records, Position(after.sequence))
    plain = Fetched(
        [record.data for record in records],
        [record.key for record in records],
        [record.sequence for record in records],
        [record.arrived_ms for record in records],
        end,
    )
    return plain, 0


def _following(records: Sequence[KinesisRecord], after: Position) -> Sequence[KinesisRecord]:
    """The records after a position; with the aggregate that it is in."""
    if after.sequence is None or not records or records[0].sequence > after.sequence:
        return records
    bisect = bisect_right if after.sub is None else bisect_left
    return records[bisect(records, after.sequence, key=lambda record: record.sequence) :]


def _with_aggregates(
    records: Sequence[KinesisRecord], after: Position, first: int, last: int, end: Position
) -> tuple[Fetched, int]:
    subs: list[int] = []
    found = Fetched([], [], [], [], end, subs)
    misplaced = 0
    for record in records:
        aggregate = unpack(record.data, first, last)
        if aggregate is None:
            data, keys = [record.data], [record.key]
        elif aggregate.misplaced:
            misplaced += len(aggregate.records)
            continue
        else:
            data = [user.data for user in aggregate.records]
            keys = [user.key for user in aggregate.records]
        start = after.sub + 1 if after.sub is not None and record.sequence == after.sequence else 0
        found.data += data[start:]
        found.keys += keys[start:]
        more = len(data) - start
        found.sequences += [record.sequence] * more
        found.arrived_ms += [record.arrived_ms] * more
        subs += range(start, len(data))
    return found, misplaced
