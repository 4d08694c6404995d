"""mypy agrees with what the API accepts and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.slow
def test_mypy_strict_takes_the_public_usage() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--no-error-summary"]
    # With the cache that checking the types of everything has left in the root: most of the time goes into that.
    command += ["--config-file", str(ROOT / "pyproject.toml"), str(HERE / "public_usage.py")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    about_usage = [line for line in result.stdout.splitlines() if "public_usage.py" in line]
    assert about_usage == []
    assert result.returncode in (0, 1), result.stdout + result.stderr
