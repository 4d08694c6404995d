"""How to break the protocol: a mutant is the right code with one class in its place."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.checkpoint.changelog import Changelog
from headrace.checkpoint.frame_judge import FrameJudge
from headrace.checkpoint.frame_stamper import FrameStamper
from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.read_committed import ReadCommitted
from headrace.runtime.task import Task
from simulator.app_task import AppTask
from simulator.run import Parts
from simulator.task import SimTask


@dataclass(frozen=True)
class Mutant:
    """``says`` what is broken; ``shapes`` and ``first_seed``: where it shows soon."""

    says: str
    parts: Parts
    shapes: tuple[str, ...] = ()
    first_seed: int = 1


MUTANTS: dict[str, Mutant] = {}


def task(**attributes) -> Parts:
    return Parts(task=type("MutantTask", (SimTask,), attributes))


def app(**attributes) -> Parts:
    return Parts(app_task=type("MutantAppTask", (AppTask,), attributes))


def operators(kind, **attributes):
    """An app whose operators of a kind do something else."""

    class Changed(Task):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            for operator in self.chain:
                if isinstance(operator, kind):
                    operator.__class__ = type("Mutant", (type(operator),), attributes)

    return app(task_class=Changed)


def node(**attributes) -> Parts:
    return task(node_class=type("MutantNode", (ProtocolMachine,), attributes))


def receiving(**attributes) -> Parts:
    return node(judge_class=type("MutantReceiving", (FrameJudge,), attributes))


def sending(**attributes) -> Parts:
    return node(stamper_class=type("MutantSending", (FrameStamper,), attributes))


def changelog(**attributes) -> Parts:
    return node(changelog_class=type("MutantChangelog", (Changelog,), attributes))


def reader(**attributes) -> Parts:
    mutant = type("MutantReader", (ReadCommitted,), attributes)
    return Parts(reader=lambda position, whole: mutant(position, whole=whole))


def mutant(name: str, says: str, parts: Parts, *shapes: str, first_seed: int = 1) -> None:
    MUTANTS[name] = Mutant(says, parts, shapes, first_seed)


def no(*_: object, **__: object) -> bool:
    return False


def yes(*_: object, **__: object) -> bool:
    return True


def nothing(*_: object, **__: object) -> None:
    return None


def slow(self, ssp, offset, after, header, control):
    """``FrameJudge.receive`` without its shortcut: every frame goes through the table."""
    partition = self._inputs[ssp]
    parent = partition.parents[header.producer]
    partition.position = after
    for when, then in self._table[header.kind]:
        if when(parent, header, control):
            return then(parent, header, control, offset)
    raise AssertionError(header)
