"""A run of an app, whichever thread runs it, here or on Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headrace.api.specs import Graph
from headrace.core.url import SecretUrl
from headrace.metadata.opening import open_metadata
from headrace.metadata.store import MetadataStore
from headrace.runners.checked import Checked, check_run
from headrace.runners.control import RunControl
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.local import run_local
from headrace.runners.progress import ProgressLine, how_it_ended
from headrace.runners.run_arguments import RunOptions, check_not_connect

SAID_AT_START = "interrupted: ends once Spark has started; Ctrl-C again ends it at once"


class Launch:
    """Checks that an app can run, and runs it once. It has the app's metadata store open from the one to the other."""

    def __init__(
        self,
        graph: Graph,
        metadata: SecretUrl | None,
        options: RunOptions,
        before: Callable[[MetadataStore], None] | None = None,
    ) -> None:
        """Raises what keeps the app from running. ``before`` is done first. ``metadata`` is the URL of its store."""
        self.graph, self.options = graph, options
        self.metadata_url = metadata
        if not options.local:
            check_not_connect()
        self._metadata = open_metadata(Path(graph.settings.home), metadata)
        try:
            if before is not None:
                before(self._metadata)
            self._checked = check_run(graph, self._metadata, options.stages, options.consent)
        except BaseException:
            self._metadata.close()
            raise

    def run(self, control: RunControl, line: ProgressLine | None) -> None:
        """Run until the app has ended, or until it was asked to end. Raises what made it fail."""
        began = time.monotonic()
        try:
            status = self._run(self._checked, control, line)
        except BaseException:
            if line is not None:
                line.close()
            raise
        finally:
            self._metadata.close()
        if line is not None:
            line.end(how_it_ended(self.graph.app, status, time.monotonic() - began))

    def _run(self, checked: Checked, control: RunControl, line: ProgressLine | None) -> AppStatus:
        options = self.options
        if options.local:
            return run_local(checked, line, options.savepoint, options.wanted, control)
        from headrace.runners.spark.runner import run_on_spark

        return run_on_spark(checked, options, line, control)
