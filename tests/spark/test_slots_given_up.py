"""Spark doesn't start, or stops by itself, as it does when its master never answers: the error says why."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from headrace.core.errors import InfrastructureError
from headrace.run.spark.session import open_context
from headrace.run.spark.slots import Asked, decide

context = open_context("given up", "local-cluster[1,1,1024]")
context._jsc.sc().stop()
try:
    decide(context, Asked(app="a", tasks=1))
except InfrastructureError as error:
    print(error.message)
"""


def test_a_stopped_spark_is_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "Spark has ended the application on local-cluster[1,1,1024] before any container started\n"


REFUSED = """
from headrace.core.errors import InfrastructureError
from headrace.run.spark.session import open_context

try:
    open_context("refused", "local[1]", {"spark.driver.bindAddress": "192.0.2.1", "spark.port.maxRetries": "1"})
except InfrastructureError as error:
    print(str(error).splitlines())
"""


def test_why_spark_does_not_start_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.startswith("[\"Spark doesn't start on local[1,1000000]: ")
    assert "Cannot assign requested address" in done.stdout
    assert "hint: check --conf" in done.stdout
