"""What the oracle sees of a task: parts of the real host that report what passes through them.

Nothing here decides anything. The machine reports its verdicts, the intakes what is processed, the producer what leaves
(``systems``): so the account of a commit is taken where the commit leaves, without a word of the host about itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl
from typing_extensions import override

from headrace.core.frame import UNVERSIONED, ControlMessage, Header, Kind, Restore, body_of, decode_control
from headrace.core.ids import SSP, Offset, TaskName
from headrace.plan.chain_plan import ChainPlan
from headrace.protocol import instructions as do
from headrace.protocol.machine import MachineConfig, ProtocolMachine
from headrace.systems.base import Rows
from headrace.task.calls import Calls
from headrace.task.event_time import Progress, TimesCheckpoint
from headrace.task.inputs.intake import DeadLetters, Intakes
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import Arrival, Port
from headrace.task.outputs.publisher import Publisher
from headrace.task.scope import TaskScope
from headrace.task.task import Chain, Task
from simulator.one_at_a_time import Record
from simulator.oracle import Account
from simulator.shapes import TaskShape
from simulator.story import answer, brief, frame

if TYPE_CHECKING:
    from simulator.container import SimContainer

_CONTROLS = frozenset({Kind.CHECKPOINT, Kind.RESTORE})


class Journal:
    """What one incarnation of a task has done since its last commit."""

    def __init__(self, container: SimContainer, shape: TaskShape, *, exactly_once: bool) -> None:
        self.container = container
        self.exactly_once = exactly_once
        self.shape = shape
        self.world = container.world
        self.oracle = container.cluster.oracle
        self.name = f"{shape.name}~{container.number}"
        self.scanned: dict[SSP, Offset] = {}
        self.record = Record()
        self._waiting: dict[int, list[tuple[SSP, Header]]] = defaultdict(list)
        self._begin()

    def _begin(self) -> None:
        """A new attempt."""
        self.latest = 0
        """The latest that the clock has shown to the task."""
        self.published = 0.0
        """When the incarnation last learned whether its writes had succeeded."""
        self._waiting.clear()
        self._next()

    def _next(self) -> None:
        """A new version."""
        self.consumed: list[int] = []
        self.emitted: list[int] = []
        self.told: list[tuple[int, int, int, int, int]] = []
        self.label = -1
        self.record.take()
        self.ended: set[SSP] = set()
        self.done: dict[tuple[SSP, int], int] = {}

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.world.tell(self.name, what)

    # -- what comes in

    def judged(
        self, before: int, ssp: SSP, offset: Offset, header: Header, control: ControlMessage | None, verdict: object
    ) -> None:
        """The protocol has judged a frame, when ``before`` was the version committed last."""
        if self.world.story is not None:
            assert isinstance(verdict, do.Verdict | do.Forget)
            self.tell(f"{ssp}@{offset} {frame(header, control)}: {answer(verdict)}")
        if verdict is do.Verdict.PROCESS:
            if self.exactly_once and header.version <= before and header.version != UNVERSIONED:
                self.oracle.late(self.shape, header.producer, header.version, before)
            self._note(ssp, header)
        elif verdict is do.Verdict.BUFFER:
            self._waiting[header.version].append((ssp, header))
        elif verdict is do.Verdict.ROLLBACK:
            self._rolled_back(ssp, header, control)
        elif isinstance(verdict, do.Forget):
            for label, frames in self._waiting.items():
                void = verdict.ssp, verdict.producer, verdict.seq
                self._waiting[label] = [
                    (s, h) for s, h in frames if not ((s, h.producer) == void[:2] and h.seq > void[2])
                ]

    def fed(self, feed: do.Feed) -> None:
        """What was buffered under this label has been processed, but for what is held."""
        for ssp, header in (waiting := self._waiting.pop(feed.label, [])):
            if (ssp, header.producer) not in feed.held:
                self._note(ssp, header)
        if held := [(ssp, header) for ssp, header in waiting if (ssp, header.producer) in feed.held]:
            self._waiting[feed.label] = held

    def _note(self, ssp: SSP, header: Header) -> None:
        self.label = max(self.label, header.version)
        self.done[ssp, header.producer] = max(header.seq, self.done.get((ssp, header.producer), 0))

    def _rolled_back(self, ssp: SSP, header: Header, control: ControlMessage | None) -> None:
        assert isinstance(control, Restore)
        if self.done.get((ssp, header.producer), 0) <= control.seq:
            self.oracle.fail(self.name, f"rolls back for {frame(header, control)}, which undoes nothing")
        key = (header.producer, header.generation)
        self.oracle.rolled_back(self.shape, self.container.number, ssp, key, self.scanned.get(ssp, 0))

    def consume(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes]) -> None:
        """These user frames are being processed."""
        for offset, payload in zip(offsets, payloads, strict=True):
            message = self.oracle.consumed_of(ssp, offset, payload)
            if message is not None:
                self.consumed.append(message)
        self._note_arrival()

    def consume_rows(self, ssp: SSP, rows: Sequence[int]) -> None:
        """These rows of a source are being processed, by their ids."""
        self.consumed += self.oracle.rows_of(ssp, rows)
        self._note_arrival()

    def _note_arrival(self) -> None:
        now, clock = int(self.world.now), self.container.clock.now_ms()
        told = self.container.number, int(self.published), now, clock, self.latest
        self.told += [told] * (len(self.consumed) - len(self.told))

    # -- what goes out

    def sends(self, ssp: SSP, header: Header, payload: bytes) -> None:
        """A frame leaves for a stream."""
        oracle = self.oracle
        if self.world.story is not None:
            self.tell(f"writes {frame(header, None)} to {ssp}")
        message = oracle.message_of(ssp, payload) if header.kind is Kind.USER else None
        oracle.sent(message, header, exactly_once=self.exactly_once)
        if message is not None:
            if ssp in self.ended:
                oracle.fail(self.name, f"writes {frame(header, None)} to {ssp} behind its end")
            oracle.emitted(message, ssp.stream.name, payload)
            self.emitted.append(message)
            oracle.labelled(self.shape, header.generation, header.version)
        elif header.kind is Kind.END_OF_STREAM:
            self.ended.add(ssp)
        elif header.kind in _CONTROLS:
            message_ = decode_control(header.kind, body_of(payload))
            restore = isinstance(message_, Restore)
            assert restore or header.kind is Kind.CHECKPOINT
            oracle.labelled(self.shape, header.generation, message_.next_version, restore=restore)  # type: ignore[union-attr]

    def records(self, header: Header, payload: bytes) -> None:
        """A record leaves for the changelog."""
        if header.kind is Kind.ABORT:
            self._begin()
        elif header.kind is Kind.COMMIT:
            account = Account(
                tuple(self.consumed),
                tuple(self.emitted),
                self.label,
                frozenset(self.ended),
                tuple(self.told),
                self.latest,
                self.exactly_once,
                *self.record.take(),
            )
            self.oracle.accounts[payload] = account
            self._next()


class WatchedMachine(ProtocolMachine):
    """The protocol machine; the journal notes its answers."""

    def __init__(self, config: MachineConfig, writer: str, journal: Journal) -> None:
        self._journal = journal
        super().__init__(config, writer)

    @override
    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None = None
    ) -> do.Verdict | do.Forget:
        before = self.version
        verdict = super().receive(ssp, offset, after, header, control)
        self._journal.judged(before, ssp, offset, header, control, verdict)
        return verdict

    @override
    def scan_ahead(self) -> do.Instruction:
        logs = self._journal.container.cluster.partitions
        self._journal.scanned = {ssp: logs[ssp].end for ssp in self.config.inputs}
        return super().scan_ahead()

    @override
    def fed(self) -> None:
        super().fed()
        assert isinstance(self._current, do.Feed)
        self._journal.fed(self._current)

    @override
    def next_step(self) -> do.Instruction | None:
        instruction = super().next_step()
        if instruction is not None:
            self._journal.container.next_instruction = self._journal, instruction
        return instruction

    def status(self) -> str:
        """Where it stands, for a run that hangs."""
        waits = ", ".join(f"{ssp} p{producer}" for ssp, producer in self.waiting_for())
        step = "" if self._current is None else f" {brief(self._current)}"
        return (
            f"{self._journal.name} g{self.generation} {self.phase.value}{step}, C={self.version}, label {self.label}, "
            f"alive {self._journal.container.alive}, {self.rollbacks} rollbacks, waits for [{waits}]"
        )


class WatchedIntakes(Intakes):
    """Intakes that report what is processed."""

    def __init__(self, journal: Journal, task: Task, dead_letters: DeadLetters, metrics: TaskMetrics) -> None:
        super().__init__(task, dead_letters, metrics)
        self._journal = journal

    @override
    def frames(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes], after: Offset) -> None:
        self._journal.consume(ssp, offsets, payloads)
        super().frames(ssp, offsets, payloads, after)

    @override
    def table(self, table: Rows) -> None:
        if table.frame.height:
            self._journal.consume_rows(table.ssp, table.frame["id"].to_list())
        super().table(table)


class WatchedChain(Chain):
    """Operators; the journal hears what they are given, and what they write."""

    def __init__(self, journal: Journal, operators: ChainPlan, port: Port, counters: TaskMetrics, calls: Calls) -> None:
        self._journal = journal
        self._writes = port
        super().__init__(operators, self, counters, calls)

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """See ``Port``: the chain is the port of its operators."""
        self._journal.record.written.append((stream, rows))
        self._writes.write(stream, rows, keys)

    @override
    def load(self, times: TimesCheckpoint, inputs: Mapping[str, Progress], scope: TaskScope) -> None:
        self._journal.record.load(times, inputs, scope)
        super().load(times, inputs, scope)

    @override
    def begin(self, task: TaskName) -> None:
        self._journal.record.begin(task)
        super().begin(task)

    @override
    def process(self, stream: str, rows: pl.DataFrame, arrival: Arrival | None = None) -> None:
        self._journal.record.process(stream, rows, arrival)
        super().process(stream, rows, arrival)

    @override
    def update(self, stream: str, rows: pl.DataFrame) -> None:
        self._journal.record.update(stream, rows)
        super().update(stream, rows)

    @override
    def advance(self, inputs: Mapping[str, Progress]) -> None:
        self._journal.record.advance(inputs)
        super().advance(inputs)

    @override
    def on_time(self, now_ms: int) -> None:
        self._journal.record.on_time(now_ms)
        super().on_time(now_ms)

    @override
    def tell_time(self, now_ms: int) -> None:
        self._journal.record.tell_time(now_ms)
        self._journal.latest = max(self._journal.latest, now_ms)
        super().tell_time(now_ms)


def watched_publisher(kind: type[Publisher], journal: Journal) -> type[Publisher]:
    """A publisher whose journal knows when it last checked its writes."""

    class Watched(kind):  # type: ignore[misc, valid-type]
        @override
        def advance(self, now_ms: float) -> None:
            journal.published = journal.world.now
            super().advance(now_ms)

    return Watched
