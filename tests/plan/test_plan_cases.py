"""Every app in ``cases/`` is compared with the plan beside it. The plans also document the planner.

A case declares ``app`` and ``partitions`` (of the streams that exist). When its first line reads
``# must fail: <pattern>``, planning has to raise an error that matches, and the file beside it holds
the whole error. ``HEADRACE_WRITE_PLANS=1`` rewrites the files; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.api.specs import Graph
from headrace.core.errors import PlanError
from headrace.plan.planner import plan
from headrace.plan.render import render, to_text
from headrace.systems.base import StreamInfo

CASES = Path(__file__).parent / "cases"
MUST_FAIL = "# must fail: "


def declared(case: Path) -> tuple[Graph, dict[str, StreamInfo]]:
    """The app and the streams that exist. All cases use the same guarantee, whatever the default is."""
    names = runpy.run_path(str(case))
    graph: Graph = names["app"].graph()
    settings = replace(graph.settings, guarantee="at_least_once")
    facts = {name: StreamInfo(name, count) for name, count in names["partitions"].items()}
    return replace(graph, settings=settings), facts


def planned(case: Path) -> str:
    graph, facts = declared(case)
    first_line = case.read_text().splitlines()[0]
    if not first_line.startswith(MUST_FAIL):
        return to_text(render(plan(graph, facts)))
    with pytest.raises(PlanError) as caught:
        plan(graph, facts)
    text = str(caught.value).replace(f"{CASES}{os.sep}", "") + "\n"
    assert re.search(first_line.removeprefix(MUST_FAIL), text), text
    return text


@pytest.mark.parametrize("case", sorted(CASES.glob("*.py")), ids=lambda case: case.stem)
def test_the_plan_is_the_one_beside_it(case: Path):
    golden = case.with_suffix(".plan.txt")
    text = planned(case)
    if os.environ.get("HEADRACE_WRITE_PLANS"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_no_plan_has_lost_its_case():
    assert {path.name for path in CASES.glob("*.plan.txt")} == {
        path.with_suffix(".plan.txt").name for path in CASES.glob("*.py")
    }
