"""Ctrl-C while the command is still being imported, or when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parents[1]


def entry_point() -> tuple[str, str]:
    """The module and function that the ``headrace`` command calls."""
    scripts = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["headrace"].partition(":")
    return module, function


@pytest.mark.parametrize("imported", ["numpy", "polars", "headrace.api"])
def test_an_interrupt_while_it_is_imported_ends_it_quietly(imported: str) -> None:
    module, function = entry_point()
    program = f"import sys; from {module} import {function}; sys.exit({function}())"
    command = [sys.executable, "-X", "importtime", "-c", program, "plan", "pipeline.py"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stderr=pipe, env=os.environ | {"PYTHONPATH": str(SOURCE)}, text=True)
    assert process.stderr is not None
    for line in process.stderr:  # one line per module, printed once it is imported, after the modules that it imports
        if line.rpartition("|")[2].strip().startswith(imported):
            break
    process.send_signal(signal.SIGINT)
    said = [line for line in process.stderr if not line.startswith("import time:")]
    process.stderr.close()
    assert (process.wait(), said) == (130, [])


@pytest.mark.parametrize(
    ("when", "code"), [("import threading; threading._register_atexit", 130), ("import atexit; atexit.register", 0)]
)
def test_an_interrupt_when_it_is_over_is_quiet_too(when: str, code: int) -> None:
    """The interpreter first ends threads, and then calls what is registered for its end, the earliest at last."""
    module, function = entry_point()
    program = (
        f"import os, sys; from {module} import {function}\n{when}(os.kill, os.getpid(), 2)\nsys.exit({function}())"
    )
    command, environment = [sys.executable, "-c", program, "version"], os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout == f"headrace {headrace.__version__}\n"


def test_it_is_the_command_line() -> None:
    module, function = entry_point()
    program = f"import sys; from {module} import {function}; sys.exit({function}())"
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", program, "version"], capture_output=True, env=environment, text=True, check=True
    )
    assert done.stdout == f"headrace {headrace.__version__}\n"
