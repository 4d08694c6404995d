"""Documents: the changelog has its format, links have targets, and the architecture can be held in the head."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version
from tidy_repository import ROOT, package, sources, texts

import headrace
from tests.architecture_map import redraw

PAGES = sorted(name for name in texts() if name.endswith(".md"))
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
_RELEASE = re.compile(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", texts()[page], flags=re.S)
    links = [link for link in _LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title_and_closed_blocks(page: str) -> None:
    lines = texts()[page].splitlines()
    assert lines[0].startswith("# ")
    assert sum(line.lstrip().startswith("```") for line in lines) % 2 == 0


@pytest.mark.parametrize("page", PAGES)
def test_notes_have_a_title_and_an_end(page: str) -> None:
    """A note begins and ends as GitHub and the site need it, so that the Markdown in it is read as such."""
    text = re.sub(r"```.*?```", "code", texts()[page], flags=re.S)
    whole = re.findall(
        r'^<details markdown="1">\n<summary>[^\n]+</summary>\n\n.+?\n\n</details>$', text, flags=re.S | re.M
    )
    assert len(whole) == text.count("<details") == text.count("</details>")


def test_the_readme_leads_to_every_page() -> None:
    """Those in docs are on the map, of which ``tests/docs/test_manual.py`` says that it is complete."""
    readme = texts()["README.md"]
    first = [page for page in PAGES if "/" not in page and page != "README.md"] + ["docs/index.md"]
    assert [page for page in first if f"({page})" not in readme] == []


def test_every_example_is_plain_python_with_a_number() -> None:
    names = {path.name for path in (ROOT / "examples").iterdir()} - {
        "__pycache__",
        "feed_connector",
        "nexmark",
        "monitoring",
        "notebooks",
    }
    assert [name for name in names if not re.fullmatch(r"\d\d_[a-z_]+\.py", name)] == []


# -- the architecture

WORDS_MOST = 3500
NOUNS_MOST = 35
DESIGN = sorted(page for page in PAGES if page.startswith("docs/design/"))
_FILE = re.compile(r"`{1,2}((?:[\w.-]+/)*[\w.-]+\.(?:py|js|css|html|md|yml)|(?:\w+/)+)`{1,2}")
_MOVED = re.compile(
    r"`{1,2}(?:headrace[./])?(?:runners|runtime|serdes|checkpoint|savepoints|web|testing|coordination|user_code)[./](?!py\b)\w+"
)
"""Packages that have other names now."""

_MODULE = re.compile(r"``([a-z_]+[./][a-z_]+(?:[./][A-Za-z_]+)*)``")


def nouns(page: str) -> list[str]:
    """The first column of the tables of nouns in a page."""
    tables = page.split("| noun | meaning |\n| --- | --- |\n")[1:]
    return [row.split(" | ")[0].removeprefix("| ") for table in tables for row in table.split("\n\n")[0].splitlines()]


def test_the_architecture_can_be_held_in_the_head() -> None:
    page = texts()["ARCHITECTURE.md"]
    assert len(page.split()) <= WORDS_MOST
    assert 10 < len(nouns(page)) <= NOUNS_MOST


def test_each_noun_is_explained_once() -> None:
    found = [noun for page in ("ARCHITECTURE.md", *DESIGN) for noun in nouns(texts()[page])]
    assert sorted(found) == sorted(set(found))


def test_the_architecture_leads_to_every_page_of_the_design() -> None:
    assert [page for page in DESIGN if page not in texts()["ARCHITECTURE.md"]] == []
    assert len(DESIGN) <= 16


def test_the_table_of_what_is_where_is_up_to_date() -> None:
    page = texts()["docs/design/map.md"]
    assert redraw(page) == page, "run: python tests/architecture_map.py docs/design/map.md"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "HACKING.md", *DESIGN])
def test_files_that_are_named_exist(page: str) -> None:
    text = texts()[page].partition("<!-- map: begin -->")[0]
    folders = {f"{parent.as_posix()}/" for name in texts() for parent in Path(name).parents} | {"manual/"}
    known = [f"/{one}" for one in (*texts(), *folders)]
    named = set(_FILE.findall(text))
    assert [name for name in sorted(named) if not any(one.endswith(f"/{name}") for one in known)] == []


def test_no_package_is_called_by_a_former_name() -> None:
    pages = {page: text for page, text in texts().items() if page.startswith("docs/") or page in PAGES}
    code = {source.name: source.text for source in sources("src", "simulator", "seams")}
    found = [(name, match[0]) for name, text in (pages | code).items() for match in _MOVED.finditer(text)]
    assert found == []


def test_modules_that_docstrings_name_exist() -> None:
    """Names such as ``task.calls`` or ``stores.base.misfit``, whose first part is a folder."""
    modules = [source.module.split(".") for source in package()]
    tails = {".".join(parts[start:]) for parts in modules for start in range(len(parts))}
    folders = {part for parts in modules for part in parts[1:-1]} - {"spark"}  # Spark's settings begin with it, too
    found = []
    for source in sources("src", "simulator"):
        for match in _MODULE.finditer(source.text):
            parts = re.split(r"[./]", match[1].removesuffix(".py"))
            modules_in_it = {".".join(parts[:length]) for length in range(2, len(parts) + 1)}
            if parts[0] in folders and not modules_in_it & tails:
                found.append((source.name, match[1]))
    assert found == []


# -- the changelog


def sections() -> list[tuple[str, list[str]]]:
    """The changelog's releases, each with its lines."""
    found: list[tuple[str, list[str]]] = []
    for line in texts()["CHANGELOG.md"].splitlines():
        if line.startswith("## "):
            found.append((line.removeprefix("## "), []))
        elif found:
            found[-1][1].append(line)
    return found


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    titles = [title for title, _ in sections()]
    assert titles[0] == "[Unreleased]"
    assert [title for title in titles[1:] if not _RELEASE.fullmatch(title)] == []


def test_releases_come_newest_first() -> None:
    numbers = [tuple(map(int, match[1].split("."))) for title, _ in sections() if (match := _RELEASE.fullmatch(title))]
    assert numbers == sorted(set(numbers), reverse=True)
    assert [number for number in numbers if number > Version(headrace.__version__).release] == []


def test_changes_are_sorted_by_kind_and_none_is_empty() -> None:
    for title, lines in sections():
        kinds = [line.removeprefix("### ") for line in lines if line.startswith("### ")]
        assert kinds == [kind for kind in KINDS if kind in kinds], title
        assert kinds, f"{title} says nothing"
        blocks = "\n".join(lines).split("### ")[1:]
        assert all("\n- " in block for block in blocks), title


def test_the_version_is_said_once() -> None:
    assert f'version = "{headrace.__version__}"' in texts()["pyproject.toml"]


def test_each_python_that_the_project_names_is_tested() -> None:
    """``make test`` runs on the oldest one, and ``make release`` on the others."""
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (newer,) = re.findall(r"^PYTHONS := (.*)", texts()["Makefile"], flags=re.M)
    oldest = project["requires-python"].removeprefix(">=")
    assert named == [oldest, *newer.replace("python", "").split()]
    (said,) = re.findall(r"^You need Linux and Python (3.*?):", texts()["README.md"], flags=re.M)
    assert re.findall(r"3\.\d+", said) == named
