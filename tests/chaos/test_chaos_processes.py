"""Finding processes in ``/proc``, with real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chaos.deployment import until
from chaos.processes import cpu_seconds, in_session, look, send

PARENT = """
import subprocess, sys
command = [sys.executable, "-c", "import sys; sys.stdin.read()", "pyspark.daemon"]
child = subprocess.Popen(command, stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A session leader and its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process.pid, child
    send(signal.SIGKILL, [child, process.pid])
    process.wait(60)
    process.stdout.close()


def test_a_session_is_found_whole_and_also_without_its_leader(family: tuple[int, int]) -> None:
    leader, child = family
    # A child that has just been forked still has its parent's command line.
    until(lambda: any(p.pid == child and p.is_python_side for p in in_session(leader)), "the child runs Python", 60)
    found = {process.pid: process for process in in_session(leader)}
    assert set(found) == {leader, child}
    assert (found[child].parent, found[child].is_python_side, found[child].is_executor) == (leader, True, False)
    send(signal.SIGKILL, [leader])
    until(lambda: [process.pid for process in in_session(leader)] in ([child], []), "the leader is gone", 60)


def test_a_frozen_process_is_alive(family: tuple[int, int]) -> None:
    _, child = family
    send(signal.SIGSTOP, [child])
    until(lambda: (process := look(child)) is not None and process.state == "T", "it is frozen", 60)
    frozen = look(child)
    assert frozen is not None
    assert frozen.alive


def test_a_process_that_is_gone_is_not_found_and_gets_no_signal() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(30)
    assert look(process.pid) is None
    send(signal.SIGKILL, [process.pid])


def test_cpu_time_is_counted() -> None:
    before = cpu_seconds(os.getpid())
    until(lambda: sum(range(300_000)) > 0 and cpu_seconds(os.getpid()) >= before + 0.05, "it has worked", 60)
