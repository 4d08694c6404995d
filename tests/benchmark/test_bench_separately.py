"""Each part has a process of its own, and the file of figures is whole after each."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.separately import Results, _measured
from headrace.core.files import readable

MACHINE = {"cores": 2, "processor": "one", "memory_gb": 24, "python": "3.11.7", "packages": {"polars": "2.1.0"}}


def part(name: str, *peers: str) -> dict[str, Any]:
    about = {"about": name, "tables": [], "notes": [], "seconds": 1.0, "loads": [0.0, 0.0]}
    return {"command": "x", "machine": {"peers": list(peers)}, "parts": {name: about}, name: {"figure": 1}}


def test_figures_are_kept_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "results" / "all.json"
    results = Results(path, MACHINE)
    results.take(part("a", "bytewax 1"))
    results.lost("b", "its process ended with 1")
    results.take(part("c", "bytewax 1", "flink 2"))
    found = json.loads(path.read_text())
    assert list(found["parts"]) == ["a", "b", "c"]
    assert found["parts"]["b"]["notes"] == ["failed: its process ended with 1"]
    assert found["machine"]["peers"] == ["bytewax 1", "flink 2"]
    assert found["a"] == found["c"] == {"figure": 1}

    more = Results(path, MACHINE, add=True)
    more.take(part("b"))
    found = json.loads(path.read_text())
    assert list(found["parts"]) == ["a", "b", "c"]
    assert found["parts"]["b"]["notes"] == []
    assert found["a"] == {"figure": 1}


def test_figures_of_another_machine_are_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    Results(path, MACHINE).take(part("a"))
    with pytest.raises(ValueError, match="its processor is one, here it is two; write to another file"):
        Results(path, MACHINE | {"processor": "two"}, add=True)
    assert list(json.loads(path.read_text())["parts"]) == ["a"]


def test_what_does_not_end_is_killed_with_all_it_has_started(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    child = f"import os, time; open({str(said)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert _measured([sys.executable, "-c", parent], 3.0) is None
    try:
        child_fd = os.pidfd_open(int(said.read_text()))
    except ProcessLookupError:
        return  # it has ended already
    try:
        assert readable(child_fd, 10_000)
    finally:
        os.close(child_fd)


def test_the_exit_code_is_that_of_the_part() -> None:
    assert _measured([sys.executable, "-c", "raise SystemExit(3)"], 60.0) == 3


def test_a_file_from_elsewhere_is_an_error_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "all.json"
    Results(path, MACHINE | {"processor": "none such"}).take(part("a"))
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "control", "--add", "--json", os.fspath(path)])
    assert main() == 2
    assert "write to another file" in capsys.readouterr().err
