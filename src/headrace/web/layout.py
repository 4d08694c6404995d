"""Place boxes and the links between them on a plane: in layers, from left to right. Pure arithmetic.

The steps are those of Sugiyama: a rank for each box (the longest way to it), stand-ins where a link passes
a rank, an order within each rank that crosses few links, then places that keep links as level as the
order allows. The same boxes and links always give the same picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]

_SWEEPS = 8
_STAND_IN_HEIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Box:
    """What has to be placed."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Link:
    """From the right side of one box to the left side of another, at heights measured from their tops."""

    source: str
    target: str
    source_y: float
    target_y: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each box has its left upper corner, and the points that each link goes through."""

    places: Mapping[str, Point]
    routes: Sequence[Sequence[Point]]
    width: float
    height: float


def lay_out(
    boxes: Mapping[str, Box],
    links: Sequence[Link],
    *,
    gap_x: float,
    gap_y: float,
    first: Sequence[str] = (),
    last: Sequence[str] = (),
) -> Layout:
    """Place the boxes. Links must form no circle; ``first`` and ``last`` go to the outermost ranks."""
    ranks = _ranks(boxes, links, first, last)
    sketch = _Sketch(boxes, links, ranks)
    order = _order(sketch)
    lefts, widths, width = _columns(sketch, order, gap_x)
    tops = _tops(sketch, order, gap_y)
    highest = min(tops.values(), default=0.0)
    tops = {name: top - highest for name, top in tops.items()}
    places = {}
    for rank, names in enumerate(order):
        for name in names:
            # A narrow box stands in the middle of its column, but for the ports at the two borders.
            slack = widths[rank] - sketch.boxes[name].width
            places[name] = (lefts[rank] + slack / 2, tops[name])
    routes = [_route(sketch, places, number, lefts, widths) for number in range(len(links))]
    height = max((tops[name] + sketch.boxes[name].height for name in tops), default=0.0)
    return Layout({name: places[name] for name in boxes}, routes, width, height)


def _ranks(
    boxes: Mapping[str, Box], links: Sequence[Link], first: Sequence[str], last: Sequence[str]
) -> dict[str, int]:
    ranks = {name: int(bool(first) and name not in first) for name in boxes}
    for _ in boxes:
        moved = False
        for link in links:
            if ranks[link.target] <= ranks[link.source]:
                ranks[link.target] = ranks[link.source] + 1
                moved = True
        if not moved:
            break
    else:
        if links:
            raise ValueError("links form a circle")
    for name in sorted(boxes, key=lambda name: -ranks[name]):
        following = [ranks[link.target] for link in links if link.source == name]
        preceding = sum(link.target == name for link in links)
        if name not in first and following and preceding <= len(following):
            ranks[name] = min(following) - 1  # beside its reader, where that makes no more long links
    inner = max((rank for name, rank in ranks.items() if name not in last), default=0)
    ranks.update(dict.fromkeys(last, inner + 1))
    return ranks


class _Sketch:
    """The boxes with stand-ins added, and the links cut into steps from one rank to the next."""

    def __init__(self, boxes: Mapping[str, Box], links: Sequence[Link], ranks: Mapping[str, int]) -> None:
        self.boxes = dict(boxes)
        self.ranks = dict(ranks)
        self.ways: list[list[str]] = []
        self.steps: list[Link] = []
        self.links = links
        for number, link in enumerate(links):
            way = [link.source]
            for rank in range(ranks[link.source] + 1, ranks[link.target]):
                stand_in = f"link {number} at {rank}"
                self.boxes[stand_in] = Box(0, _STAND_IN_HEIGHT)
                self.ranks[stand_in] = rank
                way.append(stand_in)
            way.append(link.target)
            self.ways.append(way)
            for left, right in pairwise(way):
                source_y = link.source_y if left == link.source else _STAND_IN_HEIGHT / 2
                target_y = link.target_y if right == link.target else _STAND_IN_HEIGHT / 2
                self.steps.append(Link(left, right, source_y, target_y))

    def rank_count(self) -> int:
        return max(self.ranks.values(), default=-1) + 1


# -- the order within ranks -------------------------------------------------------------------------------


def _order(sketch: _Sketch) -> list[list[str]]:
    order: list[list[str]] = [[] for _ in range(sketch.rank_count())]
    for name in sketch.boxes:
        order[sketch.ranks[name]].append(name)
    best, fewest = order, _crossings(sketch, order)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        order = [list(names) for names in order]
        for rank in range(len(order)) if forward else reversed(range(len(order))):
            _sort_by_neighbours(sketch, order, rank, forward=forward)
        crossings = _crossings(sketch, order)
        if crossings < fewest:
            best, fewest = order, crossings
    return best


def _sort_by_neighbours(sketch: _Sketch, order: list[list[str]], rank: int, *, forward: bool) -> None:
    """Order a rank by the mean place of what each box is linked to in the rank before (or behind)."""
    height = _Heights(sketch, order)
    means: dict[str, float] = {}
    for place, name in enumerate(order[rank]):
        linked = [height(step, at_source=forward) for step in sketch.steps if name == _end(step, forward)]
        means[name] = sum(linked) / len(linked) if linked else float(place)
    order[rank].sort(key=lambda name: means[name])


def _end(step: Link, forward: bool) -> str:
    return step.target if forward else step.source


class _Heights:
    """How far down a step begins or ends: the place of its box in its rank, and where on the box."""

    def __init__(self, sketch: _Sketch, order: list[list[str]]) -> None:
        self._boxes = sketch.boxes
        self._place = {name: place for names in order for place, name in enumerate(names)}

    def __call__(self, step: Link, *, at_source: bool) -> float:
        name, y = (step.source, step.source_y) if at_source else (step.target, step.target_y)
        return self._place[name] + y / (self._boxes[name].height + 1)


def _crossings(sketch: _Sketch, order: list[list[str]]) -> int:
    height = _Heights(sketch, order)
    ends = [
        (sketch.ranks[step.source], height(step, at_source=True), height(step, at_source=False))
        for step in sketch.steps
    ]
    return sum(
        1
        for number, (rank, left, right) in enumerate(ends)
        for other_rank, other_left, other_right in ends[:number]
        if rank == other_rank and (left - other_left) * (right - other_right) < 0
    )


# -- places -----------------------------------------------------------------------------------------------


def _columns(sketch: _Sketch, order: list[list[str]], gap_x: float) -> tuple[list[float], list[float], float]:
    widths = [max(sketch.boxes[name].width for name in names) for names in order]
    lefts, x = [], 0.0
    for width in widths:
        lefts.append(x)
        x += width + gap_x
    return lefts, widths, max(x - gap_x, 0.0)


def _tops(sketch: _Sketch, order: list[list[str]], gap_y: float) -> dict[str, float]:
    tops: dict[str, float] = {}
    for names in order:
        y = 0.0
        for name in names:
            tops[name] = y
            y += sketch.boxes[name].height + gap_y
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for names in order if forward else reversed(order):
            wanted = [_level_top(sketch, tops, name, forward=forward) for name in names]
            tops.update(zip(names, _apart(sketch, names, wanted, gap_y), strict=True))
    return tops


def _level_top(sketch: _Sketch, tops: Mapping[str, float], name: str, *, forward: bool) -> float:
    """The top at which the links of a box on one side would be level on average; else where it is."""
    wanted = []
    for step in sketch.steps:
        if forward and step.target == name:
            wanted.append(tops[step.source] + step.source_y - step.target_y)
        elif not forward and step.source == name:
            wanted.append(tops[step.target] + step.target_y - step.source_y)
    return sum(wanted) / len(wanted) if wanted else tops[name]


def _apart(sketch: _Sketch, names: list[str], wanted: list[float], gap_y: float) -> list[float]:
    """The tops nearest to the wanted ones (least squares) at which the boxes keep order and distance.

    Measured from where each box would stand in a dense stack, tops only have to rise: so neighbours that
    want to overlap are pooled at the mean of what they want.
    """
    stacked, y = [], 0.0
    for name in names:
        stacked.append(y)
        y += sketch.boxes[name].height + gap_y
    pools: list[tuple[float, int]] = []
    for top, offset in zip(wanted, stacked, strict=True):
        total, count = top - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, size = pools.pop()
            total, count = total + before, count + size
        pools.append((total, count))
    shifts = [total / count for total, count in pools for _ in range(count)]
    return [offset + shift for offset, shift in zip(stacked, shifts, strict=True)]


def _route(
    sketch: _Sketch, places: Mapping[str, Point], number: int, lefts: list[float], widths: list[float]
) -> list[Point]:
    """The points of a link. It runs level wherever it is beside or between the boxes of a rank."""
    link, way = sketch.links[number], sketch.ways[number]
    start_x, start_y = places[link.source]
    points = [(start_x + sketch.boxes[link.source].width, start_y + link.source_y)]
    points.append((lefts[sketch.ranks[link.source]] + widths[sketch.ranks[link.source]], points[0][1]))
    for stand_in in way[1:-1]:
        rank, y = sketch.ranks[stand_in], places[stand_in][1] + _STAND_IN_HEIGHT / 2
        points += [(lefts[rank], y), (lefts[rank] + widths[rank], y)]
    end_x, end_y = places[link.target]
    points.append((lefts[sketch.ranks[link.target]], end_y + link.target_y))
    return [*points, (end_x, end_y + link.target_y)]
