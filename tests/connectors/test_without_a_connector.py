"""Any one connector can be left out: everything else works without it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.belongings import BELONGINGS, PACKAGE, ROOT, belongings

CONNECTORS = sorted(
    path.name for path in (ROOT / "src/headrace/connectors").iterdir() if (path / "__init__.py").exists()
)
PROGRAM = Path(__file__).with_name("without_program.py")
HEARTS = (
    "tests/unit/protocol/test_frame_judge.py",
    "tests/unit/plan/test_stages.py",
    "tests/unit/systems/test_memory.py",
    "tests/unit/task/test_inputs.py",
    "tests/unit/kit/test_harness.py",
)
"""Tests of the heart that take a second or two together."""
FAST = ("tests/unit", "tests/plan")
"""Tests that need neither servers nor Spark. Others, such as ``tests/seams``, are about all connectors together."""
TIME_MAX_S = 150
MINUTES_MAX = 60


def python(*arguments: str, root: Path = ROOT, seconds: float = TIME_MAX_S) -> subprocess.CompletedProcess[str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = others | {"PYTHONPATH": f"{root}/src{os.pathsep}{root}", "POLARS_MAX_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


def test_the_heart_and_the_other_connectors_do_without_each() -> None:
    ran = python(str(PROGRAM), "each", *CONNECTORS)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    did = re.findall(rf"^\d+ modules and two apps do without {PACKAGE}\.(\w+)$", ran.stdout, re.M)
    assert sorted(did) == CONNECTORS


def test_the_heart_does_without_all() -> None:
    ran = python(str(PROGRAM), "tests", *CONNECTORS, "--", "-q", "-p", "no:cacheprovider", *HEARTS)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert re.search(r"^\d+ passed", ran.stdout, re.M)


def test_what_is_missing_is_named() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
from without_program import Absent
for name in {CONNECTORS!r}:
    sys.meta_path.insert(0, Absent("{PACKAGE}." + name))
import headrace as hr
from headrace.rows.formats import FormatSpec, open_format
from headrace.stores.snapshots import ObjectPlace
from headrace.stores.transfer import open_objects
from headrace.systems.registry import SystemSpec, open_row_system
for tried in (
    lambda: hr.io.kafka("localhost:9092", "views"),
    lambda: open_row_system(SystemSpec("x", "sql", {{}})),
    lambda: open_format(FormatSpec("avro")),
    lambda: open_objects(ObjectPlace("s3://bucket")),
    lambda: hr.App("a", metadata="postgresql://localhost/x"),
):
    try:
        tried()
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
"""
    ran = python("-c", code)
    assert (ran.returncode, ran.stderr) == (0, "")
    said = ran.stdout.splitlines()
    assert said[0].startswith("AttributeError hr.io.kafka belongs to a connector")
    assert said[0].endswith("pip install --force-reinstall headrace")
    assert said[1].startswith("UsageError system 'x' is of kind 'sql', which isn't installed here")
    assert said[2].startswith("DeclarationError unknown format 'avro' of records")
    assert said[3].startswith("InfrastructureError the store of snapshots s3://bucket needs obstore")
    assert said[4].startswith("UsageError metadata isn't the URL of")


def imported(file: Path) -> set[str]:
    """The connectors that a file imports, at its head or in a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case _:
                continue
        found |= {name.split(".")[2] for name in names if name.startswith(f"{PACKAGE}.") and name.count(".") > 1}
    return found & set(CONNECTORS)


def test_a_test_that_imports_a_connector_belongs_to_it() -> None:
    """The documentation is about all connectors, so its tests need all."""
    owned = {name: {entry.partition("::")[0] for entry in belongings(name)} for name in CONNECTORS}
    strays = [
        f"{name} is imported by {file}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for file in [str(path.relative_to(ROOT))]
        if not file.startswith("tests/docs/")
        for name in sorted(imported(path))
        if not any(file == one or file.startswith(f"{one}/") for one in owned[name])
    ]
    assert strays == []


def test_belongings_are_there() -> None:
    assert sorted(BELONGINGS) == CONNECTORS
    missing = []
    for name in CONNECTORS:
        for entry in BELONGINGS[name]:
            file, _, test = entry.partition("::")
            path = ROOT / file
            if not path.is_file() or (test and f"def {test}(" not in path.read_text(encoding="utf-8")):
                missing.append(entry)
    assert missing == []


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("connector", CONNECTORS)
def test_its_folder_is_deleted_and_the_rest_passes(connector: str, tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    shutil.rmtree(tmp_path / "src/headrace/connectors" / connector)
    left_out = []
    for entry in belongings(connector):
        if "::" in entry:
            left_out += ["--deselect", entry]
        elif (tmp_path / entry).is_dir():
            shutil.rmtree(tmp_path / entry)
        else:
            (tmp_path / entry).unlink(missing_ok=True)
    options = ("-q", "-p", "no:cacheprovider", "--tb=short", "-m", "not spark and not slow and not soak")
    ran = python("-m", "pytest", *FAST, *options, *left_out, root=tmp_path, seconds=60 * MINUTES_MAX)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
