"""A plan as one HTML page that needs nothing else: the picture, and a description of everything in it.

The picture works without script: boxes link to their descriptions, and the one that is linked to is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from headrace.api.location import Location
from headrace.plan.render import (
    RenderedOperator,
    RenderedPlan,
    RenderedStage,
    RenderedStream,
    RenderedTable,
)
from headrace.plan.text import counted, to_text
from headrace.web.plan_drawing import anchor, plan_picture

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_LEGEND = (
    ("stream source", "source"),
    ("stream intermediate", "intermediate stream"),
    ("stream sink", "output"),
    ("stream side-input", "side input"),
    ("table local", "local table"),
    ("table global", "global table"),
    ("table remote", "remote table"),
)
_LINES = (
    ("flow", "messages"),
    ("broadcast", "to every task"),
    ("side", "side input"),
    ("table", "into a table, or looked up in it"),
    ("dead-letter", "what can't be read"),
)

Facts = Iterable[tuple[str, str]]


def plan_html(plan: RenderedPlan) -> str:
    """Return the page as text. Saved as a file, it works offline in any browser."""
    picture = plan_picture(plan)
    return f"""<!DOCTYPE html>
<html lang="en" xmlns="http://www.w3.org/1999/xhtml">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{escape(plan.app)}: plan</title>
<style>
{asset("plan_page.css")}</style>
</head>
<body>
<header>
<h1>{escape(plan.app)}</h1>
<p>{summary(plan)}</p>
</header>
{legend(picture)}
<main id="top">
{picture}
</main>
{"".join(descriptions(plan))}
<details><summary>As text</summary>
<pre>{escape(to_text(plan))}</pre>
</details>
<script>
{asset("plan_page.js")}</script>
</body>
</html>
"""


def asset(name: str) -> str:
    """A file of this package."""
    return files("headrace.web").joinpath(name).read_text(encoding="utf-8")


def summary(plan: RenderedPlan) -> str:
    """The plan in one line."""
    words = [counted(len(plan.stages), "stage"), counted(plan.tasks(), "task"), plan.guarantee]
    if plan.grouping == "container":
        words.append("one task for each container")
    return escape(" · ".join(words))


def legend(picture: str) -> str:
    """What the boxes and lines of a picture mean, those that it has."""
    items = [
        f'<li><span class="key {class_.partition(" ")[2]}{" table" if class_.startswith("table") else ""}"></span>'
        f"{words}</li>"
        for class_, words in _LEGEND
        if f'class="{class_}' in picture
    ]
    items += [
        f'<li><svg width="34" height="10" aria-hidden="true"><path class="edge {class_}" d="M1 5 H33"/></svg>'
        f"{words}</li>"
        for class_, words in _LINES
        if f'class="edge {class_}"' in picture
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


# -- descriptions


def descriptions(plan: RenderedPlan) -> Iterable[str]:
    """A section for everything in the picture, which shows when it is linked to. A live page says there what is now."""
    for stage in plan.stages:
        yield _description("stage", stage.name, f"stage {stage.name}", None, _about_stage(stage))
        for operator in stage.operators:
            title = f"{operator.kind} {operator.id}"
            yield _description("operator", operator.id, title, operator.source, _about_operator(plan, stage, operator))
    for stream in plan.streams.values():
        title = f"{stream.role} {stream.id}"
        yield _description("stream", stream.id, title, stream.source, _about_stream(stream))
    for table in plan.tables.values():
        yield _description("table", table.id, f"{table.kind} table {table.id}", table.source, _about_table(table))


def _description(kind: str, id_: str, title: str, source: Location | None, facts: Facts) -> str:
    code = f"<p>{escape(str(source))}</p><pre>{escape(source.whole)}</pre>" if source is not None else ""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    return (
        f'<section id="{escape(anchor(kind, id_))}" class="description {kind}"><a class="close" href="#top" '
        f'aria-label="close">✕</a><h2>{escape(title)}</h2><div class="now"></div>{code}<dl>{rows}</dl></section>\n'
    )


def _about_stage(stage: RenderedStage) -> Facts:
    yield "tasks", f"{len(stage.tasks):,}"
    yield "reads", _names(stage.inputs)
    yield "side inputs", _names(stage.side_inputs)
    yield "writes", _names(stage.outputs)
    yield "tables", _names(stage.tables)
    for task in stage.tasks[:1]:
        yield f"task {task.name} reads", _names(map(str, task.inputs))


def _about_operator(plan: RenderedPlan, stage: RenderedStage, operator: RenderedOperator) -> Facts:
    yield "does", operator.detail
    yield "expressions", "; ".join(operator.expressions)
    yield "from", _names(operator.before)
    yield "to", _names(operator.after)
    if operator.output is not None:
        yield "writes", f"{operator.output}, {counted(plan.streams[operator.output].partitions, 'partition')}"
    yield "table", operator.table or ""
    yield "columns", _names(f"{name}: {dtype}" for name, dtype in operator.columns)
    yield "state", "; ".join(operator.state)
    yield "stage", f"{stage.name}, {counted(len(stage.tasks), 'task')}"


def _about_stream(stream: RenderedStream) -> Facts:
    yield "place", stream.place
    yield "partitions", "" if stream.target else f"{stream.partitions:,}"
    yield "delivery", stream.delivery or ""
    yield "written by", _names(f"stage {stage}" for stage in stream.writers)
    yield "read by", _names(f"stage {stage}" for stage in stream.readers)
    yield "notes", _names(stream.notes)
    yield "columns", _names(f"{name}: {dtype}" for name, dtype in stream.columns)


def _about_table(table: RenderedTable) -> Facts:
    yield "key", _names(table.key)
    yield "kept by side inputs", _names(table.side_inputs)
    yield "filled by", _names(table.writers)
    yield "joined by", _names(table.joins)
    yield "held by", _names(f"stage {stage}" for stage in table.stages)
    yield "options", _names(f"{name}={value}" for name, value in table.options)
    yield "written", table.delivery or ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)
