"""Spark's daemon of Python workers, deaf to SIGTERM: beside the package, whose import would start threads before forks.

systemd sends SIGTERM to every process of a service. A daemon that ended by it would take the containers along, and the
driver could no longer drain them. Workers inherit the blocked signal. Spark ends a worker by SIGKILL, and the daemon
by closing its standard input.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run PySpark's daemon until its JVM ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
