"""Writes the table of what is where into its page: ``python tests/architecture_map.py docs/design/map.md``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "headrace"
BEGIN, END = "<!-- map: begin -->", "<!-- map: end -->"
TOP = "`headrace/`"

HEART = (
    "core",
    "rows",
    "systems",
    "stores",
    "protocol",
    "api",
    "plan",
    "task",
    "life",
    "coordinator",
    "run",
    "streams",
    "",
)
"""The rooms of the heart, from the lowest layer to the public names."""

WINGS = ("kit", "connectors", "spark", "operate")


def redraw(page: str) -> str:
    """The page with the tables as they have to be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def tables() -> str:
    """A table for each room and each of its folders, with a row for each module."""
    return f"\n## The heart\n{_rooms(HEART)}\n## The wings\n{_rooms(WINGS)}"


def _rooms(rooms: tuple[str, ...]) -> str:
    return "".join(_table(folder) for room in rooms for folder in _folders(room))


def _folders(room: str) -> list[Path]:
    """Return the folder of a room, and those inside of it that have modules."""
    if not room:
        return [SOURCE]
    found = sorted({file.parent for file in (SOURCE / room).rglob("*.py")})
    return [folder for folder in found if any(_modules(folder))]


def _modules(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.glob("*.py")) if file.name != "__init__.py")


def _table(folder: Path) -> str:
    inside = folder.relative_to(SOURCE).as_posix()
    title = TOP if inside == "." else f"`{inside}/`"
    rows = "".join(f"| `{file.name}` | {_head(file)} |\n" for file in _modules(folder))
    return f"\n### {title}\n\n{_head(folder / '__init__.py')}\n\n| file | what it is |\n| --- | --- |\n{rows}"


def _head(file: Path) -> str:
    """Return the first line of a module's docstring, as Markdown."""
    doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0].replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(redraw(path.read_text(encoding="utf-8")), encoding="utf-8")
