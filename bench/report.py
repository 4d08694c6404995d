"""The figures of a run: collected, written as JSON, and shown as tables."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import CORES


@dataclass(slots=True)
class Part:
    """What one part has shown: its tables, and what one should know about it. Loads are those before and after."""

    about: str
    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    loads: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """Figures by part of the benchmark. ``machine`` is what they are from, as it was before."""

    console: Console
    machine: dict[str, Any]
    figures: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str, about: str) -> Iterator[Part]:
        """Collect the tables of a part."""
        part = self.parts[name] = Part(about, loads=[os.getloadavg()[0]])
        began = time.monotonic()
        try:
            yield part
        finally:
            part.seconds = time.monotonic() - began
            part.loads.append(os.getloadavg()[0])
            for note in part.notes:
                self.console.print(f"{name}: {note}", style="yellow", highlight=False)

    def say(self, line: str) -> None:
        """Print a line of progress."""
        self.console.print(f"  {line}", style="dim", highlight=False)

    def head(self, line: str) -> None:
        """Print the heading of a part."""
        self.console.print(line, highlight=False)

    def keep(self, part: str, figures: Any) -> None:
        """Add a part's figures to the JSON."""
        self.figures[part] = _plain(figures)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table of figures, and keep it for the page."""
        lines = [[shown(value) for value in row] for row in rows]
        if self.parts:
            found = {"title": title, "columns": list(columns), "rows": lines}
            next(reversed(self.parts.values())).tables.append(found)
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left")
        for line in lines:
            table.add_row(*line)
        self.console.print(table)

    def write(self, path: Path) -> None:
        """Write all figures, the command that measured them, and what machine they are from."""
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"command": this_command(), "machine": self.machine, "parts": _plain(self.parts)}
        path.write_text(json.dumps(about | self.figures, indent=1) + "\n")


def this_command() -> str:
    """Return the command of this run."""
    return shlex.join(["python", "-m", "bench", *sys.argv[1:]])


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that the figures were measured with."""
    packages = ("headrace", "pyspark", "polars", "pyarrow")
    return {
        "when": datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d"),
        "cores": CORES,
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in packages},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ModuleNotFoundError:  # run from a source tree that isn't installed
        return None


def shown(value: object) -> str:
    """Format a figure for a table, with its significant digits."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
