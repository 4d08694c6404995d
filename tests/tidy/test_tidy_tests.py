"""Tests: each file has some and a unique name, and unit tests mirror the folders of what they test."""

from __future__ import annotations

import ast
from collections import Counter

from tidy_repository import ROOT, SOURCE, Source, sources

UNIT = ROOT / "tests" / "unit"


def has_tests(source: Source) -> bool:
    return any(node.name.startswith("test_") for node in source.nodes(ast.FunctionDef)) or any(
        isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id.startswith("Test") for t in node.targets)
        for node in source.tree.body  # a Hypothesis state machine's TestCase
    )


def test_every_test_file_has_tests() -> None:
    files = [source for source in sources("tests") if source.path.name.startswith("test_")]
    assert len(files) > 50
    assert [source.name for source in files if not has_tests(source)] == []


def test_test_files_have_names_of_their_own() -> None:
    """Pytest puts the folder of each test file on the path: of two modules with one name, it would import one."""
    names = Counter(s.path.name for s in sources("tests") if s.path.name != "conftest.py" and "cases" not in s.name)
    assert [name for name, count in names.items() if count > 1] == []


def test_unit_tests_mirror_the_source() -> None:
    folders = [path.relative_to(UNIT) for path in UNIT.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    missing = [
        str(folder)
        for folder in folders
        if not (SOURCE / "headrace" / folder).is_dir() and any((UNIT / folder).glob("test_*.py"))
    ]
    assert missing == []


SLEEPS = {
    "tests/spark/test_app_in_session.py": "measures what an idle app costs",
    "tests/spark/watched_container.py": "works until it is killed",
    "tests/unit/operate/cli/test_cli_pipes.py": "a pipe that fills slowly is what is tested",
    "tests/unit/systems/log/test_log_processes.py": "staggers processes that race",
    "tests/kafka_writers.py": "writers are killed after random times, and ask again after those that they are told",
}
"""Test files in which time itself is the subject."""


def test_no_test_sleeps() -> None:
    """A sleep is too short on a busy machine and too long on any other: wait for the event itself."""
    sleeping = {
        source.name
        for source in sources("tests")
        for node in source.nodes(ast.Call)
        if ast.unparse(node.func) in ("time.sleep", "sleep")
    }
    assert sleeping - SLEEPS.keys() == set()
    assert SLEEPS.keys() - sleeping == set(), "these no longer sleep: take them out of SLEEPS"


def test_nothing_is_caught_and_forgotten() -> None:
    empty = [
        f"{source.name}:{node.lineno}"
        for source in sources()
        for node in source.nodes(ast.ExceptHandler)
        if (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        and all(isinstance(statement, ast.Pass) for statement in node.body)
    ]
    assert empty == []
