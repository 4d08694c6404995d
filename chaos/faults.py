"""The faults: one every few seconds, drawn from a seed.

Frozen processes (SIGSTOP) matter most. A container that thaws while it is still current was merely slow. One that
stays frozen is lost to the coordinator, which has it killed. If a whole executor or driver dies while its Python side
is frozen, nobody can kill its containers. They are replaced, and when they thaw they are zombies, which continue their
work until they notice. A function that hangs in a container has to be noticed, and connections that show no token to
the coordinator mustn't keep containers from it. When the power is cut, all processes die, and streams lose what wasn't
synced.
"""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from chaos.deployment import Deployment, is_running, until
from chaos.processes import Process, look, send
from headrace.core.errors import UnavailableError

RECOVERY_MAX_S = 300.0
FREEZE_SHORT_S = (0.2, 3.0)
ZOMBIE_S = (0.1, 1.5)
RESTORE_S = (0.0, 1.0)
STALL_S = 0.3
CROWD = 400
CROWD_S = (2.0, 8.0)
DRIP_S = 0.2


@dataclass(slots=True)
class Fault:
    """One fault, when it happened, and how long it took until every task ran again."""

    kind: str
    detail: str
    at_s: float
    recovery_s: float = 0.0


@dataclass(slots=True)
class Chaos:
    """Injects faults into a deployment. ``start`` starts a new driver after the old one was killed.

    ``hang``: while a file of this name is there, the next call of a function of the app deletes it and doesn't return.
    ``lose_tails`` cuts off a part of what the app's dead processes haven't synced, and returns how many bytes.
    """

    start: Callable[[], Deployment]
    random: random.Random
    has_executors: bool
    deployment: Deployment
    hang: Path | None = None
    lose_tails: Callable[[], int] | None = None
    began: float = field(default_factory=time.monotonic)
    faults: list[Fault] = field(default_factory=list)
    past: list[Deployment] = field(default_factory=list)

    def kinds(self) -> dict[str, int]:
        """Return the faults that are possible here, with their weights."""
        kinds = {"kill container": 4, "kill again": 2, "kill all": 1, "freeze container": 2, "lose container": 1}
        kinds |= {"kill driver": 1, "zombie driver": 1, "slow connections": 1}
        kinds |= {} if self.hang is None else {"hang function": 1}
        kinds |= {} if self.lose_tails is None else {"cut power": 1}
        return kinds | ({"kill executor": 2, "zombie executor": 2} if self.has_executors else {})

    def strike(self) -> Fault:
        """Inject a random fault, and wait until the app has recovered."""
        kinds = self.kinds()
        return self.inject(self.random.choices(list(kinds), list(kinds.values()))[0])

    def inject(self, kind: str) -> Fault:
        """Inject a fault of this kind, and wait until the app has recovered."""
        containers = self.deployment.wait_running(RECOVERY_MAX_S).containers
        victims = [one.pid for one in containers if one.pid is not None and one.state == "running"]
        victim = self.random.choice(victims) if victims else None
        fault = Fault(kind, "", time.monotonic() - self.began)
        began = time.monotonic()
        if victim is None:
            fault.kind, fault.detail = "nothing", "no container runs any more"
        else:
            fault.detail = self.act(kind, victim)
        self.faults.append(fault)
        fault.recovery_s = time.monotonic() - began
        return fault

    def act(self, kind: str, victim: int) -> str:
        """Inject a fault of this kind; return what was done."""
        return _ACTS[kind](self, victim)

    def close(self) -> None:
        """Close every deployment."""
        for deployment in [*self.past, self.deployment]:
            deployment.close()

    # -- single faults -----------------------------------------------------------------------------

    def _kill_container(self, victim: int) -> str:
        send(signal.SIGKILL, [victim])
        self._wait_replaced([victim])
        return f"pid {victim}"

    def _kill_again(self, victim: int) -> str:
        """Kill a container, and then its replacement during its start."""
        container = next((c.id for c in self.deployment.containers() if c.pid == victim), None)
        if container is None:
            return f"pid {victim} had ended by itself"
        send(signal.SIGKILL, [victim])
        replaced = self.deployment.wait_for(
            "the replacement has registered", lambda status: status.containers[container].pid != victim, RECOVERY_MAX_S
        )
        replacement = replaced.containers[container].pid
        seconds = self.random.uniform(*RESTORE_S)
        time.sleep(seconds)
        send(signal.SIGKILL, [replacement] if replacement else [])
        self._wait_replaced([victim, replacement or 0])
        return f"pid {victim}, and pid {replacement} {seconds:.1f} s after it had registered"

    def _kill_all(self, victim: int) -> str:
        victims = [c.pid for c in self.deployment.containers() if c.pid is not None]
        send(signal.SIGKILL, victims)
        self._wait_replaced(victims)
        return f"pids {victims}"

    def _freeze_container(self, victim: int) -> str:
        seconds = self.random.uniform(*FREEZE_SHORT_S)
        send(signal.SIGSTOP, [victim])
        time.sleep(seconds)
        send(signal.SIGCONT, [victim])
        self.deployment.wait_running(RECOVERY_MAX_S)
        return f"pid {victim} for {seconds:.1f} s"

    def _lose_container(self, victim: int) -> str:
        send(signal.SIGSTOP, [victim])
        self._wait_replaced([victim])
        send(signal.SIGCONT, [victim])
        return f"pid {victim}"

    def _hang_function(self, victim: int) -> str:
        """Have a function hang in whichever container calls it next."""
        if self.hang is None:
            return "no function can hang here"
        self.hang.touch()
        status = self.deployment.wait_for(
            "a function hangs", lambda status: any(c.state == "hung" for c in status.containers), RECOVERY_MAX_S
        )
        hung = [c.pid for c in status.containers if c.state == "hung" and c.pid is not None]
        self._wait_replaced(hung)
        return f"in pid {hung}"

    def _slow_connections(self, victim: int) -> str:
        """Connect to the coordinator many times, and send it a byte now and then. No container may notice."""
        before = {c.pid for c in self.deployment.containers()}
        address = self.deployment.address()
        if address is None:
            return "there was no coordinator"
        place = urlsplit(address.url)
        seconds = self.random.uniform(*CROWD_S)
        until_s = time.monotonic() + seconds
        with ExitStack() as stack:
            crowd: list[socket.socket] = []
            while time.monotonic() < until_s:
                if len(crowd) < CROWD:
                    one = socket.create_connection((place.hostname or "", place.port or 0), RECOVERY_MAX_S)
                    crowd.append(stack.enter_context(one))
                    continue
                time.sleep(DRIP_S)
                for one in crowd:
                    with suppress(OSError):  # it was cut
                        one.send(b"G")
            self.deployment.wait_running(RECOVERY_MAX_S)
        if gone := before - {c.pid for c in self.deployment.containers()} - {None}:
            raise UnavailableError(f"slow connections shut the containers {sorted(map(str, gone))} out")
        return f"{len(crowd)} for {seconds:.1f} s"

    def _kill_executor(self, victim: int) -> str:
        _, jvm = self._parents(victim)
        siblings = self._containers_of(jvm)
        send(signal.SIGKILL, [jvm])
        self._wait_replaced(siblings)
        return f"pid {jvm} with {len(siblings)} containers"

    def _zombie_executor(self, victim: int) -> str:
        daemon, jvm = self._parents(victim)
        siblings = self._containers_of(jvm)
        send(signal.SIGSTOP, [daemon, *siblings])
        time.sleep(STALL_S)
        send(signal.SIGKILL, [jvm])
        self._wait_replaced(siblings)
        awake = self._thaw(siblings, [daemon])
        return f"pid {jvm}; {len(siblings)} zombies awake for {awake:.1f} s"

    def _kill_driver(self, victim: int) -> str:
        self.deployment.kill()
        old = self.deployment
        gone = until(
            lambda: not [process for process in old.processes() if process.is_python_side],
            "the containers of the killed driver have ended",
            RECOVERY_MAX_S,
        )
        self._restart()
        return f"pid {old.pid}; its containers ended after {gone:.1f} s"

    def _cut_power(self, victim: int) -> str:
        if self.lose_tails is None:
            return "no power can be cut here"
        self.deployment.close()
        lost = self.lose_tails()
        self._restart()
        return f"{lost:,} bytes that weren't synced are lost"

    def _zombie_driver(self, victim: int) -> str:
        old = self.deployment
        frozen = [process.pid for process in old.processes() if process.is_python_side]
        siblings = [c.pid for c in old.containers() if c.pid is not None]
        daemons = [pid for pid in frozen if pid not in siblings]
        send(signal.SIGSTOP, [*daemons, *siblings])
        time.sleep(STALL_S)
        old.kill()
        self._restart()
        awake = self._thaw(siblings, daemons)
        return f"pid {old.pid}; {len(siblings)} zombies awake for {awake:.1f} s"

    # -- inside ------------------------------------------------------------------------------------

    def _restart(self) -> None:
        self.past.append(self.deployment)
        self.deployment = self.start()
        self.deployment.wait_running(RECOVERY_MAX_S)

    def _wait_replaced(self, pids: Sequence[int]) -> None:
        """Wait until none of these processes is a container any more, and every task runs or has finished."""
        self.deployment.wait_for(
            "the containers are replaced",
            lambda status: is_running(status) and not {c.pid for c in status.containers}.intersection(pids),
            RECOVERY_MAX_S,
        )

    def _thaw(self, zombies: Sequence[int], daemons: Sequence[int]) -> float:
        """Thaw zombies, and after a while the daemons that kill them; return how many seconds they ran."""
        seconds = self.random.uniform(*ZOMBIE_S)
        send(signal.SIGCONT, zombies)
        time.sleep(seconds)
        send(signal.SIGCONT, daemons)
        return seconds

    def _parents(self, container: int) -> tuple[int, int]:
        """Return the pids of the Python daemon that forked a container, and of the daemon's JVM."""
        process = look(container)
        daemon = look(process.parent) if process else None
        return (daemon.pid, daemon.parent) if daemon else (0, 0)

    def _containers_of(self, jvm: int) -> list[int]:
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
    "hang function": Chaos._hang_function,
    "slow connections": Chaos._slow_connections,
    "kill executor": Chaos._kill_executor,
    "zombie executor": Chaos._zombie_executor,
    "kill driver": Chaos._kill_driver,
    "cut power": Chaos._cut_power,
    "zombie driver": Chaos._zombie_driver,
}
KINDS = tuple(_ACTS)
