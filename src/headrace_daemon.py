"""Spark's daemon of Python workers, deaf to SIGTERM: beside the package, whose import would start threads before forks.

systemd sends SIGTERM to every process of a service. A daemon that ended by it would take the containers along, and the
driver could no longer drain them. Workers inherit the blocked signal. Spark ends a worker by SIGKILL, and the daemon
by closing its standard input.

Spark has its workers import PySpark from an archive, which Python compiles anew in each process. If PySpark is
installed with the Spark that runs, the installed modules are the same, and compiled.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

_NEW_OBJECTS = 10_000
"""A worker imports Headrace: a search for garbage after every 700 objects, as usual, would be a tenth of that time."""


def main() -> None:
    """Run PySpark's daemon until its JVM ends it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    sys.path[:] = without_archives(sys.path)
    gc.disable()
    import pyspark.worker  # noqa: F401 - what each worker imports, before it is forked
    from pyspark.daemon import manager

    gc.freeze()  # workers share these objects, which a collection would copy to look at them
    gc.set_threshold(_NEW_OBJECTS)
    gc.enable()
    manager()


def without_archives(path: Sequence[str]) -> list[str]:
    """The path without what Spark has put there of itself, if its home is the PySpark that is installed here."""
    homes = [Path(entry).parents[2] for entry in path if entry.endswith("/python/lib/pyspark.zip")]
    if not homes or not (homes[0] / "__init__.py").is_file():
        return list(path)
    kept = [entry for entry in path if not Path(entry).is_relative_to(homes[0])]
    found, py4j = PathFinder.find_spec("pyspark", kept), PathFinder.find_spec("py4j", kept)
    is_same = found is not None and found.origin == str(homes[0] / "__init__.py")
    return kept if is_same and py4j is not None else list(path)


if __name__ == "__main__":
    main()
