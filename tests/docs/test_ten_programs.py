"""The table at the top of docs/ten-programs.md counts what is on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ten-programs.md").read_text(encoding="utf-8")
LIBRARIES = {"headrace", "polars", "quixstreams", "pyspark", "delta", "pandas"}
NOT_OF_LIBRARIES = {"predict", "most_common"}
LINE_MOST = 120
_BLOCK = re.compile(r"^```python(?: no-run)?\n(.*?)^```$", re.M | re.S)


def programs(section: str) -> list[str]:
    """The programs of a section: Headrace's, Quix's, Spark's."""
    blocks = [code for code in _BLOCK.findall(section) if ">>>" not in code and "CLICKS =" not in code]
    assert len(blocks) == 3, section.partition("\n")[0]
    return blocks


def lines(code: str) -> int:
    assert max(map(len, code.splitlines())) <= LINE_MOST
    return len([line for line in code.splitlines() if line.strip()])


def names(code: str) -> int:
    """How many names of libraries the code uses; a package counts once, however it is imported."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names if one.name in LIBRARIES}
        elif isinstance(node, ast.ImportFrom) and (package := (node.module or "").split(".")[0]) in LIBRARIES:
            found |= {package, *(one.name for one in node.names)}
    return len(found - NOT_OF_LIBRARIES)


def table() -> str:
    head, *sections = PAGE.split("\n## ")
    rows = [(section.partition("\n")[0], programs(section)) for section in sections[:10]]
    rows.append(("*shared*", programs(head)))
    rows.append(("*all of it*", ["\n".join(codes) for codes in zip(*(blocks for _, blocks in rows), strict=True)]))
    cells = ("".join(f" {lines(code)} / {names(code)} |" for code in blocks) for _, blocks in rows)
    title = "| lines / names | Headrace | Quix Streams | Spark |\n| --- | ---: | ---: | ---: |\n"
    return title + "".join(f"| {name} |{row}\n" for (name, _), row in zip(rows, cells, strict=True))


def test_the_table_counts_what_is_on_the_page() -> None:
    shown = PAGE.partition("<!-- table: begin -->\n\n")[2].partition("\n<!-- table: end -->")[0]
    assert shown == table()


def test_headrace_is_the_shortest_with_what_is_shared() -> None:
    head, *sections = PAGE.split("\n## ")
    shared = [lines(code) for code in programs(head)]
    for section in sections[:10]:
        ours, *others = (lines(code) + more for code, more in zip(programs(section), shared, strict=True))
        assert ours < min(others), section.partition("\n")[0]


def test_headrace_needs_the_fewest_names_with_what_is_shared() -> None:
    head, *sections = PAGE.split("\n## ")
    shared = programs(head)
    for section in sections[:10]:
        ours, *others = (names(f"{both}\n{code}") for both, code in zip(shared, programs(section), strict=True))
        assert ours < min(others), section.partition("\n")[0]


def test_where_others_are_shorter_is_said() -> None:
    _, *sections = PAGE.split("\n## ")
    ten = [programs(section) for section in sections[:10]]
    assert sum(lines(spark) < lines(ours) for ours, _, spark in ten) == 2
    assert sum(names(spark) < names(ours) for ours, _, spark in ten) == 4


def test_the_page_has_ten_programs_and_says_what_was_checked() -> None:
    titles = re.findall(r"^## (.*)", PAGE, flags=re.M)
    assert len(titles) == 11
    assert titles[-1] == "What was checked"
