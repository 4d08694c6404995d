"""Place boxes and the links between them on a plane: in columns, from left to right. Pure arithmetic.

A simple form of Sugiyama's method. Each box gets a rank, which is its column. A link over several ranks gets a stand-in
in each rank that it passes, so that it runs between boxes. Then each rank is sorted and moved, some times forward and
backward, so that links are as level as possible. The same boxes and links always give the same picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

Point = tuple[float, float]

_SWEEPS = 8
_STAND_IN_HEIGHT = 10.0


@dataclass(frozen=True, slots=True)
class Box:
    """A size."""

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
    """The upper left corner of each box, and the points that each link passes."""

    places: Mapping[str, Point]
    routes: Sequence[Sequence[Point]]
    width: float
    height: float


Way = Sequence[tuple[str, float]]
"""The boxes that a link touches, from its source to its target, each with the height from the box's top."""


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
        """A narrow box is in the middle of its column."""
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
                name: sum(tops[other] + lower for other, lower in linked[name]) / len(linked[name])
                if linked[name]
                else tops[name]
                for name in names
            }
            names.sort(key=lambda name: wanted[name] + sizes[name].height / 2)
            tops |= _apart([(name, wanted[name], sizes[name].height + gap) for name in names])
    highest = min(tops.values(), default=0.0)
    return {name: top - highest for name, top in tops.items()}


def _apart(wanted: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """The tops nearest to the wanted ones (least squares) at which boxes of these heights keep order and distance.

    Measured from where each box would be in a dense stack, tops only have to rise. So neighbours that want to overlap
    are pooled at the mean of what they want.
    """
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
