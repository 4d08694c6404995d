"""mypy agrees with all of the code, and with what the API accepts and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_mypy_strict_takes_everything_and_the_public_usage() -> None:
    # The whole first: the usage goes on from its cache. `make test` has no other check of types, as it would leave one
    # of two processors idle.
    whole = mypy()
    assert whole.returncode == 0, whole.stdout + whole.stderr
    result = mypy("--strict", "--warn-unused-ignores", "--no-error-summary", str(HERE / "public_usage.py"))
    about_usage = [line for line in result.stdout.splitlines() if "public_usage.py" in line]
    assert about_usage == []
    assert result.returncode in (0, 1), result.stdout + result.stderr
