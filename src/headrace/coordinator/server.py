"""The coordinator: the ledger and its lock, an HTTP server for containers and commands, and the driver's methods.

Requests are handled on the connections' threads, the driver's calls on its own. One lock guards the ledger, another one
the book of questions about tables; both are held for microseconds. Generations are issued under a third lock, so that
no registration can come between the check that an incarnation is current and the generation that is issued because of
it. Nothing polls: waiting threads are woken.

Restored with ``--outputs silent``, an app reads its inputs up to its former positions, and writes nothing. All its
tasks pause there. Once every task has committed all of that, the metadata store records permanently that the timeline
*speaks*, and the tasks start over in place, downstream stages first, so that no speaking task sends to a silent one.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
from typing_extensions import override

from headrace.coordinator import messages
from headrace.coordinator.address import ON_THIS_MACHINE, Endpoint
from headrace.coordinator.assignment import at_home, placed, second_best
from headrace.coordinator.books import CutOrder, CutReport, QueryBook, SlottedInput
from headrace.coordinator.calls import CoordinatorCalls, openapi
from headrace.coordinator.exposition import PUBLIC, READ_ONLY, watching_routes
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.listener import Listener, Pages, Readers, Route
from headrace.coordinator.progress import watch
from headrace.coordinator.startpoints import StartpointService
from headrace.coordinator.watchers import Hearer
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.core.ids import TaskName
from headrace.core.log import ROOT, LineHandler, RecentWarnings, Throttle, logger
from headrace.core.worker import RepeatedStep
from headrace.life.metadata import Generations, MetadataStore
from headrace.systems.slot_reports import SlotOrders, SlotReport

_log = logger(__name__)


class Relay:
    """Logs the lines in heartbeats again, with the same loggers, and with app, container and task."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._throttle = Throttle(_log)
        self._lock = threading.Lock()
        self._last: dict[int, tuple[str, int]] = {}

    def log(self, heartbeat: messages.Heartbeat) -> None:
        with self._lock:  # the last heartbeats of a container may arrive on two connections
            incarnation, last = self._last.get(heartbeat.container, ("", 0))
            last = last if incarnation == heartbeat.incarnation else 0
            fresh = [line for line in heartbeat.logs if line.number > last]
            if fresh:
                self._last[heartbeat.container] = heartbeat.incarnation, fresh[-1].number
        for line in fresh:
            self._log(line, heartbeat.container)
        what = "log lines of a container were left out: it writes more than are sent"
        self._throttle.warning(what, by=heartbeat.logs_dropped, app=self._app, container=heartbeat.container)

    def _log(self, line: messages.LogLine, container: int) -> None:
        record = logging.makeLogRecord(
            {
                "name": line.logger,
                "levelno": line.level,
                "levelname": logging.getLevelName(line.level),
                "msg": line.message,
                "created": line.at_ms / 1000,
                "msecs": line.at_ms % 1000,
                "app": self._app,
                "container": container,
                **{name: value for name, value in line.fields.items() if name not in ("app", "container")},
            }
        )
        target = _target(line.logger)
        if target.isEnabledFor(line.level):
            target.handle(record)


def _target(name: str) -> logging.Logger:
    """Return the logger of that name; for an app's logger without a handler, the one whose lines the command shows."""
    named, ours = logging.getLogger(name), logging.getLogger(ROOT)
    shown = any(isinstance(handler, LineHandler) for handler in ours.handlers)
    return ours if shown and not named.hasHandlers() else named


def _wait(changed: threading.Condition, clock: Clock, reached: Callable[[], bool], limit_ms: float) -> None:
    deadline = clock.monotonic_ms() + limit_ms
    while not reached() and (left_ms := deadline - clock.monotonic_ms()) > 0:
        changed.wait(left_ms / 1000)


HOLD_MS = 15_000.0
"""How long a container's request is held open while there is no question for it."""
_REASONS: dict[messages.ContainerState, str] = {
    "waiting": "has not registered yet",
    "running": "is busy",
    "lost": "sends no heartbeats",
    "hung": "hangs in a function of the app, and is being restarted",
    "failed": "has failed and is being restarted",
    "finished": "has ended, since all its tasks have",
}


class _QueryBroker:
    """Takes queries and hands out questions. Safe from any thread."""

    def __init__(
        self,
        containers: Sequence[Sequence[object]],
        check_current: Callable[[int, str], None],
        state_of: Callable[[int], messages.ContainerState],
        clock: Clock,
    ) -> None:
        self._book = QueryBook(containers)
        self._check_current = check_current
        self._state_of = state_of
        self._changed = threading.Condition()
        self._wait = partial(_wait, self._changed, clock)
        self._closed = False
        self._throttle = Throttle(_log)

    def seat(self, containers: Sequence[Sequence[object]]) -> None:
        with self._changed:
            self._book.seat(containers)

    def ask(self, ask: messages.Ask) -> messages.Answers:
        limit_ms = max(0, min(ask.limit_ms, messages.LIMIT_MS_MAX))
        with self._changed:
            number = self._book.ask(ask)
            self._changed.notify_all()
            # Don't wait for a container that has ended, because it can't answer.
            ended = any(self._state_of(container) == "finished" for container in self._book.waits_for(number))
            if not ended:
                self._wait(lambda: self._closed or not self._book.waits_for(number), limit_ms)
            return messages.Answers(answers=self._book.take(number, self._why_no_answer(number)))

    def listen(self, message: messages.Listening) -> messages.Questions:
        self._check_current(message.container, message.incarnation)
        with self._changed:
            if message.answer is not None:
                self._book.answer(message.container, message.answer)
                self._changed.notify_all()
            self._wait(lambda: self._closed or self._book.next(message.container) is not None, HOLD_MS)
            question = None if self._closed else self._book.next(message.container)
        # If it was replaced while it waited, the question is for its replacement.
        self._check_current(message.container, message.incarnation)
        return messages.Questions(question=question)

    def status(self) -> messages.QueriesStatus:
        with self._changed:
            return self._book.status()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _why_no_answer(self, number: int) -> messages.ErrorReport | None:
        missing = self._book.waits_for(number)
        if not missing:
            return None
        whys = [f"container {container} {_REASONS[self._state_of(container)]}" for container in sorted(missing)]
        tasks = ", ".join(task for container in sorted(missing) for task in missing[container])
        why = "the app is ending" if self._closed else "; ".join(whys)
        self._throttle.warning("a question about a table got no answer in time", tasks=tasks, reason=why)
        error = UnavailableError(
            f"no answer from {tasks} in time: {why}",
            hint="ask again, with a longer timeout if it is busy; headrace status shows the containers",
        )
        return messages.ErrorReport.of(error, with_traceback=False)


WAIT_MS = 3000
"""How long after the first arrival the others may register. It is shorter than one attempt of a client."""


class HostArrivals:
    """The hosts of a run's containers, on which the assignment depends: the first ones wait for the others."""

    def __init__(self, containers: int, clock: Clock, wait_ms: float = WAIT_MS) -> None:
        self._containers = containers
        self._clock = clock
        self._wait_ms = wait_ms
        self._changed = threading.Condition()
        self._hosts: dict[int, str] = {}
        self._deadline: float | None = None
        self._over = False

    def wait(self, container: int, host: str) -> Mapping[int, str]:
        """Note the host of a container. Return the known hosts once all have arrived, or after the time limit."""
        with self._changed:
            self._hosts.setdefault(container, host)
            self._deadline = self._deadline or self._clock.monotonic_ms() + self._wait_ms
            self._changed.notify_all()
            left_ms = self._deadline - self._clock.monotonic_ms()
            _wait(self._changed, self._clock, lambda: self._over or len(self._hosts) >= self._containers, left_ms)
            self._over = True
            return dict(self._hosts)

    def close(self) -> None:
        """Wake all waiting calls; later calls don't block. Idempotent."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


LOOK_S = 0.1
_AT_WORK = {"running", "blocked"}


class Silence:
    """The silence of one run; its stages come upstream first. ``silent``: tasks that start now write nothing."""

    def __init__(self, stages: Sequence[Sequence[TaskName]], guarantee: str) -> None:
        self.silent = True
        self._stages = stages
        self._watch = watch(stages, guarantee)
        self._generations: dict[TaskName, int] = {}

    def caught_up(self, tasks: Mapping[TaskName, messages.TaskStatus]) -> bool:
        return self._watch.caught_up(tasks)

    def end(self, tasks: Mapping[TaskName, messages.TaskStatus]) -> None:
        self.silent = False
        self._generations = {task: status.generation for task, status in tasks.items()}

    def to_restart(self, tasks: Mapping[TaskName, messages.TaskStatus]) -> list[TaskName] | None:
        """Return the tasks to start over now: those of a stage follow the stages after it. None: all speak."""
        for stage in reversed(self._stages):
            open_ = [task for task in stage if tasks[task].state != "finished"]
            mute = [task for task in open_ if tasks[task].generation <= self._generations[task]]
            if mute or any(tasks[task].state not in _AT_WORK for task in open_):
                return mute
        return None


class SilenceThread(RepeatedStep):
    """Asks whether the app can speak, until it does or the run ends."""

    def __init__(self, advance: Callable[[], bool], fail: Callable[[BaseException], None]) -> None:
        super().__init__("headrace-silence", LOOK_S)
        self._advance = advance
        self._fail = fail

    @override
    def step(self) -> bool:
        try:
            return self._advance()
        except HeadraceError as error:
            if not error.retry:
                self._fail(error)
                return False
            _log.warning("can't end the silence yet", error=error.message)
            return True


class Coordinator:
    """Serves one run of an app at ``url``, on this machine only, unless ``endpoint`` is another one."""

    def __init__(
        self,
        ledger: Ledger,
        metadata: MetadataStore,
        *,
        endpoint: Endpoint = ON_THIS_MACHINE,
        token: str | None = None,
        metrics_token: str = "",
        clock: Clock | None = None,
        tables: messages.TableList | None = None,
        startpoints: StartpointService | None = None,
        silence: Silence | None = None,
        held: Mapping[TaskName, str] | None = None,
        copied: Mapping[TaskName, Sequence[str]] | None = None,
        pages: Pages | None = None,
        watched: Callable[[], messages.PagesStatus] = messages.PagesStatus,
        telemetry: Hearer | None = None,
    ) -> None:
        """Containers on the last host of a task (``held``) get it, or else those with standbys (``copied``)."""
        self.token = token or secrets.token_urlsafe(32)
        self._ledger = ledger
        self._generations = Generations(metadata, ledger.app)
        self._clock = clock or WallClock()
        self._changed = threading.Condition()
        self._granting = threading.Lock()
        self._slot_news = threading.Event()
        self._relay = Relay(ledger.app)
        self._tables = tables or messages.TableList(app=ledger.app)
        self._startpoints = startpoints or StartpointService.none(ledger.app, self._clock)
        self._silence = silence
        self._held = held or {}
        self._copied = copied or {}
        # If only one host ever had tasks, all orders of containers are equally good.
        waits = len(ledger.assignments) > 1 and len(set(self._held.values())) > 1
        self._arrivals = HostArrivals(len(ledger.assignments), self._clock) if waits else None
        self._until = ledger.watching
        if silence is not None:
            ledger.watching = None  # until then, the goals are other ones
        self._warnings = [
            RecentWarnings(self._clock, app=ledger.app, container=number) for number in range(len(ledger.assignments))
        ]
        self._query_broker = _QueryBroker(ledger.assignments, self._check_current, self._state_of, self._clock)
        self._pages = pages
        self._watched = watched
        self._telemetry = telemetry
        self._listener = Listener(
            endpoint.host,
            endpoint.port,
            self.token,
            self._routes(),
            public=PUBLIC,
            pages=pages,
            readers=Readers(metrics_token, READ_ONLY),
        )
        self.url = endpoint.url(self._listener.port)

    def start(self) -> None:
        self._listener.start()

    def close(self) -> None:
        """Stop serving requests. Containers that are still running notice this, and end. Idempotent."""
        self.hang_up()
        self._listener.close()

    def __enter__(self) -> Coordinator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for the driver ----------------------------------------------------------------------------
    def status(self) -> messages.AppStatus:
        with self._noticing() as now_ms:
            self._ledger.tick(now_ms)
            status = self._ledger.status(now_ms)
        warned = ((one, self._warnings[one.id].latest()) for one in status.containers)
        containers = [msgspec.structs.replace(one, warnings=warnings) for one, warnings in warned]
        return msgspec.structs.replace(
            status,
            containers=containers,
            queries=self._query_broker.status(),
            pages=self._watched(),
            export=None if self._telemetry is None else self._telemetry.status(),
        )

    @property
    def state(self) -> messages.AppState:
        with self._changed:
            return self._ledger.state

    def wait(self, timeout_s: float) -> messages.AppState:
        with self._changed:
            self._changed.wait_for(lambda: self._ledger.state in messages.OVER, timeout_s)
            return self._ledger.state

    def drain(self) -> messages.Orders:
        """Order every container to finish what it has read, commit and end. The next heartbeats carry the order."""
        with self._noticing():
            self._ledger.drain()
            return self._ledger.orders

    def stop(self) -> None:
        with self._noticing():
            self._ledger.stop()

    def wait_for_drain(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._ledger.state == "draining", timeout_s)

    @property
    def saving(self) -> bool:
        return self._ledger.saving

    def release_drain(self) -> None:
        with self._noticing():
            self._ledger.saving = False

    def lack(self, reasons: Mapping[int, str]) -> None:
        with self._noticing():
            self._ledger.lack(reasons)

    def fail(self, error: BaseException) -> None:
        with self._noticing():
            self._ledger.fail(messages.ErrorReport.of(error))

    # -- for containers, over HTTP or in this process --------------------------------------------------
    def register(self, message: messages.Register) -> messages.Assignment:
        self._seat(message)
        with self._granting:
            with self._noticing() as now_ms:
                seat = self._ledger.register(message, now_ms)
            # Without the ledger's lock: the metadata store may be slow, and heartbeats must not wait for it.
            issued = self._generations.issue([task for task in seat.tasks if task not in seat.grants])
            with self._noticing():
                self._ledger.granted(message, issued)
                orders = self._ledger.orders
            grants = {**seat.grants, **issued}
            startpoints = self._startpoints.grant({task: grants[task] for task in seat.tasks})
            silent = self._silent
        tasks = []
        for task in seat.tasks:
            due = startpoints.get(task, ())
            tasks.append(messages.TaskGrant(name=str(task), generation=grants[task], orders=due, silent=silent))
        return messages.Assignment(
            tasks=tasks,
            heartbeat_ms=self._ledger.heartbeat_ms,
            traced=self._telemetry is not None and self._telemetry.traced,
            orders=msgspec.structs.replace(orders, pause_ms=seat.pause_ms),
            superseded=seat.superseded,
        )

    def _seat(self, message: messages.Register) -> None:
        arrivals = self._arrivals
        if arrivals is None:
            return
        hosts = arrivals.wait(message.container, message.host)
        with self._granting:
            if self._arrivals is None:
                return  # another one did it
            self._arrivals = None
            before = self._ledger.assignments  # they can't change, because no container has registered
            held = second_best(self._held, self._copied, set(hosts.values()))
            seats = placed(before, hosts, held)
            with self._changed:
                self._ledger.seat(seats)
            self._query_broker.seat(seats)
        stay, others = at_home(seats, hosts, held), at_home(before, hosts, held)
        _log.info("tasks are assigned to where their state is", app=self._ledger.app, there=stay, otherwise=others)

    def generation(self, message: messages.GenerationRequest) -> messages.TaskGrant:
        with self._granting:
            with self._noticing() as now_ms:
                task = self._ledger.check_request(message, now_ms)
            issued = self._generations.issue([task])
            with self._noticing():
                self._ledger.granted(message, issued)
            orders = self._startpoints.grant(issued).get(task, ())
            silent = self._silent
        return messages.TaskGrant(name=message.task, generation=issued[task], orders=orders, silent=silent)

    def outcomes(self, message: messages.OutcomeReport) -> messages.Orders:
        with self._granting:
            generations = {outcome.generation for outcome in message.outcomes}
            with self._changed:
                self._ledger.check_report(message.container, message.incarnation, message.task, generations)
            self._startpoints.note(message.task, message.outcomes)
            with self._changed:
                return self._ledger.orders_for(message.container)

    def heartbeat(self, message: messages.Heartbeat) -> messages.Orders:
        with self._noticing() as now_ms:
            orders = self._ledger.heartbeat(message, now_ms)
            self._ledger.tick(now_ms)
            if any(task.slots for task in message.tasks):
                self._slot_news.set()
            orders = orders if orders.stop else self._ledger.orders_for(message.container)
        if self._telemetry is not None:
            self._telemetry.hear(message)
        self._relay.log(message)  # without the lock: writing a log line may block
        return orders

    def finished(self, message: messages.Finished) -> messages.Orders:
        with self._noticing() as now_ms:
            return self._ledger.finished(message, now_ms)

    def failure(self, message: messages.Failure) -> messages.Orders:
        with self._noticing() as now_ms:
            return self._ledger.failed(message, now_ms)

    def cut(self, message: CutOrder) -> CutReport:
        with self._noticing():
            return self._ledger.cut(message, self._clock.now_ms())

    def slot_reports(self, of: SlottedInput) -> list[SlotReport | None]:
        with self._changed:
            return self._ledger.slot_reports(of)

    def order_slots(
        self, of: SlottedInput, reports: list[SlotReport | None], orders: Iterable[SlotOrders | None]
    ) -> None:
        with self._changed:
            self._ledger.slots.order(of, reports, list(orders))

    def wait_for_slots(self, timeout_s: float) -> None:
        self._slot_news.wait(timeout_s)
        self._slot_news.clear()

    def listen(self, message: messages.Listening) -> messages.Questions:
        return self._query_broker.listen(message)

    def ask(self, message: messages.Ask) -> messages.Answers:
        return self._query_broker.ask(message)

    def hang_up(self) -> None:
        """Wake every thread that waits for a question, an answer, another container or an event. Idempotent."""
        self._query_broker.close()
        if self._pages is not None:
            self._pages.close()
        if (arrivals := self._arrivals) is not None:
            arrivals.close()

    @property
    def _silent(self) -> bool:
        return self._silence is not None and self._silence.silent

    def advance_silence(self, speak: Callable[[], None]) -> bool:
        """Take the next step out of silence; return False when all tasks write. ``speak`` records that permanently."""
        silence = self._silence
        if silence is None:
            return False
        tasks = {TaskName.parse(task.name): task for task in self.status().tasks}
        if silence.silent:
            if not silence.caught_up(tasks):
                return True
            speak()
            with self._granting:  # from here on, grants go to tasks that write
                silence.end({TaskName.parse(task.name): task for task in self.status().tasks})
            _log.info("the app has reached its former positions, and writes results again", app=self._ledger.app)
            return True
        mute = silence.to_restart(tasks)
        with self._noticing():
            if mute is None:
                self._ledger.watching = self._until
            elif mute:
                self._ledger.restart(mute)
        return mute is not None

    def fan_out(self) -> None:
        """Turn written startpoints into orders. The driver calls this before containers start."""
        with self._granting:
            self._startpoints.fan_out()

    def set_startpoint(self, message: messages.SetStartpoint) -> messages.SetAnswer:
        answer = self._startpoints.set(message)
        if not message.apply or message.dry_run:
            return answer
        return msgspec.structs.replace(answer, restarted=self.apply_startpoints().restarted)

    def apply_startpoints(self) -> messages.Applied:
        with self._granting:
            tasks = self._startpoints.fan_out()
            with self._noticing():
                restarted = self._ledger.restart(tasks)
        elsewhere = sorted(set(tasks) - set(restarted))
        return messages.Applied(restarted=tuple(map(str, restarted)), elsewhere=tuple(map(str, elsewhere)))

    def _routes(self) -> dict[tuple[str, str], Route]:
        return {
            **dict(
                (
                    CoordinatorCalls.register.served(self.register),
                    CoordinatorCalls.heartbeat.served(self.heartbeat),
                    CoordinatorCalls.generation.served(self.generation),
                    CoordinatorCalls.finished.served(self.finished),
                    CoordinatorCalls.failure.served(self.failure),
                    CoordinatorCalls.outcomes.served(self.outcomes),
                    CoordinatorCalls.listen.served(self.listen),
                    CoordinatorCalls.tables.served(lambda: self._tables),
                    CoordinatorCalls.ask.served(self.ask),
                    CoordinatorCalls.status.served(self.status),
                    CoordinatorCalls.drain.served(self.drain),
                    CoordinatorCalls.cut.served(self.cut),
                    CoordinatorCalls.startpoints.served(self._startpoints.all),
                    CoordinatorCalls.set_startpoint.served(self.set_startpoint),
                    CoordinatorCalls.delete_startpoints.served(partial(self._startpoints.delete, live=True)),
                    CoordinatorCalls.apply_startpoints.served(self.apply_startpoints),
                )
            ),
            ("GET", "/openapi.json"): lambda _: openapi(),
            **watching_routes(self.status, self._clock),
        }

    def _check_current(self, container: int, incarnation: str) -> None:
        with self._changed:
            self._ledger.check_current(container, incarnation)

    def _state_of(self, container: int) -> messages.ContainerState:
        with self._changed:
            return self._ledger.state_of(container)

    @contextmanager
    def _noticing(self) -> Iterator[float]:
        """Hold the ledger's lock and yield the time. Afterwards wake waiting threads, and log events."""
        try:
            with self._changed:
                try:
                    yield self._clock.monotonic_ms()
                finally:
                    self._changed.notify_all()
        finally:
            self._log_notes()

    def _log_notes(self) -> None:
        with self._changed:
            notes = self._ledger.take_notes()
        app = self._ledger.app
        for note in notes:  # without the lock, because writing a log line may block
            if note.level == "info":
                _log.info(note.what, app=app, container=note.container, **note.fields)
            elif note.container is None:
                _log.warning(note.what, app=app, **note.fields)
            else:
                self._warnings[note.container].add(_log, note.what, **note.fields)
