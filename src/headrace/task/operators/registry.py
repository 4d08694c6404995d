"""The class or function that builds the operator of each spec: one line for each spec of ``api/operators``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.api.operators import steps
from headrace.api.operators.changes import ChangesJoin, GroupBy, Latest, Top
from headrace.api.operators.join import IntervalJoin, LatestJoin, SendToTable, TableJoin, TaskTable
from headrace.api.operators.spec import OperatorSpec
from headrace.api.operators.task import TaskStep
from headrace.api.operators.window import Deduplicate, DropLate, Window
from headrace.api.specs import Node
from headrace.task.operators.base import BuildContext, Operator
from headrace.task.operators.changes_join import ChangesJoinOperator
from headrace.task.operators.functions import BatchFunctionOperator, MapAsyncOperator, RowFunctionOperator, SinkOperator
from headrace.task.operators.interval_join import IntervalJoinOperator
from headrace.task.operators.joins import LatestJoinOperator, TableWriter, build_table_join
from headrace.task.operators.keyed_windows import build_window
from headrace.task.operators.low_level import TaskOperator
from headrace.task.operators.ranked import FirstRows, build_latest
from headrace.task.operators.running import GroupByOperator
from headrace.task.operators.steps import (
    DeduplicateOperator,
    DropLateOperator,
    FilterOperator,
    PassOnOperator,
    ProjectOperator,
    SendOperator,
)

S = TypeVar("S", bound=OperatorSpec)
Build = Callable[[Node, S, BuildContext], Operator]
_BUILDS: dict[type[OperatorSpec], Build[Any]] = {}


def _runs(spec: type[S], build: Build[S]) -> None:
    _BUILDS[spec] = build  # so the type checker sees that it takes such specs


_runs(steps.Input, PassOnOperator)
_runs(steps.Merge, PassOnOperator)
_runs(steps.SideOutput, PassOnOperator)
_runs(steps.PartitionBy, SendOperator)
_runs(steps.Broadcast, SendOperator)
_runs(steps.SendTo, SendOperator)
_runs(steps.Filter, FilterOperator)
_runs(steps.Project, ProjectOperator)
_runs(steps.RowFunction, RowFunctionOperator)
_runs(steps.BatchFunction, BatchFunctionOperator)
_runs(steps.MapAsync, MapAsyncOperator)
_runs(steps.Sink, SinkOperator)
_runs(Deduplicate, DeduplicateOperator)
_runs(DropLate, DropLateOperator)
_runs(Window, build_window)
_runs(GroupBy, GroupByOperator)
_runs(IntervalJoin, IntervalJoinOperator)
_runs(LatestJoin, LatestJoinOperator)
_runs(ChangesJoin, ChangesJoinOperator)
_runs(TableJoin, build_table_join)
_runs(TaskTable, PassOnOperator)
_runs(SendToTable, TableWriter)
_runs(Top, FirstRows)
_runs(Latest, build_latest)
_runs(TaskStep, TaskOperator)


def registered() -> frozenset[type[OperatorSpec]]:
    return frozenset(_BUILDS)


def build_operator(node: Node, context: BuildContext) -> Operator:
    return _BUILDS[type(node.operator)](node, node.operator, context)
