"""The processes of this machine, from ``/proc``: their sessions and kinds, and signals to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DAEMON = "pyspark.daemon"
_EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class Process:
    """One process at the moment when ``/proc`` was read."""

    pid: int
    parent: int
    session: int
    state: str
    command: str

    @property
    def alive(self) -> bool:
        """Whether it can still run; a dead process that waits to be reaped can't."""
        return self.state not in ("Z", "X")

    @property
    def is_python_side(self) -> bool:
        """Whether it is a Spark executor's Python daemon, or a container forked from one."""
        return _DAEMON in self.command

    @property
    def is_executor(self) -> bool:
        """Whether it is an executor JVM that is a separate process."""
        return _EXECUTOR in self.command


def look(pid: int) -> Process | None:
    """Return the process; None if there is none."""
    folder = Path("/proc") / str(pid)
    try:
        # The name, in parentheses, may contain anything. State and numbers follow it.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], command)


def in_session(session: int) -> list[Process]:
    """Return the living processes of a session, including those whose parents have died."""
    found = (look(int(folder.name)) for folder in Path("/proc").glob("[0-9]*"))
    return [process for process in found if process is not None and process.session == session and process.alive]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that the process has used so far."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
