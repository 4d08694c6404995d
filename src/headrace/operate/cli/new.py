"""``headrace new``: write a project in the shape that the documentation recommends. Its files are in ``project``."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from headrace.core.errors import UsageError
from headrace.core.files import writing
from headrace.operate.cli.console import print_json, print_line, print_note
from headrace.operate.cli.options import AsJson

FILES = {
    "pipeline.py": "pipeline.py.txt", "test_pipeline.py": "test_pipeline.py.txt",
    "pyproject.toml": "pyproject.toml.txt", "README.md": "README.md.txt", "Dockerfile": "Dockerfile.txt",
    ".gitignore": "gitignore.txt", ".github/workflows/test.yml": "ci.yml.txt", "monitoring/alerts.yml": "alerts.yml",
    "monitoring/dashboard.json": "dashboard.json",
}  # fmt: skip
"""The files of a project, and the templates that they are made of."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The app's name, such as page-views.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Where to write it; by default a folder NAME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a new project: an app, its tests, an image, alerts.

    The folder must be new or empty. Nothing is overwritten.
    """
    from headrace import __version__

    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a project", hint="use small letters, digits and hyphens: page-views")
    place = folder or Path(name)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} exists and isn't an empty folder", hint="name another one: --folder")
    templates = files("headrace.operate") / "project"
    with writing(place):
        for file, template in FILES.items():
            text = (templates / template).read_text(encoding="utf-8")
            if template.endswith(".txt"):
                text = text.replace("{name}", name).replace("{version}", f">={__version__}")
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(text, encoding="utf-8")
    if as_json:
        print_json({"folder": str(place), "files": list(FILES)})
        return
    for file in FILES:
        print_line(str(place / file))
    print_note(f"\nNext: cd {place}; pytest; headrace plan pipeline.py; README.md has the rest.")
