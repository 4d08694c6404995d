"""docs/command-line.md has every verb of the command line, and no other; every verb prints JSON if asked to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from headrace.operate.cli.console import Exit
from headrace.operate.cli.main import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def verbs(command: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            yield from verbs(one, f"{before}{name} ")
        else:
            yield before + name, one


def test_the_page_has_every_verb_and_each_verb_prints_json() -> None:
    known = dict(verbs(typer.main.get_command(app)))
    shown = re.findall(r"^\| `headrace ([a-z-]+(?: [a-z-]+)?)", PAGE, flags=re.M)
    assert sorted(shown) == sorted(known)
    assert [name for name, verb in known.items() if not any("--json" in one.opts for one in verb.params)] == []


def test_the_page_has_every_exit_code() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE, flags=re.M)
    assert sorted({int(code) for code in codes}) == sorted(code.value for code in Exit)
