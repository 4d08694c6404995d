"""The Spark session in which both contestants run, with the best settings found for Structured Streaming.

Headrace needs none of the settings for SQL. It starts its containers in the same session, as a job of its own.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from bench.measure import CORES
from headrace.run.spark.session import open_session

_STATE_STORE = "spark.sql.streaming.stateStore."
SETTINGS = {
    # The heap has its full size from the start: that halved the query's processor time, and made it steady. G1, the
    # default, was faster than the parallel collector. Stacks are large because the socket source's plans are deep.
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-Xms3g -XX:+AlwaysPreTouch -Xss16m",
    # One task of the second stage for each core: each further task costs a commit of its state store.
    "spark.sql.shuffle.partitions": str(CORES),
    _STATE_STORE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # Commits write only changes instead of whole files, and writes need no extra read to keep a row count.
    _STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true",
    _STATE_STORE + "rocksdb.trackTotalNumberOfRows": "false",
    "spark.ui.enabled": "false",
    # Spark disables it in stateful queries anyway; this avoids a warning for each one.
    "spark.sql.adaptive.enabled": "false",
}


def open_bench_session() -> SparkSession:
    """Open a session on all cores of this machine."""
    session = open_session("headrace bench", f"local[{CORES}]", SETTINGS)
    session.sparkContext.setLogLevel("ERROR")
    return session
