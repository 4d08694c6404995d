"""What a simulated task writes to: channels to logs in the place of producers, and transactional targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
from typing_extensions import override

from headrace.core.errors import UnavailableError
from headrace.core.ids import Offset, StreamId
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.connections import Connections
from headrace.systems.base import Producer, Target
from headrace.systems.registry import SystemSpec
from simulator.world import World

Send = Callable[[StreamId, int, bytes], None]
"""Hands a frame to a partition of a stream."""


class RowTarget(Target):
    """A foreign system with transactions: rows and each writer's position change together or not at all.

    At times it can't be reached, and at times its answer gets lost, so that what failed has been done.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rows: list[dict[str, object]] = []
        self.failing = 0.0
        """How likely a call fails."""
        self._positions: dict[str, int] = {}

    @override
    def position(self, writer: str) -> int:
        self._fail("could not be asked")
        return self._positions.get(writer, -1)

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        self._fail("could not be reached")
        if version > self._positions.get(writer, -1):
            self._positions[writer] = version
            for part in rows:
                self.rows += part.to_dicts()
            if self.world.story is not None:
                self.world.tell(f"target {self.name}", f"version {version} of {writer}: {sum(map(len, rows))} rows")
        self._fail("gave no answer")

    @override
    def close(self) -> None:
        return

    def _fail(self, why: str) -> None:
        if self.failing and self.world.chance.random() < self.failing:
            self.world.tell(f"target {self.name}", why)
            raise UnavailableError(f"target {self.name} {why}")


class SimProducer(Producer):
    """Sends to the partitions of one system."""

    def __init__(self, system: str, send: Send) -> None:
        self._system = system
        self._send = send

    @override
    def send(self, stream: str, partition: int, payload: bytes) -> None:
        self._send(StreamId(self._system, stream), partition, payload)

    @override
    def flush(self) -> dict[tuple[str, int], Offset]:
        """See ``Producer``; whoever hosts the task waits for the channels, in steps."""
        return {}

    @override
    def close(self) -> None:
        return


class SimConnections(Connections):
    """What one simulated task reaches of the world."""

    def __init__(self, send: Send, targets: dict[StreamId, RowTarget], calls: Calls) -> None:
        super().__init__()
        self.calls = calls
        self._send = send
        self._row_targets = targets

    @override
    def record_producer(self, spec: SystemSpec) -> Producer:
        return SimProducer(spec.name, self._send)

    @override
    def target(self, spec: SystemSpec, stream: StreamId) -> Target:
        return self._row_targets[stream]
