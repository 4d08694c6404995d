"""The page and its plots are made from the results alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page
from bench.plots import bars, lines, slope

RESULTS: dict[str, Any] = {
    "command": "python -m bench --quick",
    "machine": {
        "when": "2030-01-01",
        "cores": 2,
        "processor": "a processor",
        "memory_gb": 16,
        "system": "Linux",
        "load_before": 3.25,
        "python": "3.11",
        "packages": {"headrace": "0.1.0", "pyspark": None},
        "peers": ["PyFlink 2. It is set up well."],
    },
    "parts": {
        "b": {
            "about": "throughput of a count",
            "tables": [{"title": "(b) count", "columns": ["", "messages/s"], "rows": [["headrace", "5 | 6"]]}],
            "notes": ["no time for turn 2"],
            "seconds": 12.3,
            "loads": [3.25, 4.0],
        }
    },
    "b": {"structured-streaming": {"messages_per_s": 1_000.0}, "headrace": {"messages_per_s": 8_000.0}},
    "nexmark": {"q0": {"headrace": {"messages_per_s": 9_000.0}, "ratio": None}},
    "c": {
        "1000": {"headrace": {"p50_ms": 3.0, "p99_ms": 9.0}},
        "50000": {"headrace": {"p50_ms": 5.0, "p99_ms": 30.0}, "other": {"messages": 0}},
    },
    "growth": {"keys": [{"size": 10, "cpu_s": 1.0, "peak_mb": 2.0}, {"size": 100, "cpu_s": 10.0, "peak_mb": 4.0}]},
}


def texts(picture: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_a_page_with_its_plots(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    page.write(tmp_path / "results.json", tmp_path / "docs" / "performance.md")
    text = (tmp_path / "docs/performance.md").read_text()
    for said in (
        "python -m bench --quick",
        "load average when it began: 3.2",
        "PyFlink 2",
        "**no time for turn 2**",
        "## Throughput of a count",
    ):
        assert said in text
    assert "| headrace | 5 \\| 6 |" in text
    for name in ("throughput", "latency", "growth-keys"):
        assert f"(images/performance-{name}.svg)" in text
        ElementTree.fromstring((tmp_path / f"docs/images/performance-{name}.svg").read_text())


def test_results_of_one_part_have_a_page(tmp_path: Path) -> None:
    only = {name: RESULTS[name] for name in ("command", "machine", "parts")}
    assert page.plots_of(only) == {}
    assert "What isn't comparable" in page.page_of(only, {}, "images/")


def test_bars_have_their_figures() -> None:
    found = texts(bars("Title", {"one": {"a": 1_000.0, "b": 12_345.0}, "two": {"b": 5.0}}))
    assert {"Title", "one", "two", "a", "b", "1,000", "12,345", "5"} <= set(found)


def test_lines_have_their_axes_and_names() -> None:
    found = texts(lines("Title", "keys", "s", {"a": [(10, 0.5), (1_000, 20)], "b": [], "zero": [(0, 0)]}))
    assert {"Title", "keys", "s", "a", "b", "10", "100", "1,000", "0.1"} <= set(found)


@pytest.mark.parametrize(("power", "expected"), [(1, 1.0), (2, 2.0), (0, 0.0)])
def test_slopes_on_logarithmic_axes(power: int, expected: float) -> None:
    assert slope([(x, 3 * x**power) for x in (1.0, 10.0, 100.0)]) == pytest.approx(expected)
