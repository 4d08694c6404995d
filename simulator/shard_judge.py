"""The judge of a stream with shards: what the commits of its slots may say, and in what order.

It knows every shard and every record, and learns of each commit when that counts. It works out for itself what a
commit's positions mean, and compares that with what was processed:

- Of a shard with a position exactly the records up to there are committed, in this or another slot, and none behind.
- A shard is read by one slot at a time. It changes slots only when the one before has committed that it has stopped.
- A shard is begun when its parents are done in commits, or when nobody will ever read them.
- A shard that is done stays in its slot until its children have been begun.
- The messages of a key are committed in the order in which they were put, whatever happens to its shards.

At rest, each open shard is read by one slot, no slot has two more than another, and nothing else is left in any.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.connectors.kinesis.api import Phase, Position, Shard, ShardState, parse_state

Fail = Callable[[object, str], Any]
_BEGUN = frozenset({Phase.READING, Phase.RELEASED, Phase.DONE})


@dataclass(frozen=True)
class Put:
    """A message in a shard: where it is, under which key, and its number among all."""

    message: int
    shard: str
    at: tuple[int, int, float]
    """As the ``order`` of its position."""
    key: str
    number: int
    arrived_ms: int


@dataclass
class ShardHistory:
    """What is in a shard, and what has been committed of it. Moments are the stream's."""

    parents: tuple[str, ...]
    closed_ms: int | None = None
    listed: bool = True
    begun: bool = False
    done: bool = False
    skipped: bool = False
    """Nobody will read it: it was given up, or closed before the app's time."""
    puts: list[tuple[tuple[int, int, float], int]] = field(default_factory=list)
    read: set[int] = field(default_factory=set)


class ShardJudge:
    """Judges one input."""

    def __init__(self, fail: Fail, slots: int) -> None:
        self.shards: dict[str, ShardHistory] = {}
        self.slots: list[Mapping[str, ShardState]] = [{} for _ in range(slots)]
        self.counts: Counter[str] = Counter()
        """How often what has happened."""
        self._fail = fail
        self._puts: dict[int, Put] = {}
        self._last: dict[str, Put] = {}

    # -- the stream

    def appeared(self, shards: Iterable[Shard], now_ms: int) -> None:
        """These shards are listed: some are new, some are closed by now, and others are gone."""
        listed = {shard.id: shard for shard in shards}
        for id_, shard in listed.items():
            history = self.shards.setdefault(id_, ShardHistory(tuple(shard.parents)))
            if shard.closed and history.closed_ms is None:
                history.closed_ms = now_ms
        for id_, history in self.shards.items():
            history.listed = id_ in listed
            history.skipped |= not (history.listed or history.begun)

    def begins(self, now_ms: int) -> None:
        """The app begins with what comes from now on."""
        for history in self.shards.values():
            history.skipped = history.closed_ms is not None and history.closed_ms < now_ms

    def put(self, message: int, shard: str, position: Position, key: str, now_ms: int) -> None:
        """A message is in a shard, up to this position."""
        put = self._puts[message] = Put(message, shard, position.order, key, len(self._puts), now_ms)
        insort(self.shards[shard].puts, (put.at, message))

    def oldest_needed(self, now_ms: int) -> int:
        """The moment of the first message, or the first end of a shard, that isn't committed yet."""
        moments = [now_ms]
        for shard, history in self.shards.items():
            moments += [self._puts[message].arrived_ms for _, message in history.puts if message not in history.read]
            passed = not history.begun and any(self.shards[child].begun for child in self.children(shard))
            if history.closed_ms is not None and history.listed and not (history.done or passed):
                moments.append(history.closed_ms)
        return min(moments)

    def children(self, shard: str) -> list[str]:
        """The shards that have come of one."""
        return [id_ for id_, history in self.shards.items() if shard in history.parents]

    def owners(self, shard: str, *phases: Phase) -> list[int]:
        """The slots that have a shard in one of these phases, by their last commits."""
        return [n for n, slot in enumerate(self.slots) if shard in slot and slot[shard].phase in phases]

    # -- what is committed

    def committed(self, task: object, slots: Mapping[int, Mapping[str, str]], consumed: Sequence[int]) -> None:
        """A commit counts: the shards of its slots as it says, and which messages it consumes, in order."""
        for message in consumed:
            put = self._puts.get(message)
            if put is not None:
                self._consume(task, put)
        for slot, texts in slots.items():
            states = {shard: parse_state(text) for shard, text in texts.items()}
            for shard in sorted(states.keys() - self.shards.keys()):
                self._fail(task, f"slot {slot} has {shard}, which never was")
            self._judge_slot(task, slot, states)

    def _consume(self, task: object, put: Put) -> None:
        before = self._last.get(put.key)
        if before is not None and before.number > put.number:
            self._fail(task, f"{put.message} of key {put.key} is committed after {before.message}, which came later")
        self._last[put.key] = put
        self.shards[put.shard].read.add(put.message)

    def _judge_slot(self, task: object, slot: int, states: Mapping[str, ShardState]) -> None:
        before = self.slots[slot]
        self.slots[slot] = states
        for shard, state in states.items():
            was = before.get(shard)
            if state != was:
                self._judge_state(f"{task}, slot {slot}", shard, was, state)
            if state.phase is Phase.READING and len(others := self.owners(shard, Phase.READING)) > 1:
                self._fail(task, f"{shard} is read by the slots {others} at once")
        for shard in before.keys() - states.keys():
            self._judge_drop(f"{task}, slot {slot}", shard, before[shard])

    def _judge_state(self, who: str, shard: str, was: ShardState | None, state: ShardState) -> None:
        if state.phase is Phase.EXPECTED:
            self.counts["expected"] += 1
            if was is not None:
                self._fail(who, f"expects {shard} and has it already, as {was}")
            return
        phase = None if was is None else was.phase
        if phase is Phase.DONE:
            self._fail(who, f"{shard} was done and is {state}")
        if phase not in (Phase.READING, state.phase):
            self._judge_begin(who, shard, was, state)
        if phase is Phase.RELEASED and state.phase is Phase.RELEASED:
            self._fail(who, f"{shard} was {was} and is {state}")
        self._judge_position(who, shard, state)
        if state.phase is not Phase.READING:
            self.counts[state.phase.name.lower()] += 1
        history = self.shards[shard]
        history.begun = True
        history.done |= state.phase is Phase.DONE

    def _judge_begin(self, who: str, shard: str, was: ShardState | None, state: ShardState) -> None:
        """A shard is read where it wasn't."""
        history = self.shards[shard]
        if history.done:
            self._fail(who, f"{shard} is {state}, and another slot has read all of it")
        if (was is None or was.phase is Phase.EXPECTED) and history.begun:
            self.counts["moved"] += 1
            if not self.owners(shard, Phase.RELEASED):
                self._fail(who, f"{shard} is {state}, and nobody has released it")
        for parent in history.parents:
            known = self.shards.get(parent)
            if known is not None and not (known.done or known.skipped):
                self._fail(who, f"{shard} is {state}, and its parent {parent} isn't done")

    def _judge_position(self, who: str, shard: str, state: ShardState) -> None:
        """What is committed of a shard is what its position says."""
        history = self.shards[shard]
        if state.phase is Phase.DONE:
            if history.closed_ms is None:
                self._fail(who, f"{shard} is done and still open")
            upto = len(history.puts)
        else:
            upto = bisect_left(history.puts, (state.position.order, float("inf")))
        covered = {message for _, message in history.puts[:upto]}
        if lost := sorted(covered - history.read):
            self._fail(who, f"{shard} is {state}, and {lost} before that were never processed")
        if more := sorted(history.read - covered):
            self._fail(who, f"{shard} is {state}, and {more} behind that are committed")

    def _judge_drop(self, who: str, shard: str, was: ShardState) -> None:
        match was.phase:
            case Phase.READING:
                self._fail(who, f"forgets {shard}, which it reads, at {was}")
            case Phase.RELEASED:
                if not (self.shards[shard].done or self.owners(shard, Phase.READING)):
                    self._fail(who, f"forgets {shard}, {was}, before somebody else reads it")
            case Phase.DONE:
                waiting = [child for child in self.children(shard) if self._is_awaited(child)]
                if waiting:
                    self._fail(who, f"forgets {shard}, which is done, before its children {waiting} are begun")
                self.counts["forgotten"] += 1
            case Phase.EXPECTED:
                if self.owners(shard, Phase.READING):
                    self.counts["expected in vain"] += 1

    def _is_awaited(self, shard: str) -> bool:
        history = self.shards[shard]
        return history.listed and not history.begun

    # -- the end

    def unrest(self) -> str | None:
        """What slots have to do yet if the stream stays as it is; None: nothing."""
        for shard, history in self.shards.items():
            readers = self.owners(shard, Phase.READING)
            if history.closed_ms is None and len(readers) != 1:
                return f"{shard} is open and read by the slots {readers}"
            for phase in (Phase.EXPECTED, Phase.RELEASED):
                if slots := self.owners(shard, phase):
                    return f"{shard} is {phase.value} in the slots {slots}"
            if history.closed_ms is not None and readers:
                return f"{shard} is closed, and read by the slots {readers}"
            if (slots := self.owners(shard, Phase.DONE)) and self.children(shard):
                return f"{shard} is done and kept by the slots {slots}, though it has children"
        loads = [sum(state.phase is Phase.READING for state in slot.values()) for slot in self.slots]
        if max(loads) - min(loads) > 1:
            return f"the slots read {loads} shards"
        return None

    def told(self) -> str:
        """The slots as they are by their commits, for the story."""
        by_slot: dict[int, list[str]] = defaultdict(list)
        for slot, states in enumerate(self.slots):
            by_slot[slot] += [f"{shard} {state}" for shard, state in states.items()]
        return "; ".join(f"slot {slot}: {', '.join(shards) or 'nothing'}" for slot, shards in by_slot.items())
