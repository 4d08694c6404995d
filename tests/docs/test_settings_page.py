"""docs/settings.md has the table of settings as it is in the code, and its file of settings is one.

``python tests/docs/test_settings_page.py`` writes the table again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from headrace.core.deployment import SETTINGS, Found, find, settings_file
from headrace.operate.cli.main import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_HEAD = "| name | type | by default | option | |\n| --- | --- | --- | --- | --- |\n"
_TABLE = re.compile(f"(?<={re.escape(_HEAD)})(\\| `.*\n)+")


def rows() -> list[str]:
    """The lines of the table."""
    found = []
    for one in SETTINGS.values():
        shown = Found(one, one.default).shown
        kind = ", ".join(f"`{choice}`" for choice in one.choices) or one.kind
        default = shown if one.default is None else f"`{shown}`"
        found.append(f"| `{one.name}` | {kind} | {default} | {one.option and f'`{one.option}`'} | {one.about} |")
    return found


def test_the_page_has_the_table_of_the_code() -> None:
    table = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table is not None
    assert table[0].splitlines() == rows()


def test_each_option_of_the_table_is_one_of_a_command_whose_help_names_the_variable() -> None:
    commands = typer.main.get_command(app)
    options = {
        name: one
        for command in (commands, commands.commands["run"], commands.commands["status"])  # type: ignore[attr-defined]
        for one in command.params
        for name in one.opts
    }
    for one in SETTINGS.values():
        if one.option:
            assert one.variable in (getattr(options[one.option], "help", "") or ""), one.option


def test_the_file_of_the_page_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert text is not None
    monkeypatch.chdir(tmp_path)
    Path("headrace.toml").write_text(text[1])
    assert settings_file() is not None
    assert find("checkpoint_interval", app="page-views").place == "headrace.toml: app.page-views.checkpoint_interval"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub("\n".join(rows()).replace("\\", r"\\") + "\n", text), encoding="utf-8")
