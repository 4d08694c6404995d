"""docs/command-line.md has every verb of the command line, and no other; every verb prints JSON if asked to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace import errors
from headrace.operate.cli.console import Exit, exit_of
from headrace.operate.cli.main import app, main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def verbs(command: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            yield from verbs(one, f"{before}{name} ")
        else:
            yield before + name, one


def test_the_page_has_every_verb_and_each_verb_prints_json() -> None:
    known = dict(verbs(typer.main.get_command(app)))
    verbs_of_page = PAGE.partition("## What `--json` prints")[0]
    shown = re.findall(r"^\| `headrace ([a-z-]+(?: [a-z-]+)?)", verbs_of_page, flags=re.M)
    assert sorted(shown) == sorted(known)
    assert [name for name, verb in known.items() if not any("--json" in one.opts for one in verb.params)] == []


def test_the_page_has_every_exit_code() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE, flags=re.M)
    assert sorted({int(code) for code in codes}) == sorted(code.value for code in Exit)


def test_each_error_that_the_page_names_has_the_code_of_its_row() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*)$", PAGE, flags=re.M)
    found = [(int(code), name) for code, row in rows for name in re.findall(r"`(\w+Error)`", row)]
    assert len(found) > 5
    assert [(exit_of(getattr(errors, name)("x")), name) for _, name in found] == found


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("stream describe nothing", 1),
        *((f"{verb} nothing", 1) for verb in ("status", "metrics", "drain", "dashboard", "table list")),
        *((f"{verb} nothing", 2) for verb in ("offsets", "checkpoint show", "startpoint list", "savepoint undo")),
        ("savepoint show nothing monday", 2),
        ("check nothing", 3),
    ],
)
def test_what_is_not_there_has_the_code_of_the_page(tmp_path: Path, command: str, code: int) -> None:
    assert main([*command.split(), "--home", str(tmp_path / "home")]) == code
