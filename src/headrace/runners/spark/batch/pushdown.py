"""What a stage lets Spark leave out of an input: rows that its first filters drop, and columns that no step reads.

The steps run in the stage nevertheless. A row that Spark keeps is filtered again, so Spark need only be sure of the
rows that it drops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from headrace.api.operators.columns import Filter, Project
from headrace.api.specs import Node
from headrace.plan.model import Plan, StagePlan
from headrace.runners.spark.batch.expressions import Scope, quoted

_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_SPARK_TYPES: Mapping[pl.DataType, T.DataType] = {
    pl.Int8(): T.ByteType(),
    pl.Int16(): T.ShortType(),
    pl.Int32(): T.IntegerType(),
    pl.Int64(): T.LongType(),
    pl.Float32(): T.FloatType(),
    pl.Float64(): T.DoubleType(),
    pl.String(): T.StringType(),
    pl.Binary(): T.BinaryType(),
    pl.Boolean(): T.BooleanType(),
    pl.Date(): T.DateType(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingSteps:
    """The filters and projections that all messages of an input pass first, in order.

    ``columns`` are those of the input that the stage needs, in their order there; None: all of them.
    """

    steps: tuple[Filter | Project, ...]
    columns: tuple[str, ...] | None


def leading_steps(plan: Plan, stage: StagePlan, input_id: str) -> LeadingSteps:
    """The steps of ``stage`` in front of the first one that is anything else than a filter or a projection.

    They end where the flow branches. Raises ``KeyError`` if the stage doesn't read ``input_id``.
    """
    node = _input_node(plan, stage, input_id)
    after = plan.successors(stage)
    columns = _columns_needed(plan, node)
    steps: list[Filter | Project] = []
    while len(after[node.id]) == 1:
        node = plan.graph.nodes[after[node.id][0]]
        if not isinstance(node.operator, Filter | Project):
            break
        steps.append(node.operator)
    return LeadingSteps(steps=tuple(steps), columns=columns)


def pushed_filter(leading: LeadingSteps, columns: Mapping[str, pl.DataType], plain: set[str]) -> Column | None:
    """A condition that Spark can check on the input: it holds for each row that passes all of the steps.

    ``columns`` are all columns of the input, ``plain`` those of ``plain_columns``. None if no part of any filter can
    be translated. Needs a running Spark.
    """
    scope = Scope.over(columns, plain)
    pushed: list[Column] = []
    for step in leading.steps:
        if isinstance(step, Filter):
            condition, _ = scope.split(step.predicate)
            if condition is not None:
                pushed.append(condition)
        else:
            scope = scope.projected(step.exprs, keep=step.keep)
    return reduce(lambda a, b: a & b, pushed) if pushed else None


def narrowed(rows: DataFrame, leading: LeadingSteps, columns: Mapping[str, pl.DataType]) -> DataFrame:
    """Return ``rows`` without those that the steps drop, as far as Spark knows, and without unneeded columns.

    ``columns`` is the schema of the input for Polars. The columns that stay keep their order.
    """
    condition = pushed_filter(leading, columns, plain_columns(columns, rows.schema))
    if condition is not None:
        rows = rows.where(condition)
    spelled = _spelled(rows.columns)
    if leading.columns is None or any(spelled[name.casefold()] != 1 for name in leading.columns):
        return rows
    return rows.select(*(quoted(name) for name in leading.columns))


def plain_columns(columns: Mapping[str, pl.DataType], schema: T.StructType) -> set[str]:
    """The columns of a DataFrame that hold, and compare, the same values for Spark as for Polars.

    Left out are columns of another type than the declared one, texts with a collation, CHAR and VARCHAR (Spark pads
    what they are compared with), and names that Spark takes for one another.
    """
    spelled = _spelled(schema.names)
    return {
        field.name
        for field in schema.fields
        if field.name in columns
        and field.dataType == _spark_type(columns[field.name])
        and _CHAR_OR_VARCHAR not in field.metadata
        and spelled[field.name.casefold()] == 1
    }


def _spark_type(dtype: pl.DataType) -> T.DataType | None:
    """The one type of Spark that has exactly the values of a dtype."""
    if isinstance(dtype, pl.Datetime):
        if dtype.time_unit != "us":
            return None
        return T.TimestampNTZType() if dtype.time_zone is None else T.TimestampType()
    if isinstance(dtype, pl.Decimal):
        return T.DecimalType(dtype.precision, dtype.scale)
    return _SPARK_TYPES.get(dtype)


def _spelled(names: list[str]) -> Counter[str]:
    """Return how often a name occurs; Spark ignores case."""
    return Counter(name.casefold() for name in names)


def _input_node(plan: Plan, stage: StagePlan, input_id: str) -> Node:
    for id_ in stage.nodes:
        node = plan.graph.nodes[id_]
        if node.operator.stream_read == input_id:
            return node
    raise KeyError(input_id)


def _columns_needed(plan: Plan, node: Node) -> tuple[str, ...] | None:
    """The columns that other steps need, and the one with the event time, which the input reads itself."""
    needed = plan.needed.get(node.id)
    if needed is None or node.schema is None:
        return None
    own = {node.event_time.column} if node.event_time is not None else set()
    wanted = {*needed, *own}
    return tuple(name for name in node.schema.columns if name in wanted)
