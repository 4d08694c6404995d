"""Machines in namespaces have folders of their own, and nothing is left of them when their world has ended somehow."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.deployment import until
from chaos.world import why_not

END_S = 60.0


def running(command: str) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if words[:2] == command.encode().split():
            return True
    return False


def test_machines_share_no_folder_and_end_with_their_world(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    here = Path(__file__).parent
    seconds = f"{random.randrange(200, 300)}.{os.getpid()}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), *sys.path]), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "world_program", seconds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(3)] == [
            "['ann', 'home', 'mine']\n",
            "['bob', 'home', 'mine']\n",
            "[['home'], ['home', 'mine']]\n",
        ]
        until(lambda: running(f"sleep {seconds}"), "something runs on a machine", END_S)
        program.kill()
    until(lambda: not running(f"sleep {seconds}"), "nothing is left of it", END_S)
