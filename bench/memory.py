"""The peak memory of a task by kind and size of its state, while it reads one message for each key, and while it ends.

The task runs in a process of its own (``bench.life``), and reads all messages as fast as it can. Then its input ends,
and all windows emit their results at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.restarts import task_process
from bench.state_apps import Shape, create_inputs, inputs_of, seal, write
from bench.turns import folder


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Memory with all keys in the state, its peak until then, and its peak until the end; and the total seconds."""

    shape: Shape
    keys: int
    full_mb: float
    taking_mb: float
    peak_mb: float
    seconds: float


def memory_cost(base: Path, shape: Shape, keys: int, say: Callable[[str], None]) -> MemoryCost:
    """Run one task until its input ends."""
    with folder(base) as home:
        create_inputs(shape, home)
        for stream in inputs_of(shape):
            write(stream, home, 0, keys)
        with task_process(shape, home, keys * len(inputs_of(shape))) as wait_for:
            full = wait_for("committed")
            seal(shape, home)
            ended = wait_for("ended")
    cost = MemoryCost(shape, keys, full["rss_mb"], full["peak_mb"], ended["peak_mb"], ended["seconds"])
    say(f"{shape}, {keys:,} keys: {cost.peak_mb:,.0f} MB at most")
    return cost
