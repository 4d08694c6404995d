"""The coordinator of a run with all that runs beside it, for any runner that hosts containers.

The first Ctrl-C (SIGINT) or SIGTERM during a run drains the app, as soon as there is something to drain. An exception
from a signal handler is lost where Python can't raise it, and would leave a half-started Spark behind. So the handler
only sets a flag, which the code that starts things looks at. The second signal raises ``KeyboardInterrupt``, as usual.
Only a second SIGTERM right after the first is the same one, sent to a group or a service and to a process of it, or
passed on by ``spark-submit``.

Two threads of the driver are here: one deals shards to slots while the app runs, and may block on calls to the input's
system; reports and orders wait for it. One notes on which hosts tasks have begun, so that the next run puts them there.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import msgspec
from typing_extensions import override

from headrace.coordinator.address import ON_THIS_MACHINE, Endpoint
from headrace.coordinator.books import SlotBook, SlottedInput
from headrace.coordinator.ledger import Ledger, StandbyBook
from headrace.coordinator.messages import AppStatus
from headrace.coordinator.progress import CallLimits
from headrace.coordinator.publication import LifeSign, metrics_token, publish
from headrace.coordinator.server import Coordinator, Silence, SilenceThread
from headrace.coordinator.startpoints import StartpointService
from headrace.coordinator.watchers import hearer_of, pages_of, watchers_of
from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, InfrastructureError, UsageError
from headrace.core.files import readable
from headrace.core.ids import TaskName
from headrace.core.log import Throttle, logger
from headrace.core.worker import RepeatedStep, WorkerThread, at_work
from headrace.life.changelogs import committed_in, record_memos
from headrace.life.inputs import inputs_of, record_inputs
from headrace.life.metadata import MetadataStore, Places
from headrace.life.timelines import Timelines
from headrace.plan.inventory import keeps_state
from headrace.plan.model import Plan
from headrace.run.last_words import clear, folder_of
from headrace.run.planning import Checked, Planned, prepare_streams, stops_by_itself
from headrace.run.progress import Progress, announce
from headrace.run.savepoints.taking import SavepointAtEnd
from headrace.run.table_routing import catalogue
from headrace.systems.registry import open_row_system
from headrace.systems.slots import Dealer, SlottedSystem
from headrace.task.scope import longest_interval_ms

# -- interrupts --------------------------------------------------------------------------------------
SAME_S = 1.0
"""A SIGTERM this soon after the first signal doesn't count as a second request."""


class Interrupts:
    """Handles SIGINT and SIGTERM while entered in the main thread; before ``drain_by``, says ``said_at_start``."""

    def __init__(self, said_at_start: str = "") -> None:
        self.requested = False
        self._said_at_start = said_at_start
        self._drain: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._requested_s = 0.0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def drain_by(self, drain: Callable[[], object]) -> None:
        """Make the first signal call ``drain``. If it has arrived already, call ``drain`` now."""
        self._drain = drain
        if self.requested:
            drain()

    def request(self) -> None:
        """Ask for what the first signal asks for. From any thread, and any number of times."""
        if not self.requested:
            self.requested, self._requested_s = True, time.monotonic()
            if self._drain is not None:
                self._drain()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and (number != signal.SIGTERM or time.monotonic() - self._requested_s > SAME_S):
            raise KeyboardInterrupt
        to_be_said = self._said_at_start and self._drain is None and not self.requested
        self.request()  # before it is said: who reads it may interrupt at once, and that is the second time
        if to_be_said:
            with suppress(OSError):  # the terminal has closed, so there is nowhere to print
                os.write(2, f"{self._said_at_start}\n".encode())


class Interrupt(Interrupts):
    """While entered, the first SIGINT or SIGTERM sets a flag and makes ``fd`` readable. For the main thread only.

    Commands look at it at safe places: an exception between a write and its record would make the next flush repeat it.
    """

    def wait(self, seconds: float | None = None) -> None:
        readable(self.fd, None if seconds is None else 1000 * seconds)

    @override
    def __enter__(self) -> Self:
        self.fd, self._write = os.pipe()
        self.drain_by(lambda: os.write(self._write, b"!"))
        super().__enter__()
        return self

    @override
    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self.fd)
        os.close(self._write)


class RunControl(Interrupts):
    """The signals of a run, and what else may ask it to end. ``request`` drains it, ``stop`` ends it at once."""

    def __init__(self, said_at_start: str = "") -> None:
        super().__init__(said_at_start)
        self.coordinator: Coordinator | None = None
        """None before the app is about to run."""
        self._stopped = False

    def attach(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        if self._stopped:
            coordinator.stop()

    def stop(self) -> None:
        """Make the run end at once, without a commit, even before it has begun."""
        self._stopped = True  # before looking for the coordinator, because otherwise nothing might stop it
        if self.coordinator is not None:
            self.coordinator.stop()
        else:
            self.request()


# -- slot dealing ------------------------------------------------------------------------------------
LOOK_S = 0.5
"""How often the dealers are asked when no report comes: shards come and go without the app."""
_log = logger(__name__)


def slotted_inputs(plan: Plan, stages: Collection[str] = ()) -> list[SlottedInput]:
    """The inputs of these stages (default: all) whose partitions are slots."""
    found = []
    for stage in plan.stages:
        if stages and stage.name not in stages:
            continue
        readers = {ssp: task.name for task in stage.tasks for ssp in task.inputs}
        for id_ in stage.inputs:
            if plan.streams[id_].spec.slots:
                slots = tuple((readers[ssp], ssp) for ssp in plan.streams[id_].ssps())
                found.append(SlottedInput(stage.name, id_, slots))
    return found


class SlotDealing(WorkerThread):
    """The dealers of a run, and their thread. If it fails, the app ends: shards would be left unread."""

    def __init__(self, plan: Plan, inputs: Iterable[SlottedInput], coordinator: Coordinator) -> None:
        super().__init__("headrace-slots")
        self._plan, self._inputs, self._coordinator = plan, list(inputs), coordinator
        self._throttle = Throttle(_log)

    @override
    def start(self) -> None:
        if self._inputs:
            super().start()

    @override
    def work(self) -> None:
        with ExitStack() as stack:
            dealers = {}
            for one in self._inputs:
                spec = self._plan.streams[one.stream].spec
                system = open_row_system(spec.system)
                assert isinstance(system, SlottedSystem)
                dealers[one] = system.dealer(spec.stream.name, f"{self._plan.graph.app}/{one.stage}")
                stack.callback(dealers[one].close)
            while not self.closing.is_set():
                self._deal(dealers)
                self._coordinator.wait_for_slots(LOOK_S)
            self._deal(dealers)  # the dealers say last what tasks have committed

    @override
    def failed(self, error: Exception) -> None:
        self._coordinator.fail(error)

    def _deal(self, dealers: Mapping[SlottedInput, Dealer]) -> None:
        for one, dealer in dealers.items():
            reports = self._coordinator.slot_reports(one)
            try:
                orders = dealer.deal(reports)
            except HeadraceError as error:
                if not error.retry:
                    raise
                self._throttle.warning("can't deal shards now; trying again", input=one.stream, error=error.message)
                continue
            self._coordinator.order_slots(one, reports, orders)


PLACES_LOOK_S = 2.0


def whereabouts(status: AppStatus) -> dict[TaskName, str]:
    begun = {task.name for task in status.tasks if task.state not in ("starting", "restoring")}
    return {
        TaskName.parse(task): container.host
        for container in status.containers
        if container.state in ("running", "finished") and container.host and begun.issuperset(container.tasks)
        for task in container.tasks
    }


def standby_hosts(status: AppStatus) -> dict[TaskName, list[str]]:
    """The hosts of the standbys of each task that have all of its changelog."""
    found: dict[TaskName, set[str]] = {}
    for container in status.containers:
        for one in container.standbys if container.host else ():
            if one.state == "current":
                found.setdefault(TaskName.parse(one.task), set()).add(container.host or "")
    return {task: sorted(hosts) for task, hosts in found.items()}


class PlaceKeeping(RepeatedStep):
    """Looks at the status from ``start`` to ``close``, and writes what has changed. Failures are only logged."""

    def __init__(self, places: Places, status: Callable[[], AppStatus]) -> None:
        super().__init__("headrace-places", PLACES_LOOK_S)
        self._places, self._status = places, status
        self._known: dict[TaskName, str] = {}
        self._copied: dict[TaskName, list[str]] = {}
        self._throttle = Throttle(_log)

    @override
    def step(self) -> bool:
        status = self._status()
        found = {task: host for task, host in whereabouts(status).items() if self._known.get(task) != host}
        copied = {task: hosts for task, hosts in standby_hosts(status).items() if self._copied.get(task) != hosts}
        if found or copied:
            try:
                self._places.note(found, copied)
                self._known |= found
                self._copied |= copied
            except HeadraceError as error:  # it is written the next time
                self._throttle.warning("can't record where tasks run", error=error.message)
        return True

    @override
    def last_step(self) -> None:
        self.step()


@contextmanager
def coordinated(
    planned: Plan,
    metadata: MetadataStore,
    stages: Sequence[str],
    ledger: Ledger,
    endpoint: Endpoint = ON_THIS_MACHINE,
    savepoint: str = "",
    progress: Progress | None = None,
) -> Iterator[Coordinator]:
    """Start a coordinator and publish its address, until the block ends. ``stages`` limits the run; empty means all.

    Its watchers greet the user who follows the ``progress``. ``savepoint`` is the name of one to take at the end.
    """
    app, home = planned.graph.app, Path(planned.graph.settings.home)
    timelines, places = Timelines(metadata, app), Places(metadata, app)
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
        metrics_token=metrics_token(metadata, app),
        pages=page.pages,
        watched=page.watching,
        telemetry=hearer_of(watchers),
    ) as coordinator:
        mine, began = list(_of_this_run(planned, stages)), coordinator.status().started_at
        publication = publish(
            metadata, app, coordinator.url, token, stages=mine, all_stages=not stages, started_at=began
        )
        if not stages:  # else they may be those of another deployment, which runs
            clear(folder_of(home, app))
        record_inputs(metadata, planned, stages)
        coordinator.fan_out()
        beside: list[WorkerThread] = [
            LifeSign(publication, coordinator.fail),
            SlotDealing(planned, ledger.slots.inputs, coordinator),
            PlaceKeeping(places, coordinator.status),
            *(thread for watcher in watchers for thread in watcher.threads(coordinator)),
        ]
        if silence is not None:
            beside.append(SilenceThread(partial(coordinator.advance_silence, timelines.speak), coordinator.fail))
        try:
            with at_work(*beside), ExitStack() as stack:
                if savepoint:
                    stack.enter_context(SavepointAtEnd(coordinator, home, app, metadata, savepoint))
                for watcher in watchers if progress is not None else ():
                    if line := watcher.greeting(coordinator.url, token):
                        announce(line, progress)
                yield coordinator
        except BaseException as error:  # its last status is kept, and shows why the app ended
            cut_short = InfrastructureError(
                "a second Ctrl-C ended the app at once", hint="start it again: it resumes from its last checkpoints"
            )
            coordinator.fail(cut_short if isinstance(error, KeyboardInterrupt) else error)
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
    metadata, stages = checked.metadata, checked.stages
    prepare_streams(changed.plan, stages)
    planned = record_memos(metadata, changed.plan)
    ledger = ledger_of(
        planned,
        metadata,
        stages,
        containers,
        until_caught_up=stops_by_itself(planned, stages),
        saves=bool(savepoint),
        replaced=replaced,
        scattered=scattered,
    )
    with coordinated(planned, metadata, stages, ledger, endpoint, savepoint, progress) as coordinator:
        control.attach(coordinator)
        checked.deployment.record(changed, stages)
        yield planned, coordinator


def _of_this_run(planned: Plan, stages: Sequence[str]) -> dict[str, list[TaskName]]:
    return {s.name: [t.name for t in s.tasks] for s in planned.stages if not stages or s.name in stages}


def ledger_of(
    planned: Plan,
    metadata: MetadataStore,
    stages: Sequence[str],
    containers: int,
    *,
    until_caught_up: bool = False,
    saves: bool = False,
    replaced: bool = True,
    scattered: bool = False,
) -> Ledger:
    """Return a ledger. ``replaced``: containers that end are restarted. ``scattered``: their machines share no disk."""
    app, settings = planned.graph.app, planned.graph.settings
    return Ledger(
        app,
        _of_this_run(planned, stages),
        containers,
        started_at=WallClock().now_ms(),
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
            Places(metadata, app).read_standbys() if settings.standby else {},
        ),
    )


def _silence(timelines: Timelines, app: str, planned: Plan, stages: Sequence[str]) -> Silence | None:
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
