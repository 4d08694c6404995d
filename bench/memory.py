"""What a task has in memory at most, by kind and size of its state: taking in a message of each key, and ending.

The task lives in a process of its own (``bench.life``) and gets all messages as fast as it takes them. Its input then
ends: all windows emit their results at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.restarts import life
from bench.state_apps import Shape, create_inputs, inputs_of, seal, write
from bench.throughput import folder


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Memory with all keys in the state, at most until then and at most until the end; and the seconds of it all."""

    shape: Shape
    keys: int
    full_mb: float
    taking_mb: float
    peak_mb: float
    seconds: float


def memory_cost(base: Path, shape: Shape, keys: int, say: Callable[[str], None]) -> MemoryCost:
    """One life."""
    with folder(base) as home:
        create_inputs(shape, home)
        for stream in inputs_of(shape):
            write(stream, home, 0, keys)
        with life(shape, home, keys * len(inputs_of(shape))) as told:
            full = told("committed")
            seal(shape, home)
            ended = told("ended")
    cost = MemoryCost(shape, keys, full["rss_mb"], full["peak_mb"], ended["peak_mb"], ended["seconds"])
    say(f"{shape}, {keys:,} keys: {cost.peak_mb:,.0f} MB at most")
    return cost
