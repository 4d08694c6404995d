"""PyFlink in the benchmark: it does the jobs that bench/peer.py sends, in an environment without Headrace.

The Table API runs in streaming mode with a task for each core, and a checkpoint every second, in files: the memory that
Flink uses by default is too small for those of the join. State is on the heap, the fastest of Flink's backends. Objects
are reused, and Python functions run in the JVM's own threads, as its docs recommend. The Table API has no function with
state for each message, so the running count is a keyed process function of the DataStream API between two tables. The
only argument is the folder of the jars that read Parquet.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pyflink
from jobs import do_jobs
from pyflink.common import Configuration, Row, Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import EnvironmentSettings, StreamTableEnvironment

CORES = len(os.sched_getaffinity(0))
JARS = sorted(Path(sys.argv[1]).resolve().glob("*.jar"))
SETTINGS = {
    "pipeline.jars": ";".join(path.as_uri() for path in JARS),
    "pipeline.classpaths": ";".join(path.as_uri() for path in JARS),
    "pipeline.object-reuse": "true",
    "parallelism.default": str(CORES),
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.storage": "filesystem",
    "restart-strategy.type": "disable",
    "state.backend.type": "hashmap",
    "taskmanager.memory.process.size": "3g",
    "python.execution-mode": "thread",
    "python.executable": sys.executable,
    "python.client.executable": sys.executable,
}
READ = """
CREATE TEMPORARY TABLE page_views (
  `member` STRING, url STRING, ts BIGINT,
  t AS TO_TIMESTAMP_LTZ(ts, 3), WATERMARK FOR t AS t - INTERVAL '1' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'parquet')
"""
WRITE = "CREATE TEMPORARY TABLE results ({}) WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'parquet')"
FILTER = "INSERT INTO results SELECT `member`, ts / 1000 FROM page_views WHERE url <> '/health'"
COUNT = """
INSERT INTO results SELECT 1000 * UNIX_TIMESTAMP(CAST(window_start AS STRING)), `member`, COUNT(*)
FROM TUMBLE(TABLE page_views, DESCRIPTOR(t), INTERVAL '10' SECONDS)
WHERE url <> '/health' GROUP BY `member`, window_start, window_end
"""
ORDERS = """
CREATE TEMPORARY TABLE orders (
  `member` STRING, cents BIGINT, ts BIGINT,
  t AS TO_TIMESTAMP_LTZ(ts, 3), WATERMARK FOR t AS t - INTERVAL '1' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'parquet')
"""
JOIN = """
INSERT INTO results SELECT v.`member`, v.url, v.ts, o.cents FROM page_views v JOIN orders o
ON v.`member` = o.`member` AND o.t BETWEEN v.t AND v.t + INTERVAL '0.1' SECOND
WHERE v.url <> '/health'
"""
KEPT = "CREATE TEMPORARY VIEW kept AS SELECT `member`, t FROM page_views WHERE url <> '/health'"
SESSIONS = """
INSERT INTO results SELECT `member`, window_start, window_end, COUNT(*)
FROM SESSION(TABLE kept PARTITION BY `member`, DESCRIPTOR(t), INTERVAL '0.3' SECOND)
GROUP BY `member`, window_start, window_end
"""
QUERIES = {"filter": FILTER, "count": COUNT, "sessions": SESSIONS, "join": JOIN}
RESULTS = {
    "filter": "`member` STRING, s BIGINT",
    "count": "`start` BIGINT, `member` STRING, `views` BIGINT",
    "running": "`member` STRING, n BIGINT",
    "sessions": "`member` STRING, `start` TIMESTAMP(3), `end` TIMESTAMP(3), `views` BIGINT",
    "join": "`member` STRING, url STRING, ts BIGINT, cents BIGINT",
}
# The interpreters in the JVM's threads don't look for packages where this environment has them.
os.environ["PYTHONPATH"] = str(Path(pyflink.__file__).parents[1])
NUMBERED = Types.ROW_NAMED(["member", "n"], [Types.STRING(), Types.LONG()])


class _Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self._seen = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value, ctx):
        n = (self._seen.value() or 0) + 1
        self._seen.update(n)
        yield Row(value[0], n)


def run(work, source, target):
    """Run a job until its end, and move its results where they are expected."""
    configuration = Configuration()
    for name, value in SETTINGS.items():
        configuration.set_string(name, value)
    configuration.set_string("execution.checkpointing.dir", Path(target, "checkpoints").as_uri())
    streams = StreamExecutionEnvironment.get_execution_environment(configuration)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    tables = StreamTableEnvironment.create(streams, settings)
    tables.get_config().set("table.local-time-zone", "UTC")
    views = Path(source, "views") if work == "join" else source
    tables.execute_sql(READ.format(views))
    tables.execute_sql(ORDERS.format(Path(source, "orders")))
    tables.execute_sql(KEPT)
    tables.execute_sql(WRITE.format(RESULTS[work], Path(target, "rows")))
    if work == "running":
        members = tables.sql_query("SELECT `member` FROM page_views WHERE url <> '/health'")
        counted = tables.to_data_stream(members).key_by(lambda row: row[0], Types.STRING()).process(_Count(), NUMBERED)
        tables.from_data_stream(counted).execute_insert("results").wait()
    else:
        tables.execute_sql(QUERIES[work]).wait()
    for number, path in enumerate(sorted(Path(target, "rows").glob("part-*"))):
        path.rename(path.with_name(f"{number}.parquet"))


def root_cause(error):
    """The last of the causes that Flink's error lists."""
    return " ".join(str(error).rpartition("Caused by: ")[2].split())[:300]


do_jobs(f"PyFlink {version('apache-flink')}", run, root_cause)
