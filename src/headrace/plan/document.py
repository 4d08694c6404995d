"""A plan as JSON, in the format that Samza's plan viewer reads: one job for each stage.

As in Samza: ``applicationName``, ``applicationId``; ``jobs`` with ``jobName``, ``jobId`` and
``operatorGraph`` (``inputStreams``, ``outputStreams``, ``operators`` by id with ``opCode``, ``opId``,
``sourceLocation``, ``nextOperatorIds`` and, where it applies, ``outputStreamId``, ``tableId``, ``ttlMs``);
``sourceStreams``, ``sinkStreams`` and ``intermediateStreams`` by id with ``streamSpec``, ``sourceJobs``,
``targetJobs``; ``tables`` by id with ``tableProviderFactory`` and ``config``. Side inputs are among the
source streams.

Added by Headrace, and safe to ignore:

- at the top ``guarantee`` and ``grouping``;
- in a job ``sideInputs``, ``tables`` and ``tasks``: ``name``, ``producer`` (its producer id) and
  ``inputs`` (``system.stream[partition]``);
- in an operator ``kind``, ``detail``, ``expressions``, ``previousIds`` (operators, or the streams it reads),
  ``columns``, ``state`` and ``sourceText`` (all lines of the call);
- in a stream's spec ``role``, ``place``, ``isBroadcast``, ``columns``, ``eventTime`` (or null), ``latenessMs``,
  ``idleTimeoutMs``, ``onError``, ``deadLetter``, ``delivery`` (of an output, else null), ``isTarget``,
  ``sourceLocation``, ``sourceText``;
- in a table ``kind``, ``key``, ``sideInputs``, ``jobs``, ``delivery`` (of what is written to a remote one, else null),
  ``sourceLocation``, ``sourceText``.
"""

from __future__ import annotations

from typing import Any

from headrace.plan.render import RenderedOperator, RenderedPlan, RenderedStage, RenderedStream, RenderedTable

_ID = "1"
"""Samza numbers the instances of apps and jobs; here each has one."""

_ROLES = {
    "sourceStreams": ("source", "side-input"),
    "sinkStreams": ("sink",),
    "intermediateStreams": ("intermediate",),
}


def to_json(plan: RenderedPlan) -> dict[str, Any]:
    """Return the plan as plain data: dicts, lists, strings, numbers."""
    streams = {
        group: {id_: _stream(stream) for id_, stream in plan.streams.items() if stream.role in roles}
        for group, roles in _ROLES.items()
    }
    return {
        "applicationName": plan.app,
        "applicationId": _ID,
        "guarantee": plan.guarantee,
        "grouping": plan.grouping,
        "jobs": [_job(stage) for stage in plan.stages],
        **streams,
        "tables": {id_: _table(table) for id_, table in plan.tables.items()},
    }


def _job(stage: RenderedStage) -> dict[str, Any]:
    return {
        "jobName": stage.name,
        "jobId": _ID,
        "operatorGraph": {
            "inputStreams": [{"streamId": id_, "nextOperatorIds": list(after)} for id_, after in stage.inputs.items()],
            "outputStreams": [{"streamId": stream, "nextOperatorIds": []} for stream in stage.outputs],
            "operators": {operator.id: _operator(operator) for operator in stage.operators},
        },
        "sideInputs": list(stage.side_inputs),
        "tables": list(stage.tables),
        "tasks": [
            {"name": str(task.name), "producer": task.producer, "inputs": [str(ssp) for ssp in task.inputs]}
            for task in stage.tasks
        ],
    }


def _operator(operator: RenderedOperator) -> dict[str, Any]:
    optional = {
        "outputStreamId": operator.output,
        "tableId": operator.table,
        "ttlMs": operator.join_bound_ms,
    }
    return {
        "opCode": operator.code,
        "opId": operator.id,
        "sourceLocation": str(operator.source),
        "nextOperatorIds": list(operator.after),
        **{name: value for name, value in optional.items() if value is not None},
        "kind": operator.kind,
        "detail": operator.detail,
        "expressions": list(operator.expressions),
        "previousIds": list(operator.before),
        "columns": dict(operator.columns),
        "state": list(operator.state),
        "sourceText": operator.source.whole,
    }


def _stream(stream: RenderedStream) -> dict[str, Any]:
    return {
        "streamSpec": {
            "id": stream.id,
            "systemName": stream.system,
            "physicalName": stream.physical,
            "partitionCount": stream.partitions,
            "isBroadcast": stream.broadcast,
            "role": stream.role,
            "place": stream.place,
            "columns": dict(stream.columns),
            "eventTime": stream.event_time,
            "latenessMs": stream.lateness_ms,
            "idleTimeoutMs": stream.idle_timeout_ms,
            "onError": stream.on_error,
            "deadLetter": stream.dead_letter,
            "delivery": stream.delivery,
            "isTarget": stream.target,
            "sourceLocation": str(stream.source),
            "sourceText": stream.source.text,
        },
        "sourceJobs": list(stream.writers),
        "targetJobs": list(stream.readers),
    }


def _table(table: RenderedTable) -> dict[str, Any]:
    return {
        "id": table.id,
        "tableProviderFactory": f"headrace.{table.kind}",
        "config": dict(table.options),
        "kind": table.kind,
        "key": list(table.key),
        "sideInputs": list(table.side_inputs),
        "jobs": list(table.stages),
        "delivery": table.delivery,
        "sourceLocation": str(table.source),
        "sourceText": table.source.text,
    }
