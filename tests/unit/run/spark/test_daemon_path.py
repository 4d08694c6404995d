"""From where Python workers import PySpark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from headrace_daemon import without_archives

HOME = Path(pyspark.__file__).parent
ARCHIVES = [str(HOME / "python/lib/pyspark.zip"), str(HOME / "python/lib/py4j-0-src.zip"), str(HOME / "jars/core.jar")]


def test_the_archives_of_the_installed_pyspark_are_left_out() -> None:
    assert without_archives(["/app", *ARCHIVES, *sys.path]) == ["/app", *sys.path]


def test_the_archives_of_another_spark_stay(tmp_path: Path) -> None:
    for home in (tmp_path / "spark", tmp_path / "other-python" / "pyspark"):
        path = [str(home / "python/lib/pyspark.zip"), *sys.path]
        assert without_archives(path) == path
        home.mkdir(parents=True)
        (home / "__init__.py").touch()
        assert without_archives(path) == path, "another installation"


def test_the_archives_stay_where_the_installed_pyspark_can_not_be_imported() -> None:
    path = ["/app", *ARCHIVES]
    assert without_archives(path) == path


def test_a_worker_s_modules_start_no_thread_and_load_no_library_before_the_fork() -> None:
    program = """
import os, sys, pyspark.daemon, pyspark.worker
print(len(os.listdir("/proc/self/task")), {"numpy", "pandas", "pyarrow", "polars", "headrace"} & set(sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "set()"]
