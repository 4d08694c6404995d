"""How to break the protocol or its host: a mutant is the right code with one class or method in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch as replaced

from headrace.protocol.changelog import Changelog
from headrace.protocol.frame_judge import FrameJudge
from headrace.protocol.frame_stamper import FrameStamper
from headrace.protocol.read_committed import ReadCommitted
from headrace.task.host.task_host import TaskHost
from headrace.task.run_loop import RunLoop
from headrace.task.task import Task
from simulator.journal import WatchedMachine
from simulator.run import Parts

Patches = tuple[tuple[Any, str, Any], ...]


@dataclass(frozen=True)
class Mutant:
    """``says`` what is broken; ``shapes`` and ``first_seed``: where it shows soon; ``patches``: methods replaced."""

    says: str
    parts: Parts
    shapes: tuple[str, ...] = ()
    first_seed: int = 1
    patches: Patches = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(replaced.object(owner, name, value))
            yield


MUTANTS: dict[str, Mutant] = {}


def host(**attributes) -> Parts:
    return Parts(host=type("MutantHost", (TaskHost,), attributes))


def loop(**attributes) -> Parts:
    return Parts(loop=type("MutantLoop", (RunLoop,), attributes))


def operators(kind, **attributes):
    """An app whose operators of a kind do something else."""

    class Changed(Task):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            for operator in self.chain:
                if isinstance(operator, kind):
                    operator.__class__ = type("Mutant", (type(operator),), attributes)

    return Parts(task=Changed)


def node(**attributes) -> Parts:
    return Parts(machine=type("MutantMachine", (WatchedMachine,), attributes))


def receiving(**attributes) -> Parts:
    return node(judge_class=type("MutantReceiving", (FrameJudge,), attributes))


def sending(**attributes) -> Parts:
    return node(stamper_class=type("MutantSending", (FrameStamper,), attributes))


def changelog(**attributes) -> Parts:
    return node(changelog_class=type("MutantChangelog", (Changelog,), attributes))


def reader(**attributes) -> Parts:
    mutant = type("MutantReader", (ReadCommitted,), attributes)
    return Parts(reader=lambda position, whole: mutant(position, whole=whole))


def mutant(name: str, says: str, parts: Parts, *shapes: str, first_seed: int = 1, patches: Patches = ()) -> None:
    MUTANTS[name] = Mutant(says, parts, shapes, first_seed, patches)


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
