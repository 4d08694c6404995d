"""The frames of all threads can be looked at while threads start and the garbage collector runs Python code."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from headrace.core.log import thread_stacks

LIMIT_S = 60.0
# In a process of its own, because if it fails, nothing in the process can run any more.
PROGRAM = """
import gc, sys, threading, time
from headrace.core.log import thread_stacks

def collected(phase, info):
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass

def start_threads():
    while not over.is_set():
        threading.Thread(target=int).start()

sys.setswitchinterval(1e-5)
over = threading.Event()
starting = threading.Thread(target=start_threads)
starting.start()
gc.callbacks.append(collected)
gc.set_threshold(1, 1, 1)
for _ in range(300):
    thread_stacks()
gc.callbacks.clear()
over.set()
starting.join()
"""


def test_nothing_stands_still_when_the_collector_calls_python() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=LIMIT_S)


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_left_as_it_was(collects: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert threading.get_ident() in thread_stacks()
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
