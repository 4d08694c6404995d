"""A container with many tasks: it needs few descriptors, and costs little while there is nothing to do."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from headrace.core.errors import InfrastructureError
from headrace.core.files import make_room
from headrace.stores.database import classified

REPOSITORY = Path(__file__).parents[2]
TASKS = 150
LIMIT = 1024
IDLE_CORES_MAX = 0.15
"""Three times what is wanted of a thousand tasks, because other programs slow this one down."""


def wide(*arguments: str) -> dict[str, float]:
    """What ``bench.wide`` measures of a process that may have as many files open as usual."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (LIMIT // 4, LIMIT))
    command = [sys.executable, "-m", "bench.wide", *arguments]
    done = subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.PIPE, timeout=300, preexec_fn=limit)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_150_tasks_fit_into_1024_open_files_and_idle_at_little_cost() -> None:
    found = wide(str(TASKS), "--idle", "3")
    assert found["descriptors"] < 4 * TASKS
    assert found["idle_cores"] < IDLE_CORES_MAX


def test_too_few_open_files_are_an_error_that_says_so() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with pytest.raises(InfrastructureError, match=f"{hard + 1} open files") as caught:
        make_room(hard + 1, "many tasks")
    assert "ulimit -n" in str(caught.value.hint)


def test_a_lock_that_cannot_be_opened_is_held_by_nobody(tmp_path: Path) -> None:
    error = classified(tmp_path, RuntimeError("IO error: While lock file: x/LOCK: Too many open files"))
    assert "elsewhere" not in error.message
    assert "ulimit -n" in str(error.hint)
