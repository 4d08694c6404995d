"""docs/alerts.md says for each alert rule what it means, how to check it, and what to do."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

TEXT = (files("headrace.operate") / "project" / "alerts.yml").read_text(encoding="utf-8")
RULES = [rule for group in yaml.safe_load(TEXT)["groups"] for rule in group["rules"]]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")


SECTIONS = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=\n\n## |\Z)", PAGE, flags=re.M | re.S))


def test_each_rule_has_a_section_and_each_section_a_rule() -> None:
    assert re.findall(r"^## (.*)", PAGE, flags=re.M) == [rule["alert"] for rule in RULES] == list(SECTIONS)
    assert len(RULES) >= 18


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in RULES])
def test_a_rule_leads_to_the_section_that_says_what_it_means_how_to_check_and_what_to_do(
    rule: dict[str, dict[str, str]],
) -> None:
    site, page, anchor = re.split(r"(?<=}})|#", rule["annotations"]["runbook_url"])
    assert (site, page) == ("{{ $externalLabels.headrace_docs }}", "alerts.html")  # the page of docs/alerts.md
    (name,) = [name for name in SECTIONS if name.lower() == anchor]
    assert name == rule["alert"]
    parts = re.findall(r"^- \*\*(\w+)\*\*: (.*?)(?=^- \*\*|\Z)", SECTIONS[name], flags=re.M | re.S)
    assert [part for part, _ in parts] == ["Means", "Check", "Do"]  # the cause, a check and the remedy
    assert all(len(text.split()) > 4 for _, text in parts), parts


def test_the_site_is_named_where_both_say_so() -> None:
    (label,) = re.findall(r"external_labels:\n    (\w+): ", PAGE)
    assert label == "headrace_docs"
    assert f"external_labels: {{{label}: " in TEXT
