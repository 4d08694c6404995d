"""The coordinator of a run, for any runner that hosts containers."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import msgspec

from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, InfrastructureError, UsageError
from headrace.core.ids import TaskName
from headrace.metadata.places import Places
from headrace.metadata.store import MetadataStore
from headrace.metadata.timelines import Timelines
from headrace.plan.heritage import keeps_state
from headrace.plan.model import Plan
from headrace.runners.app_inputs import inputs_of, record_inputs
from headrace.runners.checked import Checked
from headrace.runners.committed import committed_in
from headrace.runners.container_session import SessionThread
from headrace.runners.control import RunControl
from headrace.runners.coordination.endpoint import ON_THIS_MACHINE, Endpoint
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.coordination.long_calls import CallLimits
from headrace.runners.coordination.publication import LifeSign, publish
from headrace.runners.coordination.server import Coordinator
from headrace.runners.coordination.silence import Silence, SilenceThread
from headrace.runners.coordination.slot_book import SlotBook
from headrace.runners.coordination.standby_book import StandbyBook
from headrace.runners.coordination.watchers import Watcher, hearer_of, pages_of, watchers_of
from headrace.runners.last_words import clear, folder_of
from headrace.runners.memos import record_memos
from headrace.runners.place_keeping import PlaceKeeping
from headrace.runners.planning import Planned
from headrace.runners.prepare import prepare_streams, stops_by_itself
from headrace.runners.progress import Progress, announce
from headrace.runners.savepoints.at_end import SavepointAtEnd
from headrace.runners.slot_dealing import SlotDealing, slotted_inputs
from headrace.runners.startpoints import StartpointService
from headrace.runners.tables.catalogue import catalogue
from headrace.runtime.frame_pace import longest_interval_ms


@contextmanager
def coordinated(
    planned: Plan,
    metadata: MetadataStore,
    stages: Sequence[str],
    containers: int,
    *,
    endpoint: Endpoint = ON_THIS_MACHINE,
    until_caught_up: bool = False,
    savepoint: str = "",
    replaced: bool = True,
    scattered: bool = False,
    progress: Progress | None = None,
) -> Iterator[Coordinator]:
    """Start a coordinator and publish its address, until the block ends. ``stages`` limits the run; empty means all.

    Its watchers greet the user who follows the ``progress``. ``savepoint`` is the name of one to take at the end.
    ``replaced``: containers that end are restarted. ``scattered``: they run on machines that share no disk.
    """
    app, home, started_at = planned.graph.app, Path(planned.graph.settings.home), WallClock().now_ms()
    timelines, places = Timelines(metadata, app), Places(metadata, app)
    ledger = _ledger(
        planned,
        stages,
        containers,
        started_at,
        places,
        until_caught_up=until_caught_up,
        saves=bool(savepoint),
        replaced=replaced,
        scattered=scattered,
    )
    token, silence = secrets.token_urlsafe(32), _silence(timelines, app, planned, stages)
    watchers = watchers_of(planned, token)
    page = pages_of(watchers)
    committed = partial(committed_in, home, metadata, app)
    startpoints = StartpointService(metadata, inputs_of(planned), committed, WallClock())
    with Coordinator(
        ledger,
        metadata,
        endpoint=endpoint,
        tables=catalogue(planned),
        startpoints=startpoints,
        silence=silence,
        held=places.read(),
        copied=places.read_standbys(),
        token=token,
        pages=page.pages,
        watched=page.watching,
        telemetry=hearer_of(watchers),
    ) as coordinator:
        mine = list(_of_this_run(planned, stages))
        publication = publish(
            metadata, app, coordinator.url, coordinator.token, stages=mine, all_stages=not stages, started_at=started_at
        )
        if not stages:  # else they may be those of another deployment, which runs
            clear(folder_of(home, app))
        record_inputs(metadata, planned, stages)
        coordinator.fan_out()
        beside: list[SessionThread] = [
            LifeSign(publication, coordinator.fail),
            SlotDealing(planned, ledger.slots.inputs, coordinator, coordinator.fail),
            PlaceKeeping(places, coordinator.status),
            *_while_silent(silence, coordinator, timelines),
            *(thread for watcher in watchers for thread in watcher.threads(coordinator)),
        ]
        try:
            with _at_work(beside), _saving(coordinator, planned, metadata, savepoint):
                _greet(watchers, coordinator, progress)
                yield coordinator
        except BaseException as error:  # its last status is kept, and shows why the app ended
            coordinator.fail(_interrupted() if isinstance(error, KeyboardInterrupt) else error)
            raise
        finally:
            ending = msgspec.structs.replace(coordinator.status(), ended_at=WallClock().now_ms())
            publication.close(ending)
            for watcher in watchers:
                watcher.end(ending)


@contextmanager
def started(
    checked: Checked,
    changed: Planned,
    containers: int,
    progress: Progress | None,
    control: RunControl,
    *,
    endpoint: Endpoint,
    savepoint: str,
    replaced: bool = True,
    scattered: bool = False,
) -> Iterator[tuple[Plan, Coordinator]]:
    """Begin the run of a checked app: prepare its streams, start its coordinator, and say where its live page is.

    Gives the plan to run and the coordinator, until the block ends.
    """
    metadata, stages = checked.metadata, checked.stages
    prepare_streams(changed.plan, stages)
    planned = record_memos(metadata, changed.plan)
    with coordinated(
        planned,
        metadata,
        stages,
        containers,
        endpoint=endpoint,
        until_caught_up=stops_by_itself(planned, stages),
        savepoint=savepoint,
        replaced=replaced,
        scattered=scattered,
        progress=progress,
    ) as coordinator:
        control.attach(coordinator)
        checked.deployment.record(changed, stages)
        yield planned, coordinator


def _greet(watchers: Iterable[Watcher], coordinator: Coordinator, progress: Progress | None) -> None:
    if progress is None:
        return
    for watcher in watchers:
        if line := watcher.greeting(coordinator.url, coordinator.token):
            announce(line, progress)


def _of_this_run(planned: Plan, stages: Sequence[str]) -> dict[str, list[TaskName]]:
    """Return the tasks of the stages that this deployment runs."""
    return {s.name: [t.name for t in s.tasks] for s in planned.stages if not stages or s.name in stages}


def _ledger(
    planned: Plan,
    stages: Sequence[str],
    containers: int,
    started_at: int,
    places: Places,
    *,
    until_caught_up: bool,
    saves: bool,
    replaced: bool,
    scattered: bool,
) -> Ledger:
    settings = planned.graph.settings
    return Ledger(
        planned.graph.app,
        _of_this_run(planned, stages),
        containers,
        started_at=started_at,
        guarantee=settings.guarantee,
        until_caught_up=until_caught_up,
        restarts_max=settings.restarts_max,
        calls=CallLimits(settings.drain_timeout_ms, settings.hung_after_ms, replaced=replaced),
        interval_ms=longest_interval_ms(planned),
        chance=random.random,
        saves=saves,
        scattered=scattered,
        slots=SlotBook(slotted_inputs(planned, stages)),
        standbys=StandbyBook(
            settings.standby,
            [stage.name for stage in planned.stages if keeps_state(planned.graph, stage)],
            places.read_standbys() if settings.standby else {},
        ),
    )


@contextmanager
def _at_work(threads: Sequence[SessionThread]) -> Iterator[None]:
    """Keep these threads running for the block; then close them, the last one first."""
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.close)
        yield


def _silence(timelines: Timelines, app: str, planned: Plan, stages: Sequence[str]) -> Silence | None:
    """Return the silence in which the current timeline repeats former work; None if it speaks."""
    if not timelines.silent:
        return None
    if stages:
        raise UsageError(
            f"app {app!r} was restored with --outputs silent, and hasn't caught up with its former position: "
            "until then its stages can't be deployed separately",
            hint="run the whole app until its log reports that it writes results again",
        )
    if inputs := [one.stream for one in slotted_inputs(planned)]:
        raise UsageError(
            f"app {app!r} was restored with --outputs silent, but its input {inputs[0]!r} can't be read "
            "again in the same order: its shards change",
            hint="restore the savepoint again, with --outputs again",
        )
    return Silence([[task.name for task in stage.tasks] for stage in planned.stages], planned.graph.settings.guarantee)


def _while_silent(silence: Silence | None, coordinator: Coordinator, timelines: Timelines) -> Iterator[SessionThread]:
    if silence is not None:
        yield SilenceThread(partial(coordinator.advance_silence, timelines.speak), coordinator.fail)


def _saving(
    coordinator: Coordinator, planned: Plan, metadata: MetadataStore, savepoint: str
) -> AbstractContextManager[object]:
    if not savepoint:
        return nullcontext()
    return SavepointAtEnd(coordinator, Path(planned.graph.settings.home), planned.graph.app, metadata, savepoint)


def _interrupted() -> HeadraceError:
    return InfrastructureError(
        "a second Ctrl-C ended the app at once", hint="start it again: it resumes from its last checkpoints"
    )
