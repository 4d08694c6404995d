"""``python -m manual``: build the site of the documentation. A link that leads nowhere is an error."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path, PurePosixPath

import headrace as hr
from manual import pages

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ("site.css", "iframe-worker.js")
SPACES = [name for name in dir(hr) if inspect.ismodule(getattr(hr, name)) and hasattr(getattr(hr, name), "__all__")]


class Site:
    """The pages of the site, which are written to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._map = pages.sections((ROOT / pages.MAP).read_text(encoding="utf-8"))
        self._lessons = {
            PurePosixPath(file.relative_to(ROOT).as_posix()): file.read_text(encoding="utf-8")
            for pattern in ("examples/*.py", "examples/nexmark/*.py")
            for file in sorted(ROOT.glob(pattern))
        }
        files = [pages.HOME, *(entry.file for section in self._map for entry in section.all), *self._lessons]
        self._pages = {file: pages.page_of(file) for file in files}
        self._pages |= {pages.LESSONS: pages.LESSONS / "index.md", pages.MAP: PurePosixPath("all.md")}

    def write(self) -> list[dict[str, object]]:
        """Write all pages; return the navigation."""
        for file, page in self._pages.items():
            if file.suffix == ".md":
                text = (ROOT / file).read_text(encoding="utf-8")
                self._put(page, pages.with_links(pages.with_plain_fences(text), file, self._pages, self._copied))
        for file, code in self._lessons.items():
            self._put(self._pages[file], pages.lesson(str(file.relative_to(pages.LESSONS)), code))
        plain = {file: code for file, code in self._lessons.items() if file.parent == pages.LESSONS}
        listed = {self._pages[file]: pages.said(file.name, code) for file, code in plain.items()}
        self._put(pages.LESSONS / "index.md", pages.lessons(listed))
        sections = {one.title: self._listed(one) for one in self._map}
        titles: list[object] = [{title: str(page)} for page, (title, _) in listed.items()]
        sections[self._map[0].title].append({"Lessons": [str(pages.LESSONS / "index.md"), *titles]})
        sections[self._map[-1].title].append({"Names": self._reference()})  # the last section is about names
        navigation: list[dict[str, object]] = [{"Headrace": "index.md"}, {"All pages": str(self._pages[pages.MAP])}]
        navigation.extend({title: entries} for title, entries in sections.items())
        return navigation

    def _listed(self, section: pages.Section) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = [
            {each.title: str(self._pages[each.file])} for each in section.entries if each.file != pages.LESSONS
        ]
        return entries + [{group.title: self._listed(group)} for group in section.groups]

    def _reference(self) -> list[dict[str, str]]:
        spaces = {"hr": "headrace", **{f"hr.{name}": f"headrace.{name}" for name in SPACES}}
        listed = []
        for short, full in spaces.items():
            module = import_module(full)
            homes = {name: _home(full, name, getattr(module, name)) for name in module.__all__ if name not in SPACES}
            page = PurePosixPath("reference") / f"{short}.md"
            self._put(page, pages.reference(short, inspect.getdoc(module) or "", homes, homes))
            listed.append({short: str(page)})
        return listed

    def _copied(self, file: PurePosixPath) -> PurePosixPath:
        """A link to what is no page: the file is copied, and a folder is what its first file is."""
        found = ROOT / file
        if found.is_dir():
            found = next(iter(sorted(found.glob("*.py"))), found)
            return self._pages[PurePosixPath(found.relative_to(ROOT).as_posix())]
        if not found.is_file():
            raise SystemExit(f"a link leads to {file}, which isn't there")
        target = self._folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, target)
        return file

    def _put(self, page: PurePosixPath, text: str) -> None:
        target = self._folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _home(module: str, name: str, value: object) -> str:
    """Where a public name is defined: an alias of a type doesn't know that by itself."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    tree = ast.parse(inspect.getsource(import_module(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            return f"{node.module}.{name}"
    return f"{module}.{name}"


def main(arguments: list[str] | None = None) -> int:
    """Build the site."""
    parser = argparse.ArgumentParser(prog="python -m manual", description=__doc__)
    parser.add_argument("--builder", default="zensical", help="the command of Zensical, which makes HTML of the pages")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "manual", help="an empty or new folder")
    options = parser.parse_args(arguments)
    into = options.into.resolve()
    shutil.rmtree(into / "pages", ignore_errors=True)
    navigation = Site(into / "pages").write()
    (into / "pages" / "assets").mkdir()
    for name in ASSETS:
        shutil.copyfile(Path(__file__).with_name(name), into / "pages" / "assets" / name)
    look = Path(__file__).with_name("site.toml").read_text(encoding="utf-8")
    settings = f'docs_dir = "pages"\nsite_dir = "site"\nnav = {_toml(navigation)}\n'
    look = look.replace("[project]\n", f"[project]\n{settings}", 1)
    config = look.replace("SOURCES", str(ROOT / "src")).replace("MANUAL", str(Path(__file__).parent))
    (into / "zensical.toml").write_text(config, encoding="utf-8")
    command = [options.builder, "build", "--strict", "--clean", "--config-file", str(into / "zensical.toml")]
    try:
        done = subprocess.run(command, check=False, cwd=into)
    except FileNotFoundError:
        print(f"there is no command {options.builder}: make docs installs it", file=sys.stderr)
        return 2
    if done.returncode == 0:
        print(f"the site is in {into / 'site'}: open index.html")
    return done.returncode


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
