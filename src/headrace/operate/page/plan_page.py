"""A plan as one HTML page that needs nothing else, and the files of a live page.

The layout is a simple form of Sugiyama's method. Each box gets a rank, which is its column. A link over several ranks
gets a stand-in in each rank that it passes, so that it runs between boxes. Then each rank is sorted and moved, some
times forward and backward, so that links are as level as possible.

A stage is a list: its tables, then its operators. A row follows from the row above it unless lines at the right side of
the list say otherwise. No script is needed: every box links to its description, and the one that is linked to is shown.
A live picture has room for what is measured: its scripts find the places by ``data-`` attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import NamedTuple

from headrace.api.checks import Location
from headrace.operate.words import counted
from headrace.plan.render import RenderedOperator, RenderedPlan, RenderedStage, RenderedStream, RenderedTable, to_text

Point = tuple[float, float]
Way = Sequence[tuple[str, float]]  # the boxes that a link touches, in its order, and the heights from their tops

_SWEEPS, _STAND_IN_HEIGHT = 8, 10.0


class Box(NamedTuple):
    """A size."""

    width: float
    height: float


class Link(NamedTuple):
    """From the right side of one box to the left side of another, at heights measured from their tops."""

    source: str
    target: str
    source_y: float
    target_y: float


class Layout(NamedTuple):
    """The upper left corner of each box, and the points that each link passes."""

    places: Mapping[str, Point]
    routes: Sequence[Sequence[Point]]
    width: float
    height: float


def lay_out(boxes: Mapping[str, Box], links: Sequence[Link], *, gap_x: float, gap_y: float) -> Layout:
    """Place the boxes. Links must form no cycle."""
    ranks, sizes, ways = _ranks(boxes, links), dict(boxes), list[Way]()
    for number, link in enumerate(links):
        passed = {f"link {number} at {rank}": rank for rank in range(ranks[link.source] + 1, ranks[link.target])}
        sizes |= dict.fromkeys(passed, Box(0, _STAND_IN_HEIGHT))
        ranks |= passed
        stand_ins = [(name, _STAND_IN_HEIGHT / 2) for name in passed]
        ways.append([(link.source, link.source_y), *stand_ins, (link.target, link.target_y)])
    columns = [[name for name in sizes if ranks[name] == rank] for rank in range(max(ranks.values(), default=-1) + 1)]
    tops = _tops(columns, sizes, ways, gap_y)
    widths = [max(sizes[name].width for name in names) for names in columns]
    lefts = [sum(widths[:rank]) + gap_x * rank for rank in range(len(widths))]

    def place(name: str) -> Point:
        return lefts[ranks[name]] + (widths[ranks[name]] - sizes[name].width) / 2, tops[name]

    def route(way: Way) -> list[Point]:
        """Level across each column, and from the right side of the first box to the left side of the last one."""
        points = []
        for name, y in way:
            left = lefts[ranks[name]]
            points += [(left, tops[name] + y), (left + widths[ranks[name]], tops[name] + y)]
        (source, _), (target, _) = way[0], way[-1]
        points[0] = (place(source)[0] + sizes[source].width, points[0][1])
        points[-1] = (place(target)[0], points[-1][1])
        return points

    width = sum(widths) + gap_x * max(len(widths) - 1, 0)
    height = max((tops[name] + sizes[name].height for name in sizes), default=0.0)
    return Layout({name: place(name) for name in boxes}, [route(way) for way in ways], width, height)


def _ranks(boxes: Mapping[str, Box], links: Sequence[Link]) -> dict[str, int]:
    """The length of the longest way to each box. A box without a way to it is beside the first box after it."""

    @cache
    def rank(name: str) -> int:
        return max((rank(link.source) + 1 for link in links if link.target == name), default=0)

    ranks = {name: rank(name) for name in boxes}
    for name in boxes:
        following = [ranks[link.target] for link in links if link.source == name]
        if ranks[name] == 0 and following:
            ranks[name] = min(following) - 1
    return ranks


def _tops(columns: list[list[str]], sizes: Mapping[str, Box], ways: Sequence[Way], gap: float) -> dict[str, float]:
    tops = dict.fromkeys(sizes, 0.0)
    steps = [step for way in ways for step in pairwise(way)]
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        linked: dict[str, list[tuple[str, float]]] = {name: [] for name in sizes}
        for (left, left_y), (right, right_y) in steps:
            name, other, lower = (right, left, left_y - right_y) if forward else (left, right, right_y - left_y)
            linked[name].append((other, lower))
        for names in columns if forward else reversed(columns):
            # The top at which the links of a box on one side would be level on average; without links, where it is.
            wanted = {
                name: sum(tops[other] + lower for other, lower in ends) / len(ends) if ends else tops[name]
                for name, ends in ((name, linked[name]) for name in names)
            }
            names.sort(key=lambda name: wanted[name] + sizes[name].height / 2)
            tops |= _apart([(name, wanted[name], sizes[name].height + gap) for name in names])
    highest = min(tops.values(), default=0.0)
    return {name: top - highest for name, top in tops.items()}


def _apart(wanted: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """The tops nearest to the wanted ones (least squares) at which boxes of these heights keep order and distance:
    measured from where each box would be in a dense stack, tops only have to rise. So neighbours that want to overlap
    are pooled at the mean of what they want."""
    pools: list[tuple[float, int]] = []
    offsets, offset = [], 0.0
    for _, top, height in wanted:
        total, count = top - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, size = pools.pop()
            total, count = total + before, count + size
        pools.append((total, count))
        offsets.append(offset)
        offset += height
    shifts = [total / count for total, count in pools for _ in range(count)]
    return {name: at + shift for (name, _, _), at, shift in zip(wanted, offsets, shifts, strict=True)}


# The style sheet has these sizes, too.
_PILL_HEIGHT, _HEAD_HEIGHT, _ROW_HEIGHT, _STAGE_PADDING = 46.0, 36.0, 62.0, 16.0
_ROW_WIDTH, _PILL_MAX = 240.0, 210.0
_GAP_X, _GAP_Y, _LIVE_GAP_X, _LIVE_HEIGHT = 46.0, 26.0, 92.0, 74.0
_ARC, _ARC_MAX = 7.0, 63.0


class _StageBox:
    """A stage as a list: which row is where, and the lines between rows that aren't neighbours."""

    def __init__(self, plan: RenderedPlan, stage: RenderedStage, live_height: float = 0.0) -> None:
        self._plan, self.stage = plan, stage
        self.rows_top = _HEAD_HEIGHT + live_height
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
                kind = "broadcast" if streams[stream].spec.broadcast else "flow"
                yield kind, Link(f"stream {stream}", self.name, middle, self.y(operator.id))
            if operator.output is not None:
                kind = "broadcast" if streams[operator.output].spec.broadcast else "flow"
                yield kind, Link(self.name, f"stream {operator.output}", self.y(operator.id), middle)
        for table in self.stage.tables:
            for side in self._plan.tables[table].side_inputs:
                yield "side", Link(f"stream {side}", self.name, middle, self.y(f"table {table}"))
        read = [*self.stage.inputs, *self.stage.side_inputs]
        for letters in sorted({letters for id_ in read if (letters := streams[id_].spec.dead_letter) is not None}):
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
    return f"{kind}-{id_}"


def plan_picture(plan: RenderedPlan, *, live: bool = False) -> str:
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
    return min(_ARC * (1 + abs(a - b)), _ARC_MAX)


def _pill_width(stream: RenderedStream) -> float:
    return min(max(len(stream.id) * 8.6, len(_pill_words(stream)) * 6.3), _PILL_MAX) + 34


def _pill_words(stream: RenderedStream) -> str:
    words = stream.place if stream.target else counted(stream.partitions, "partition")
    if not stream.target and stream.place != str(stream.spec.stream):
        words += f" of {stream.place}"
    return f"{words}, to every task" if stream.spec.broadcast else words


def _pill(stream: RenderedStream, place: Point) -> str:
    style = f"left: {place[0]:g}px; top: {place[1]:g}px; width: {_pill_width(stream):g}px"
    title = f"{stream.role} {stream.id}: {stream.place}\n{stream.source}: {stream.source.text}"
    class_ = f"stream {stream.role}{' broadcast' if stream.spec.broadcast else ''}"
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
    """Return the second line of an operator: what it does, else what the user wrote between its brackets."""
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


def _curve(points: Sequence[Point]) -> str:
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


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_LEGEND = (
    ("stream source", "source"), ("stream intermediate", "intermediate stream"), ("stream sink", "output"),
    ("stream side-input", "side input"), ("table local", "local table"), ("table global", "global table"),
    ("table remote", "remote table"),
)  # fmt: skip
_LINES = (
    ("flow", "messages"), ("broadcast", "to every task"), ("side", "side input"),
    ("table", "into a table, or looked up in it"), ("dead-letter", "what can't be read"),
)  # fmt: skip
Facts = Iterable[tuple[str, str]]


def plan_html(plan: RenderedPlan) -> str:
    picture = plan_picture(plan)
    return _filled(
        "plan.html", plan, picture, policy=_POLICY, style=asset("plan_page.css"), script=asset("plan_page.js"),
        text=escape(to_text(plan)),
    )  # fmt: skip


def asset(name: str) -> str:
    return files("headrace.operate.page").joinpath(name).read_text(encoding="utf-8")


def summary(plan: RenderedPlan) -> str:
    words = [counted(len(plan.stages), "stage"), counted(plan.tasks(), "task"), plan.guarantee]
    if plan.grouping == "container":
        words.append("one task for each container")
    return escape(" · ".join(words))


def legend(picture: str) -> str:
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


def descriptions(plan: RenderedPlan) -> Iterable[str]:
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
    yield "reads", ", ".join(stage.inputs)
    yield "side inputs", ", ".join(stage.side_inputs)
    yield "writes", ", ".join(stage.outputs)
    yield "tables", ", ".join(stage.tables)
    for task in stage.tasks[:1]:
        yield f"task {task.name} reads", ", ".join(map(str, task.inputs))


def _about_operator(plan: RenderedPlan, stage: RenderedStage, operator: RenderedOperator) -> Facts:
    yield "does", operator.detail
    yield "expressions", "; ".join(operator.expressions)
    yield "from", ", ".join(operator.before)
    yield "to", ", ".join(operator.after)
    if operator.output is not None:
        yield "writes", f"{operator.output}, {counted(plan.streams[operator.output].partitions, 'partition')}"
    yield "table", operator.table or ""
    yield "columns", ", ".join(f"{name}: {dtype}" for name, dtype in operator.columns)
    yield "state", "; ".join(operator.state)
    yield "stage", f"{stage.name}, {counted(len(stage.tasks), 'task')}"


def _about_stream(stream: RenderedStream) -> Facts:
    yield "place", stream.place
    yield "partitions", "" if stream.target else f"{stream.partitions:,}"
    yield "delivery", stream.delivery or ""
    yield "written by", ", ".join(f"stage {stage}" for stage in stream.writers)
    yield "read by", ", ".join(f"stage {stage}" for stage in stream.readers)
    yield "notes", ", ".join(stream.notes)
    yield "columns", ", ".join(f"{name}: {dtype}" for name, dtype in stream.columns)


def _about_table(table: RenderedTable) -> Facts:
    yield "key", ", ".join(table.key)
    yield "kept by side inputs", ", ".join(table.side_inputs)
    yield "filled by", ", ".join(table.writers)
    yield "joined by", ", ".join(table.joins)
    yield "held by", ", ".join(f"stage {stage}" for stage in table.stages)
    yield "options", ", ".join(f"{name}={value}" for name, value in table.options)
    yield "written", table.delivery or ""


_SCRIPTS = ("live.js", "looks.js", "charts.js", "words.js", "plan_page.js")
_STATES = (
    ("busy", "busy"), ("held", "held back"), ("idle", "idle"), ("starting", "starting"), ("lost", "lost"),
    ("done", "finished"),
)  # fmt: skip


def live_files(plan: RenderedPlan, *, peek: bool = False) -> Mapping[str, str]:
    picture, peeks = plan_picture(plan, live=True), " data-peek" if peek else ""
    states = "".join(f'<li><span class="cell {class_}"></span>{words}</li>' for class_, words in _STATES)
    static = ("plan_page.css", "live.css", *_SCRIPTS)
    index = _filled("live.html", plan, picture, peeks=peeks, states=states)
    return {"index.html": index, **{name: asset(name) for name in static}}


def overview_files() -> Mapping[str, str]:
    static = ("plan_page.css", "live.css", "overview.js", "words.js")
    return {"index.html": asset("overview.html"), **{name: asset(name) for name in static}}


def _filled(name: str, plan: RenderedPlan, picture: str, **values: str) -> str:
    values |= {"app": escape(plan.app), "summary": summary(plan), "legend": legend(picture), "picture": picture}
    return Template(asset(name)).substitute(values, descriptions="".join(descriptions(plan)))
