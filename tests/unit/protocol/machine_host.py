"""A host for one task that keeps the changelog in a list, for tests that read like a conversation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from headrace.core.frame import END_VERSION, Checkpoint, Header, Kind, Restore
from headrace.core.ids import SSP, StreamId
from headrace.protocol import instructions as do
from headrace.protocol.changelog import ReplayStep
from headrace.protocol.machine import MachineConfig, ProtocolMachine
from headrace.protocol.record import LocalCheckpoint, SourceEntry, encode_record
from headrace.systems.startpoints import Order

A, B = StreamId("log", "a"), StreamId("log", "b")
A0, A1 = SSP(A, 0), SSP(A, 1)
END = END_VERSION


@dataclass
class Host:
    """Performs instructions at once; ``done`` lists them by name, ``sent`` the frames that were sent."""

    config: MachineConfig
    changelog: list[tuple[Header, bytes]] = field(default_factory=list)
    local: LocalCheckpoint | None = None
    done: list[str] = field(default_factory=list)
    sent: list[tuple[int, Header, object]] = field(default_factory=list)
    ahead: list[tuple[SSP, Header, Restore]] = field(default_factory=list)
    writer: str = "w"
    orders: tuple[Order, ...] = ()
    sources: tuple[SourceEntry, ...] = ()
    generations: itertools.count = field(default_factory=lambda: itertools.count(1))
    offsets: itertools.count = field(default_factory=itertools.count)

    def __post_init__(self):
        self.machine = ProtocolMachine(self.config, self.writer)
        self.last = self.resumed = self.kept = None
        self.stop_before = None

    def run(self, until: str | None = None):
        """Perform until there is nothing to do, or until the named instruction is next (it is not performed)."""
        while (step := self.machine.next_step()) is not None:
            self.last = step
            name = type(step).__name__
            if name == until:
                return step
            self.done.append(name)
            if name in {"End", "Stop"}:
                return step
            self.perform(step)
        return None

    def perform(self, step):
        machine, end = self.machine, None
        match step:
            case do.TakeGeneration():
                machine.start(next(self.generations), self.local, self.orders)
                return
            case do.AppendAbort():
                end = self.append(step.header, encode_record(step.record))
            case do.ReadChangelog():
                for offset in range(step.start or 0, step.end):
                    if machine.changelog(offset, *self.changelog[offset]) is ReplayStep.APPLY:
                        self.local = machine.local
            case do.SendControl():
                self.sent += [(f.partition, f.header, f.message) for f in step.frames]
            case do.ScanAhead():
                for ssp, header, restore in self.ahead:
                    machine.learn(ssp, header, restore)
            case do.Finish():
                for stream, count in self.config.outputs.items():
                    for partition in range(count):
                        self.sent.append((partition, machine.stamp(stream, partition, Kind.END_OF_STREAM), None))
            case do.AppendChanges():
                self.append(machine.stamp_change(), b"change")
            case do.AppendCommit():
                header, record = machine.seal(sources=self.sources)
                end = self.append(header, encode_record(record))
            case do.Resume():
                self.resumed = step
            case do.Keep():
                self.kept = step
            case do.WriteLocal():
                self.local = step.local
        machine.performed(end)

    def append(self, header: Header, body: bytes) -> int:
        self.changelog.append((header, body))
        return len(self.changelog)

    def receive(self, ssp: SSP, header: Header, control=None):
        offset = next(self.offsets)
        return self.machine.receive(ssp, offset, offset + 1, header, control)

    def take(self) -> list[str]:
        """What was performed since the last call."""
        done, self.done = self.done, []
        return done


def user(producer: int, generation: int, seq: int, label: int = 0) -> Header:
    return Header(Kind.USER, producer, generation, label, seq)


def restore(producer: int, generation: int, committed: int, seq: int, following: int) -> tuple[Header, Restore]:
    message = Restore(task_name="a/0", task_count=1, seq=seq, next_version=following)
    return Header(Kind.RESTORE, producer, generation, committed, seq + 1), message


def checkpoint(producer: int, generation: int, version: int, seq: int, following: int | None = None):
    following = version + 1 if following is None else following
    message = Checkpoint(task_name="a/0", task_count=1, next_version=following)
    return Header(Kind.CHECKPOINT, producer, generation, version, seq), message
