"""Decide which task has to apply which startpoint. Pure.

A startpoint for a partition becomes an order for each task that reads it: for one task, or for several if the input is
broadcast. A startpoint for a task goes only to that task and takes precedence there until it is applied, so one without
a task never overwrites it. Otherwise a newer startpoint replaces an older one. A startpoint that fits nothing that the
app reads is kept with a reason, so that none is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.metadata.startpoints import FanOut, StartpointKey, Startpoints, StartpointState

Partitions = Mapping[tuple[str, int], Sequence[str]]
"""The tasks that read each partition, by the name under which positions in the input are stored."""


@dataclass(slots=True)
class _Orders:
    """The resulting orders by key, with the orders that they replace."""

    before: Mapping[StartpointKey, StartpointState]
    now_ms: int
    new: dict[StartpointKey, StartpointState] = field(default_factory=dict)
    done: list[StartpointState] = field(default_factory=list)

    def give(self, task: str, point: StartpointState) -> None:
        """Give a task this order, in place of its former one for the partition."""
        key = StartpointKey(point.stream, point.partition, task)
        old = self.new.get(key) or self.before.get(key)
        if old is not None:
            self.done.append(msgspec.structs.replace(old, state="replaced", at_ms=self.now_ms))
        self.new[key] = msgspec.structs.replace(point, task=task, state="ordered", at_ms=self.now_ms, reason=None)

    def yields(self, task: str, point: StartpointState) -> bool:
        """Return whether a startpoint without a task may go to this task: not over an unapplied one that names it."""
        key = StartpointKey(point.stream, point.partition, task)
        old = self.new.get(key) or self.before.get(key)
        return old is None or not old.named or old.offset is not None

    def pass_over(self, task: str, point: StartpointState) -> None:
        """Note that a task doesn't get this startpoint, because it has one of its own."""
        reason = f"task {task} has a startpoint of its own"
        self.done.append(msgspec.structs.replace(point, task=task, state="replaced", at_ms=self.now_ms, reason=reason))


def fan_out(present: Startpoints, partitions: Partitions, now_ms: int) -> FanOut:
    """Return the changes of the fan-out of these startpoints. ``partitions`` are all that the app reads."""
    orders = _Orders(present.ordered, now_ms)
    removed: list[StartpointKey] = []
    kept: list[StartpointState] = []
    # Startpoints that name a task come first, so that the others find them.
    for key, point in sorted(present.written.items(), key=lambda item: (item[0].task is None, _order(item[0]))):
        reason = _misfit(key, partitions)
        if reason is not None:
            if point.reason != reason:
                kept.append(msgspec.structs.replace(point, state="failed", reason=reason, at_ms=now_ms))
            continue
        removed.append(key)
        if key.task is not None:
            orders.give(key.task, point)
            continue
        for task in partitions[key.stream, key.partition]:
            if orders.yields(task, point):
                orders.give(task, point)
            else:
                orders.pass_over(task, point)
    stranded = [
        msgspec.structs.replace(old, state="failed", reason=reason, at_ms=now_ms)
        for key, old in present.ordered.items()
        if key not in orders.new and (reason := _misfit(key, partitions)) is not None and old.reason != reason
    ]
    return FanOut([*orders.new.values(), *stranded], removed, kept, orders.done)


def next_orders(present: Startpoints, partitions: Partitions) -> dict[StartpointKey, StartpointState]:
    """Return the startpoint that each task applies next, if it starts now: those written and those ordered already."""
    written = {state.startpoint.id: state for state in present.written.values()}
    due = [*present.ordered.values(), *fan_out(present, partitions, 0).ordered]
    return {state.key: written.get(state.startpoint.id, state) for state in due}


def _misfit(key: StartpointKey, partitions: Partitions) -> str | None:
    """Return why the app can't use a startpoint with this key; None if it can."""
    readers = partitions.get((key.stream, key.partition))
    if readers is None:
        numbers = sorted(partition for stream, partition in partitions if stream == key.stream)
        if not numbers:
            return f"the app reads no input {key.stream!r}; delete the startpoint, or start the app that reads it"
        return f"{key.stream} has no partition {key.partition}, only 0 to {numbers[-1]}; delete the startpoint"
    if key.task is not None and key.task not in readers:
        return (
            f"task {key.task} doesn't read {key.stream}[{key.partition}]; what reads it: {', '.join(readers)}; "
            "delete the startpoint"
        )
    return None


def _order(key: StartpointKey) -> tuple[str, int, str]:
    return key.stream, key.partition, key.task or ""
