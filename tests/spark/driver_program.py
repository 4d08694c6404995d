"""A driver in a process of its own: runs two containers, prints a line once they run, drains at a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import watched_container
from pyspark.sql import SparkSession
from watched_container import SECONDS_MAX, pid_of

from headrace.core.errors import InfrastructureError
from headrace.run.spark.hosting import ContainerJob
from headrace.run.spark.session import close_context, open_context
from headrace.run.spark.slots import Asked, decide


def run(folder: Path, master: str | None, *, in_session: bool) -> None:
    """``in_session``: in a session that was there before."""
    if in_session:
        SparkSession.builder.master(master or "").getOrCreate()
    context = open_context("driver program", master)
    decide(context, Asked(app="program", tasks=2, containers=2))
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    job = ContainerJob(context, 2, watched_container.main, str(folder).encode(), "containers of a program")
    job.start()
    pids = [pid_of(folder, n) for n in (0, 1)]
    jvm = context._jvm.java.lang.ProcessHandle.current().pid()
    print("running", context.applicationId, os.getpid(), jvm, *pids, flush=True)
    assert interrupted.wait(SECONDS_MAX)
    if job.wait(1):  # the signal has ended more than the driver's wait
        try:
            job.failure_count()
        except InfrastructureError as error:
            print("lost", error.message, "|", job.error, flush=True)
        close_context(context)
        return
    (folder / "stop").touch()
    assert job.wait(SECONDS_MAX)
    print("drained", [report["attempt"] for report in job.reports], flush=True)
    close_context(context)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None, in_session="in-session" in sys.argv)
