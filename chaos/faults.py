"""What goes wrong, and when: one fault every few seconds, drawn from a seed.

Frozen processes (SIGSTOP) are the interesting ones. A container that thaws while it is still the current one was
merely slow. One that stays frozen is lost to the coordinator, which has it killed. Where a whole executor or driver
dies while its Python side is frozen, nobody can kill the containers: others take their place, and when they thaw they
are zombies, which go on with what they were doing until they notice.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.deployment import Deployment, is_running, until
from chaos.processes import Process, look, send

BACK_S = 300.0
FREEZE_SHORT_S = (0.2, 3.0)
ZOMBIE_S = (0.1, 1.5)
RESTORE_S = (0.0, 1.0)
STALL_S = 0.3


@dataclass(slots=True)
class Fault:
    """One thing that happened, and how long it took until every task ran again."""

    kind: str
    detail: str
    at_s: float
    back_s: float = 0.0


@dataclass(slots=True)
class Chaos:
    """Does things to a deployment. ``start`` makes a new driver when the old one was killed."""

    start: Callable[[], Deployment]
    random: random.Random
    has_executors: bool
    deployment: Deployment
    began: float = field(default_factory=time.monotonic)
    faults: list[Fault] = field(default_factory=list)
    past: list[Deployment] = field(default_factory=list)

    def kinds(self) -> dict[str, int]:
        """What may happen here, with its weight."""
        kinds = {"kill container": 4, "kill again": 2, "kill all": 1, "freeze container": 2, "lose container": 1}
        kinds |= {"kill driver": 1, "zombie driver": 1}
        return kinds | ({"kill executor": 2, "zombie executor": 2} if self.has_executors else {})

    def strike(self) -> Fault:
        """Do one thing, and wait until the app has recovered from it."""
        kinds = self.kinds()
        return self.do(self.random.choices(list(kinds), list(kinds.values()))[0])

    def do(self, kind: str) -> Fault:
        """Do this one thing, and wait until the app has recovered from it."""
        seats = self.deployment.wait_running(BACK_S).containers
        victims = [seat.pid for seat in seats if seat.pid is not None and seat.state == "running"]
        victim = self.random.choice(victims) if victims else None
        fault = Fault(kind, "", time.monotonic() - self.began)
        began = time.monotonic()
        if victim is None:
            fault.kind, fault.detail = "nothing", "no container runs any more"
        else:
            fault.detail = _ACTS[kind](self, victim)
        self.faults.append(fault)
        fault.back_s = time.monotonic() - began
        return fault

    def close(self) -> None:
        """Take every deployment away."""
        for deployment in [*self.past, self.deployment]:
            deployment.close()

    # -- single faults -----------------------------------------------------------------------------

    def _kill_container(self, victim: int) -> str:
        send(signal.SIGKILL, [victim])
        self._wait_for_another([victim])
        return f"pid {victim}"

    def _kill_again(self, victim: int) -> str:
        """Kill the one that takes its place too, somewhere in its start."""
        seat = next((c.id for c in self.deployment.containers() if c.pid == victim), None)
        if seat is None:
            return f"pid {victim} had ended by itself"
        send(signal.SIGKILL, [victim])
        next_up = self.deployment.wait_for(
            "another one registered", lambda status: status.containers[seat].pid != victim, BACK_S
        )
        heir = next_up.containers[seat].pid
        seconds = self.random.uniform(*RESTORE_S)
        time.sleep(seconds)
        send(signal.SIGKILL, [heir] if heir else [])
        self._wait_for_another([victim, heir or 0])
        return f"pid {victim}, and pid {heir} {seconds:.1f} s after it had registered"

    def _kill_all(self, victim: int) -> str:
        victims = [c.pid for c in self.deployment.containers() if c.pid is not None]
        send(signal.SIGKILL, victims)
        self._wait_for_another(victims)
        return f"pids {victims}"

    def _freeze_container(self, victim: int) -> str:
        seconds = self.random.uniform(*FREEZE_SHORT_S)
        send(signal.SIGSTOP, [victim])
        time.sleep(seconds)
        send(signal.SIGCONT, [victim])
        self.deployment.wait_running(BACK_S)
        return f"pid {victim} for {seconds:.1f} s"

    def _lose_container(self, victim: int) -> str:
        send(signal.SIGSTOP, [victim])
        self._wait_for_another([victim])
        send(signal.SIGCONT, [victim])
        return f"pid {victim}"

    def _kill_executor(self, victim: int) -> str:
        _, jvm = self._above(victim)
        mates = self._containers_below(jvm)
        send(signal.SIGKILL, [jvm])
        self._wait_for_another(mates)
        return f"pid {jvm} with {len(mates)} containers"

    def _zombie_executor(self, victim: int) -> str:
        daemon, jvm = self._above(victim)
        mates = self._containers_below(jvm)
        send(signal.SIGSTOP, [daemon, *mates])
        time.sleep(STALL_S)
        send(signal.SIGKILL, [jvm])
        self._wait_for_another(mates)
        awake = self._thaw(mates, [daemon])
        return f"pid {jvm}; {len(mates)} zombies awake for {awake:.1f} s"

    def _kill_driver(self, victim: int) -> str:
        self.deployment.kill()
        old = self.deployment
        gone = until(lambda: not [p for p in old.processes() if p.is_python_side], "its containers are gone", BACK_S)
        self._restart()
        return f"pid {old.pid}; its containers were gone after {gone:.1f} s"

    def _zombie_driver(self, victim: int) -> str:
        old = self.deployment
        frozen = [process.pid for process in old.processes() if process.is_python_side]
        mates = [c.pid for c in old.containers() if c.pid is not None]
        daemons = [pid for pid in frozen if pid not in mates]
        send(signal.SIGSTOP, [*daemons, *mates])
        time.sleep(STALL_S)
        old.kill()
        self._restart()
        awake = self._thaw(mates, daemons)
        return f"pid {old.pid}; {len(mates)} zombies awake for {awake:.1f} s"

    # -- inside ------------------------------------------------------------------------------------

    def _restart(self) -> None:
        self.past.append(self.deployment)
        self.deployment = self.start()
        self.deployment.wait_running(BACK_S)

    def _wait_for_another(self, pids: Sequence[int]) -> None:
        """Until none of these is a container any more, and every task runs; the app may also end meanwhile."""
        self.deployment.wait_for(
            "others are the containers",
            lambda status: is_running(status) and not {c.pid for c in status.containers}.intersection(pids),
            BACK_S,
        )

    def _thaw(self, zombies: Sequence[int], daemons: Sequence[int]) -> float:
        """Let zombies go on for a while, then also those who clear them away; returns for how long."""
        seconds = self.random.uniform(*ZOMBIE_S)
        send(signal.SIGCONT, zombies)
        time.sleep(seconds)
        send(signal.SIGCONT, daemons)
        return seconds

    def _above(self, container: int) -> tuple[int, int]:
        """The Python daemon that a container was forked from, and the JVM above it."""
        process = look(container)
        daemon = look(process.parent) if process else None
        return (daemon.pid, daemon.parent) if daemon else (0, 0)

    def _containers_below(self, jvm: int) -> list[int]:
        processes: dict[int, Process] = {process.pid: process for process in self.deployment.processes()}
        found = []
        for container in self.deployment.containers():
            process = processes.get(container.pid or 0)
            daemon = processes.get(process.parent) if process else None
            if process is not None and daemon is not None and daemon.parent == jvm:
                found.append(process.pid)
        return found


_ACTS: dict[str, Callable[[Chaos, int], str]] = {
    "kill container": Chaos._kill_container,
    "kill again": Chaos._kill_again,
    "kill all": Chaos._kill_all,
    "freeze container": Chaos._freeze_container,
    "lose container": Chaos._lose_container,
    "kill executor": Chaos._kill_executor,
    "zombie executor": Chaos._zombie_executor,
    "kill driver": Chaos._kill_driver,
    "zombie driver": Chaos._zombie_driver,
}
KINDS = tuple(_ACTS)
