"""A container: some tasks in one process, with one run loop on one thread.

After a turn that leaves nothing to do, it sleeps in ``select`` on the descriptors of its consumers and on a pipe for
orders of other threads. Restoring at the start and waiting for acknowledgements may block.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError, StateCorruptError
from headrace.core.files import readable
from headrace.core.ids import TaskName
from headrace.core.log import long_lived
from headrace.core.metrics import enter
from headrace.plan.model import Plan
from headrace.protocol.record import Cut
from headrace.stores.transfer import open_objects
from headrace.systems.slot_reports import SlotOrders
from headrace.systems.startpoints import Grant, Outcome
from headrace.task.connections import Connections
from headrace.task.host.attempt import Factories
from headrace.task.host.ports import Ports
from headrace.task.host.task_host import TaskHost
from headrace.task.run_loop import RunLoop, backpressures
from headrace.task.scope import AtWork, Pause, TaskScope, Work, beside, run
from headrace.task.state.depot import LiveDepot
from headrace.task.task import task_factory

OBSERVE_MS = 250.0
OBSERVE_SHARE = 0.01
OBSERVE_MS_MAX = 2000.0  # unless the status is that old, publishing it takes at most that share of a processor
DRAIN_PAUSE_MS = 2.0
Observe = Callable[[Sequence[TaskHost]], None]
Directions = tuple[int, int, Mapping[str, SlotOrders]]  # generation, number of the orders, and they by slot as text


class Wakeup:
    """Wakes a container's run loop from another thread."""

    def __init__(self) -> None:
        self._rung = False
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)

    def ring(self) -> None:
        self._rung = True
        with suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def rung(self) -> bool:
        rung, self._rung = self._rung, False
        return rung

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.reader, 4096)

    def wait(self, ms: float) -> bool:
        rung = readable(self.reader, ms)
        self.clear()
        return rung

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)


class Container:
    """Runs tasks until they have finished, or until it is ordered to drain or stop."""

    def __init__(
        self,
        plan: Plan,
        tasks: Collection[TaskName],
        next_generation: Callable[[TaskName], Grant],
        clock: Clock,
        keep: Callable[[Work | None], None] = lambda work: None,
        report: Callable[[TaskName, Sequence[Outcome]], None] = lambda task, outcomes: None,
    ) -> None:
        """``next_generation`` is called at each start and rollback, ``keep`` when a call of the app begins or ends."""
        self._clock = clock
        self.wakeup = Wakeup()
        self.connections = Connections(self.wakeup.ring, AtWork(clock.monotonic_ms, keep))
        self._draining = False
        self.stopped = False  # its replacement repeats the work since the last checkpoint
        self._cut: Cut | None = None
        self._restarts: Mapping[TaskName, int] = {}
        self._slot_orders: Mapping[TaskName, Directions] = {}
        self._observe: Observe | None = None
        self._observe_at = 0.0
        mine = [(stage, task) for stage in plan.stages for task in stage.tasks if task.name in tasks]
        place = plan.graph.settings.snapshots
        self._depot: LiveDepot | None = None
        if place is not None and plan.graph.settings.state_on_disk:
            self._depot = LiveDepot(open_objects(place), self.wakeup.ring, clock, place.bytes_per_s)
        scopes = beside({task.name: TaskScope.of(plan, stage, task) for stage, task in mine})
        pressures = backpressures(scopes.values(), self.connections, clock.monotonic_ms())
        self.hosts: list[TaskHost] = []
        for stage, task in mine:
            scope = scopes[task.name]
            ports = Ports.live(
                scope,
                Factories(task_factory(plan, stage, scope)),
                partial(next_generation, task.name),
                partial(report, task.name),
                self.connections,
                clock,
                self._pulse,
                self._depot,
            )
            self.hosts.append(TaskHost(scope, ports, pressures[stage.name]))
        metrics = {str(host.name): host.metrics for host in self.hosts}
        self.connections.at_work.spent = lambda task, step, seconds: metrics[task].spent(step, seconds)
        self.connections.at_work.entered = lambda task: enter(metrics[task].user)
        self._loop = RunLoop(self.hosts, self.connections, clock)
        self._loop.whole = len(mine) == sum(len(stage.tasks) for stage in plan.stages)

    def drain(self) -> None:
        """Finish the current turn, commit, and return. Safe from any thread."""
        self._draining = True
        self.wakeup.ring()

    def stop(self) -> None:
        """Return at once, without a checkpoint, because another container has taken over. Safe from any thread."""
        self.stopped = True
        self.wakeup.ring()

    def cut(self, cut: Cut | None) -> None:
        """Make all tasks take part in a cut; None cancels it. Safe from any thread."""
        if cut != self._cut:
            self._cut = cut
            self.wakeup.ring()

    def restart(self, generations: Mapping[TaskName, int]) -> None:
        """Make these tasks start over in place, unless they have a later generation. Safe from any thread."""
        self._restarts = generations
        if generations:
            self.wakeup.ring()

    def direct(self, orders: Mapping[TaskName, Directions]) -> None:
        """Safe from any thread."""
        if orders:
            self._slot_orders = orders
            self.wakeup.ring()

    @property
    def drained(self) -> bool:
        return self._draining and not self.stopped

    def run(self, observe: Observe | None = None) -> None:
        """``observe`` is called a few times a second, on this thread, to publish the tasks' status."""
        self._observe = observe
        selector = selectors.DefaultSelector()
        try:
            selector.register(self.wakeup.reader, selectors.EVENT_READ)
            run(self._loop.starting())
            self._observe_at = 0.0
            self._pulse()  # the first turn takes long, because all tasks commit for the first time
            for number in {number for host in self.hosts for number in host.inputs.filenos()}:
                selector.register(number, selectors.EVENT_READ)
            with long_lived():
                self._turn_until_told(selector)
        except BaseException as error:
            if isinstance(error, StateCorruptError):
                # Damage rarely hits only one task, and a single restart can rebuild all.
                for host in self.hosts:
                    host.state.find_damage()
                    self._pulse()
            try:
                self._close_hosts()
            except HeadraceError as later:
                also = f"closing failed, too: {later.message}"
                if isinstance(error, HeadraceError):
                    error.message += f"\n  {also}"
                else:
                    error.add_note(also)
            raise  # the first error is the one to fix first
        else:
            self._close_hosts()
        finally:
            selector.close()

    def _close_hosts(self) -> None:
        with ExitStack() as closing:
            for host in reversed(self.hosts):
                closing.callback(host.close)

    def close(self) -> None:
        if self._depot is not None:
            self._depot.close()
        self.connections.close()
        self.wakeup.close()

    def turn(self) -> float:
        """Return for how long (ms) the loop may sleep then."""
        if self.wakeup.rung():
            self._loop.everyone()
            for host in self.hosts:
                host.keeper.order(self._cut)
        restarts = self._restarts
        for host in self.hosts if restarts else ():
            if host.name in restarts:
                host.restart_beyond(restarts[host.name])
        directed, self._slot_orders = self._slot_orders, {}
        for host in self.hosts if directed else ():
            if host.name in directed:
                host.slots.direct(*directed[host.name])
        return run(self._loop.turning())

    def _turn_until_told(self, selector: selectors.BaseSelector) -> None:
        while not self.stopped:
            sleep = self.turn()
            self._pulse()
            if all(host.finished for host in self.hosts):
                break
            if self._draining:
                self._drain()
                break
            if sleep > 0:
                selector.select(min(sleep, OBSERVE_MS) / 1000)
                self.wakeup.clear()
        if self._observe is not None:
            self._observe(self.hosts)

    def _pulse(self) -> None:
        now = self._clock.monotonic_ms()
        if self._observe is not None and now >= self._observe_at:
            began_s = time.thread_time()
            self._observe(self.hosts)
            spent_ms = (time.thread_time() - began_s) * 1000
            pause_ms = min(max(OBSERVE_MS, spent_ms / OBSERVE_SHARE), OBSERVE_MS_MAX)
            self._observe_at = self._clock.monotonic_ms() + pause_ms

    def _drain(self) -> None:
        for pause in self._loop.draining():
            if self.stopped:
                break
            if pause is Pause.REST:
                self.wakeup.wait(DRAIN_PAUSE_MS)
