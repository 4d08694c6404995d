"""Detect that Spark's JVM has ended during a run, because a user or, for lack of memory, the kernel killed it.

Py4J then raises one of several errors from whatever call is next, and writes a traceback to the root logger. Here all
of that becomes one error.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from headrace.core.errors import InfrastructureError

_ENDS_S = 1.0
"""How long a process whose sockets are closed may take to end."""

_PY4J = f"{os.sep}py4j{os.sep}"


def is_loss(error: BaseException) -> bool:
    """Return whether an error of a call into the JVM came from the connection and not from the called method."""
    return isinstance(error, OSError | Py4JError) and not isinstance(error, Py4JJavaError)


@contextmanager
def calling_jvm() -> Iterator[None]:
    """For calls into the JVM: if it has gone, raise the error that says so."""
    try:
        yield
    except (OSError, Py4JError) as error:
        if not is_loss(error):
            raise
        raise jvm_lost(error) from None


def jvm_lost(error: BaseException) -> InfrastructureError:
    """The error for a call that the JVM didn't answer."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    code = None
    if process is not None:
        try:
            code = process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            return InfrastructureError(f"Spark's JVM doesn't answer: {error}", hint=_RESUMES)
    if code is None:
        how = "has ended, or can't be reached"
    else:
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    return InfrastructureError(f"Spark's JVM {how} while the app ran", hint=f"{_LOOK}; {_RESUMES}")


_LOOK = "if you didn't kill it, check the kernel's log (dmesg) for a lack of memory"
_RESUMES = "start the app again: it resumes from its last checkpoints"


def forget_jvm() -> None:
    """Have the next run of this process start a new JVM, because the old one has gone."""
    with SparkContext._lock:
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None


def silence_py4j() -> None:
    """Drop the tracebacks that Py4J writes to the root logger; the errors that it raises say the same. Idempotent."""
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return _PY4J not in record.pathname
