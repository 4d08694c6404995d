"""A container that records its start and runs until it is told to stop, and helpers for tests to watch it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.core.files import readable
from headrace.run.spark.hosting import ContainerArgs, Report

SECONDS_MAX = 300.0


def main(args: ContainerArgs) -> Report:
    folder = Path(args.payload.decode())
    draft = folder / f".{args.container}-{args.attempt}"
    draft.write_text(str(os.getpid()))
    draft.rename(folder / f"{args.container}-{args.attempt}")
    until((folder / "stop").exists)
    return {"container": args.container, "attempt": args.attempt, "threads": os.environ["POLARS_MAX_THREADS"]}


def broken(args: ContainerArgs) -> Report:
    raise ValueError(f"container {args.container} is broken")


def until(condition: Callable[[], bool], seconds_max: float = SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds_max} s"
        time.sleep(0.01)


def pid_of(folder: Path, container: int, attempt: int = 0) -> int:
    """The process of an attempt, once it has started."""
    born = folder / f"{container}-{attempt}"
    until(born.exists)
    return int(born.read_text())


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie, which only waits to be reaped, doesn't."""
    return _state_and_session(Path(f"/proc/{pid}/stat"))[0] not in ("", "Z")


def alive_in_session(session: int) -> list[int]:
    """The processes of one terminal session, whether or not their parents still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        state, owner = _state_and_session(stat)
        if owner == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def until_session_is_over(session: int, seconds_max: float = SECONDS_MAX) -> None:
    """Wait until no process of it runs. Looking through all processes is dear, so one is waited for at a time."""
    deadline = time.monotonic() + seconds_max
    while alive := alive_in_session(session):
        assert time.monotonic() < deadline, f"{alive} still run after {seconds_max} s"
        with suppress(ProcessLookupError):  # it has just ended
            end = os.pidfd_open(alive[0])
            try:
                readable(end, 1000)
            finally:
                os.close(end)


def _state_and_session(stat: Path) -> tuple[str, int]:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return fields[0], int(fields[3])
