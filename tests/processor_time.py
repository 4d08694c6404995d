"""A plugin for pytest: the processor time of each test, with its fixtures and all processes that they start.

``pytest -p tests.processor_time`` prints folders and the dearest tests. It writes lines of seconds, phase and test to
the file that ``HEADRACE_TEST_TIMES`` names. A process that has outlived its parent, as Spark's JVM does, isn't counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 40

_spent: Counter[tuple[str, str]] = Counter()
_since: dict[str, float] = {}


def _of_processes_below(process: int) -> int:
    """Ticks of what a process started and what runs still; those that ended count in whoever waited for them."""
    ticks = 0
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # it has just ended: its children are with another thread
                children += map(int, (thread / "children").read_text().split())
    for child in children:
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15])) + _of_processes_below(child)
    return ticks


def spent() -> float:
    """Seconds until now."""
    return sum(os.times()[:4]) + _of_processes_below(os.getpid()) / TICKS


def _count(test: str, phase: str) -> Iterator[None]:
    start = spent()
    try:
        return (yield)
    finally:
        _spent[test, phase] += spent() - start


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _count(item.nodeid, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _count(item.nodeid, "call"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    return (yield from _count(item.nodeid, "teardown"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    return (yield from _count("collection", "setup"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tests: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for (test, _), seconds in _spent.items():
        tests[test] += seconds
        folders[str(PurePosixPath(test.partition("::")[0]).parent)] += seconds
    terminalreporter.section("processor time, in seconds")
    for name, seconds in [*folders.most_common(), *tests.most_common(SHOWN)]:
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")
    terminalreporter.write_line(f"{spent():8.1f}  in all")
    if file := os.environ.get("HEADRACE_TEST_TIMES"):
        lines = [f"{seconds:.2f} {phase} {test}" for (test, phase), seconds in _spent.most_common()]
        Path(file).write_text("\n".join([*lines, f"{spent():.2f} all session"]) + "\n")
