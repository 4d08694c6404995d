"""A running app as one sees it from outside: its driver's process, its coordinator, its containers and executors.

The driver leads a session of its own, so that everything that comes from it can be found and, at the end, be taken
away, also when it was orphaned. What Spark leaves on the disk goes to a folder of the caller's. Everything here is
called from one thread and blocks for the time it is given at most.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.processes import Process, in_session, look, send
from headrace.core.errors import UnavailableError
from headrace.runners.coordination.address import Address, find_all
from headrace.runners.coordination.messages import AppStatus, ContainerStatus

LOOK_S = 0.05
START_S = 300.0
END_S = 60.0


def until(condition: Callable[[], bool], what: str, seconds_max: float) -> float:
    """Wait for something that has no event for other processes; returns how long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds_max:
            raise UnavailableError(f"not so within {seconds_max:g} s: {what}")
        time.sleep(LOOK_S)
    return time.monotonic() - began


class Deployment:
    """One driver and all that comes from it, from the constructor to ``close``."""

    def __init__(
        self,
        command: Sequence[str],
        home: Path,
        app: str,
        scratch: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``home`` is where the app publishes its address; the driver's output and Spark's files go to ``scratch``."""
        scratch.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.app = app
        self.scratch = scratch
        self._work: set[Path] = set()
        self._stdout, self._stderr = scratch / "stdout", scratch / "stderr"
        with self._stdout.open("wb") as out, self._stderr.open("wb") as errors:
            self._driver = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=_environment(scratch) | dict(environment or {}),
                start_new_session=True,
            )

    # -- the driver --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The driver's process, which is also the session of everything else."""
        return self._driver.pid

    def output(self) -> str:
        """What it has printed so far."""
        return self._stdout.read_text(errors="replace")

    def errors(self) -> str:
        """What it has printed to standard error so far."""
        return self._stderr.read_text(errors="replace")

    def exit_code(self) -> int | None:
        """How the driver ended; None while it runs."""
        return self._driver.poll()

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to every process of the driver's group."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill -9 of the driver alone."""
        self._driver.kill()
        self._driver.wait(END_S)

    def wait(self, seconds_max: float) -> int:
        """Wait for the driver's end; its exit code."""
        try:
            return self._driver.wait(seconds_max)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"the driver of {self.app!r} (pid {self.pid}) didn't end within {seconds_max:g} s",
                hint=self._story(),
            ) from error

    # -- what it runs ------------------------------------------------------------------------------

    def address(self) -> Address | None:
        """Where its coordinator is; None before it has published that and after it has ended."""
        return next((found for found in find_all(self.home, self.app) if found.pid == self.pid), None)

    def status(self) -> AppStatus | None:
        """What the coordinator knows; None when there is none now."""
        try:
            address = self.address()
            if address is None:
                return None
            client = address.client()
            try:
                return client.status()
            finally:
                client.close()
        except UnavailableError:
            return None  # it ended between two looks

    def wait_for(self, what: str, condition: Callable[[AppStatus], bool], seconds_max: float = START_S) -> AppStatus:
        """Wait until the app's status is as wanted; raises when its driver ends before."""
        found: list[AppStatus] = []

        def is_so() -> bool:
            if self.exit_code() is not None:
                raise UnavailableError(f"the driver ended with {self.exit_code()} before: {what}", hint=self._story())
            status = self.status()
            if status is not None and condition(status):
                found.append(status)
            return bool(found)

        try:
            until(is_so, what, seconds_max)
        except UnavailableError as error:
            error.hint = error.hint or self._story()
            raise
        return found[0]

    def wait_running(self, seconds_max: float = START_S) -> AppStatus:
        """Wait until every task runs."""
        return self.wait_for("every task runs", is_running, seconds_max)

    def containers(self) -> list[ContainerStatus]:
        """The containers whose processes are known and there."""
        status = self.status()
        found = [] if status is None else [c for c in status.containers if c.pid is not None and c.state == "running"]
        return [container for container in found if self._is_mine(container.pid)]

    def processes(self) -> list[Process]:
        """All that came from the driver and is alive, it included."""
        found = in_session(self.pid)
        for process in found:
            if process.is_executor:
                self._note_work_folder(process.pid)
        return found

    def executors(self) -> list[Process]:
        """The JVMs of executors that are processes of their own."""
        return [process for process in self.processes() if process.is_executor]

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill what is left and take away what Spark leaves in its own folder. Idempotent."""
        left = self.processes()
        send(signal.SIGKILL, [process.pid for process in left])
        self._driver.wait(END_S)
        until(lambda: not in_session(self.pid), f"all processes of session {self.pid} are gone", END_S)
        for folder in self._work:
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------

    def _is_mine(self, pid: int | None) -> bool:
        process = look(pid) if pid is not None else None
        return process is not None and process.alive and process.session == self.pid

    def _note_work_folder(self, executor: int) -> None:
        """``local-cluster`` runs each executor in a folder below Spark's own, and only an orderly end removes it."""
        try:
            folder = (Path("/proc") / str(executor) / "cwd").resolve(strict=True).parent
        except OSError:
            return  # it has just ended
        if folder.parent.name == "work":
            self._work.add(folder)

    def _story(self) -> str:
        return "its last lines: " + "\n".join(self.errors().splitlines()[-30:])


def is_running(status: AppStatus) -> bool:
    """Every container is there, and every task has got past its start."""
    there = all(container.state in ("running", "finished") for container in status.containers)
    return there and all(task.state not in ("starting", "restoring") for task in status.tasks)


def _environment(scratch: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYSPARK_PYTHON": sys.executable,
        # What a killed JVM leaves behind lies where the caller clears up.
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={scratch}",
    }
