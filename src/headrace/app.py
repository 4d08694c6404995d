"""The app as users hold it: what ``headrace.api`` lets them declare, plus planning, running and testing it.

It stands above the runners because it starts them; nothing below knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.api.app import Declarations

if TYPE_CHECKING:
    from headrace.plan.model import Plan
    from headrace.testing.harness import TestApp


class App(Declarations):
    """A stream processing app: declare it, then ``run`` it. Building it runs nothing."""

    def plan(self, containers: int = 1) -> Plan:
        """Plan the app against the streams there are now; runs nothing."""
        from headrace.plan.planner import plan
        from headrace.runners.facts import gather_facts

        graph = self.graph()
        return plan(graph, gather_facts(graph), containers)

    def test(self, partitions: int | Mapping[str, int] = 1) -> TestApp:
        """The app in memory, on a clock of its own, for tests: see ``headrace.testing``."""
        from headrace.testing.harness import TestApp

        return TestApp(self.graph(), partitions)
