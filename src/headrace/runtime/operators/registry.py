"""The class or function that builds the operator of each spec: one line for each spec of ``api/operators``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.api.operators.columns import Filter, Project
from headrace.api.operators.deduplicate import Deduplicate, DropLate
from headrace.api.operators.functions import BatchFunction, MapAsync, RowFunction, Sink
from headrace.api.operators.join import IntervalJoin, LatestJoin
from headrace.api.operators.spec import OperatorSpec
from headrace.api.operators.streams import Broadcast, Input, Merge, PartitionBy, SendTo, SideOutput
from headrace.api.operators.table import SendToTable, TableJoin, TaskTable
from headrace.api.operators.task import TaskStep
from headrace.api.operators.window import Window
from headrace.api.specs import Node
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.deduplicate import DeduplicateOperator, DropLateOperator
from headrace.runtime.operators.expression import FilterOperator, ProjectOperator
from headrace.runtime.operators.joins.interval import IntervalJoinOperator
from headrace.runtime.operators.joins.latest import LatestJoinOperator
from headrace.runtime.operators.joins.table import TableWriter, build_table_join
from headrace.runtime.operators.sending import PassOnOperator, SendOperator
from headrace.runtime.operators.user_code.functions import BatchFunctionOperator, RowFunctionOperator, SinkOperator
from headrace.runtime.operators.user_code.map_async import MapAsyncOperator
from headrace.runtime.operators.user_code.task import TaskOperator
from headrace.runtime.operators.windows.choice import build_window

S = TypeVar("S", bound=OperatorSpec)
Build = Callable[[Node, S, BuildContext], Operator]

_BUILDS: dict[type[OperatorSpec], Build[Any]] = {}


def _runs(spec: type[S], build: Build[S]) -> None:
    """``build`` makes the operators of such specs; the type checker sees that it takes them."""
    _BUILDS[spec] = build


_runs(Input, PassOnOperator)
_runs(Merge, PassOnOperator)
_runs(SideOutput, PassOnOperator)
_runs(PartitionBy, SendOperator)
_runs(Broadcast, SendOperator)
_runs(SendTo, SendOperator)
_runs(Filter, FilterOperator)
_runs(Project, ProjectOperator)
_runs(RowFunction, RowFunctionOperator)
_runs(BatchFunction, BatchFunctionOperator)
_runs(MapAsync, MapAsyncOperator)
_runs(Sink, SinkOperator)
_runs(Deduplicate, DeduplicateOperator)
_runs(DropLate, DropLateOperator)
_runs(Window, build_window)
_runs(IntervalJoin, IntervalJoinOperator)
_runs(LatestJoin, LatestJoinOperator)
_runs(TableJoin, build_table_join)
_runs(TaskTable, PassOnOperator)
_runs(SendToTable, TableWriter)
_runs(TaskStep, TaskOperator)


def registered() -> frozenset[type[OperatorSpec]]:
    """The specs that can be run."""
    return frozenset(_BUILDS)


def build_operator(node: Node, context: BuildContext) -> Operator:
    """The operator that runs a node."""
    return _BUILDS[type(node.operator)](node, node.operator, context)
