"""Mistakes with the disk: what survives a power cut although what it relies on doesn't."""

from __future__ import annotations

from mutant_kit import host, mutant

from headrace.life.metadata import MemoryMetadata
from headrace.protocol import instructions as do
from headrace.protocol.changelog import Changelog
from headrace.protocol.record import encode_record
from headrace.systems.base import sync_all
from headrace.task.host.commits import Survival, Together
from headrace.task.host.task_host import TaskHost
from headrace.task.inputs.consumers import InputConsumers
from headrace.task.scope import Pause
from simulator.coordinator import Coordinator
from simulator.run import Parts

SHAPES = tuple(f"{name}+power" for name in ("join", "fanout", "mixed", "shuffle", "direct"))


def patched(name, says, *patches, first_seed=1):
    mutant(name, says, Parts(), *SHAPES, first_seed=first_seed, patches=patches)


def only_what_was_read(self, flushed):
    self._connections.flush_records()
    flushed()
    sync_all(self._inputs.unsynced())
    yield Pause.PROGRESS


patched(
    "outputs aren't synced",
    "a commit's record survives without its results",
    (Survival, "of_what_is_there", only_what_was_read),
    first_seed=9,
)

patched(
    "inputs aren't synced",
    "a commit has read more than there is",
    (InputConsumers, "unsynced", lambda self: ()),
)


def not_at_all(self):
    yield Pause.PROGRESS


patched("records aren't synced", "what follows from a commit outlives it", (Survival, "of_the_record", not_at_all))


class SyncsAtTheEnd(TaskHost):
    """A commit's record is on the disk when all is over: sent, stored and trimmed."""

    def _committed(self, needed):
        super()._committed(needed)
        self._connections.sync_records()


mutant(
    "the record is synced too late",
    "its checkpoint is sent before, and inputs are trimmed",
    Parts(host=SyncsAtTheEnd),
    *SHAPES,
    patches=((Survival, "of_the_record", not_at_all),),
    first_seed=5,
)


def append_abort(self, instruction):
    if isinstance(instruction, do.AppendAbort):
        self._changelog.append(instruction.header, encode_record(instruction.record))
        yield Pause.ACKNOWLEDGED
        self.machine.performed(self._changelog.flush())
    else:
        yield from TaskHost._perform(self, instruction)


mutant(
    "a start doesn't sync",
    "it goes by a commit of another incarnation that isn't on the disk",
    host(_perform=append_abort),
    *SHAPES,
    first_seed=202,
)


class ForgetsGenerations(Coordinator):
    def crash(self):
        super().crash()
        self._metadata = MemoryMetadata()


mutant("metadata isn't synced", "generations are issued twice", Parts(coordinator=ForgetsGenerations), *SHAPES)


def without_reads(self):
    while self._waiting:
        yield Pause.DISK
        waiting, self._waiting = self._waiting, []
        self._connections.sync_records()
        for survival, _, _ in waiting:
            survival.synced()
        for survival, work, done in waiting:
            yield from self.go_on(survival, work, done)


patched("together without inputs", "who waits with others forgets what it read", (Together, "wait", without_reads))


def before_they_wait(self):
    waiting, self._waiting = self._waiting, []
    for survival, _, _ in waiting:
        survival.synced()
    for survival, work, done in waiting:
        yield from self.go_on(survival, work, done)
    self._connections.sync_records(each for survival, _, _ in waiting for each in survival.unsynced())
    if self._waiting:
        yield from self.wait()


patched("all but the disk", "tasks go on before the disk has it", (Together, "wait", before_they_wait))


def whatever_is_missing(self, offset, header):
    return (header.generation, header.seq) > (self.generation, self.seq)


patched(
    "a commit behind a hole counts",
    "the changes that are missing are missed",
    (Changelog, "_counts", whatever_is_missing),
    first_seed=288,
)
