"""The processes of this machine, read from ``/proc``: which belong together, what they are, and how to signal them."""

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
    """One process as it was when it was looked at."""

    pid: int
    parent: int
    session: int
    state: str
    command: str

    @property
    def alive(self) -> bool:
        """It can still do something; one that only waits to be reaped can't."""
        return self.state not in ("Z", "X")

    @property
    def is_python_side(self) -> bool:
        """It is a Spark executor's Python daemon, or a container forked from one."""
        return _DAEMON in self.command

    @property
    def is_executor(self) -> bool:
        """It is the JVM of an executor that is a process of its own."""
        return _EXECUTOR in self.command


def look(pid: int) -> Process | None:
    """The process; None when there is none."""
    folder = Path("/proc") / str(pid)
    try:
        # The name, in brackets, may hold anything; behind it are numbers.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], command)


def in_session(session: int) -> list[Process]:
    """The living processes that came from one session leader, whatever became of their parents."""
    found = (look(int(folder.name)) for folder in Path("/proc").glob("[0-9]*"))
    return [process for process in found if process is not None and process.session == session and process.alive]


def cpu_seconds(pid: int) -> float:
    """How much CPU time the process has used so far."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Signal each of them; one that has ended meanwhile is as good."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
