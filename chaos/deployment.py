"""A running app as seen from outside: its driver process, coordinator, containers and executors.

The driver leads a session of its own. So all its descendants can be found, and killed at the end, even orphans. The
files that Spark leaves behind go to a folder of the caller. Everything here is called from one thread, and blocks at
most as long as the caller allows.
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
from headrace.coordinator.address import Address
from headrace.coordinator.messages import AppStatus, ContainerStatus
from headrace.coordinator.publication import find_all
from headrace.core.errors import UnavailableError
from headrace.core.secrets import SecretUrl
from headrace.life.metadata import existing_metadata

LOOK_S = 0.05
START_S = 300.0
END_S = 60.0


def until(condition: Callable[[], bool], what: str, seconds_max: float) -> float:
    """Poll until the condition holds, since other processes send no event; return how many seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds_max:
            raise UnavailableError(f"this didn't happen within {seconds_max:g} s: {what}")
        time.sleep(LOOK_S)
    return time.monotonic() - began


class Deployment:
    """One driver and all its descendants. The constructor starts it, ``close`` kills what is left."""

    def __init__(
        self,
        command: Sequence[str],
        home: Path,
        app: str,
        scratch: Path,
        environment: Mapping[str, str] | None = None,
        metadata: SecretUrl | None = None,
        import_first: Sequence[str] = (),
    ) -> None:
        """Run ``command``. Output and Spark's files go to ``scratch``.

        Its Python processes look for modules in the folders ``import_first`` before all others. The app publishes its
        address in ``home``, or in the database ``metadata``.
        """
        scratch.mkdir(parents=True, exist_ok=True)
        self.home = home
        self._metadata = metadata
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
                env=_environment(scratch, import_first) | dict(environment or {}),
                start_new_session=True,
            )

    # -- the driver --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The driver's process id, which is also the session id of all its descendants."""
        return self._driver.pid

    def output(self) -> str:
        """Return what it has printed so far."""
        return self._stdout.read_text(errors="replace")

    def errors(self) -> str:
        """Return what it has printed to standard error so far."""
        return self._stderr.read_text(errors="replace")

    def exit_code(self) -> int | None:
        """Return the driver's exit code; None while it runs."""
        return self._driver.poll()

    def interrupt(self) -> None:
        """Send Ctrl-C as a terminal does, to every process of the driver's group."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill only the driver, with SIGKILL."""
        self._driver.kill()
        self._driver.wait(END_S)

    def wait(self, seconds_max: float) -> int:
        """Wait for the driver to end, and return its exit code."""
        try:
            return self._driver.wait(seconds_max)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"the driver of {self.app!r} (pid {self.pid}) didn't end within {seconds_max:g} s",
                hint=self._last_lines(),
            ) from error

    # -- what it runs ------------------------------------------------------------------------------

    def address(self) -> Address | None:
        """Return the coordinator's address; None before it was published, and after the coordinator has ended."""
        with existing_metadata(self.home, self._metadata) as metadata:
            return next((found for found in find_all(metadata, self.app) if found.pid == self.pid), None)

    def status(self) -> AppStatus | None:
        """Return the coordinator's status; None if there is no coordinator now."""
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
            return None  # the coordinator ended after its address was read

    def wait_for(self, what: str, condition: Callable[[AppStatus], bool], seconds_max: float = START_S) -> AppStatus:
        """Wait until the app's status meets the condition, and return it. Raises if the driver ends before that."""
        found: list[AppStatus] = []

        def is_met() -> bool:
            if self.exit_code() is not None:
                raise UnavailableError(
                    f"the driver ended with {self.exit_code()} before this happened: {what}", hint=self._last_lines()
                )
            status = self.status()
            if status is not None and condition(status):
                found.append(status)
            return bool(found)

        try:
            until(is_met, what, seconds_max)
        except UnavailableError as error:
            error.hint = error.hint or self._last_lines()
            raise
        return found[0]

    def wait_running(self, seconds_max: float = START_S) -> AppStatus:
        """Wait until every task runs, and return the status."""
        return self.wait_for("every task runs", is_running, seconds_max)

    def containers(self) -> list[ContainerStatus]:
        """Return the running containers whose processes are known and alive."""
        status = self.status()
        found = [] if status is None else [c for c in status.containers if c.pid is not None and c.state == "running"]
        return [container for container in found if self._is_mine(container.pid)]

    def processes(self) -> list[Process]:
        """Return all living processes of the driver's session, including the driver."""
        found = in_session(self.pid)
        for process in found:
            if process.is_executor:
                self._note_work_folder(process.pid)
        return found

    def executors(self) -> list[Process]:
        """Return the executor JVMs that are separate processes."""
        return [process for process in self.processes() if process.is_executor]

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill all remaining processes, and delete what Spark left in its own folder. Idempotent."""
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
        """Note the folder in which ``local-cluster`` runs an executor. Spark deletes it only after a clean end."""
        try:
            folder = (Path("/proc") / str(executor) / "cwd").resolve(strict=True).parent
        except OSError:
            return  # the executor has just ended
        if folder.parent.name == "work":
            self._work.add(folder)

    def _last_lines(self) -> str:
        return "its last lines: " + "\n".join(self.errors().splitlines()[-30:])


def is_running(status: AppStatus) -> bool:
    """Whether every container has started, and every task has finished its start."""
    started = all(container.state in ("running", "finished") for container in status.containers)
    return started and all(task.state not in ("starting", "restoring") for task in status.tasks)


def _environment(scratch: Path, import_first: Sequence[str]) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([*import_first, *(path for path in sys.path if path)]),
        "PYSPARK_PYTHON": sys.executable,
        # A killed JVM leaves its files here, where the caller deletes them.
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={scratch}",
    }
