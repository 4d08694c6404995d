"""Measures each part in a process of its own, so that a part that fails or hangs takes nothing from the others.

What was interrupted in the middle of a call to Spark can't be asked anything afterwards. So a part that takes too long
interrupts itself, writes what it has measured, and ends; if it doesn't, its process is killed with all it has started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.budget import GRACE, Budget
from bench.parts import PARTS
from bench.report import this_command

KILLED_AFTER_S = 60.0
"""How much longer than it may take a part has until it is killed: it has to start Spark, and to write what it found."""
_ALIKE = ("cores", "processor", "memory_gb", "python", "packages")


@dataclass(slots=True)
class Results:
    """The file of a run's figures. It is whole after each part."""

    path: Path
    machine: Mapping[str, Any]
    add: bool = False
    """Keep what the file has of other parts; raises ``ValueError`` if it is from another machine or other versions."""
    figures: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        command = this_command()
        self.figures = {"command": command, "machine": {**self.machine, "peers": []}, "parts": {}}
        if self.add and self.path.exists():
            self.figures = json.loads(self.path.read_text(encoding="utf-8"))
            before = self.figures["machine"]
            for what in _ALIKE:
                if before[what] != self.machine[what]:
                    raise ValueError(
                        f"{self.path} has figures from elsewhere: its {what} is {before[what]}, here it is "
                        f"{self.machine[what]}; write to another file"
                    )
            self.figures["command"] += f" && {command}"

    def take(self, part: Mapping[str, Any]) -> None:
        """Take the figures of a part, and write all."""
        peers = self.figures["machine"]["peers"]
        peers += [peer for peer in part["machine"].get("peers", ()) if peer not in peers]
        self.figures["parts"] |= part["parts"]
        self.figures |= {name: found for name, found in part.items() if name not in ("command", "machine", "parts")}
        self._write()

    def lost(self, part: str, why: str) -> None:
        """Note that a part has no figures."""
        note = f"failed: {why}"
        empty = {"about": PARTS[part].about, "tables": [], "notes": [note], "seconds": 0.0, "loads": [0.0, 0.0]}
        self.figures["parts"][part] = empty
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.write_text(json.dumps(self.figures, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.path)


def measure_separately(results: Results, options: argparse.Namespace) -> bool:
    """Measure the chosen parts one after the other. Return whether one failed or a result was wrong."""
    budget = Budget(options.minutes * 60, {part: PARTS[part].weight for part in options.only})
    failed = False
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        for part in options.only:
            found = Path(folder, f"{part}.json")
            share_s = budget.share_s(part)
            code = _measured(_command(options, part, share_s, found), GRACE * share_s + KILLED_AFTER_S)
            if found.exists():
                results.take(json.loads(found.read_text(encoding="utf-8")))
            else:
                results.lost(
                    part, "it was killed, as it didn't end" if code is None else f"its process ended with {code}"
                )
            failed |= code != 0
    return failed


def _command(options: argparse.Namespace, part: str, seconds: float, results: Path) -> list[str]:
    command = [sys.executable, "-m", "bench", "--of-several", "--only", part, "--json", str(results)]
    command += ["--minutes", f"{seconds / 60:.3f}", "--queries", ",".join(options.queries)]
    command += [f"--{flag}" for flag in ("quick", "alone", "large") if getattr(options, flag)]
    for name in ("messages", "repeats"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", str(value)]
    return command


def _measured(command: list[str], limit_s: float) -> int | None:
    """Run a command in a session of its own. Return its exit code; None if it had to be killed."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:  # what it has started ends with it, also when this process is interrupted
            _kill_group(process.pid)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended, and everything that it has started
