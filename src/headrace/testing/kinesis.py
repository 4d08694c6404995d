"""A Kinesis stream in the memory of the test, for apps that run for real; ``app.test()`` needs none."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from headrace.core.errors import InfrastructureError, UsageError
from headrace.systems.kinesis.api import PUT_RECORDS, READ_RECORDS, Put
from headrace.systems.kinesis.in_process import add_stream, drop_stream
from headrace.systems.kinesis.shard_position import OLDEST

Record = Mapping[str, Any] | str | bytes


class KinesisStream:
    """A stream of Kinesis that only this process has.

    An app reads it by ``hr.io.kinesis(name, endpoint_url="memory://")``, and runs in this process, by
    ``app.run(local=True)``. Use it as a context manager: after the block its records are gone.

    Parameters
    ----------
    name
        The stream's name.
    shards
        How many shards it begins with.

    Examples
    --------
    >>> from headrace.testing.kinesis import KinesisStream
    >>> with KinesisStream("orders", shards=2) as orders:
    ...     orders.put("ann", {"member": "ann", "euros": 12.5})
    ...     children = orders.split()
    >>> children
    ('shardId-000000000002', 'shardId-000000000003')
    """

    def __init__(self, name: str, shards: int = 1) -> None:
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise UsageError(f"shards={shards!r} isn't a number of shards", hint="write a whole number of at least 1")
        self._stream = add_stream(name, shards)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, key: str, *records: Record) -> None:
        """Write records: dicts become JSON, texts UTF-8.

        Parameters
        ----------
        key
            The partition key: it decides the shard.
        records
            The records, in this order.
        """
        datas = [_encoded(record) for record in records]
        for start in range(0, len(datas), PUT_RECORDS):
            results = self._stream.put([Put(key, data) for data in datas[start : start + PUT_RECORDS]])
            if wrong := [result.error for result in results if result.error]:
                raise InfrastructureError(f"{len(wrong)} records weren't written: {wrong[0]}")

    def records(self) -> list[bytes]:
        """Return what records hold, shard by shard, those that have ended too, each in its order."""
        found: list[bytes] = []
        for shard in self._stream.shards():
            place: str | None = self._stream.iterator(shard.id, OLDEST)
            while place is not None:
                page = self._stream.records(place, READ_RECORDS)
                found += [record.data for record in page.records]
                place = page.iterator if page.records or page.behind_ms else None
        return found

    @property
    def shards(self) -> list[str]:
        """The shards that take records."""
        return [shard.id for shard in self._stream.shards() if not shard.closed]

    def split(self, shard: str | None = None) -> tuple[str, str]:
        """Split a shard in the middle of its hashes, and return its children.

        Parameters
        ----------
        shard
            By default the first one that takes records.
        """
        return self._stream.split(shard or self.shards[0])

    def merge(self, one: str, other: str) -> str:
        """Merge two shards that are next to each other, and return their child.

        Parameters
        ----------
        one, other
            The shards.
        """
        return self._stream.merge(one, other)

    def close(self) -> None:
        """Forget the stream and its records."""
        drop_stream(self._stream.name)


def _encoded(record: Record) -> bytes:
    if isinstance(record, bytes):
        return record
    return record.encode() if isinstance(record, str) else msgspec.json.encode(dict(record))
