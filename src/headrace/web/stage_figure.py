"""The inside of one stage, placed: chains of operators as cards, tables, and ports at the two borders.

Operators of which each is the only one before or behind the other share a card, a row for each. So what
is left to lay out is what matters: where flows part and meet.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.plan.render import RenderedOperator, RenderedPlan, RenderedStage
from headrace.plan.traverse import reachable
from headrace.web.layout import Box, Layout, Link, lay_out

ROW_HEIGHT = 46.0
TABLE_HEIGHT = 58.0
HEAD_HEIGHT = 36.0
FOOT_HEIGHT = 18.0
GAP_X = 44.0
GAP_Y = 22.0
_PORT = Box(0, 20)
_ROW_WIDTH_MIN, _ROW_WIDTH_MAX = 120.0, 230.0
_TABLE_WIDTH_MIN, _TABLE_WIDTH_MAX = 110.0, 200.0


@dataclass(frozen=True, slots=True)
class Edge:
    """A line inside a stage: ``kind`` is flow, side, table (in or out of one), or dead-letter."""

    kind: str
    source: str
    target: str
    link: Link
    backward: bool = False


@dataclass(frozen=True, slots=True)
class StageFigure:
    """A stage with everything in it placed; (0, 0) is the upper left corner of what is below its head."""

    stage: RenderedStage
    cards: dict[str, tuple[RenderedOperator, ...]]
    edges: tuple[Edge, ...]
    layout: Layout
    boxes: dict[str, Box]
    width: float
    height: float

    def port_y(self, port: str) -> float:
        """How far below the upper border of the stage a port is."""
        return HEAD_HEIGHT + self.layout.places[port][1] + _PORT.height / 2


def figure_of(plan: RenderedPlan, stage: RenderedStage) -> StageFigure:
    """Place what is in a stage."""
    cards = {f"card {chain[0].id}": chain for chain in _chains(stage)}
    ins = [f"in {input_.stream}" for input_ in stage.inputs] + [f"in {side}" for side in stage.side_inputs]
    outs = [f"out {stream}" for stream in stage.outputs]
    boxes = dict.fromkeys(ins, _PORT)
    for table in stage.tables:
        boxes[f"table {table}"] = Box(_table_width(plan, table), TABLE_HEIGHT)
    for name, chain in cards.items():
        boxes[name] = Box(max(map(_row_width, chain)), ROW_HEIGHT * len(chain))
    boxes.update(dict.fromkeys(outs, _PORT))
    edges = _edges(plan, stage, cards)
    layout = lay_out(boxes, [e.link for e in edges if not e.backward], gap_x=GAP_X, gap_y=GAP_Y, first=ins, last=outs)
    margin = 0 if outs else GAP_X
    width = max(layout.width + margin, text_width(f"stage {stage.name}", 8.0) + 110)
    below = FOOT_HEIGHT + (GAP_Y if any(edge.backward for edge in edges) else 0)
    return StageFigure(stage, cards, edges, layout, boxes, width, HEAD_HEIGHT + layout.height + below)


def text_width(text: str, per_character: float) -> float:
    """About how wide a text is; fonts differ, so it is meant generously."""
    return len(text) * per_character


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


def _chains(stage: RenderedStage) -> list[tuple[RenderedOperator, ...]]:
    chains: list[list[RenderedOperator]] = []
    chain_of: dict[str, list[RenderedOperator]] = {}
    for operator in stage.operators:
        above = chain_of.get(operator.before[0]) if len(operator.before) == 1 else None
        if above is not None and above[-1].after == (operator.id,):
            chain = above
            chain.append(operator)
        else:
            chain = [operator]
            chains.append(chain)
        chain_of[operator.id] = chain
    return [tuple(chain) for chain in chains]


def _edges(
    plan: RenderedPlan, stage: RenderedStage, cards: dict[str, tuple[RenderedOperator, ...]]
) -> tuple[Edge, ...]:
    row_of = {o.id: (name, row) for name, chain in cards.items() for row, o in enumerate(chain)}
    middle = {id_: (name, ROW_HEIGHT * (row + 0.5)) for id_, (name, row) in row_of.items()}
    port_y, table_y = _PORT.height / 2, TABLE_HEIGHT / 2
    edges: list[Edge] = []

    def add(kind: str, source: tuple[str, float], target: tuple[str, float]) -> None:
        link = Link(source[0], target[0], source[1], target[1])
        # Only a table that is joined and then written can close a circle: that line runs backward.
        backward = _leads_to(edges, link.target, link.source)
        edges.append(Edge(kind, source[0], target[0], link, backward))

    for side in stage.side_inputs:
        for table in stage.tables:
            if side in plan.tables[table].side_inputs:
                add("side", (f"in {side}", port_y), (f"table {table}", table_y))
    for operator in stage.operators:
        for before in operator.before:
            if before not in row_of:
                add("flow", (f"in {before}", port_y), middle[operator.id])
            elif row_of[before][0] != row_of[operator.id][0]:
                add("flow", middle[before], middle[operator.id])
        if operator.output is not None:
            add("flow", middle[operator.id], (f"out {operator.output}", port_y))
        if operator.table is not None and operator.kind == "join":
            add("table", (f"table {operator.table}", table_y), middle[operator.id])
    for operator in stage.operators:
        if operator.table is not None and operator.kind != "join":
            add("table", middle[operator.id], (f"table {operator.table}", table_y))
    for stream in (*(input_.stream for input_ in stage.inputs), *stage.side_inputs):
        letters = plan.streams[stream].dead_letter
        if letters is not None:
            add("dead-letter", (f"in {stream}", port_y), (f"out {letters}", port_y))
    return tuple(edges)


def _leads_to(edges: list[Edge], start: str, end: str) -> bool:
    forward = [edge for edge in edges if not edge.backward]
    return end in reachable(start, lambda name: [e.target for e in forward if e.source == name])


def _row_width(operator: RenderedOperator) -> float:
    title = text_width(operator.kind, 7.6) + text_width(operator.id, 6.6) + 34
    return _between(_ROW_WIDTH_MIN, max(title, text_width(caption(operator), 6.2) + 26), _ROW_WIDTH_MAX)


def _table_width(plan: RenderedPlan, table: str) -> float:
    words = f"{plan.tables[table].kind} table, key {', '.join(plan.tables[table].key)}"
    return _between(_TABLE_WIDTH_MIN, max(text_width(table, 7.6), text_width(words, 6.2)) + 28, _TABLE_WIDTH_MAX)


def _between(low: float, value: float, high: float) -> float:
    return max(low, min(value, high))


def _arguments(operator: RenderedOperator) -> str:
    """What stands in the brackets of the operator's call, if the line has one such call, and ends it."""
    call = f".{operator.kind}("
    text = operator.source.text
    if text.count(call) != 1:
        return ""
    inside = text[text.index(call) + len(call) :]
    depth = 1
    for place, character in enumerate(inside):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return inside[:place]
    return ""
