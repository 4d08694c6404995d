"""The app as users hold it: what ``headrace.api`` lets them declare, plus planning, running and testing it.

It stands above the runners because it starts them; nothing below knows of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.api.app import Declarations
from headrace.core.errors import UsageError

if TYPE_CHECKING:
    from headrace.plan.model import Plan
    from headrace.testing.harness import TestApp

_LOADED = "__headrace_app__"
"""The module name under which commands load a user's file."""


class App(Declarations):
    """A stream processing app: declare it, then ``run`` it. Building it runs nothing.

    >>> import headrace as hr
    >>> app = hr.App("page-views")
    >>> app.name
    'page-views'
    """

    def plan(self, containers: int = 1) -> Plan:
        """Plan the app against the streams there are now; runs nothing."""
        from headrace.plan.planner import plan
        from headrace.runners.facts import gather_facts

        graph = self.graph()
        return plan(graph, gather_facts(graph), containers)

    def test(self, partitions: int | Mapping[str, int] = 1) -> TestApp:
        """The app in memory, on a clock of its own, for tests: see ``headrace.testing``.

        ``partitions`` is how many its inputs have: one number for all, or one for each by name.
        """
        from headrace.testing.harness import TestApp

        return TestApp(self.graph(), partitions)

    def run(
        self,
        *,
        master: str | None = None,
        containers: int | None = None,
        stages: Sequence[str] | None = None,
        local: bool = False,
        conf: Mapping[str, str] | None = None,
        progress: bool = True,
    ) -> None:
        """Run the app until it has ended, or until Ctrl-C (SIGINT) or SIGTERM has drained it.

        ``master`` is the Spark to run on (what spark-submit says, else ``local[*]``), ``containers`` how many Spark
        tasks share the work (as many as there are slots), ``conf`` more settings of Spark. ``stages`` limits the
        run to these stages, for an app deployed in parts. ``local=True`` runs it in this process without Spark.
        Raises what made the app fail.
        """
        from headrace.metadata.sqlite import SqliteMetadata
        from headrace.runners.prepare import at_home
        from headrace.runners.progress import ProgressLine, set_aside

        if getattr(sys.modules.get(_LOADED), "__headrace_loading__", False):
            raise UsageError(
                f"the file of app {self.name!r} runs it while it is only being read",
                hint='put app.run() under `if __name__ == "__main__":`',
            )
        _check_options(master, containers, stages, conf)
        graph = at_home(self.graph())
        metadata = SqliteMetadata(Path(graph.settings.home) / "metadata.db")  # makes the home folder
        line = ProgressLine() if progress else None
        began = time.monotonic()
        try:
            if local:
                from headrace.runners.local import run_local

                status = run_local(graph, metadata, stages or (), line)
            else:
                from headrace.runners.spark.runner import SparkOptions, run_on_spark

                options = SparkOptions(
                    master=master, containers=containers, stages=stages or (), conf=conf or {}, progress=line
                )
                status = run_on_spark(graph, metadata, options)
        finally:
            if line is not None:
                line.close()
            metadata.close()
        if progress:
            how = "drained" if status.drained else "ended"
            seconds = time.monotonic() - began
            print(f"{graph.app} {how} after {seconds:.1f} s{set_aside(status)}", file=sys.stderr)  # noqa: T201


def _check_options(master: object, containers: object, stages: object, conf: object) -> None:
    """Raise for what would only be noticed somewhere in Spark, and not be understood there."""
    if master is not None and not isinstance(master, str):
        raise UsageError(f"master={master!r} is not a Spark master", hint='write master="local[2]"')
    if containers is not None and type(containers) is not int:
        raise UsageError(f"containers={containers!r} is not a number of containers", hint="write containers=2")
    if stages is not None and (isinstance(stages, str) or not isinstance(stages, Sequence)):
        raise UsageError(f"stages={stages!r} is not a list of stages", hint=f"write stages=[{stages!r}]")
    if conf is not None and not isinstance(conf, Mapping):
        raise UsageError(f"conf={conf!r} has no keys", hint='write conf={"spark.executor.memory": "4g"}')
