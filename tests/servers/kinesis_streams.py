"""Streams of Kinesis for tests, and a hand in what their owners do with them: in memory, and on servers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from time import monotonic, time_ns

import boto3.session
from typing_extensions import override

from chaos.kinesis_server import KinesisServer
from headrace.connectors.kinesis.amazon import BotoKinesis
from headrace.connectors.kinesis.api import Access, KinesisApi
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.clock import ManualClock

_WAIT_S = 60
_numbers = count(1)


class KinesisStream(ABC):
    """One stream of a test's own."""

    kind: str
    name: str

    @property
    @abstractmethod
    def api(self) -> KinesisApi:
        """Its client."""

    @abstractmethod
    def client_of(self, name: str) -> KinesisApi:
        """The client of a stream that doesn't exist."""

    @abstractmethod
    def split(self, shard: str, at: int) -> None:
        """Split a shard before a hash."""

    @abstractmethod
    def merge(self, one: str, other: str) -> None:
        """Merge two shards."""

    @abstractmethod
    def delete(self) -> None:
        """Delete the stream."""

    @abstractmethod
    def now_ms(self) -> int:
        """The time of the stream's records."""

    @abstractmethod
    def pass_ms(self, ms: int) -> None:
        """Let time pass."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


class StreamInMemory(KinesisStream):
    kind = "memory"
    name = "orders"

    def __init__(self, shards: int) -> None:
        self._clock = ManualClock(1_700_000_000_000)
        self.memory = MemoryKinesis(self.name, shards=shards, clock=self._clock)

    @property
    @override
    def api(self) -> KinesisApi:
        return self.memory

    @override
    def client_of(self, name: str) -> KinesisApi:
        gone = MemoryKinesis(name, clock=self._clock)
        gone.delete()
        return gone

    @override
    def split(self, shard: str, at: int) -> None:
        self.memory.split(shard, at)

    @override
    def merge(self, one: str, other: str) -> None:
        self.memory.merge(one, other)

    @override
    def delete(self) -> None:
        self.memory.delete()

    @override
    def now_ms(self) -> int:
        return self._clock.now_ms()

    @override
    def pass_ms(self, ms: int) -> None:
        self._clock.advance(ms)

    @override
    def close(self) -> None:
        self.memory.close()


class StreamOnServer(KinesisStream):
    def __init__(self, server: KinesisServer, shards: int, name: str | None = None) -> None:
        self.kind = server.kind
        self.name = name or f"orders-{next(_numbers)}"
        self._server = server
        session = boto3.session.Session()
        self.boto = session.client("kinesis", region_name=server.region, endpoint_url=server.endpoint)
        self._api = self.client_of(self.name)
        self.boto.create_stream(StreamName=self.name, ShardCount=shards)
        self._wait_until_active()

    @property
    @override
    def api(self) -> KinesisApi:
        return self._api

    @override
    def client_of(self, name: str) -> KinesisApi:
        return BotoKinesis(name, Access(region=self._server.region, endpoint_url=self._server.endpoint))

    @override
    def split(self, shard: str, at: int) -> None:
        self.boto.split_shard(StreamName=self.name, ShardToSplit=shard, NewStartingHashKey=str(at))
        self._wait_until_active()

    @override
    def merge(self, one: str, other: str) -> None:
        self.boto.merge_shards(StreamName=self.name, ShardToMerge=one, AdjacentShardToMerge=other)
        self._wait_until_active()

    @override
    def delete(self) -> None:
        self.boto.delete_stream(StreamName=self.name)
        self._wait(lambda: self._state() is None)

    @override
    def now_ms(self) -> int:
        return time_ns() // 1_000_000

    @override
    def pass_ms(self, ms: int) -> None:
        threading.Event().wait(ms / 1000)

    @override
    def close(self) -> None:
        self._api.close()
        self.boto.close()

    def _wait_until_active(self) -> None:
        self._wait(lambda: self._state() == "ACTIVE")

    def _state(self) -> str | None:
        """What the stream is doing; None if there is none."""
        try:
            found = self.boto.describe_stream_summary(StreamName=self.name)
        except self.boto.exceptions.ResourceNotFoundException:
            return None
        return str(found["StreamDescriptionSummary"]["StreamStatus"])

    def _wait(self, reached: Callable[[], bool]) -> None:
        """Ask until the server has done it: it can't be waited for."""
        end = monotonic() + _WAIT_S
        while not reached():
            assert monotonic() < end, f"{self._server.kind} doesn't finish with {self.name}"
            threading.Event().wait(0.01)
