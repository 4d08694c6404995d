"""The coordinator of a run, whichever runner hosts the containers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.metadata.store import MetadataStore
from headrace.plan.model import Plan
from headrace.runners.coordination.address import publish
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.coordination.server import Coordinator
from headrace.runners.tables.catalogue import catalogue


@contextmanager
def coordinated(
    planned: Plan, metadata: MetadataStore, stages: Sequence[str], containers: int, *, until_caught_up: bool = False
) -> Iterator[Coordinator]:
    """Start a coordinator and publish its address, until the block ends. ``stages`` limits the run; empty means all."""
    settings, app = planned.graph.settings, planned.graph.app
    mine = {s.name: [t.name for t in s.tasks] for s in planned.stages if not stages or s.name in stages}
    started_at = time.time_ns() // 1_000_000
    ledger = Ledger(
        app,
        mine,
        containers,
        started_at=started_at,
        guarantee=settings.guarantee,
        until_caught_up=until_caught_up,
    )
    with Coordinator(ledger, metadata, tables=catalogue(planned)) as coordinator:
        published = publish(
            Path(settings.home),
            app,
            coordinator.url,
            coordinator.token,
            stages=list(mine),
            all_stages=not stages,
            started_at=started_at,
        )
        try:
            yield coordinator
        finally:
            published.close()
