from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.systems.files.system import FilesSystem
from headrace.systems.log.system import LogSystem
from headrace.systems.memory import MemorySystem
from headrace.systems.registry import SystemSpec, keeps_rows, open_row_system, open_system


def test_built_in_kinds(tmp_path: Path) -> None:
    assert open_system(SystemSpec("log", "log", {"root": str(tmp_path)})) == LogSystem(tmp_path)
    assert open_row_system(SystemSpec("in", "files", {"path": "a.csv"})) == FilesSystem("a.csv")
    try:
        assert open_system(SystemSpec("m", "memory")) is MemorySystem.named("m")
    finally:
        MemorySystem.forget("m")


def test_an_unknown_kind_names_what_is_installed() -> None:
    with pytest.raises(UsageError, match="of kind 'pulsar', which isn't installed here") as caught:
        open_system(SystemSpec("x", "pulsar"))
    assert caught.value.hint is not None
    assert "files, kafka, kafka-log, kinesis, log, memory, remote, small, sql" in caught.value.hint


def test_records_and_rows_are_distinguished_by_the_kind() -> None:
    assert [keeps_rows(SystemSpec("x", kind)) for kind in ("log", "memory", "files", "kinesis", "pulsar")] == [
        *(False, False, True, True, False)
    ]
    with pytest.raises(UsageError, match="keeps rows, not frames"):
        open_system(SystemSpec("x", "files", {"path": "a"}))
    with pytest.raises(UsageError, match="isn't installed here"):
        open_row_system(SystemSpec("x", "log", {"root": "a"}))


def test_a_plug_in_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "plugged", "headrace.systems.memory:open_memory"

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point] if group == "headrace.systems" else [])
    try:
        assert open_system(SystemSpec("p", "plugged")) is MemorySystem.named("p")
    finally:
        MemorySystem.forget("p")


def test_plug_ins_are_not_looked_for_when_a_kind_is_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ask(group: str) -> list[object]:
        raise AssertionError(f"all installed packages were asked for {group}")

    monkeypatch.setattr("importlib.metadata.entry_points", ask)
    assert open_system(SystemSpec("log", "log", {"root": str(tmp_path)})) == LogSystem(tmp_path)
    assert open_row_system(SystemSpec("in", "files", {"path": "a.csv"})) == FilesSystem("a.csv")


def test_a_spec_is_frozen_and_picklable() -> None:
    options = {"root": "a"}
    spec = SystemSpec("log", "log", options)
    options["root"] = "b"
    assert spec.options["root"] == "a"
    with pytest.raises(TypeError):
        spec.options["root"] = "c"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len({spec, SystemSpec("log", "log", {"root": "a"})}) == 1


def test_importing_the_registry_imports_no_vendor() -> None:
    vendors = (
        "headrace.systems.files",
        "headrace.connectors.kafka.client",
        "headrace.connectors.kinesis",
        "confluent_kafka",
        "boto3",
    )
    code = f"import sys, headrace.systems.registry; assert not [m for m in sys.modules if m.startswith({vendors})]"
    subprocess.run([sys.executable, "-c", code], check=True)
