"""Writes a page about the results of a run: ``python -m bench.page RESULTS.json [docs/performance.md]``.

Everything on it comes from the results, and its plots are written to the folder ``images`` beside it.
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
ABOUT = """\
# Performance

`{command}` measured these figures on {when}, and wrote this page from its results. They hold for this machine and for
the load that it had: compare figures within one table only.

- machine: {cores} cores ({processor}), {memory_gb} GB of memory, {system}
- load average when it began: {load_before:.1f}
- versions: Python {python}, {versions}

The load average counts what the benchmark itself does. *Others* is the number of cores that all other programs took
while a contestant ran. A figure is in doubt if its runs differ by more than {spread:.0%} of their median, if others
took more than {others:.0%} of all cores, or if it was measured once. The spread is that range, with the number of
runs. Ratios above 1 are better than the first line of the table.

To measure again, run `make bench-peers` once, then `python -m bench --write docs/performance.md`. One part alone:
`python -m bench --only b`.
"""
NOT_COMPARABLE = """\
## What isn't comparable

- Structured Streaming reads all files in a single micro-batch, the best setting that we found, and commits once.
  Headrace and Flink take a checkpoint every second, Bytewax one every 10 s.
- Structured Streaming never emits the last windows and sessions, which its watermark doesn't reach, and isn't expected
  to.
- A view just 300 ms after another begins a new session with a gap of 300 ms in Headrace, but not in others. So that all
  sessions are the same, Headrace has a gap of 301 ms.
- Bytewax's sessions all close at the end, as it reads its files at different speeds. It keeps them until then.
- In the running count, Structured Streaming reads and writes the state of a key once for all its messages of the
  batch. Headrace, Flink and Bytewax do it for each message.
- Contestants write Parquet files, Headrace writes a stream of its log, which other apps can read from then on.
- Bytewax has no source or sink for Parquet, and its windows count in Python. Ours read and write Parquet with Arrow,
  and count a batch with Arrow first. It gets fewer messages, as the tables show.
- PyFlink's Table API has no function with state for each message; its running count is a keyed process function.
- Bytewax has no interval join. Its `join_window` pairs what is in one window, and no windows give exactly the pairs
  within a bound, each once.
- Restarts with much state aren't measured against peers yet.
- All contestants share one machine. A cluster would add a network, and other bottlenecks.
- Pathway isn't measured yet. Its license, the Business Source License 1.1, allows use outside production, and doesn't
  forbid publishing results.
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
    """Write the page in Markdown. ``prefix`` begins the paths of plots."""
    machine = figures["machine"]
    versions = {name: text for name, text in machine["packages"].items() if text}
    listed = ", ".join(f"{name} {text}" for name, text in versions.items())
    about = machine | {"versions": listed, "command": _without_files(figures["command"])}
    lines = [ABOUT.format_map(about | {"spread": SPREAD_MAX, "others": OTHERS_MAX})]
    lines += [f"![{about}]({prefix}{name}.svg)\n" for name, (about, _) in plots.items()]
    for name, part in figures["parts"].items():
        before, after = part["loads"]
        lines.append(f"## {part['about'][0].upper()}{part['about'][1:]}\n")
        load = f"The load average was {before:.1f} before and {after:.1f} after."
        lines.append(f"`--only {name}` took {part['seconds']:.0f} s. {load}\n")
        lines += [f"**{_cell(note)}**\n" for note in part["notes"]]
        lines += [_table(one["title"], one["columns"], one["rows"]) for one in part["tables"]]
    settings = [structured_settings(), *machine.get("peers", ())]
    lines.append("\n".join(["## How others are set up", "", *(f"- {one}" for one in settings), ""]))
    return "\n".join([*lines, NOT_COMPARABLE])


def _without_files(command: str) -> str:
    """The command without the file of its figures, which says nothing elsewhere."""
    return re.sub(r" --json \S+", "", command)


def structured_settings() -> str:
    """The settings of the session and of Structured Streaming, as its module explains them."""
    explained = " ".join((structured.__doc__ or "").partition("\n\n")[2].replace("``", "`").split())
    listed = ", ".join(f"`{name}={value}`" for name, value in SETTINGS.items())
    return f"Structured Streaming. {explained} Settings: {listed}."


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [columns, ["---"] + ["---:"] * (len(columns) - 1)]
    body = ["| " + " | ".join(map(_cell, line)) + " |" for line in [*head, *rows]]
    return "\n".join([f"{title[0].upper()}{title[1:]}:", "", *body, ""])


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def write(results: Path, page: Path) -> None:
    """Write the page and its plots."""
    figures = json.loads(results.read_text(encoding="utf-8"))
    plots = plots_of(figures)
    images = page.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name, (_, plot) in plots.items():
        (images / f"{page.stem}-{name}.svg").write_text(plot, encoding="utf-8")
    page.write_text(page_of(figures, plots, f"images/{page.stem}-"), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/performance.md"))
