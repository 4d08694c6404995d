"""What is between the marks of the page, and its plots, are made from the results alone."""

from __future__ import annotations

import json
import re
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
            "notes": ["no time for turn 2", "flink: it has no count"],
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


def written(page_before: str, folder: Path) -> str:
    (folder / "docs").mkdir()
    (folder / "results.json").write_text(json.dumps(RESULTS))
    (folder / "docs/performance.md").write_text(page_before)
    page.write(folder / "results.json", folder / "docs/performance.md")
    return (folder / "docs/performance.md").read_text()


def test_a_page_with_its_plots(tmp_path: Path) -> None:
    text = written(f"# Fast\n\n{page.BEGIN}\nformer figures\n{page.END}\n", tmp_path)
    for said in (
        "python -m bench --quick",
        "load average when it began: 3.2",
        "PyFlink 2",
        "- no time for turn 2\n\n</details>",
        "**flink: it has no count**",
        "## Throughput of a count",
        "| windowed count | 8,000 | 1,000 | - | - |",
    ):
        assert said in text
    assert "| headrace | 5 \\| 6 |" in text
    for name in ("throughput", "latency", "growth-keys"):
        assert f"(images/performance-{name}.svg)" in text
        ElementTree.fromstring((tmp_path / f"docs/images/performance-{name}.svg").read_text())


def test_what_people_have_written_stays(tmp_path: Path) -> None:
    text = written(
        f"# Fast\n\nSaid before.\n\n{page.BEGIN}\nformer figures\n{page.END}\n\n## More\n\nSaid after.\n", tmp_path
    )
    assert text.startswith(f"# Fast\n\nSaid before.\n\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\n\n## More\n\nSaid after.\n")
    assert "former figures" not in text


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="figures: begin"):
        written("# Fast\n", tmp_path)
    assert (tmp_path / "docs/performance.md").read_text() == "# Fast\n"


def test_a_page_that_is_not_there_is_begun(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    page.write(tmp_path / "results.json", tmp_path / "docs/new.md")
    assert (tmp_path / "docs/new.md").read_text().startswith(f"# Performance\n\n{page.BEGIN}\n")


def test_results_of_one_part_have_a_page() -> None:
    only = {name: RESULTS[name] for name in ("command", "machine", "parts")}
    assert page.plots_of(only) == {}
    assert page.summary(only) == ""
    assert "## Throughput of a count" in page.page_of(only, {}, "images/")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
_MACHINE = re.compile(
    r"on (?P<when>[\d-]+)\..*machine: (?P<cores>\d+) cores \((?P<processor>.*?)\), (?P<memory_gb>\d+) GB of memory, "
    r"(?P<system>\S+)\n.*began: (?P<load_before>[\d.]+)\n.*Python (?P<python>\S+), (?P<packages>[^\n]+)",
    re.S,
)
_PART = re.compile(r"`--only (\S+)` took (\d+) s\. The load average was (\S+) before and (\S+) after\.")


def read_back(figures: str) -> dict[str, Any]:
    """The results that a page shows, as far as it is made of them."""
    found = _MACHINE.search(figures)
    assert found is not None
    machine: dict[str, Any] = found.groupdict() | {"load_before": float(found["load_before"])}
    machine["packages"] = dict(one.split(" ") for one in machine["packages"].split(", "))
    parts: dict[str, Any] = {}
    for section in figures.split("\n## ")[1:]:
        if (head := _PART.search(section)) is not None:
            tables = re.findall(r"^(.*):\n\n((?:\|.*\n)+)", section, flags=re.M)
            notes = re.findall(r"^\*\*(.*)\*\*$", section, flags=re.M) + re.findall(r"^- (.*)$", section, flags=re.M)
            parts[head[1]] = {
                "about": section.partition("\n")[0],
                "tables": [
                    dict(zip(("title", "columns", "rows"), (title, *table(lines)), strict=True))
                    for title, lines in tables
                ],
                "notes": notes,
                "seconds": float(head[2]),
                "loads": [float(head[3]), float(head[4])],
            }
    command = figures.partition("```sh\n")[2].partition("\n```")[0].replace(" &&\n", " && ")
    rates = {name: {row[0]: row[1] for row in parts[name]["tables"][0]["rows"]} for name in page.QUERIES}
    raw = {
        part: {
            name: {"messages_per_s": None if rate == "-" else float(rate.replace(",", ""))} for name, rate in of.items()
        }
        for part, of in rates.items()
    }
    return {"command": command, "machine": machine, "parts": parts, **raw}


def table(lines: str) -> tuple[list[str], list[list[str]]]:
    head, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines.splitlines()]
    return head, rows


def test_the_page_in_docs_is_what_its_results_make() -> None:
    """Whatever is between the marks would be lost with the next run if somebody had changed it by hand."""
    figures = PAGE.read_text(encoding="utf-8").partition(page.BEGIN)[2].partition(page.END)[0]
    plots = {name: (about, "") for about, name in re.findall(r"!\[(.*)\]\(images/performance-(.*)\.svg\)", figures)}
    made = page.page_of(read_back(figures), plots, "images/performance-")
    others = "\n## How others are set up"
    assert f"\n\n{made}".partition(others)[0] == figures.partition(others)[0]


def test_bars_have_their_figures() -> None:
    found = texts(bars("Title", {"one": {"a": 1_000.0, "b": 12_345.0}, "two": {"b": 5.0}}))
    assert {"Title", "one", "two", "a", "b", "1,000", "12,345", "5"} <= set(found)


def test_lines_have_their_axes_and_names() -> None:
    found = texts(lines("Title", "keys", "s", {"a": [(10, 0.5), (1_000, 20)], "b": [], "zero": [(0, 0)]}))
    assert {"Title", "keys", "s", "a", "b", "10", "100", "1,000", "0.1"} <= set(found)


@pytest.mark.parametrize(("power", "expected"), [(1, 1.0), (2, 2.0), (0, 0.0)])
def test_slopes_on_logarithmic_axes(power: int, expected: float) -> None:
    assert slope([(x, 3 * x**power) for x in (1.0, 10.0, 100.0)]) == pytest.approx(expected)
