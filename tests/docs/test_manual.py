"""The site of the documentation: which pages it has, and that links between files become links between pages."""

import re
from pathlib import Path, PurePosixPath

from manual import pages
from manual.__main__ import ROOT, Site

_LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


def test_every_page_of_the_docs_is_in_the_map() -> None:
    listed = [each.file for one in pages.sections((ROOT / pages.MAP).read_text()) for each in one.all]
    assert len(listed) == len(set(listed))
    assert {ROOT / file for file in listed} >= set(ROOT.glob("docs/**/*.md")) - {ROOT / pages.MAP}


def test_pages_are_sorted_by_the_question_of_a_reader() -> None:
    titles = [one.title for one in pages.sections((ROOT / pages.MAP).read_text())]
    assert titles == ["Learn", "How to", "Operate", "Understand", "Reference"]


def test_headings_are_sections_and_lists_are_pages() -> None:
    text = "# Map\n\n## One\n\n- [A page](a.md): says (more).\n\n## Two\n\n- [Up](../B.md): also.\n"
    assert pages.sections(text) == [
        pages.Section("One", (pages.Entry("A page", PurePosixPath("docs/a.md")),)),
        pages.Section("Two", (pages.Entry("Up", PurePosixPath("B.md")),)),
    ]


def test_headings_below_a_section_are_its_groups() -> None:
    text = "## One\n\n- [A](a.md)\n\n### First\n\n- [B](b.md)\n\n### Second\n\n- [C](c.md)\n- [D](d.md)\n"
    (one,) = pages.sections(text)
    assert [entry.title for entry in one.entries] == ["A"]
    assert [(group.title, [entry.title for entry in group.entries]) for group in one.groups] == [
        ("First", ["B"]),
        ("Second", ["C", "D"]),
    ]
    assert [entry.title for entry in one.all] == ["A", "B", "C", "D"]


def test_links_lead_to_pages_and_code_is_left_alone() -> None:
    known = {PurePosixPath("docs/a.md"): PurePosixPath("a.md"), pages.HOME: PurePosixPath("index.md")}
    known[PurePosixPath("examples/1.py")] = PurePosixPath("examples/1.md")
    code = "```\n[a](../README.md)\n```\n"
    text = "[a](../README.md#x) [b](../examples/1.py) [c](#y) [d](mailto:a@b) [e](../LICENSE)\n"
    found = pages.with_links(
        text + code, PurePosixPath("docs/a.md"), known, lambda file: PurePosixPath("copied") / file
    )
    assert found == "[a](index.md#x) [b](examples/1.md) [c](#y) [d](mailto:a@b) [e](copied/LICENSE)\n" + code


def test_blocks_that_tests_only_compile_are_blocks_of_the_site() -> None:
    text = "```python no-run\nopen()\n```\n- in a list:\n  ```python no-run\n  ```\n```python\n```\n"
    plain = "```python\nopen()\n```\n- in a list:\n  ```python\n  ```\n```python\n```\n"
    assert pages.with_plain_fences(text) == plain


def test_fences_of_the_site_have_one_word(tmp_path: Path) -> None:
    Site(tmp_path).write()
    odd = [
        (page.name, line)
        for page in tmp_path.rglob("*.md")
        for line in page.read_text().splitlines()
        if re.match(r"^ *```\S* +\S", line)
    ]
    assert odd == []


def test_a_lesson_is_listed_with_what_it_shows() -> None:
    code = '"""3. Windows: aggregates per key\nand time. And more.\n\nDetails.\n"""\n'
    assert pages.said("03_windows.py", code) == ("3. Windows", "aggregates per key and time")
    assert pages.said("x.py", "import sys\n") == ("x.py", "")
    page = pages.lessons({PurePosixPath("examples/03_windows.md"): pages.said("03_windows.py", code)})
    assert "- [3. Windows](03_windows.md): aggregates per key and time\n" in page


def test_no_link_of_the_site_leads_nowhere(tmp_path: Path) -> None:
    navigation = Site(tmp_path).write()
    assert navigation[0] == {"Headrace": "index.md"}
    missing = [
        (page.name, link)
        for page in tmp_path.rglob("*.md")
        for link in _LINK.findall(re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M))
        if not (page.parent / link).exists()
    ]
    assert missing == []


def test_each_lesson_follows_the_one_before_it_in_the_navigation(tmp_path: Path) -> None:
    learn = next(each["Learn"] for each in Site(tmp_path).write() if "Learn" in each)
    assert isinstance(learn, list)
    index, *lessons = learn[-1]["Lessons"]
    assert index == "examples/index.md"
    files = [page for lesson in lessons for page in lesson.values()]
    assert files == [f"examples/{file.stem}.md" for file in sorted(ROOT.glob("examples/*.py"))]


def test_no_page_has_a_diagram_for_which_a_browser_would_fetch_a_library(tmp_path: Path) -> None:
    Site(tmp_path).write()
    assert [page.name for page in tmp_path.rglob("*.md") if re.search(r"^ *```mermaid", page.read_text(), re.M)] == []
