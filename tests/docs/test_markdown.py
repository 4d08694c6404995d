"""The code in README.md and docs/ runs: the blocks of a file in order, as a reader would type them, in an empty folder.

A ```` ```python ```` block is executed; one with ``>>>`` in it is a doctest, and must print what it shows. A
```` ```python no-run ```` block is only compiled: it needs a cluster, a server or patience. A block that must
not start the app says so as a script does, by ``if __name__ == "__main__"``.
"""

import doctest
import logging
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]

_BLOCK = re.compile(r"^(?P<indent> *)```python(?P<options>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A block of code; ``line`` is the number of its first line in the page."""

    code: str
    line: int
    runs: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        options = found["options"].split()
        line = text.count("\n", 0, found.start("code")) + 1
        if options not in ([], ["no-run"]):
            raise ValueError(f"{page}:{line - 1}: ```python {' '.join(options)}: only no-run is known")
        yield Block(textwrap.dedent(found["code"]), line, runs=not options)


def run_page(page: Path, module: ModuleType) -> None:
    """Run all blocks of a page in one module; an error's traceback names the page and its line."""
    for block in blocks(page):
        if ">>>" in block.code and block.runs:
            _run_doctest(page, block, module)
            continue
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        if block.runs:
            exec(code, module.__dict__)


def _run_doctest(page: Path, block: Block, module: ModuleType) -> None:
    test = doctest.DocTestParser().get_doctest(block.code, module.__dict__, page.name, str(page), block.line - 1)
    test.globs = module.__dict__  # the parser made a copy; the next block needs what this one defined
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)


def loggers() -> list[logging.Logger]:
    """All loggers there are, the root first."""
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(logger for logger in known if isinstance(logger, logging.Logger))]


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Take back the levels and handlers that a page's code sets, because other tests run in this process."""
    levels = {logger: logger.level for logger in loggers()}
    yield
    for logger in loggers():
        logger.setLevel(levels.get(logger, logging.NOTSET))
        for handler in [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]:
            logger.removeHandler(handler)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logging_as_before: None) -> ModuleType:
    """The module that a page's code runs in: importable, as dataclasses need it, and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, module: ModuleType) -> None:
    run_page(page, module)


def test_each_recipe_is_a_question_with_short_code_and_its_output() -> None:
    recipes = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(recipes) >= 20
    for recipe in recipes:
        title = recipe.partition("\n")[0]
        code, output = (found["code"] for found in _BLOCK.finditer(f"\n{recipe}"))
        assert title.endswith("?"), title
        assert 5 <= len([line for line in code.splitlines() if line]) <= 20, title
        assert output.startswith(">>> "), title


# -- the runner itself


def page_of(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(textwrap.dedent(text), encoding="utf-8")
    return page


def test_blocks_run_in_order_and_share_their_names(tmp_path: Path, module: ModuleType) -> None:
    text = """
        # A page
        ```python
        from dataclasses import dataclass

        @dataclass
        class View:
            member: str
        ```
        ```bash
        exit 1
        ```
        - in a list:
          ```python
          >>> View("a")
          View(member='a')
          >>> seen = 1
          ```
        ```python no-run
        raise SystemExit
        ```
        ```python
        seen += 1
        if __name__ == "__main__":
            raise SystemExit
        ```
        """
    run_page(page_of(tmp_path, text), module)
    assert module.seen == 2


def test_an_error_is_shown_at_its_line_of_the_page(tmp_path: Path, module: ModuleType) -> None:
    page = page_of(tmp_path, "text\n\n```python\none = 1\none / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as info:
        run_page(page, module)
    assert (info.traceback[-1].path, info.traceback[-1].lineno + 1) == (page, 5)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n>>> 1 + 1\n3\n```\n", AssertionError),
        ("```python\n>>> 1 / 0\n```\n", AssertionError),
        ("```python no-run\nthis is no Python\n```\n", SyntaxError),
        ("```python norun\n1\n```\n", ValueError),
    ],
)
def test_what_is_wrong_fails(tmp_path: Path, module: ModuleType, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_page(page_of(tmp_path, text), module)
