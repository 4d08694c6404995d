"""The scope of a task: its own part of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from driven_app import DrivenApp, Orders, orders_app

from headrace.plan.model import StreamPlan
from headrace.task.scope import TaskScope


def test_a_scope_has_the_partitions_of_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It doesn't list those of all tasks: with thousands of tasks that would take minutes."""
    orders = Orders(tmp_path)
    with DrivenApp(orders_app(tmp_path)) as app:
        monkeypatch.delattr(StreamPlan, "ssps")
        for stage in app.plan.stages:
            for task in stage.tasks:
                assert list(TaskScope.of(app.plan, stage, task).inputs) == list(task.inputs)
    orders.close()
