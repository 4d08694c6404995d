"""A signal while Spark is starting: the run ends without error as soon as it can, and no process of Spark remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from watched_container import alive_in_session, until, until_session_is_over

from headrace.streams.writer import create_stream

RUN = ["-m", "headrace.operate.cli.main", "run", "--master", "local[1]"]
PIPELINE = """
import polars as pl

import headrace as hr

app = hr.App("interrupted")
app.input("views", {"member": pl.String}).send_to(app.output("copies"))

if __name__ == "__main__":
    app.run(master="local[1]")
"""


def is_jvm(pid: int) -> bool:
    try:
        return b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def starting(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a run in a terminal session of its own; its JVM is running, but doesn't listen yet."""
    (folder / "pipeline.py").write_text(PIPELINE)
    create_stream("views", partitions=1, home=folder / ".headrace")
    process = subprocess.Popen(
        [sys.executable, *command, "pipeline.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: any(is_jvm(pid) for pid in alive_in_session(process.pid)))
        yield process
    finally:
        for pid in alive_in_session(process.pid):
            with suppress(ProcessLookupError):  # it may have just ended
                os.kill(pid, signal.SIGKILL)
        process.wait(300)
        if process.stderr is not None:
            process.stderr.close()


def interrupt(driver: int) -> None:
    os.killpg(driver, signal.SIGINT)


def terminate_group(driver: int) -> None:
    os.killpg(driver, signal.SIGTERM)


def terminate_all(driver: int) -> None:
    """As systemd does."""
    for pid in alive_in_session(driver):
        with suppress(ProcessLookupError):  # scripts that start the JVM come and go
            os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("command", "end"),
    [
        pytest.param(RUN, interrupt, marks=pytest.mark.soak),
        ([], interrupt),
        pytest.param(RUN, terminate_group, marks=pytest.mark.soak),
        (RUN, terminate_all),
    ],
)
def test_a_signal_while_spark_starts_ends_the_run_well(
    tmp_path: Path, command: list[str], end: Callable[[int], None]
) -> None:
    with starting(tmp_path, command) as process:
        end(process.pid)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert "once Spark has started" in said
        assert "interrupted drained after" in said
        assert "Traceback" not in said
        until_session_is_over(process.pid)


def test_a_second_interrupt_ends_it_at_once_and_takes_the_jvm_along(tmp_path: Path) -> None:
    with starting(tmp_path, RUN) as process:
        assert process.stderr is not None
        jvm = next(pid for pid in alive_in_session(process.pid) if is_jvm(pid))
        os.kill(jvm, signal.SIGSTOP)  # or Spark could have started, and the run ended, before the second interrupt
        os.killpg(process.pid, signal.SIGINT)
        assert "once Spark has started" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(300) == 130
        with suppress(ProcessLookupError):
            os.kill(jvm, signal.SIGCONT)
        until_session_is_over(process.pid)
