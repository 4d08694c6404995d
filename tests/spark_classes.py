"""Writes an archive of the classes of Spark that tests load: their JVMs then map them, and needn't read and check them.

``python tests/spark_classes.py ARCHIVE``; ``tests/conftest.py`` has JVMs of tests use it. A JVM that finds that an
archive isn't of the same Java and the same jars goes without.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkContext

from headrace.run.spark.session import open_session


def write(archive: Path) -> None:
    """Have a JVM load what tests use, and write it as it ends."""
    draft = archive.with_suffix(".draft")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:cds*=off -XX:ArchiveClassesAtExit={draft.absolute()}"
    session = open_session("classes", "local[1]")
    rows = session.createDataFrame([(1, "a"), (2, "b")], "n long, s string")
    rows.groupBy("s").count().toArrow()
    rows.mapInArrow(lambda batches: batches, "n long, s string").collect()
    session.sparkContext.parallelize(range(2), 1).mapPartitions(list).collect()
    jvm = SparkContext._gateway.proc
    session.stop()
    jvm.stdin.close()  # what it waits for
    jvm.wait()
    draft.replace(archive)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
