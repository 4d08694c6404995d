"""Virtual time: one heap of what happens next, one source of chance, and a story of what happened."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

Steps = Generator[float, None, None]
"""What an actor does: it yields how many virtual milliseconds go by before its next step."""


class SimFailure(Exception):
    """The run has shown a fault of the protocol (or of the simulator)."""


class World:
    """Time and chance of one run. The order of events depends on the seed alone."""

    def __init__(self, seed: int, story: list[str] | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.mishaps = random.Random(f"mishaps {seed}")
        """For what was thought of later: the other draws stay what they were."""
        self.limits = random.Random(f"limits {seed}")
        """For the limits of the processes of a run."""
        self.now = 0.0
        self.steps = 0
        self.story = story
        self.services: dict[str, dict[Any, Any]] = {}
        """What services outside hold, by name and key."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def tell(self, who: str, what: str) -> None:
        """Add a line to the story. Callers that build costly lines look at ``story`` first."""
        if self.story is not None:
            self.story.append(f"{self.now:9.1f}  {who:<14} {what}")

    def after(self, delay: float, call: Callable[[], None]) -> None:
        """Call later."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, call))

    def spawn(self, name: str, steps: Steps) -> Actor:
        """Begin an actor."""
        actor = Actor(self, name, steps)
        self.after(self.chance.random(), actor.step)
        return actor

    def run(self, until: float, done: Callable[[], bool]) -> bool:
        """Let time pass until ``done`` (asked now and then) or the deadline; answers whether it was done."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call = heapq.heappop(heap)
            call()
            self.steps += 1
            if not self.steps & 63 and done():
                return True
        return done()


class Actor:
    """A generator in time. ``slowness`` stretches its delays; ``pause`` stops it for a while."""

    def __init__(self, world: World, name: str, steps: Steps) -> None:
        self.name = name
        self.alive = True
        self.slowness = 1.0
        self.asleep = False
        """The delay of the last step is a sleep, which doesn't take longer in a slow process, and may end early."""
        self._ticket = 0
        self._world = world
        self._steps = steps
        self._paused_until = 0.0

    def step(self) -> None:
        """Do one step and plan the next."""
        if not self.alive:
            return
        world = self._world
        if world.now < self._paused_until:
            self._plan(self._paused_until - world.now)
            return
        self.asleep = False
        try:
            delay = next(self._steps)
        except StopIteration:
            self.alive = False
            return
        self._plan(delay if self.asleep else delay * self.slowness)

    def _plan(self, delay: float) -> None:
        self._ticket += 1
        self._world.after(delay, partial(self._step, self._ticket))

    def _step(self, ticket: int) -> None:
        if ticket == self._ticket:  # else it was woken in between
            self.step()

    def wake(self) -> None:
        """End a sleep that the last step began by setting ``asleep``."""
        if self.asleep:
            self.asleep = False
            self._plan(0.0)

    def pause(self, ms: float) -> None:
        """Do nothing for a while: no step, no reaction."""
        self._paused_until = max(self._paused_until, self._world.now + ms)

    @property
    def paused(self) -> bool:
        """It stands still."""
        return self._world.now < self._paused_until

    def kill(self) -> None:
        """Stop between two steps."""
        self.alive = False
        self._steps.close()
