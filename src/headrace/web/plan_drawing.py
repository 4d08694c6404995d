"""A plan as a picture: streams and stages are boxes of HTML, and SVG draws the lines between them.

A stage is a list: its tables, then its operators. A row follows from the row above it unless lines say otherwise; they
run at the right side of the list. No script is needed. Every box links to its description in the page (``anchor``) and
has a title that shows on hover. A live picture has room for what is measured: its script finds the places by ``data-``
attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from headrace.plan.render import RenderedOperator, RenderedPlan, RenderedStage, RenderedStream, RenderedTable
from headrace.plan.text import counted
from headrace.web.layout import Box, Link, Point, lay_out

# The style sheet has these sizes, too.
_PILL_HEIGHT, _HEAD_HEIGHT, _ROW_HEIGHT, _STAGE_PADDING = 46.0, 36.0, 62.0, 16.0
_ROW_WIDTH = 240.0
_GAP_X, _GAP_Y = 46.0, 26.0
_LIVE_GAP_X, _LIVE_HEIGHT = 92.0, 74.0
_ARC, _ARC_MAX = 7.0, 63.0
_PILL_MAX = 210.0


class _StageBox:
    """A stage as a list: which row is where, and the lines between rows that aren't neighbours."""

    def __init__(self, plan: RenderedPlan, stage: RenderedStage, live_height: float = 0.0) -> None:
        self._plan = plan
        self.rows_top = _HEAD_HEIGHT + live_height
        self.stage = stage
        self.name = f"stage {stage.name}"
        self.operators = _in_chains(stage)
        rows = [*(f"table {table}" for table in stage.tables), *(operator.id for operator in self.operators)]
        self._row = {row: number for number, row in enumerate(rows)}
        inner = [(kind, self._row[a], self._row[b]) for kind, a, b in self._inner()]
        self.followed = {b for kind, a, b in inner if kind == "flow" and b == a + 1}
        self.arcs = [(kind, a, b) for kind, a, b in inner if kind != "flow" or b != a + 1]
        gutter = max((_reach(a, b) for _, a, b in self.arcs), default=0.0)
        self.box = Box(
            _ROW_WIDTH + 2 * _STAGE_PADDING + gutter, self.rows_top + _ROW_HEIGHT * len(rows) + _STAGE_PADDING
        )

    def y(self, row: str) -> float:
        """How far the middle of a row is below the top of the stage."""
        return self.rows_top + _ROW_HEIGHT * (self._row[row] + 0.5)

    def _inner(self) -> Iterator[tuple[str, str, str]]:
        for operator in self.stage.operators:
            yield from (("flow", before, operator.id) for before in operator.before if before in self._row)
            table = f"table {operator.table}"
            if table in self._row:
                joined = operator.kind == "join"
                yield ("table", table, operator.id) if joined else ("table", operator.id, table)

    def lines(self) -> Iterator[tuple[str, Link]]:
        """Every line between this stage and a stream, with its kind: its class in the style sheet."""
        streams, middle = self._plan.streams, _PILL_HEIGHT / 2
        for operator in self.stage.operators:
            for stream in (before for before in operator.before if before not in self._row):
                kind = "broadcast" if streams[stream].broadcast else "flow"
                yield kind, Link(f"stream {stream}", self.name, middle, self.y(operator.id))
            if operator.output is not None:
                kind = "broadcast" if streams[operator.output].broadcast else "flow"
                yield kind, Link(self.name, f"stream {operator.output}", self.y(operator.id), middle)
        for table in self.stage.tables:
            for side in self._plan.tables[table].side_inputs:
                yield "side", Link(f"stream {side}", self.name, middle, self.y(f"table {table}"))
        read = [*self.stage.inputs, *self.stage.side_inputs]
        for letters in sorted({letters for id_ in read if (letters := streams[id_].dead_letter) is not None}):
            yield "dead-letter", Link(self.name, f"stream {letters}", _HEAD_HEIGHT / 2, middle)


def _in_chains(stage: RenderedStage) -> list[RenderedOperator]:
    """The operators, upstream first, each directly below one that it follows where that is possible."""
    waiting = {operator.id: operator for operator in stage.operators}
    order: list[RenderedOperator] = []
    while waiting:
        ready = [operator for operator in waiting.values() if not waiting.keys() & set(operator.before)]
        below = [operator for operator in ready if order and order[-1].id in operator.before]
        order.append((below or ready)[0])
        del waiting[order[-1].id]
    return order


def anchor(kind: str, id_: str) -> str:
    """The id in the page of the description of a stream, stage, table or operator."""
    return f"{kind}-{id_}"


def plan_picture(plan: RenderedPlan, *, live: bool = False) -> str:
    """The whole picture; a live one has places for rates, task states and numbers."""
    stages = [_StageBox(plan, stage, _LIVE_HEIGHT if live else 0.0) for stage in plan.stages]
    streams = [stream for stream in plan.streams.values() if stream.writers or stream.readers]
    boxes = {stage.name: stage.box for stage in stages}
    boxes |= {f"stream {stream.id}": Box(_pill_width(stream), _PILL_HEIGHT) for stream in streams}
    lines = [line for stage in stages for line in stage.lines()]
    layout = lay_out(boxes, [link for _, link in lines], gap_x=_LIVE_GAP_X if live else _GAP_X, gap_y=_GAP_Y)
    parts = [f'<div class="plan" style="width: {layout.width:.0f}px; height: {layout.height:.0f}px">']
    parts += [_stage(plan, stage, layout.places[stage.name], live=live) for stage in stages]
    parts += [_pill(stream, layout.places[f"stream {stream.id}"]) for stream in streams]
    parts.append(f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width:.0f}" height="{layout.height:.0f}">')
    parts.append(_MARKERS)
    for (kind, link), route in zip(lines, layout.routes, strict=True):
        points = list(route)
        # In a stage the line continues to the row; the head, where dead letters leave, is as wide as the stage.
        if link.target.startswith("stage "):
            points.append((points[-1][0] + _STAGE_PADDING, points[-1][1]))
        elif kind != "dead-letter":
            left = layout.places[link.source][0]
            points.insert(0, (left + _STAGE_PADDING + _ROW_WIDTH, points[0][1]))
        parts.append(_path(kind, _curve(points)))
    if live:
        parts += _rates(lines, layout.routes)
    for stage in stages:
        x, y = layout.places[stage.name]
        x += _STAGE_PADDING + _ROW_WIDTH
        for kind, a, b in stage.arcs:
            from_y, to_y = (y + stage.rows_top + _ROW_HEIGHT * (row + 0.5) for row in (a, b))
            # Lines leave a row below its middle and enter above it, so that they never touch.
            out = x + _reach(a, b) * 4 / 3  # a curve reaches three quarters of the way to its control points
            parts.append(_path(kind, f"M{x:g} {from_y + 6:g} C{out:g} {from_y:g} {out:g} {to_y:g} {x:g} {to_y - 6:g}"))
    return "\n".join([*parts, "</svg>", "</div>"])


def _rates(lines: Sequence[tuple[str, Link]], routes: Sequence[Sequence[Point]]) -> Iterator[str]:
    """A place for the rate of each stream that a stage reads or writes: beside the stage, once for each."""
    placed: set[tuple[str, str]] = set()
    for (_, link), route in zip(lines, routes, strict=True):
        if (link.source, link.target) in placed:
            continue
        placed.add((link.source, link.target))
        reads = link.target.startswith("stage ")
        (x, y), anchor_, shift = (route[-1], "end", -12) if reads else (route[0], "start", 8)
        source, target = (name.partition(" ")[2] for name in (link.source, link.target))
        which = f'data-reads="{escape(target)}" data-stream="{escape(source)}"'
        if not reads:
            which = f'data-writes="{escape(source)}" data-stream="{escape(target)}"'
        yield f'<text class="rate" x="{x + shift:g}" y="{y - 5:g}" text-anchor="{anchor_}" {which}></text>'


_MARKERS = (
    "<defs>"
    + "".join(
        f'<marker id="arrow-{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" '
        f'markerHeight="{size}" markerUnits="userSpaceOnUse" orient="auto-start-reverse">'
        f'<path d="M0 1 L9 5 L0 9 z" class="arrow {kind}"/></marker>'
        for kind, size in (("flow", 9), ("side", 9), ("table", 9), ("dead-letter", 8), ("broadcast", 14))
    )
    + "</defs>"
)


def _reach(a: int, b: int) -> float:
    """How far the line between two rows goes out."""
    return min(_ARC * (1 + abs(a - b)), _ARC_MAX)


# -- boxes


def _pill_width(stream: RenderedStream) -> float:
    return min(max(len(stream.id) * 8.6, len(_pill_words(stream)) * 6.3), _PILL_MAX) + 34


def _pill_words(stream: RenderedStream) -> str:
    words = stream.place if stream.target else counted(stream.partitions, "partition")
    if not stream.target and stream.place != f"{stream.system}.{stream.physical}":
        words += f" of {stream.place}"
    return f"{words}, to every task" if stream.broadcast else words


def _pill(stream: RenderedStream, place: Point) -> str:
    style = f"left: {place[0]:g}px; top: {place[1]:g}px; width: {_pill_width(stream):g}px"
    title = f"{stream.role} {stream.id}: {stream.place}\n{stream.source}: {stream.source.text}"
    class_ = f"stream {stream.role}{' broadcast' if stream.broadcast else ''}"
    inside = f"<b>{escape(stream.id)}</b><i>{escape(_pill_words(stream))}</i>"
    return _link(anchor("stream", stream.id), class_, title, inside, style)


def _stage(plan: RenderedPlan, stage: _StageBox, place: Point, *, live: bool) -> str:
    words = counted(len(stage.stage.tasks), "task")
    head = f"<b>{escape(stage.name)}</b><i>{words}</i>"
    rows = [_table(plan.tables[table]) for table in stage.stage.tables]
    rows += [_operator(o, followed=len(rows) + n in stage.followed) for n, o in enumerate(stage.operators)]
    if live:
        rows.insert(0, '<div class="measured"></div>')
    style = f"left: {place[0]:g}px; top: {place[1]:g}px; width: {stage.box.width:g}px; height: {stage.box.height:g}px"
    return (
        f'<div class="stage" data-stage="{escape(stage.stage.name)}" style="{style}">'
        + _link(anchor("stage", stage.stage.name), "head", f"{stage.name}: {words}", head)
        + f"{''.join(rows)}</div>"
    )


def _operator(operator: RenderedOperator, *, followed: bool) -> str:
    inside = (
        f"<b>{escape(operator.kind)}</b><i>{escape(operator.id)}</i><code>{escape(caption(operator))}</code>"
        f"<small>{escape(', '.join(name for name, _ in operator.columns))}</small>"
    )
    title = f"{operator.kind} {operator.id}\n{operator.source}: {operator.source.text}"
    if operator.state:
        inside += "<em>state</em>"
        title += f"\nkeeps {'; '.join(operator.state)}"
    class_ = "operator followed" if followed else "operator"
    return _link(anchor("operator", operator.id), class_, title, inside)


def _table(table: RenderedTable) -> str:
    inside = f"<b>{escape(table.id)}</b><i>{table.kind} table</i><code>key {escape(', '.join(table.key))}</code>"
    title = f"{table.kind} table {table.id}\n{table.source}: {table.source.text}"
    return _link(anchor("table", table.id), f"table {table.kind}", title, inside)


def caption(operator: RenderedOperator) -> str:
    """The second line of an operator: what it does, else what the user wrote between its brackets."""
    words = []
    if operator.table is not None:
        words.append(f"{'with' if operator.kind == 'join' else 'into'} {operator.table}")
    if operator.kind == "send_to" and operator.output is not None:
        words.append(f"into {operator.output}")
    if operator.kind == "broadcast":
        words.append("to every task")
    if operator.detail:
        words.append(operator.detail)
    return ", ".join(words) or _arguments(operator) or "; ".join(operator.expressions)


def _arguments(operator: RenderedOperator) -> str:
    """What the brackets of the operator's call contain, if its line has exactly one such call, and ends it."""
    call = f".{operator.kind}("
    text = " ".join(operator.source.whole.split())
    if text.count(call) != 1:
        return ""
    inside = text[text.index(call) + len(call) :]
    depth = 1
    for place, character in enumerate(inside):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return inside[:place].strip().removesuffix(",")
    return ""


# -- marks


def _curve(points: Sequence[Point]) -> str:
    """Level at every point, and smooth between them."""
    words = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (x + to_x) / 2
        words.append(f"H{to_x:g}" if y == to_y else f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}")
    return " ".join(words)


def _path(kind: str, d: str) -> str:
    return f'<path class="edge {kind}" d="{d}" marker-end="url(#arrow-{kind})"/>'


def _link(target: str, class_: str, title: str, inside: str, style: str = "") -> str:
    placed = f' style="{style}"' if style else ""
    return f'<a href="#{escape(target)}" class="{class_}" title="{escape(title)}"{placed}>{inside}</a>'
