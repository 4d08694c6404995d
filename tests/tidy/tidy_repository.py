"""What the tidy tests look at: the repository's own files, parsed once."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CODE_FOLDERS = ("src", "simulator", "chaos", "fuzz", "seams", "tests", "examples", "demo", "bench")
OTHER_FOLDERS = ("docs", "requirements")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".html", ".css", ".js", ""}


@dataclass(frozen=True, eq=False)
class Source:
    """A Python file: where it is, what it is called when imported, and what is in it."""

    path: Path
    module: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        """The syntax nodes of these kinds."""
        return (node for node in _nodes(self) if isinstance(node, kinds))

    def imports(self) -> Iterator[str]:
        """Every module it imports, at the top level or in a function, and every imported name that may be a module."""
        for node in self.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def third_party(self) -> set[str]:
        """Top-level packages that are neither Python's nor ours."""
        tops = {name.partition(".")[0] for name in self.imports()}
        return tops - {"headrace", "headrace_command", "__future__"} - sys.stdlib_module_names


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """The Python files of these folders (default: all that hold code)."""
    return tuple(_parse(path) for folder in folders or CODE_FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def package() -> tuple[Source, ...]:
    """The files of the package itself."""
    return sources("src/headrace")


@cache
def texts() -> dict[str, str]:
    """Every text file of the repository by its name: code, documents, settings."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXT_SUFFIXES]
    for folder in (*CODE_FOLDERS, *OTHER_FOLDERS):
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in TEXT_SUFFIXES]
    inside = {path.relative_to(ROOT): path for path in found}
    return {
        name.as_posix(): path.read_text(encoding="utf-8")
        for name, path in inside.items()
        if name.name not in ("LICENSE", ".git") and not any("egg-info" in p or p == "results" for p in name.parts)
    }


def documents() -> str:
    """All documents for users."""
    return "\n".join(text for name, text in texts().items() if name == "README.md" or name.startswith("docs/"))


@cache
def _nodes(source: Source) -> list[ast.AST]:
    return list(ast.walk(source.tree))


@cache
def _parse(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    relative = path.relative_to(SOURCE) if path.is_relative_to(SOURCE) else path.relative_to(ROOT)
    module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    return Source(path, module, text, ast.parse(text, str(path)))
