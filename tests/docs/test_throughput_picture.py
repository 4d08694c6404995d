"""The picture of throughput in the README shows the recorded figures of a real run, and names its command."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.chart import chart

ROOT = Path(__file__).resolve().parents[2]
FIGURES: dict[str, Any] = json.loads((ROOT / "bench/recorded/windowed-count.json").read_text(encoding="utf-8"))
PICTURE = (ROOT / "docs/images/throughput.svg").read_text(encoding="utf-8")


def texts() -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(PICTURE).iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_is_that_of_the_recorded_figures() -> None:
    again = "python -m bench.chart bench/recorded/windowed-count.json docs/images/throughput.svg"
    assert chart(FIGURES) == PICTURE, f"run: {again}"


@pytest.mark.parametrize(("number", "times"), [(0, "runs_wall_s"), (1, "runs_cpu_s")])
def test_its_numbers_are_ratios_of_turns(number: int, times: str) -> None:
    runs = FIGURES["b"]
    shown = [text for text in texts() if re.fullmatch(r"[\d.]+( \([\d.]+ to [\d.]+\))?", text)]
    for place, name in enumerate(("structured-streaming", "headrace", "headrace from its log")):
        ratios = [a / b for a, b in zip(runs["structured-streaming"][times], runs[name][times], strict=True)]
        wanted = [statistics.median(ratios), min(ratios), max(ratios)] if name.startswith("headrace") else [1.0]
        assert re.findall(r"[\d.]+", shown[3 * number + place]) == [f"{one:.1f}" for one in wanted]


def test_the_command_is_under_it_and_in_the_readme() -> None:
    assert FIGURES["command"] in texts()
    assert f"`{FIGURES['command']}`" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert any(f"{FIGURES['machine']['cores']} cores" in text for text in texts())


def test_nothing_in_it_comes_from_elsewhere() -> None:
    assert re.findall(r"(?:href|src|url\()", PICTURE) == []
