"""The alert rules and the board among the examples: each metric, label and value in them is one that Headrace has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest
import yaml

import headrace
from headrace.coordinator.messages import AppState, ContainerState, What
from headrace.core.metrics import BY_NAME, Metric
from headrace.run.container import counted
from headrace.task.host.task_host import _PARTS
from headrace.task.metrics import TaskMetrics

MONITORING = Path(headrace.__file__).parent / "operate" / "project"
SELECTOR = re.compile(r"\b(headrace_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
CLAUSE = re.compile(r"\b(?:by|on|group_left|group_right|without|ignoring) \(([^)]*)\)")
MENTIONED = re.compile(r"\$labels\.(\w+)|\{\{(\w+)\}\}")


def values_of(label: str, metric: str) -> set[str] | None:
    """The values that a label of the metric can have; None: any."""
    found = {one.labels[label] for one in counted(TaskMetrics()) if one.name == metric and label in one.labels}
    known: Mapping[tuple[str, str], set[str]] = {
        ("headrace_app_up", "state"): set(get_args(AppState)),
        ("headrace_container_up", "state"): set(get_args(ContainerState)),
        ("headrace_task_held_up_seconds", "by"): set(get_args(What)),
        ("headrace_checkpoint_duration_seconds", "part"): {*_PARTS.values(), "snapshot", "whole"},
    }
    return known.get((metric, label), found or None)


def metric_of(name: str) -> Metric:
    """The metric that a series belongs to."""
    if name in BY_NAME:
        assert BY_NAME[name].kind != "histogram", f"{name} has no series of its own name"
        return BY_NAME[name]
    histogram = BY_NAME.get(re.sub(r"_(bucket|sum|count)$", "", name))
    assert histogram is not None and histogram.kind == "histogram", f"{name} isn't in the table"
    return histogram


def labels_of(name: str) -> set[str]:
    return {*metric_of(name).labels} | ({"le"} if name.endswith("_bucket") else set())


def check_expression(expression: str, text: str = "") -> None:
    """``text`` may mention labels of what the expression finds."""
    selectors = SELECTOR.findall(expression)
    assert selectors, expression
    for name, matchers in selectors:
        metric_of(name)
        for label, values in MATCHER.findall(matchers):
            assert label in labels_of(name), f"{name} has no label {label!r}"
            known = values_of(label, metric_of(name).name)
            assert known is None or {*values.split("|")} <= known, f"{name}: no {label!r} is one of {values!r}"
    for clause in CLAUSE.findall(expression):
        for label in filter(None, map(str.strip, clause.split(","))):
            assert any(label in labels_of(name) for name, _ in selectors), f"nothing has a label {label!r}"
    assert expression.count("(") == expression.count(")")
    for label in mentioned(text):
        assert label in results_of(expression), f"the result of {expression} has no label {label!r}"


def mentioned(text: str) -> set[str]:
    return {one or other for one, other in MENTIONED.findall(text)}


def results_of(expression: str) -> set[str]:
    """The labels that the result can have: what is grouped by, if everything is grouped; ``le`` goes into quantiles."""
    grouped = [{*map(str.strip, clause.split(","))} for clause in re.findall(r"\bby \(([^)]*)\)", expression)]
    if re.match(r"(sum|max|avg|count|histogram_quantile)\b", expression):
        found = set.intersection(*grouped) if grouped else set()
        return found - {"le"} if expression.startswith("histogram_quantile") else found
    return set.union(*(labels_of(name) for name, _ in SELECTOR.findall(expression)))


def rules() -> Iterator[Mapping[str, object]]:
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


@pytest.mark.parametrize("rule", [pytest.param(rule, id=str(rule["alert"])) for rule in rules()])
def test_an_alert_is_on_metrics_that_exist(rule: dict[str, dict[str, str]]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    check_expression(str(rule["expr"]), " ".join(rule["annotations"].values()))


def test_alerts_have_different_names() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len({*names}) == len(names)


def test_the_board_is_on_metrics_that_exist() -> None:
    board = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert shown
    for panel in shown:
        assert panel["description"].endswith("."), panel["title"]
        for target in panel["targets"]:
            check_expression(target["expr"], target["legendFormat"])


@pytest.mark.parametrize(
    ("expression", "text", "problem"),
    [
        ("headrace_nothing", "", "isn't in the table"),
        ("headrace_latency_seconds", "", "no series of its own name"),
        ("headrace_late_messages_total_sum", "", "isn't in the table"),
        ('headrace_task_idle{partition="1"}', "", "no label 'partition'"),
        ('headrace_app_up{state="lost"}', "", "no 'state' is one of 'lost'"),
        ('headrace_latency_seconds_sum{until="written"}', "", "no 'until' is one of"),
        ("sum by (nobody) (headrace_task_idle)", "", "nothing has a label 'nobody'"),
        ("max by (app) (headrace_task_idle)", "{{ $labels.task }}", "has no label 'task'"),
        ("sum by (stage) (headrace_task_idle)", "{{task}}", "has no label 'task'"),
        ("headrace_task_idle", "{{output}}", "has no label 'output'"),
    ],
)
def test_what_does_not_exist_is_found(expression: str, text: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_expression(expression, text)
