"""Spark that stops by itself, as it does when its master never answers: who waits for slots hears of it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from headrace.core.errors import SurroundingsError
from headrace.runners.spark.session import open_context
from headrace.runners.spark.slots import check_slots

context = open_context("given up", "local-cluster[1,1,1024]")
context._jsc.sc().stop()
try:
    check_slots(context, 1, wait_seconds_max=1000.0)
except SurroundingsError as error:
    print(error.message)
"""


def test_a_stopped_spark_is_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "Spark has ended the application on local-cluster[1,1,1024] before any container began\n"
