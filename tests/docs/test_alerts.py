"""docs/alerts.md says for each alert rule what it means, how to check it, and what to do."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

RULES = (files("headrace.operate") / "project" / "alerts.yml").read_text(encoding="utf-8")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")


def test_each_rule_has_a_section_and_each_section_a_rule() -> None:
    rules = re.findall(r"- alert: (\w+)", RULES)
    assert re.findall(r"^## (.*)", PAGE, flags=re.M) == rules
    assert len(rules) >= 18


def test_each_section_says_what_it_means_how_to_check_and_what_to_do() -> None:
    for section in PAGE.split("\n## ")[1:]:
        assert re.findall(r"^- \*\*(\w+)\*\*: ", section, flags=re.M) == ["Means", "Check", "Do"], section
