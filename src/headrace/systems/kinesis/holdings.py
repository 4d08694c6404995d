"""Which slot has which shards, as the slots report it. Pure.

A slot *holds* a shard that it reads, has released or has read to its end. One that it only expects is not held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.systems.kinesis.shard_position import Phase, ShardState, parse_state
from headrace.systems.slot_reports import SlotReport


class Holdings:
    """The reports of all slots at one time, by shard."""

    def __init__(self, reports: Sequence[SlotReport]) -> None:
        self.reports = reports
        self._of: dict[str, dict[int, ShardState]] = {}
        for slot, report in enumerate(reports):
            for shard, text in report.shards.items():
                self._of.setdefault(shard, {})[slot] = parse_state(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def state(self, shard: str, slot: int) -> ShardState | None:
        """What a slot does with a shard; None: nothing."""
        return self._of.get(shard, {}).get(slot)

    def slots(self, shard: str, *phases: Phase) -> list[int]:
        """The slots that have the shard in one of these phases."""
        return [slot for slot, state in self._of.get(shard, {}).items() if state.phase in phases]

    def held(self, shard: str) -> bool:
        """A slot holds it: it reads it, has released it, or has read it to its end."""
        return any(state.phase is not Phase.EXPECTED for state in self._of.get(shard, {}).values())

    def furthest(self, shard: str) -> ShardState | None:
        """The state in the slot that is further than others; None if no slot holds it."""
        held = [state for state in self._of.get(shard, {}).values() if state.phase is not Phase.EXPECTED]
        return max(held, key=lambda state: state.rank, default=None)

    def ended_in(self, shard: str) -> int | None:
        """The slot that has read it to its end."""
        return next(iter(self.slots(shard, Phase.DONE)), None)

    def leaving(self, shard: str) -> Iterator[tuple[int, ShardState]]:
        """The slots that have released the shard to another one, which has nothing of it yet or expects it."""
        for slot in self.slots(shard, Phase.RELEASED):
            state = self._of[shard][slot]
            if not self.arrived(shard, state):
                yield slot, state

    def arrived(self, shard: str, released: ShardState) -> bool:
        """The slot to which the shard was released has it."""
        assert released.to is not None
        taken = self.state(shard, released.to)
        return taken is not None and taken.phase is not Phase.EXPECTED
