"""What the protocol needs to know of a task, read out of the plan."""

from __future__ import annotations

from headrace.api.specs import Role
from headrace.checkpoint.machine import MachineConfig
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.systems.registry import keeps_rows


def machine_config(plan: Plan, stage: StagePlan, task: TaskPlan) -> MachineConfig:
    """The task as a node of the protocol: who writes its inputs, which framed streams it writes."""
    mine = set(task.inputs)
    inputs = {
        ssp: tuple(t.producer for writer in stream.writers for t in plan.stage(writer).tasks)
        for stream in plan.streams.values()
        if stream.spec.role is Role.INTERMEDIATE
        for ssp in stream.ssps()
        if ssp in mine
    }
    outputs = {
        plan.streams[id_].spec.stream: plan.streams[id_].partitions
        for id_ in stage.outputs
        if not keeps_rows(plan.streams[id_].spec.system)
    }
    return MachineConfig(
        task=task.name,
        task_count=len(stage.tasks),
        producer=task.producer,
        inputs=inputs,
        outputs=outputs,
        interval_ms=plan.graph.settings.checkpoint_interval_ms,
        exactly_once=plan.graph.settings.guarantee == "exactly_once",
    )
