"""The coordinator of a run, whichever runner hosts the containers."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, InfrastructureError, UsageError
from headrace.metadata.store import MetadataStore
from headrace.metadata.timelines import Timelines
from headrace.plan.model import Plan
from headrace.runners.app_inputs import inputs_of, record_inputs
from headrace.runners.committed import committed_in
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.coordination.publication import LifeSign, publish
from headrace.runners.coordination.server import Coordinator
from headrace.runners.coordination.silence import Silence, SilenceThread
from headrace.runners.last_words import clear, folder_of, take
from headrace.runners.startpoints import StartpointService
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
        restarts_max=settings.restarts_max,
        drain_timeout_ms=settings.drain_timeout_ms,
        interval_ms=settings.checkpoint_interval_ms,
        chance=random.random,
    )
    timelines = Timelines(metadata, app)
    silence = _silence(timelines, app, planned, stages)
    left_behind = folder_of(Path(settings.home), app)
    committed = partial(committed_in, Path(settings.home), metadata, app)
    startpoints = StartpointService(metadata, inputs_of(planned), committed, WallClock())
    with Coordinator(
        ledger,
        metadata,
        tables=catalogue(planned),
        startpoints=startpoints,
        last_words=partial(take, left_behind),
        silence=silence,
    ) as coordinator:
        publication = publish(
            metadata,
            app,
            coordinator.url,
            coordinator.token,
            stages=list(mine),
            all_stages=not stages,
            started_at=started_at,
        )
        if not stages:  # else they may be those of another deployment, which runs
            clear(left_behind)
        record_inputs(metadata, planned, stages)
        coordinator.fan_out()
        life_sign = LifeSign(publication, coordinator.fail)
        life_sign.start()
        quiet = SilenceThread(partial(coordinator.advance_silence, timelines.speak), coordinator.fail)
        if silence is not None:
            quiet.start()
        try:
            yield coordinator
        except BaseException as error:  # its status is kept, and shows why the app ended
            coordinator.fail(_interrupted() if isinstance(error, KeyboardInterrupt) else error)
            raise
        finally:
            quiet.close()
            life_sign.close()
            publication.close(msgspec.structs.replace(coordinator.status(), ended_at=time.time_ns() // 1_000_000))


def _silence(timelines: Timelines, app: str, planned: Plan, stages: Sequence[str]) -> Silence | None:
    """The silence in which the current timeline repeats what was done before it; None if it speaks."""
    if not timelines.silent:
        return None
    if stages:
        raise UsageError(
            f"app {app!r} was restored with --outputs silent, and hasn't come to where it was before: until then its "
            "stages can't be deployed apart",
            hint="run the whole app until its log says that it writes results again",
        )
    return Silence([[task.name for task in stage.tasks] for stage in planned.stages], planned.graph.settings.guarantee)


def _interrupted() -> HeadraceError:
    return InfrastructureError(
        "a second Ctrl-C ended the app at once", hint="start it again: it resumes from its last checkpoints"
    )
