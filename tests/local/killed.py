"""Run a program repeatedly, and kill it each time it has made enough progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.deployment import until

PATIENCE_S = 300.0


class Killed:
    """A program of this folder. It prints ``running`` at its start, and ``ended`` when it ends without error."""

    def __init__(self, program: str, home: Path, *arguments: object) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name(program)), str(home), *map(str, arguments)]
        self._home = home

    @contextmanager
    def running(self, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
        """Start its process, which is killed at the end of the block. Its ``stderr`` is ours if nothing is said."""
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=self._home)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=PATIENCE_S)

    def kill_when(
        self, enough: Callable[[], bool], feed: Callable[[], None], later_s: float = 0.0, *, tries: int = 1
    ) -> None:
        """Start it, ``feed`` it, and kill it ``later_s`` after it has made enough progress; it must not end before.

        With more ``tries`` it may end well before, because it has read everything, and is started and fed again.
        """
        for _ in range(tries):
            if self._killed(enough, feed, later_s):
                return
        raise AssertionError("it ended before it could be killed")

    def _killed(self, enough: Callable[[], bool], feed: Callable[[], None], later_s: float) -> bool:
        with self.running() as process:
            feed()
            until(lambda: process.poll() is not None or enough(), "it has come far enough", PATIENCE_S)
            try:
                process.wait(later_s)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
            else:
                assert process.returncode == 0, f"it ended with {process.returncode}"
            return process.wait(PATIENCE_S) != 0

    def end(self) -> None:
        """Run it until it ends, which it must do without error."""
        with self.running() as process:
            said, _ = process.communicate(timeout=PATIENCE_S)
            assert (said, process.returncode) == ("ended\n", 0)
