"""Show a plan as text and as small HTML: a table of operators for each stage, then all streams and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from headrace.api.location import Location
from headrace.plan.render import (
    RenderedOperator,
    RenderedPlan,
    RenderedStage,
    RenderedStream,
    RenderedTable,
)

Row = tuple[str, ...]

_SOURCE_CHARS_MAX = 72
"""The longest shown line of code. A line that chains a whole flow would push the table's columns out of sight."""


def to_text(plan: RenderedPlan) -> str:
    """Return the plan for a terminal or a file; it ends with a newline."""
    lines = [_summary(plan)]
    for title, rows in _parts(plan):
        lines += ["", title, *_aligned(rows)]
    return "\n".join(lines) + "\n"


def to_html(plan: RenderedPlan) -> str:
    """Return the plan as plain HTML tables, for a cell of a notebook."""
    pieces = [f"<p><b>{escape(_summary(plan))}</b></p>"]
    for title, rows in _parts(plan):
        pieces += [f"<p>{escape(title)}</p>", '<table style="text-align: left">']
        pieces += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
        pieces.append("</table>")
    return f"<div>{''.join(pieces)}</div>"


def _summary(plan: RenderedPlan) -> str:
    by_container = ", one task for each container" if plan.grouping == "container" else ""
    stages, tasks = counted(len(plan.stages), "stage"), counted(plan.tasks(), "task")
    return f"{plan.app}: {stages}, {tasks}, {plan.guarantee}{by_container}"


def _parts(plan: RenderedPlan) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tables with their titles."""
    for stage in plan.stages:
        yield f"stage {stage.name}: {counted(len(stage.tasks), 'task')}", list(_stage_rows(plan, stage))
    yield "streams", [_stream_row(stream) for stream in plan.streams.values()]
    if plan.tables:
        yield "tables", [_table_row(table) for table in plan.tables.values()]


def _stage_rows(plan: RenderedPlan, stage: RenderedStage) -> Iterable[Row]:
    for id_ in stage.inputs:
        stream = plan.streams[id_]
        yield "input", stream.id, _reading(stream), *_place(stream.source)
    for id_ in stage.side_inputs:
        stream = plan.streams[id_]
        tables = [t for t in stage.tables if id_ in plan.tables[t].side_inputs]
        reading = f"{_reading(stream)}, keeps {', '.join(tables)}"
        yield "side input", id_, reading, *_place(stream.source)
    for operator in stage.operators:
        yield operator.kind, operator.id, _doing(plan, operator), *_place(operator.source)
    if not stage.operators and not stage.inputs:
        yield (f"gone; tells the readers of {', '.join(stage.outputs)} that it has ended",)


def _place(source: Location) -> Row:
    text = source.text
    return str(source), text if len(text) <= _SOURCE_CHARS_MAX else text[: _SOURCE_CHARS_MAX - 1] + "…"


def _reading(stream: RenderedStream) -> str:
    return ", ".join([counted(stream.partitions, "partition"), *stream.notes])


def _doing(plan: RenderedPlan, operator: RenderedOperator) -> str:
    words = [f"from {' and '.join(operator.before)}"]
    if operator.output is not None and operator.detail:
        words.append(operator.detail)
    if operator.table is not None:
        words.append(f"{operator.table_preposition} table {operator.table}")
    if operator.output is not None:
        stream = plan.streams[operator.output]
        why = f", because {stream.may_repeat}" if stream.may_repeat else ""
        words.append(f"into {stream.id} ({_extent(stream)}{why})")
    elif operator.detail:
        words.append(operator.detail)
    return ", ".join(words)


def _extent(stream: RenderedStream) -> str:
    """Return the partition count, or the delivery of a target, which has no partitions."""
    return str(stream.delivery) if stream.target else counted(stream.partitions, "partition")


def _stream_row(stream: RenderedStream) -> Row:
    return (
        stream.id,
        stream.role,
        stream.place,
        _extent(stream),
        f"{', '.join(stream.writers) or 'outside'} -> {', '.join(stream.readers) or 'outside'}",
        str(stream.source),
    )


def _table_row(table: RenderedTable) -> Row:
    if table.side_inputs:
        origin = f"kept by {', '.join(table.side_inputs)}"
    elif table.kind == "remote":
        origin = f"written by {', '.join(table.writers)}, {table.delivery}" if table.writers else "read alone"
    else:
        origin = f"filled by {', '.join(table.writers)}"
    joined = f"joined by {', '.join(table.joins)}" if table.joins else "joined by none"
    kind = ", ".join([table.kind, *(f"{name} {value}" for name, value in table.options)])
    return table.id, kind, f"key {', '.join(table.key)}", origin, joined, str(table.source)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 task``, ``2,000 tasks``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _aligned(rows: Iterable[Row]) -> list[str]:
    """Yield the rows as lines with aligned columns; only the last column isn't padded."""
    table: Sequence[Row] = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]
