from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.operate.cli.main import main

SOURCE = str(Path(headrace.__file__).parents[1])


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    monkeypatch.delenv("HEADRACE_TRACEBACK", raising=False)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in this process."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def clean_modules() -> Iterator[None]:
    """Undo what loading a user's file changes in this process."""
    path, argv = list(sys.path), list(sys.argv)
    yield
    sys.path[:], sys.argv[:] = path, argv
    sys.modules.pop("__headrace_app__", None)


Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """The command line in a process of its own, with pipes for its three standard streams; killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "error", "-m", "headrace.operate.cli.main", *map(str, words)]
        environment = os.environ | {"PYTHONPATH": SOURCE}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            # What is still in a pipe's buffer has no reader any more.
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
