"""Where the work of a host can be interrupted: before each instruction, and wherever it would block.

Whatever blocks is a generator of pauses. A live container resumes it at once, for its ports block by themselves: an
acknowledgement is waited for by ``Producer.flush``. The simulator keeps the generator until what the pause names has
happened, and may kill the task there, let another one overtake it, or let time go by.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class Pause(Enum):
    """What has to happen before the work resumes."""

    INSTRUCTION = "instruction"
    """Nothing: an instruction of the protocol is about to be performed."""

    PROGRESS = "progress"
    """Nothing: part of an instruction has been performed, more is to come."""

    ACKNOWLEDGED = "acknowledged"
    """Everything sent so far is acknowledged; ``flush`` comes next."""

    DISK = "disk"
    """The task is about to wait for the disk, unless the caller does that for several tasks."""

    GENERATION = "generation"
    """The coordinator has answered; ``next_generation`` comes next."""

    REST = "rest"
    """Pause for a few milliseconds, because nothing is due and a drain waits for others."""


Steps = Generator[Pause, None, T]
"""Work that may be interrupted."""


def run(steps: Steps[T]) -> T:
    """Do all of it now; the ports block where it has to wait."""
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result
