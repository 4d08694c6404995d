"""What a simulated app is: how it is declared, what its sources are like, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.api.specs import Guarantee, StreamSpec
from headrace.api.stream import Stream
from headrace.app import App
from headrace.rows.hashing import partition_of
from headrace.systems.registry import SystemSpec
from simulator.expected import TICK_MS, Outputs, Sources
from simulator.lives import Lives

INTERVAL_MS = 30
"""Between checkpoints, as in the shapes without operators."""

DISORDER = 8
"""How far out of order messages come, and how much of it the inputs allow; in ticks."""

COLUMNS: dict[str, pl.DataType] = {"id": pl.Int64(), "k": pl.Int64(), "ts": pl.Int64()}


@dataclass(frozen=True)
class Version:
    """A version of an app: how it is declared, what is different about its inputs, and how it runs.

    ``drops`` is what the user gives up when it takes over from the version before it.
    """

    declare: Callable[[App], None]
    inputs: Mapping[str, int] = field(default_factory=dict)
    """Partition counts that aren't those of the case."""
    interval_ms: int = INTERVAL_MS
    guarantee: Guarantee = "exactly_once"
    drops: tuple[str, ...] = ()


@dataclass(frozen=True)
class AppCase:
    """An app: its inputs with their partition counts, how it is declared, what has to come out of it."""

    name: str
    inputs: Mapping[str, int]
    declare: Callable[[App], None]
    wrong: Callable[[Sources, Outputs], str | None] = lambda sources, outputs: None
    tables: Callable[[Sources], Mapping[str, dict[int, set[int]]]] = lambda sources: {}
    """By table and key the ids that its row may have at the end."""
    table_column: str = "id"
    """The column of a table that holds the id."""
    repeats: bool = False
    """Some messages come again under their id."""
    wrong_by_lives: Callable[[Sources, Outputs, Lives], str | None] | None = None
    """As ``wrong``, of what is known only from what the tasks of each stage have committed, and when.

    If work is repeated, what is published may be there again. Then it is asked of what is committed, in all streams.
    """
    due: Callable[[Sources, Outputs, Lives], str | None] | None = None
    """What is wrong when the sources end at last: asked just before, with what is committed by then."""
    disorder: int = DISORDER
    """How far out of order its messages come, in ticks."""
    quiet_ms: int = 0
    """So long after the faults are over the sources end."""
    deep: bool = False
    """It has so many stages in a row that what is due comes too late if one container has all its tasks."""
    ends_early: tuple[str, ...] = ()
    """Inputs that end with their last frame nevertheless."""
    late_frame: bool = False
    """The last frame of each source partition comes then, too."""
    forgets: tuple[str, ...] = ()
    """Stores by key that hold nothing any more when all is over."""
    lasting: tuple[str, ...] = ()
    """Stores of other kinds that hold something even then: those of windows and joins don't."""

    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By stream the key of its changes, if they have one."""
    rescales: bool = True
    """Its state can be dealt to other numbers of tasks, where the plan doesn't say otherwise."""
    moved: bool = False
    """Users move positions in its sources: its outputs have to follow from what was read, as often as it was."""
    slotted: bool = False
    """Shards of its sources are dealt to its tasks while it runs."""
    before: tuple[Version, ...] = ()
    """What it was at first, if it changes while it runs: at last it is as ``declare`` says."""
    drops: tuple[str, ...] = ()
    """What the user gives up at the last change."""
    guarantee: Guarantee = "exactly_once"
    orders: float = 0.3
    """Of how many tasks it is checked that they have written what they would have one message at a time."""

    @property
    def versions(self) -> tuple[Version, ...]:
        """All that it ever is, in order."""
        return *self.before, Version(self.declare, guarantee=self.guarantee, drops=self.drops)

    @property
    def repeats_work(self) -> bool:
        """Some version of it is at-least-once."""
        return any(version.guarantee != "exactly_once" for version in self.versions)

    @property
    def asks(self) -> bool:
        """The oracle has to keep what its tasks have committed."""
        return self.wrong_by_lives is not None or self.due is not None


def ticks(number: int) -> str:
    """So many ticks of event time as a duration."""
    return f"{number * TICK_MS:+}ms" if number < 0 else f"{number * TICK_MS}ms"


def read(
    app: App,
    name: str,
    lateness: int = DISORDER,
    idle: str | None = None,
    system: SystemSpec | None = None,
    key: tuple[str, ...] = (),
) -> Stream:
    """An input of the columns that all of them have."""
    time: dict[str, Any] = {"event_time": "ts", "lateness": ticks(lateness), "idle_timeout": idle}
    return app.input(name, COLUMNS, key=key, system=system, **time)


def keys_in(source: StreamSpec, partition: int, partitions: int, keys: int) -> list[int]:
    """Those of the first so many keys that a partition of a source may hold; if none of them, the first that it may."""
    if not source.key:
        return list(range(keys))
    where = partition_of(pl.DataFrame({"k": range(100 * partitions)}), ["k"], partitions).tolist()
    there = [key for key, place in enumerate(where) if place == partition]
    return [key for key in there if key < keys] or there[:1]
