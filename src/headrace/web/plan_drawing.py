"""A plan as one SVG element: streams as pills, stages as boxes, tables as cylinders. No script is needed.

Every shape is a link to the page's account of it (``anchor``) and carries a title that shows on hover.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from headrace.plan.render import RenderedOperator, RenderedPlan, RenderedStream
from headrace.web.layout import Box, Layout, Link, Point, lay_out
from headrace.web.stage_figure import (
    HEAD_HEIGHT,
    ROW_HEIGHT,
    TABLE_HEIGHT,
    StageFigure,
    caption,
    figure_of,
    text_width,
)

_PILL_HEIGHT = 46.0
_GAP_X, _GAP_Y, _MARGIN = 64.0, 26.0, 20.0
_ELLIPSE = 7.0
_SHRINK_MAX = 0.7
"""A wide plan shrinks to the window down to this, and from there on is scrolled."""


def anchor(kind: str, id_: str) -> str:
    """The id in the page of what is said about a stream, stage, table or operator."""
    return f"{kind}-{id_}"


def plan_svg(plan: RenderedPlan) -> str:
    """The whole picture."""
    figures = {f"stage {stage.name}": figure_of(plan, stage) for stage in plan.stages}
    boxes = {name: Box(figure.width, figure.height) for name, figure in figures.items()}
    used = [s for s in plan.streams.values() if s.writers or s.readers]
    boxes |= {f"stream {stream.id}": Box(_pill_width(stream), _PILL_HEIGHT) for stream in used}
    links = _links(figures)
    layout = lay_out(boxes, [link for _, link in links], gap_x=_GAP_X, gap_y=_GAP_Y)
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-_MARGIN:g} {-_MARGIN:g} {width:.0f} {height:.0f}" '
        f'style="max-width: {width:.0f}px; min-width: {width * _SHRINK_MAX:.0f}px" '
        f'role="img" aria-label="plan of {escape(plan.app)}">',
        _MARKERS,
    ]
    parts += [_stage_box(figure, layout.places[name]) for name, figure in figures.items()]
    parts += _outer_edges(plan, links, layout)
    parts += [_stage_inside(plan, figure, layout.places[name]) for name, figure in figures.items()]
    parts += [_pill(stream, layout.places[f"stream {stream.id}"]) for stream in used]
    return "\n".join([*parts, "</svg>"])


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


# -- between stages ---------------------------------------------------------------------------------------


def _links(figures: dict[str, StageFigure]) -> list[tuple[str, Link]]:
    """Every line between a stream and a stage, with its kind."""
    links: list[tuple[str, Link]] = []
    middle = _PILL_HEIGHT / 2
    for name, figure in figures.items():
        for input_ in figure.stage.inputs:
            y = figure.port_y(f"in {input_.stream}")
            links.append(("flow", Link(f"stream {input_.stream}", name, middle, y)))
        for side in figure.stage.side_inputs:
            links.append(("side", Link(f"stream {side}", name, middle, figure.port_y(f"in {side}"))))
        letters = {edge.target for edge in figure.edges if edge.kind == "dead-letter"}
        for stream in figure.stage.outputs:
            kind = "dead-letter" if f"out {stream}" in letters else "flow"
            links.append((kind, Link(name, f"stream {stream}", figure.port_y(f"out {stream}"), middle)))
    return links


def _outer_edges(plan: RenderedPlan, links: Sequence[tuple[str, Link]], layout: Layout) -> Iterable[str]:
    for (kind, link), route in zip(links, layout.routes, strict=True):
        id_ = (link.source if link.source.startswith("stream ") else link.target).removeprefix("stream ")
        stream = plan.streams[id_]
        shown = "broadcast" if stream.broadcast and kind == "flow" else kind
        # Into a stage the line goes on behind the port, and has its arrow there.
        yield _path(shown, _curve(route), arrow=link.target.startswith("stream "))


def _pill_width(stream: RenderedStream) -> float:
    return max(text_width(stream.id, 7.9), text_width(_pill_words(stream), 6.3)) + 40


def _pill_words(stream: RenderedStream) -> str:
    count = f"{stream.partitions:,} partition" + ("" if stream.partitions == 1 else "s")
    return f"{count}, to every task" if stream.broadcast else count


def _pill(stream: RenderedStream, place: Point) -> str:
    x, y = place
    width = _pill_width(stream)
    rect = f'width="{width:g}" height="{_PILL_HEIGHT:g}" rx="{_PILL_HEIGHT / 2:g}"'
    ring = (
        f'<rect class="ring" x="{x - 4:g}" y="{y - 4:g}" width="{width + 8:g}" height="{_PILL_HEIGHT + 8:g}" '
        f'rx="{_PILL_HEIGHT / 2 + 4:g}"/>'
        if stream.broadcast
        else ""
    )
    title = f"{stream.role} {stream.id}: {stream.system}.{stream.physical}\n{stream.source}: {stream.source.text}"
    return _link(
        anchor("stream", stream.id),
        f"stream {stream.role}",
        title,
        f'{ring}<rect x="{x:g}" y="{y:g}" {rect}/>'
        + _text(x + width / 2, y + 20, stream.id, "name", middle=True)
        + _text(x + width / 2, y + 35, _pill_words(stream), "note", middle=True),
    )


# -- inside a stage ---------------------------------------------------------------------------------------


def _stage_box(figure: StageFigure, place: Point) -> str:
    x, y = place
    tasks = len(figure.stage.tasks)
    words = f"{tasks:,} task" + ("" if tasks == 1 else "s")
    return _link(
        anchor("stage", figure.stage.name),
        "stage",
        f"stage {figure.stage.name}: {words}",
        f'<rect x="{x:g}" y="{y:g}" width="{figure.width:g}" height="{figure.height:g}" rx="12"/>'
        + _text(x + 16, y + 23, f"stage {figure.stage.name}", "name")
        + f'<text x="{x + figure.width - 16:g}" y="{y + 23:g}" class="note" text-anchor="end">{words}</text>',
    )


def _stage_inside(plan: RenderedPlan, figure: StageFigure, place: Point) -> str:
    x, y = place[0], place[1] + HEAD_HEIGHT
    wider = figure.width - figure.layout.width
    routes = iter(figure.layout.routes)
    parts: list[str] = []
    for edge in figure.edges:
        if edge.backward:
            parts.append(_backward(figure, edge.source, edge.target))
            continue
        route = list(next(routes))
        if edge.target.startswith("out "):
            # The head may need more width than what is below it: then the right border is farther out.
            route.append((route[-1][0] + wider, route[-1][1]))
        parts.append(_path(edge.kind, _curve(route), arrow=not edge.target.startswith("out ")))
    for name, box in figure.boxes.items():
        left, top = figure.layout.places[name]
        kind, _, id_ = name.partition(" ")
        if kind == "table":
            parts.append(_cylinder(plan, id_, left, top, box.width))
        elif kind == "card":
            parts.append(_card(figure.cards[name], left, top, box.width))
        else:
            at = left + wider if kind == "out" else left
            parts.append(f'<circle class="port" cx="{at:g}" cy="{top + box.height / 2:g}" r="4"/>')
    return f'<g transform="translate({x:g} {y:g})">{"".join(parts)}</g>'


def _card(chain: Sequence[RenderedOperator], x: float, y: float, width: float) -> str:
    height = ROW_HEIGHT * len(chain)
    parts = [f'<rect class="card" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>']
    for number, operator in enumerate(chain):
        top = y + number * ROW_HEIGHT
        if number:
            middle = x + width / 2
            parts.append(f'<path class="rule" d="M{x:g} {top:g} H{x + width:g}"/>')
            parts.append(f'<path class="step" d="M{middle - 5:g} {top - 2:g} l5 5 l5 -5 z"/>')
        parts.append(_row(operator, x, top, width))
    return "".join(parts)


def _row(operator: RenderedOperator, x: float, y: float, width: float) -> str:
    kind_width = text_width(operator.kind, 7.6)
    room = round((width - 34 - kind_width) / 6.6)
    title = f"{operator.kind} {operator.id}\n{operator.source}: {operator.source.text}"
    return _link(
        anchor("operator", operator.id),
        "operator",
        title,
        f'<rect x="{x + 1:g}" y="{y + 1:g}" width="{width - 2:g}" height="{ROW_HEIGHT - 2:g}" rx="6"/>'
        + _text(x + 12, y + 19, operator.kind, "kind")
        + _text(x + width - 12, y + 19, _short(operator.id, room), "note", end=True)
        + _text(x + 12, y + 35, _short(caption(operator), int((width - 24) / 6.0)), "code"),
    )


def _cylinder(plan: RenderedPlan, id_: str, x: float, y: float, width: float) -> str:
    table = plan.tables[id_]
    low, radius = y + TABLE_HEIGHT - _ELLIPSE, width / 2
    body = (
        f"M{x:g} {y + _ELLIPSE:g} A{radius:g} {_ELLIPSE:g} 0 0 1 {x + width:g} {y + _ELLIPSE:g} "
        f"V{low:g} A{radius:g} {_ELLIPSE:g} 0 0 1 {x:g} {low:g} Z"
    )
    lid = f"M{x:g} {y + _ELLIPSE:g} A{radius:g} {_ELLIPSE:g} 0 0 0 {x + width:g} {y + _ELLIPSE:g}"
    words = _short(f"{table.kind} table, key {', '.join(table.key)}", int((width - 16) / 6.0))
    return _link(
        anchor("table", id_),
        f"table {table.kind}",
        f"{table.kind} table {id_}\n{table.source}: {table.source.text}",
        f'<path d="{body}"/><path class="lid" d="{lid}"/>'
        + _text(x + radius, y + 32, _short(id_, int((width - 16) / 7.6)), "name", middle=True)
        + _text(x + radius, y + 47, words, "note", middle=True),
    )


def _backward(figure: StageFigure, source: str, target: str) -> str:
    """From below a card to below the table to the left of it."""
    (from_x, from_y), (to_x, to_y) = figure.layout.places[source], figure.layout.places[target]
    start = (from_x + figure.boxes[source].width / 2, from_y + figure.boxes[source].height)
    end = (to_x + figure.boxes[target].width / 2, to_y + figure.boxes[target].height)
    below = max(start[1], end[1]) + 30
    return _path(
        "table", f"M{start[0]:g} {start[1]:g} C{start[0]:g} {below:g} {end[0]:g} {below:g} {end[0]:g} {end[1]:g}"
    )


# -- marks on paper ---------------------------------------------------------------------------------------


def _curve(points: Sequence[Point]) -> str:
    """Level at every point, and smooth between them."""
    words = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        if y == to_y:
            words.append(f"H{to_x:g}")
        else:
            middle = (x + to_x) / 2
            words.append(f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}")
    return " ".join(words)


def _path(kind: str, d: str, *, arrow: bool = True) -> str:
    marker = f' marker-end="url(#arrow-{kind})"' if arrow else ""
    return f'<path class="edge {kind}" d="{d}"{marker}/>'


def _text(x: float, y: float, words: str, class_: str, *, middle: bool = False, end: bool = False) -> str:
    at = ' text-anchor="middle"' if middle else ' text-anchor="end"' if end else ""
    return f'<text x="{x:g}" y="{y:g}" class="{class_}"{at}>{escape(words)}</text>'


def _link(target: str, class_: str, title: str, inside: str) -> str:
    return f'<a href="#{escape(target)}" class="{class_}"><title>{escape(title)}</title>{inside}</a>'


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(length - 1, 1)] + "…"
