"""Writes the table of metrics into its page: ``python tests/metrics_page.py docs/metrics.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.core.metrics import METRICS, Metric

BEGIN, END = "<!-- metrics: begin -->", "<!-- metrics: end -->"


def redraw(page: str) -> str:
    """The page with the table as it has to be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def table() -> str:
    """Every metric, a row for each."""
    head = "| metric | kind | labels | meaning | when to worry |\n| --- | --- | --- | --- | --- |\n"
    return head + "".join(_row(metric) for metric in METRICS)


def _row(metric: Metric) -> str:
    labels = " ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | {metric.worry} |\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(redraw(path.read_text(encoding="utf-8")), encoding="utf-8")
