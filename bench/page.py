"""Writes the results of a run into a page: ``python -m bench.page RESULTS.json [docs/performance.md]``.

What is between the marks of the page comes from the results, and its plots are written to the folder ``images`` beside
it. What is before and after the marks is written by hand, and stays.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import structured
from bench.measure import OTHERS_MAX, SPREAD_MAX
from bench.plots import Point, bars, lines
from bench.report import shown
from bench.session import SETTINGS

Figures = Mapping[str, Any]
SHARES = ("p50", "p99")
QUERIES = {
    "a": "filter and project",
    "b": "windowed count",
    "running": "running count in Python",
    "sessions": "sessions",
    "join": "interval join",
}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
"""What is between these marks of a page is written from results, and nothing else of it."""
NAMES = {"headrace": "Headrace", "structured-streaming": "Structured Streaming", "bytewax": "Bytewax", "flink": "Flink"}
LEFT_OUT = ("no time for", "interrupted")
ABOUT = """\
These figures were measured on {when}. They hold for this machine and for the load that it had: compare figures within
one table only.

{summary}{command}
- machine: {cores} cores ({processor}), {memory_gb} GB of memory, {system}
- load average when it began: {load_before:.1f}
- versions: Python {python}, {versions}

The load average counts what the benchmark itself does. *Others* is the number of cores that all other programs took
while a contestant ran. A figure is in doubt if its runs differ by more than {spread:.0%} of their median, if others
took more than {others:.0%} of all cores, or if it was measured once. The spread is that range, with the number of
runs. Ratios above 1 are better than the first line of the table.
"""


def throughput_by_query(figures: Figures) -> str | None:
    """Draw messages a second of each contestant."""
    groups = {
        title: {name: one["messages_per_s"] for name, one in figures[part].items()}
        for part, title in QUERIES.items()
        if figures.get(part)
    }
    for query, found in figures.get("nexmark", {}).items():
        groups[f"Nexmark {query}"] = {n: one["messages_per_s"] for n, one in found.items() if isinstance(one, dict)}
    return bars("Messages a second, on a logarithmic axis", groups) if groups else None


def latency_by_rate(figures: Figures) -> str | None:
    """Draw percentiles of each contestant by rate."""
    series: dict[str, list[Point]] = {}
    for share in SHARES:
        for rate, found in figures.get("c", {}).items():
            for name, one in found.items():
                if f"{share}_ms" in one:
                    series.setdefault(f"{name}, {share}", []).append((float(rate), one[f"{share}_ms"]))
    return lines("Latency by rate", "messages a second", "ms", series) if series else None


def growth_of(figures: Figures, what: str) -> str | None:
    """Draw time and memory by size."""
    found = figures.get("growth", {}).get(what, [])
    series = {
        label: [(one["size"], one[figure]) for one in found]
        for label, figure in (("processor s", "cpu_s"), ("peak MB", "peak_mb"))
    }
    return lines(f"Growth with {what}", what, "s, MB", series) if found else None


def plots_of(figures: Figures) -> dict[str, tuple[str, str]]:
    """Return all plots by their names, each with what it shows."""
    found = {
        "throughput": ("Throughput by query", throughput_by_query(figures)),
        "latency": ("Latency by rate", latency_by_rate(figures)),
    } | {f"growth-{what}": (f"Growth with {what}", growth_of(figures, what)) for what in figures.get("growth", ())}
    return {name: (about, plot) for name, (about, plot) in found.items() if plot is not None}


def page_of(figures: Figures, plots: Mapping[str, tuple[str, str]], prefix: str) -> str:
    """Write what is between the marks, in Markdown. ``prefix`` begins the paths of plots."""
    machine = figures["machine"]
    versions = {name: text for name, text in machine["packages"].items() if text}
    listed = ", ".join(f"{name} {text}" for name, text in versions.items())
    command = _without_files(figures["command"]).replace(" && ", " &&\n")
    told = {"command": _note("The command of this run", f"```sh\n{command}\n```"), "summary": summary(figures)}
    about = machine | told | {"versions": listed, "spread": SPREAD_MAX, "others": OTHERS_MAX}
    lines = [ABOUT.format_map(about)]
    lines += [f"![{about}]({prefix}{name}.svg)\n" for name, (about, _) in plots.items()]
    for name, part in figures["parts"].items():
        before, after = part["loads"]
        lines.append(f"## {part['about'][0].upper()}{part['about'][1:]}\n")
        load = f"The load average was {before:.1f} before and {after:.1f} after."
        lines.append(f"`--only {name}` took {part['seconds']:.0f} s. {load}\n")
        left_out = [note for note in part["notes"] if note.startswith(LEFT_OUT)]
        lines += [f"**{_cell(note)}**\n" for note in part["notes"] if note not in left_out]
        lines += [_table(one["title"], one["columns"], one["rows"]) for one in part["tables"]]
        if left_out:
            lines.append(_note("What this run left out", "\n".join(f"- {_cell(note)}" for note in left_out)))
    settings = [structured_settings(), *machine.get("peers", ())]
    lines.append("\n".join(["## How others are set up", "", *(f"- {one}" for one in settings), ""]))
    return "\n".join(lines)


def summary(figures: Figures) -> str:
    """Messages a second of all contestants and queries, as a table; empty if none of these were measured."""
    columns = ["messages a second", *NAMES.values()]
    rows = [
        [title, *(shown(found.get(name, {}).get("messages_per_s")) for name in NAMES)]
        for part, title in QUERIES.items()
        if (found := figures.get(part))
    ]
    return "\n".join([*_rows(columns, rows), "", ""]) if rows else ""


def _without_files(command: str) -> str:
    """The command without the file of its figures, which says nothing elsewhere."""
    return re.sub(r" --json \S+", "", command)


def structured_settings() -> str:
    """The settings of the session and of Structured Streaming, as its module explains them."""
    explained = " ".join((structured.__doc__ or "").partition("\n\n")[2].replace("``", "`").split())
    listed = ", ".join(f"`{name}={value}`" for name, value in SETTINGS.items())
    return f"Structured Streaming. {explained} Settings: {listed}."


def _note(title: str, text: str) -> str:
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>\n'


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([f"{title[0].upper()}{title[1:]}:", "", *_rows(columns, rows), ""])


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [columns, ["---"] + ["---:"] * (len(columns) - 1)]
    return ["| " + " | ".join(map(_cell, line)) + " |" for line in [*head, *rows]]


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def write(results: Path, page: Path) -> None:
    """Write the plots, and what is between the marks of the page. The rest of the page stays as it is."""
    figures = json.loads(results.read_text(encoding="utf-8"))
    before = page.read_text(encoding="utf-8") if page.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    head, begun, rest = before.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not (begun and ended):
        raise SystemExit(f"{page} has no {BEGIN} and {END} to write between")
    plots = plots_of(figures)
    images = page.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name, (_, plot) in plots.items():
        (images / f"{page.stem}-{name}.svg").write_text(plot, encoding="utf-8")
    made = page_of(figures, plots, f"images/{page.stem}-")
    page.write_text(f"{head}{BEGIN}\n\n{made}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/performance.md"))
