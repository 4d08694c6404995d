"""Operators that connect flows: where messages enter, merge, branch off and leave."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from headrace.api.operators.column_set import ColumnSet
from headrace.api.operators.spec import OperatorSpec
from headrace.api.operators.wording import names

LATE = "late"
"""The side output of messages that are too late for a step."""

FAILED = "failed"
"""The side output of dead letters: rows on which a user's function raised (``FAILED_COLUMNS``)."""

TASK_OUTPUT = "output "
"""The prefix of a low-level task's side outputs; the output's own name follows."""


@dataclass(frozen=True, slots=True)
class Input(OperatorSpec):
    """Reads a stream: a source, or an intermediate stream that another stage writes."""

    stream: str
    kind = "input"

    @property
    @override
    def stream_read(self) -> str:
        return self.stream


@dataclass(frozen=True, slots=True)
class Merge(OperatorSpec):
    """All messages of all its inputs, which have the same schema."""

    kind = "merge"
    passes_rows = True
    row_by_row = True


@dataclass(frozen=True, slots=True)
class SideOutput(OperatorSpec):
    """What the step before it emits under a name, apart from its results: ``LATE``, ``FAILED``, a task's output."""

    name: str

    @property
    @override
    def kind(self) -> str:
        return "output" if self.name.startswith(TASK_OUTPUT) else self.name

    @property
    @override
    def code(self) -> str:
        return "LATE" if self.name == LATE else "SIDE_OUTPUT"

    @property
    @override
    def detail(self) -> str:
        return self.name.removeprefix(TASK_OUTPUT) if self.name.startswith(TASK_OUTPUT) else ""

    @override
    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        # Late messages are rows that the step before it was given. Other side outputs are rows of their own.
        return downstream if self.name == LATE else frozenset()


@dataclass(frozen=True, slots=True)
class _StreamWriter(OperatorSpec):
    """Writes its messages to ``stream``."""

    stream: str

    @property
    @override
    def stream_written(self) -> str:
        return self.stream


@dataclass(frozen=True, slots=True)
class PartitionBy(_StreamWriter):
    """Writes each message to the partition of ``stream`` that its key columns hash to. Ends a stage."""

    keys: tuple[str, ...]
    kind = "partition_by"
    passes_rows = True

    @property
    @override
    def detail(self) -> str:
        return f"by {names(self.keys)}"


@dataclass(frozen=True, slots=True)
class Broadcast(_StreamWriter):
    """Writes each message to ``stream``, of which every task of the next stage reads all partitions. Ends a stage."""

    kind = "broadcast"


@dataclass(frozen=True, slots=True)
class SendTo(_StreamWriter):
    """Writes to an output stream. ``keys`` choose the partition; without keys messages stay in their task's.

    Messages to a remote table go to an output that has the table's id.
    """

    keys: tuple[str, ...] = ()
    kind = "send_to"

    @property
    @override
    def detail(self) -> str:
        return f"by {names(self.keys)}" if self.keys else ""
