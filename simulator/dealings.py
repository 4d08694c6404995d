"""Shards are dealt in the simulated world: the driver's dealers, and the heartbeats between them and the slots.

A heartbeat with reports takes a while, and so does its answer with the orders; both may be lost. A container that has
waited too long gives up the answer and sends another heartbeat, which may overtake the first. What a driver had ordered
before it died may still arrive. Dealers remember nothing beyond a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from headrace.coordinator.books import SlotBook, SlottedInput
from headrace.coordinator.messages import Heartbeat, Orders
from headrace.core.errors import FencedError, HeadraceError
from headrace.core.ids import SSP, TaskName
from headrace.task.scope import TaskScope
from simulator.kinesis import SimStream
from simulator.world import Steps

if TYPE_CHECKING:
    from simulator.cluster import Cluster
    from simulator.container import SimContainer

_LOST = 0.1
_LATE = 0.15
_DIES = 0.2
_PATIENCE_MS = 30
"""So long a container waits for an answer."""


class Dealings:
    """What a cluster needs for its streams with shards."""

    def __init__(self, cluster: Cluster, streams: Iterable[SimStream]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._streams = {_slotted(cluster.scopes, stream): stream for stream in streams}
        self._waiting: dict[int, float] = {}
        """By container that waits for an answer when it sent its heartbeat."""
        self.calm = False
        """Nothing is lost any more."""

    def book(self) -> SlotBook:
        """What a new driver knows of the slots; its dealers begin."""
        coordinator = self._cluster.coordinator
        self._world.spawn("dealers", self._deal(coordinator.term))
        return SlotBook(self._streams)

    def _deal(self, term: int) -> Steps:
        chance, coordinator = self._world.chance, self._cluster.coordinator
        dealers = {one: stream.dealer() for one, stream in self._streams.items()}
        while coordinator.up and coordinator.term == term:
            for one, dealer in dealers.items():
                reports = coordinator.ledger.slot_reports(one)
                try:
                    orders = dealer.deal(reports)
                except HeadraceError as error:
                    if not error.retry:
                        raise
                    self._world.tell("dealers", f"can't deal {one.stream}: {error.message}")
                    continue
                yield chance.random() * 3
                if not coordinator.up or coordinator.term != term:
                    return
                if self._world.story is not None and any(orders):
                    self._world.tell("dealers", f"{one.stream}: {[dict(slot or {}) for slot in orders]}")
                coordinator.ledger.slots.order(one, reports, orders)
            yield 2 + chance.random() * 8

    # -- heartbeats --------------------------------------------------------------------------------------

    def send(self, container: SimContainer) -> None:
        """A container gives a sign of life, which arrives in a while, if it does."""
        if self._world.now < self._waiting.get(container.number, -1000.0) + _PATIENCE_MS:
            return
        self._waiting[container.number] = self._world.now
        message = self._cluster.coordinator.sign_of_life(container)
        self._after_travel(partial(self._arrives, container, message))

    def commits(self, container: SimContainer, task: TaskName) -> None:
        """A record with released shards is on its way: at times a sign of life is the last act of its container."""
        if self.calm or self._world.mishaps.random() >= _DIES:
            return
        (host,) = (host for host in container.hosts if host.name == task)
        if any("RELEASED" in text for shards in host.receiver.shards.values() for text in shards.values()):
            self._world.tell(container.name, "gives a last sign of life, and dies in the middle of a commit")
            self._waiting.pop(container.number, None)
            self.send(container)
            self._world.after(0.2, container.die)

    def _arrives(self, container: SimContainer, message: Heartbeat) -> None:
        coordinator = self._cluster.coordinator
        if coordinator.up and coordinator.term == container.term:
            with suppress(FencedError):
                orders = coordinator.heartbeat(message)
                self._after_travel(partial(self._answered, container, message.sent_ms, orders))

    def _answered(self, container: SimContainer, sent_ms: float, orders: Orders) -> None:
        if container.alive and self._waiting.get(container.number) == sent_ms:
            del self._waiting[container.number]
            container.obey(orders)

    def _after_travel(self, call: partial[None]) -> None:
        chance = self._world.mishaps
        if self.calm:
            self._world.after(chance.random(), call)
        elif chance.random() >= _LOST:
            late = chance.random() < _LATE
            self._world.after(chance.random() * (80 if late else 2), call)


def _slotted(scopes: Mapping[TaskName, TaskScope], stream: SimStream) -> SlottedInput:
    found: list[tuple[TaskName, SSP]] = []
    for ssp in stream.plan.ssps():
        found += [(name, ssp) for name, scope in scopes.items() if ssp in scope.inputs]
    (stage,) = {name.stage for name, _ in found}
    return SlottedInput(stage, stream.plan.spec.id, tuple(found))
