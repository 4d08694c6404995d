"""The cluster of an app with real operators: its sources hold Arrow frames, its targets take rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl
from typing_extensions import override

from headrace.checkpoint import instructions as do
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.plan.model import StreamPlan
from headrace.serdes.ipc import encode_rows
from simulator.app_oracle import AppOracle
from simulator.case import COLUMNS
from simulator.cluster import Cluster
from simulator.edges import RowTarget
from simulator.expected import TICK_MS, Message
from simulator.planned import AppShape
from simulator.storage import STEP

_KEYS = 4
_DOOMS = (do.Resume, do.Feed, do.Finish, do.AppendChanges, do.AppendCommit, do.AppendCommit, do.WriteLocal, do.Report)


@dataclass(frozen=True)
class SourceLog:
    """One bounded source partition: frames, and when each arrives. Reading begins at ``start``."""

    frames: tuple[bytes, ...]
    arrivals: tuple[float, ...]
    start: Offset
    ends_at: float
    """When it shows that nothing follows."""

    @property
    def end(self) -> Offset:
        """Behind the last frame."""
        return len(self.frames) * STEP

    def end_at(self, now: float) -> Offset:
        """Behind the last frame that has arrived."""
        return STEP * sum(at <= now for at in self.arrivals)

    def read(self, offset: Offset) -> bytes:
        """The frame at an offset."""
        return self.frames[offset // STEP]


class AppCluster(Cluster):
    """All that the tasks of an app share."""

    shape: AppShape
    oracle: AppOracle
    source_logs: dict[SSP, SourceLog]
    targets: dict[StreamId, RowTarget]
    doomed: dict[TaskName, type]
    """Tasks that die before the next instruction of a kind."""

    @override
    def draw_sources(self) -> None:
        self.targets = {stream: RowTarget(self.world, stream.name) for stream in self.shape.targets}
        self.source_logs = {}
        self.doomed = {}
        self._last_row = 0
        for stream in self.shape.sources:
            self.oracle.inputs[stream.spec.id] = []
            for ssp in stream.ssps():
                self.source_logs[ssp] = self._draw_source(stream, ssp)
        if self.shape.case.due is not None:
            self.world.after(self.settings.faults_until + self.shape.case.quiet_ms - 1, self.oracle.judge_due)

    @property
    @override
    def sources_read(self) -> bool:
        return all(log.ends_at <= self.world.now for log in self.source_logs.values())

    @override
    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        faults: list[tuple[float, Callable[[], None]]] = [(5, self._doom)]
        return [*faults, (3, self._disturb_target)] if self.targets else faults

    @override
    def heal(self) -> None:
        self.doomed.clear()
        for target in self.targets.values():
            target.failing = 0.0

    def _doom(self) -> None:
        """Some task dies at the next instruction of a kind: most of them take no time, and chance would miss them."""
        task = self.world.chance.choice(self.tasks).name
        self.doomed[task] = self.world.chance.choice(_DOOMS)
        self.world.tell("faults", f"the next {self.doomed[task].__name__} of {task} won't be performed")

    def _disturb_target(self) -> None:
        target = self.world.chance.choice(list(self.targets.values()))
        target.failing = self.world.chance.choice((0.0, 0.3, 0.9))
        self.world.tell("faults", f"target {target.name} fails {target.failing:.0%} of the time")

    def _draw_source(self, stream: StreamPlan, ssp: SSP) -> SourceLog:
        chance = self.world.chance
        frames: list[bytes] = []
        earlier: list[Message] = []
        count = chance.randint(2, 4)
        disorder = self.shape.case.disorder * TICK_MS
        # What lies before is from before the app's time: a startpoint, or the oldest message that is kept.
        start = chance.choice((0, 0, 0, 1))
        time = chance.randrange(20 * TICK_MS)
        for number in range(count):
            messages = []
            if number == start:
                earlier.clear()  # nobody reads those, so what repeats them wouldn't
            for _ in range(chance.randint(1, 7)):
                time += chance.randrange(12 * TICK_MS)
                messages.append(self._message(ssp.partition, number, time - chance.randrange(disorder)))
            self._again(messages, earlier)
            frames.append(_frame(messages))
            if number >= start:
                self.oracle.source_frame(stream, ssp, number * STEP, messages)
        arrivals = sorted(chance.random() * self.settings.faults_until for _ in range(count))
        quiet = self.shape.case.quiet_ms
        ends_at = self.settings.faults_until + quiet if quiet else arrivals[-1]
        if self.shape.case.late_frame:
            arrivals[-1] = ends_at
        return SourceLog(tuple(frames), tuple(arrivals), start * STEP, ends_at)

    def _message(self, partition: int, frame: int, ts: int) -> Message:
        self._last_row += 1
        return Message(self._last_row, self.world.chance.randrange(_KEYS), max(0, ts), partition, frame)

    def _again(self, messages: list[Message], earlier: list[Message]) -> None:
        """Some messages arrive again under their id, not much later; that makes no other message late."""
        chance = self.world.chance
        earlier += messages
        if self.shape.case.repeats and chance.random() < 0.7:
            first = earlier.pop(chance.randrange(len(earlier)))
            newest = max(message.ts for message in (*earlier, first))
            messages.append(replace(first, ts=min(first.ts + chance.randrange(10 * TICK_MS), newest)))


def _frame(messages: list[Message]) -> bytes:
    columns = {name: [getattr(message, name) for message in messages] for name in COLUMNS}
    return encode(Header(Kind.USER), encode_rows(pl.DataFrame(columns, schema=COLUMNS)))
