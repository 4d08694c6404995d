"""Plots in SVG, with a ground of their own, so they can be read on any page: bars, and lines on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from bench.chart import STYLE

Point = tuple[float, float]
WIDTH, LEFT, RIGHT, TOP, HEIGHT = 760, 70, 30, 60, 260
COLORS = ("#8c959f", "#0a7a8f", "#b35900", "#6639ba", "#1a7f37", "#bf3989")
DASHES = ("", "6 3", "2 3")


def slope(points: Sequence[Point]) -> float:
    """Return the slope of the straight line that fits the points best on logarithmic axes: 1 is linear growth."""
    xs, ys = ([math.log(point[which]) for point in points] for which in (0, 1))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def lines(title: str, across: str, up: str, series: Mapping[str, Sequence[Point]]) -> str:
    """Draw lines on logarithmic axes, with their names below."""
    found = {name: [point for point in points if min(point) > 0] for name, points in series.items()}
    all_ = [point for points in found.values() for point in points]
    xs, ys = (_decades([point[which] for point in all_]) for which in (0, 1))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT

    def at(point: Point) -> Point:
        x, y = ((math.log10(value) - low) / (top - low) for value, (low, top) in zip(point, (xs, ys), strict=True))
        return LEFT + x * wide, TOP + (1 - y) * high

    marks = [f'<text class="head" x="20" y="28">{escape(title)}</text>']
    for power in range(xs[0], xs[1] + 1):
        x, _ = at((10.0**power, 10.0 ** ys[0]))
        marks.append(f'<path class="grid" d="M{x:.1f} {TOP}v{high}"/>')
        marks.append(
            f'<text class="small" x="{x:.1f}" y="{TOP + high + 18}" text-anchor="middle">{_power(power)}</text>'
        )
    for power in range(ys[0], ys[1] + 1):
        _, y = at((10.0 ** xs[0], 10.0**power))
        marks.append(f'<path class="grid" d="M{LEFT} {y:.1f}h{wide}"/>')
        marks.append(f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>')
    bottom = TOP + high + 40
    marks.append(f'<text class="small" x="{LEFT + wide / 2}" y="{bottom}" text-anchor="middle">{escape(across)}</text>')
    marks.append(f'<text class="small" x="20" y="{TOP - 12}">{escape(up)}</text>')
    for number, (name, points) in enumerate(found.items()):
        color = COLORS[number % len(COLORS)]
        dash = DASHES[number // len(COLORS) % len(DASHES)]
        path = "L".join("{:.1f} {:.1f}".format(*at(point)) for point in sorted(points))
        y = bottom + 26 + 20 * number
        stroke = f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"'
        if path:
            marks.append(f'<path d="M{path}" {stroke}/>')
        marks += ['<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>'.format(*at(point), color) for point in points]
        marks.append(f'<path d="M{LEFT} {y - 4}h22" {stroke}/>')
        marks.append(f'<text class="small" x="{LEFT + 30}" y="{y}">{escape(name)}</text>')
    return _picture(title, marks, bottom + 20 * len(found) + 26)


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Draw groups of bars on one logarithmic axis, each with its figure."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    low, top = _decades([value for group in groups.values() for value in group.values()])
    left = 215
    scale = (WIDTH - left - 110) / (top - low)
    marks = [f'<text class="head" x="20" y="28">{escape(title)}</text>']
    y = 40
    for label, group in groups.items():
        y += 24
        marks.append(f'<text class="head" x="20" y="{y}">{escape(label)}</text>')
        for name, value in group.items():
            y += 20
            color = COLORS[names.index(name) % len(COLORS)]
            long = (math.log10(value) - low) * scale
            marks.append(f'<text class="small" x="34" y="{y}">{escape(name)}</text>')
            marks.append(f'<rect x="{left}" y="{y - 11}" width="{long:.1f}" height="14" rx="2" fill="{color}"/>')
            marks.append(f'<text class="small" x="{left + long + 8:.1f}" y="{y}">{value:,.0f}</text>')
        y += 8
    return _picture(title, marks, y + 20)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values, default=1)))
    return low, max(low + 1, math.ceil(math.log10(max(values, default=10))))


def _power(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"


def _picture(title: str, marks: Sequence[str], height: float) -> str:
    box = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}  .grid {{ stroke: #8c959f; stroke-opacity: 0.3; fill: none }}\n</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8"/>',
            *marks,
            "</svg>",
            "",
        ]
    )
