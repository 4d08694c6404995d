"""The stores of a task, outside of any run: for reading what a savepoint holds, and for writing one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager

from headrace.checkpoint.machine import ProtocolMachine
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.runtime.connections import Connections
from headrace.runtime.host.attempt import Attempt, Factories
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.task import task_factory
from headrace.runtime.task_scope import TaskScope


@contextmanager
def attempt_at_rest(plan: Plan, stage: StagePlan, task: TaskPlan) -> Iterator[Attempt]:
    """An attempt of a task that never begins. Its stores are empty and have no database."""
    scope = TaskScope.of(plan, stage, task)
    connections = Connections()
    try:
        machine = ProtocolMachine(scope.machine, writer="at rest")
        make = Factories(task_factory(plan, stage, scope))
        metrics = TaskMetrics(str(task.name))
        with closing(Attempt(scope, make, machine, connections, metrics, random.Random(), 0.0)) as attempt:
            yield attempt
    finally:
        connections.close()
