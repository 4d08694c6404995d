"""Every numbered example runs as a user would run it, prints what its docstring says, and leaves no files."""

import ast
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import headrace

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = str(Path(headrace.__file__).parents[1])
SPARK = {"13_on_spark.py"}
ON_KAFKA = {"29_kafka.py"}
TIME_MAX_S = 300


def example_files() -> list[Path]:
    return sorted(EXAMPLES.glob("[0-9]*.py"))


def expected_lines(file: Path) -> list[str]:
    """What the docstring says, below ``It prints::``."""
    doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert doc is not None, f"{file.name} has no docstring"
    _, said, block = doc.partition("It prints::\n")
    assert said, f"{file.name} doesn't say what it prints"
    return textwrap.dedent(block).strip("\n").splitlines()


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=[pytest.mark.spark, pytest.mark.slow] if file.name in SPARK else [])
        for file in example_files()
    ],
)
def test_example_prints_what_it_says(file: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    expected = expected_lines(file)
    broker = {"KAFKA_BROKERS": request.getfixturevalue("kfake").address} if file.name in ON_KAFKA else {}
    temporary, folder = tmp_path / "tmp", tmp_path / "cwd"
    temporary.mkdir()
    folder.mkdir()
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    others["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{others['PATH']}"  # the environment is activated
    ran = subprocess.run(
        [sys.executable, str(file)],
        cwd=folder,
        env=others | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": SOURCE} | broker,
        capture_output=True,
        text=True,
        timeout=TIME_MAX_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    printed = [line.rstrip() for line in ran.stdout.splitlines()]
    shown = printed[-len(expected) :]
    # pytest, which one example runs, says how long it took.
    assert [line.partition(" in ")[0] if "passed in" in line else line for line in shown] == expected, ran.stdout
    assert list(folder.iterdir()) == [], "an example writes into a folder of its own"
    if file.name not in SPARK:
        assert ran.stderr == ""
        assert list(temporary.iterdir()) == []


def test_the_lesson_on_kafka_says_how_to_start_a_broker() -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        command = [sys.executable, str(EXAMPLES / "29_kafka.py"), address]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIME_MAX_S, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"There is no Kafka at {address}. Start one: ")


def test_examples_are_numbered_without_a_gap() -> None:
    names = [file.name for file in example_files()]
    assert [name.partition("_")[0] for name in names] == [f"{n:02}" for n in range(1, len(names) + 1)]
    assert len(names) > 10


def test_examples_are_short() -> None:
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in example_files()}
    assert {name: length for name, length in lengths.items() if length > 90} == {}


def test_the_readme_links_to_examples_that_are_there() -> None:
    readme = EXAMPLES.parent.joinpath("README.md").read_text(encoding="utf-8")
    named = {word.split("`")[0].split(")")[0] for word in readme.split("examples/")[1:]}
    missing = [name for name in named if name.endswith(".py") and not (EXAMPLES / name).is_file()]
    assert missing == []
