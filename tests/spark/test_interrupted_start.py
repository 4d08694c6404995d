"""Ctrl-C while Spark is only starting: the run ends well as soon as it can, and nothing of Spark stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from watched_container import alive_in_session, until

from headrace.streams.writer import create_stream

PIPELINE = """
import polars as pl

import headrace as hr

app = hr.App("interrupted")
app.input("views", {"member": pl.String}).send_to(app.output("copies"))

if __name__ == "__main__":
    app.run(master="local[1]")
"""


@pytest.mark.parametrize("command", [["-m", "headrace.cli.main", "run", "--master", "local[1]"], []])
def test_an_interrupt_while_spark_starts_ends_the_run_well(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    create_stream("views", partitions=1, home=tmp_path / ".headrace")
    process = subprocess.Popen(
        [sys.executable, *command, "pipeline.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: len(alive_in_session(process.pid)) > 1, seconds_max=30)  # the JVM, or what starts it
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "once Spark has started" in said
        assert "interrupted drained after" in said
        assert "Traceback" not in said
        until(lambda: not alive_in_session(process.pid), seconds_max=10)
    finally:
        for pid in alive_in_session(process.pid):
            with suppress(ProcessLookupError):  # it may end at this moment
                os.kill(pid, signal.SIGKILL)
        process.wait(20)
