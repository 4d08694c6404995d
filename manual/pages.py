"""Which pages the site has, and what is in them: pure, from the repository's own files.

The map of the site is docs/index.md: its headings are the sections and their groups, and its lists the pages. Pages
keep their text. Links between files of the repository become links between pages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from posixpath import normpath, relpath

HOME = PurePosixPath("README.md")
MAP = PurePosixPath("docs/index.md")
LESSONS = PurePosixPath("examples")
_SECTION = re.compile(r"^## (?P<title>.+)$")
_GROUP = re.compile(r"^### (?P<title>.+)$")
_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<file>[^)#]+)\)")
_LINK = re.compile(r"(?P<head>\]\()(?P<file>[^)#\s:]+)(?P<place>#[^)\s]*)?(?P<tail>\))")
_FENCE = re.compile(r"^ *```")
_NO_RUN = re.compile(r"^(?P<head> *```python) no-run[ ]*$", re.M)


@dataclass(frozen=True, slots=True)
class Entry:
    """A page: its title in the navigation, and the file of the repository that it is made of."""

    title: str
    file: PurePosixPath


@dataclass(frozen=True, slots=True)
class Section:
    """Pages that belong together."""

    title: str
    entries: tuple[Entry, ...]
    groups: tuple[Section, ...] = ()

    @property
    def all(self) -> tuple[Entry, ...]:
        """The pages of the section and of its groups."""
        return (*self.entries, *(entry for group in self.groups for entry in group.entries))


def sections(text: str) -> list[Section]:
    """Return the sections of docs/index.md."""
    found: list[Section] = []
    for line in text.splitlines():
        if section := _SECTION.match(line):
            found.append(Section(section["title"], ()))
        elif group := _GROUP.match(line):
            found[-1] = replace(found[-1], groups=(*found[-1].groups, Section(group["title"], ())))
        elif match := _ENTRY.match(line):
            entry = Entry(match["title"], PurePosixPath(normpath(MAP.parent / match["file"])))
            found[-1] = _with(found[-1], entry)
    return found


def _with(section: Section, entry: Entry) -> Section:
    if not section.groups:
        return replace(section, entries=(*section.entries, entry))
    *before, last = section.groups
    return replace(section, groups=(*before, _with(last, entry)))


def page_of(file: PurePosixPath) -> PurePosixPath:
    """Return where the page of a file of the repository is in the site."""
    if file == HOME:
        return PurePosixPath("index.md")
    if file.parts[0] == "docs":
        return file.relative_to("docs")
    if file.suffix == ".py":
        return file.with_suffix(".md")
    return PurePosixPath(file.name.lower()) if file.suffix == ".md" else file


def with_links(
    text: str,
    file: PurePosixPath,
    pages: Mapping[PurePosixPath, PurePosixPath],
    other: Callable[[PurePosixPath], PurePosixPath],
) -> str:
    """Return the text of ``file`` with links that fit the site.

    ``pages`` says which file or folder has which page. ``other`` is called for what has none, and says where that is.
    """

    def moved(link: re.Match[str]) -> str:
        target = PurePosixPath(normpath(file.parent / link["file"]))
        there = pages.get(target) or other(target)
        return link["head"] + relpath(there, pages[file].parent) + (link["place"] or "") + link["tail"]

    lines, fenced = [], False
    for line in text.splitlines(keepends=True):
        fenced ^= bool(_FENCE.match(line))
        lines.append(line if fenced else _LINK.sub(moved, line))
    return "".join(lines)


def with_plain_fences(text: str) -> str:
    """Return the text without what only tests read: the site's Markdown takes a fence with options for text."""
    return _NO_RUN.sub(r"\g<head>", text)


def said(name: str, code: str) -> tuple[str, str]:
    """Return the title of an example, and what it shows: the first sentence of its docstring."""
    first = (ast.get_docstring(ast.parse(code)) or name).split("\n\n")[0].replace("\n", " ")
    title, _, shows = first.partition(": ")
    return title, shows.split(". ")[0].rstrip(".")


def lesson(name: str, code: str) -> str:
    """Return the page of an example: its title and its code."""
    return f"# {said(name, code)[0]}\n\n`examples/{name}`\n\n```python\n{code.rstrip()}\n```\n"


def lessons(listed: Mapping[PurePosixPath, tuple[str, str]]) -> str:
    """Return the page that lists the lessons, each with its title and what it shows."""
    lines = [f"- [{title}]({page.name})" + (f": {shows}" if shows else "") for page, (title, shows) in listed.items()]
    return "\n".join(
        ["# Lessons", "", "Each lesson is a program of one page: `python examples/01_hello.py`.", "", *lines, ""]
    )


def reference(module: str, says: str, names: Iterable[str], homes: Mapping[str, str]) -> str:
    """Return the page of a public namespace: what its names' docstrings say. ``homes`` says where each is defined."""
    parts = [f"# {module}", "", says, ""]
    for name in names:
        parts += [f"## {module}.{name} {{ #{module}.{name} }}", "", f"::: {homes[name]}", ""]
    return "\n".join(parts)
