"""A stream of a server that stands in for Kinesis, as its owner sees it: through boto3, shards are split and merged."""

from __future__ import annotations

import time
from hashlib import md5
from itertools import count
from typing import Any

import boto3.session
from botocore.exceptions import ClientError

from chaos.kinesis_server import CREDENTIALS, REGION
from headrace.core.errors import UnavailableError

ACTIVE_S = 60.0


class OwnedStream:
    """One stream, as its owner sees it."""

    def __init__(self, name: str, endpoint: str, shards: int) -> None:
        """Create it."""
        session = boto3.session.Session(
            CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"], region_name=REGION
        )
        self.name = name
        self.client: Any = session.client("kinesis", endpoint_url=endpoint)
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self._wait_active()

    def shards(self) -> list[dict[str, Any]]:
        """Return all shards, as Kinesis describes them."""
        found: list[dict[str, Any]] = []
        page = self.client.list_shards(StreamName=self.name)
        while True:
            found += page["Shards"]
            if not page.get("NextToken"):
                return found
            page = self.client.list_shards(NextToken=page["NextToken"])

    def open_shards(self) -> list[dict[str, Any]]:
        """Return the shards that take records, in the order of their hashes."""
        found = [one for one in self.shards() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        return sorted(found, key=_first)

    def split(self, shard: dict[str, Any]) -> str:
        """Split an open shard in the middle."""
        middle = (_first(shard) + int(shard["HashKeyRange"]["EndingHashKey"]) + 1) // 2
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        self._wait_active()
        return str(shard["ShardId"])

    def merge(self, one: dict[str, Any], other: dict[str, Any]) -> str:
        """Merge two open shards whose hashes meet."""
        ids = one["ShardId"], other["ShardId"]
        self.client.merge_shards(StreamName=self.name, ShardToMerge=ids[0], AdjacentShardToMerge=ids[1])
        self._wait_active()
        return f"{ids[0]} and {ids[1]}"

    def put(self, records: list[dict[str, Any]]) -> int:
        """Write records, each of another key, until all are there; return how many had to be written again."""
        repeated = 0
        deadline = time.monotonic() + ACTIVE_S
        while records:
            try:
                results = self.client.put_records(StreamName=self.name, Records=records)["Records"]
                records = [r for r, result in zip(records, results, strict=True) if "ErrorCode" in result]
            except ClientError as error:
                if error.response["Error"]["Code"] not in _PASSES or time.monotonic() > deadline:
                    raise
            repeated += len(records)
        return repeated

    def read(self) -> list[dict[str, Any]]:
        """Return all records, shard by shard, parents before children."""
        found: list[dict[str, Any]] = []
        for shard in sorted(self.shards(), key=lambda one: one["ShardId"]):
            place = self.client.get_shard_iterator(
                StreamName=self.name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while place is not None:
                page = self.client.get_records(ShardIterator=place, Limit=10_000)
                found += page["Records"]
                place = page.get("NextShardIterator") if page["Records"] or page["MillisBehindLatest"] else None
        return found

    def _wait_active(self) -> None:
        deadline = time.monotonic() + ACTIVE_S
        while self._state() != "ACTIVE":
            if time.monotonic() > deadline:
                raise UnavailableError(f"the stream {self.name!r} isn't active after {ACTIVE_S:g} s")
            time.sleep(0.02)  # it sends no event

    def _state(self) -> str:
        found = self.client.describe_stream_summary(StreamName=self.name)
        return str(found["StreamDescriptionSummary"]["StreamStatus"])


_PASSES = ("ProvisionedThroughputExceededException", "LimitExceededException", "ResourceInUseException")


def key_for(shard: dict[str, Any]) -> str:
    """Return a key that goes to this shard. kinesis-local takes no notice of explicit hashes in such writes."""
    last = int(shard["HashKeyRange"]["EndingHashKey"])
    hashes = ((str(n), int.from_bytes(md5(str(n).encode(), usedforsecurity=False).digest())) for n in count())
    return next(key for key, number in hashes if _first(shard) <= number <= last)


def _first(shard: dict[str, Any]) -> int:
    return int(shard["HashKeyRange"]["StartingHashKey"])
