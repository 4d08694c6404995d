"""Draws the throughput of (b) as a picture: ``python -m bench.chart RESULTS.json PICTURE.svg``.

A bar is the median of the ratios of all turns, and the line across it goes from the lowest to the highest. In a turn,
all contestants run one after the other, so a load that lasts slows them alike.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench.measure import median

PEER = "structured-streaming"
NAMES = {
    PEER: "Spark Structured Streaming",
    "headrace": "Headrace, same files",
    "headrace from its log": "Headrace, its own log",
}
TIMES = {"runs_wall_s": "Messages a second", "runs_cpu_s": "Messages for each second of processor time"}

WIDTH, LEFT, BAR = 760, 215, 390
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .head { font-weight: 600 }
  .small { font-size: 12px; fill: #59636e }
  .peer { fill: #8c959f }
  .ours { fill: #0a7a8f }
  .spread { stroke: #1f2328; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #151b23; stroke: #3d444d }
    text { fill: #f0f6fc }
    .small { fill: #9198a1 }
    .peer { fill: #656c76 }
    .ours { fill: #2fb3c9 }
    .spread { stroke: #f0f6fc }
  }
"""


def ratios(figures: Mapping[str, Any], times: str) -> dict[str, list[float]]:
    """How many times as fast as the peer each contestant was, turn by turn."""
    peer = figures["b"][PEER][times]
    return {
        name: [theirs / ours for theirs, ours in zip(peer, figures["b"][name][times], strict=True)] for name in NAMES
    }


def chart(figures: Mapping[str, Any]) -> str:
    """The picture, in SVG. It has a ground of its own, so it can be read on any page."""
    groups = {title: ratios(figures, times) for times, title in TIMES.items()}
    scale = BAR / max(max(turns) for group in groups.values() for turns in group.values())
    lines, y = [], 34
    for title, group in groups.items():
        lines.append(f'<text class="head" x="20" y="{y}">{title}: Structured Streaming is 1</text>')
        for name, turns in group.items():
            y += 28
            lines += _bar(y, NAMES[name], "peer" if name == PEER else "ours", turns, scale)
        y += 44
    for line in _caption(figures):
        lines.append(f'<text class="small" x="20" y="{y}">{escape(line)}</text>')
        y += 18
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{y - 1}" rx="8"/>'
    title = "<title>Throughput of a windowed count: Headrace and Spark Structured Streaming</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", card, *lines, "</svg>"]) + "\n"


def _bar(y: int, name: str, kind: str, turns: Sequence[float], scale: float) -> list[str]:
    middle, low, high = median(turns), min(turns), max(turns)
    text = f"{middle:.1f}"
    found = [
        f'<text x="20" y="{y}">{name}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{y - 13}" width="{middle * scale:.1f}" height="17" rx="2"/>',
    ]
    if low < high:
        text += f" ({low:.1f} to {high:.1f})"
        found.append(
            f'<path class="spread" fill="none" d="M{LEFT + low * scale:.1f} {y - 9}v9m0 -4.5H{LEFT + high * scale:.1f}'
            f'm0 -4.5v9"/>'
        )
    return [*found, f'<text x="{LEFT + high * scale + 8:.1f}" y="{y}">{text}</text>']


def _caption(figures: Mapping[str, Any]) -> list[str]:
    machine, ours = figures["machine"], figures["b"]["headrace"]
    messages = round(ours["messages_per_s"] * ours["wall_s"])
    packages = machine["packages"]
    return [
        f"{messages:,} messages: filter, shuffle by key, count in windows of 10 s of event time. Results are checked.",
        f"Bars: the median of the ratios of {len(ours['runs_wall_s'])} turns. Lines: the lowest and the highest ratio. "
        "Starts and ends are included.",
        f"{machine['cores']} cores, load of others {machine['load_before']:.0f}; Python {machine['python']}, "
        f"PySpark {packages['pyspark']}, Polars {packages['polars']}.",
        figures["command"],
    ]


if __name__ == "__main__":
    results, picture = map(Path, sys.argv[1:])
    picture.write_text(chart(json.loads(results.read_text(encoding="utf-8"))), encoding="utf-8")
