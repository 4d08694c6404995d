"""The parts of the task and of the plan that an operator may use when it is built."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.api.specs import Node
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.base import Port
from headrace.runtime.tables.task_tables import TaskTables
from headrace.serdes.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The chain creates one for each node; operators take their dependencies from it."""

    port: Port
    counters: Counters
    calls: Calls
    tables: TaskTables
    inputs: tuple[Schema, ...]
    """The schemas of its inputs."""
    needed: tuple[str, ...] | None = None
    """The columns of its results that others need; None: all."""
    takes_partials: bool = False
    """A window: its input is partial results, made before the shuffle."""
    target_key: tuple[str, ...] = ()
    """A ``send_to``: the key by which rows are replaced in the table or output that it writes; empty if they aren't."""
    partials_of: Node | None = None
    """A ``partition_by``: the window whose partial results it writes instead of messages."""
