"""The one Spark session that both contestants run in, with the settings that serve Structured Streaming best.

Headrace needs none of the settings for SQL; it starts its containers in the same session as a job of its own.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from headrace.runners.spark.session import open_session

CORES = len(os.sched_getaffinity(0))

_STATE_STORE = "spark.sql.streaming.stateStore."
SETTINGS = {
    # A heap that is there from the start: the query's processor time was half of that with a growing heap, and steady.
    # G1, the default, was ahead of the parallel collector. Deep stacks: the socket source's plans are deep.
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-Xms3g -XX:+AlwaysPreTouch -Xss16m",
    # One task of the second stage per core: more cost a state store commit each, fewer leave a core idle.
    "spark.sql.shuffle.partitions": str(CORES),
    _STATE_STORE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # Commits write what changed instead of whole files, and no extra read for each write to keep a row count.
    _STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true",
    _STATE_STORE + "rocksdb.trackTotalNumberOfRows": "false",
    "spark.ui.enabled": "false",
    # It is switched off in stateful queries anyway; saying so saves a warning for each.
    "spark.sql.adaptive.enabled": "false",
}


def open_bench_session() -> SparkSession:
    """A session on all cores of this machine."""
    session = open_session("headrace bench", f"local[{CORES}]", SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    return session
