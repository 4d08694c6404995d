"""Signals that ask a run to end: the driver alone acts on them, and drains the app.

A terminal sends Ctrl-C to every process of its group, ``kill -TERM -GROUP`` does the same with SIGTERM, and systemd
sends SIGTERM to every process of a service. If Spark's JVM ended by it, there would be nothing left to drain.

- A JVM that PySpark starts ignores SIGINT, and executors inherit that. It has a process group of its own, so nothing
  sent to the driver's group reaches it, even before it is up. As soon as it is up, it ignores SIGTERM, too.
- A JVM that ``spark-submit`` started is the driver's parent, and its pid is the one that others know. It ignores
  SIGINT, which the driver gets from the terminal, and passes SIGTERM on to the driver. Executors of ``local-cluster``
  that get SIGTERM, too, end then, and their containers start again before they drain.
- Python workers have process groups of their own, and their daemon ignores SIGTERM (``headrace_daemon``).

A JVM ends when its driver does, and a daemon when its JVM does.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from headrace.core.log import logger

STARTED_BY_SPARK = "PYSPARK_GATEWAY_PORT"
"""An environment variable that is set if ``spark-submit`` has started the JVM, and the JVM this process."""

_log = logger(__name__)


def leave_signals_to_driver() -> None:
    """Have this process's JVM, and executors that it starts from now on, leave SIGINT and SIGTERM to this process."""
    jvm: Any = SparkContext._jvm
    signals = jvm.sun.misc
    if STARTED_BY_SPARK not in os.environ:
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
        return
    signals.Signal.handle(signals.Signal("INT"), signals.SignalHandler.SIG_IGN)
    ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
    signals.Signal.handle(signals.Signal("TERM"), _PassOn())


class _PassOn:
    """A ``sun.misc.SignalHandler`` of the JVM that sends the signal to this process."""

    class Java:
        """Tells Py4J what the JVM takes it for."""

        implements = ("sun.misc.SignalHandler",)

    def handle(self, received: Any) -> None:
        """The JVM has got the signal."""
        _log.info("Spark's JVM passes a signal on to the driver", signal=str(received.getName()))
        os.kill(os.getpid(), signal.SIGTERM)
