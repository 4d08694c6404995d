"""The checks before an app runs, here or on Spark: that it can be planned, and that nothing is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.api.specs import Graph
from headrace.metadata.store import MetadataStore
from headrace.plan.heritage import NO_CONSENT, Consent
from headrace.runners.app_systems import check_snapshots
from headrace.runners.planning import Deployment, Planned, check_not_ended
from headrace.stores.objects.opening import check_objects


@dataclass(frozen=True, slots=True)
class Checked:
    """An app that can run, and its plan for one container. ``stages`` limits the run to these; empty means all."""

    graph: Graph
    metadata: MetadataStore
    stages: Sequence[str]
    deployment: Deployment
    planned: Planned


def check_run(
    graph: Graph, metadata: MetadataStore, stages: Sequence[str] = (), consent: Consent = NO_CONSENT
) -> Checked:
    """Plan the app. Raises if it can't run, without having changed anything.

    ``consent`` lists the kept state of an earlier version whose loss the user accepts. Raises ``PlanError`` if that
    isn't enough.
    """
    deployment = Deployment(graph, metadata, consent)
    planned = deployment.planned(stages=stages)
    planned.changes.check()
    check_not_ended(planned, metadata)
    check_snapshots(metadata, planned.plan)
    check_objects(graph.settings.snapshots)
    return Checked(graph, metadata, stages, deployment, planned)
