"""Map names of other libraries to Headrace's, for the errors about attributes that don't exist.

Other names are compared with the existing ones, but for those that begin with ``_``, which Python and notebooks look
up.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Mapping

from headrace.core.errors import DeclarationError

_PARTITION = 'partition_by("key", id="by-key")'
_WINDOW = 'window(hr.tumbling("10s"), key="key", id="per-10s")'
_COUNT = f"{_WINDOW}.agg(n=pl.len())"
_SEND = 'send_to("name")'
_INPUT = 'app.input("name", schema={...})'
_JOIN = 'join(other, on="key", within="5m", id="pairs")'
_TASK = 'process(task, {...}, id="name") with an hr.tasks.Task'
_LATENESS = 'app.input("name", {...}, event_time="ts", lateness="5s")'
_KINESIS = 'hr.io.kinesis("name", region="eu-west-1")'
_KAFKA = 'hr.io.kafka("name", brokers="host:9092")'
_ROWS = f"{_SEND}, and read it with hr.streams.StreamReader or `headrace stream read`"
_BROKER = (
    "isn't supported yet. Use the embedded log (the default), hr.io.files(...), or a system of your own (entry point "
    "headrace.systems)"
)


def _same(advice: str, *words: str) -> dict[str, str]:
    return dict.fromkeys(words, advice)


STREAM: Mapping[str, str] = {
    **_same(f"{_PARTITION}, then {_COUNT}, or group_by()", "groupBy", "groupby", "group_by_key", "groupByKey"),
    **_same(_PARTITION, "key_by", "keyBy", "partitionBy", "repartition", "through", "select_key", "selectKey"),
    **_same("with_columns(name=...)", "withColumn", "withColumns", "with_column", "assign", "add_column", "apply"),
    **_same('rename({"old": "new"})', "alias", "withColumnRenamed"),
    **_same("with_columns(name=pl.col(...).cast(...))", "cast"),
    **_same('filter(pl.col("x") > 1)', "where", "filter_not", "filterNot"),
    **_same('filter(pl.col("x").is_not_null())', "drop_nulls", "dropna"),
    **_same('with_columns(pl.col("x").fill_null(0))', "fill_null", "fillna"),
    **_same("map(function) or with_columns(name=...)", "map_values", "mapValues", "map_value", "map_rows"),
    **_same("flat_map(function)", "flatMap", "flat_map_values", "flatMapValues", "explode"),
    **_same("map_batches(function)", "map_partitions", "mapPartitions", "mapInPandas", "mapInArrow", "transform"),
    **_same("map_async(function)", "async_map", "asyncMap", "map_with_async"),
    **_same(_COUNT, "agg", "aggregate", "reduce", "fold", "count", "sum", "mean", "min", "max"),
    **_same(_WINDOW, "windowed_by", "windowedBy", "tumbling_window", "hopping_window", "sliding_window"),
    **_same(_WINDOW, "session_window", "tumble", "group_by_dynamic", "rolling", "window_all"),
    **_same('top(10, "price")', "sort", "sort_by", "order_by", "orderBy", "top_k", "rank", "nlargest"),
    **_same(_JOIN, "join_stream", "joinStream", "left_join", "leftJoin", "outer_join", "interval_join", "intervalJoin"),
    **_same("join(table), of a table with versions=", "join_asof", "joinAsOf", "as_of"),
    **_same("join(table)", "join_table", "joinTable", "lookup", "enrich"),
    **_same("merge(other)", "union", "unionAll", "concat", "vstack", "connect"),
    **_same("split({...})", "branch"),
    **_same('deduplicate("key", within="1h", id="once")', "distinct", "unique", "drop_duplicates", "dropDuplicates"),
    **_same(_LATENESS, "with_watermark", "withWatermark", "assign_timestamps", "assign_timestamps_and_watermarks"),
    **_same(_SEND, "to", "to_topic", "write", "write_to", "writeTo", "sink_to", "sinkTo", "add_sink", "addSink"),
    **_same(_SEND, "output", "produce", "write_stream", "writeStream", "insert_into"),
    **_same("send_to(table) with a table of app.table(...)", "to_table", "toTable", "materialize", "put"),
    **_same("sink(function)", "foreach", "forEach", "for_each", "foreach_batch", "foreachBatch", "peek", "inspect"),
    **_same(_TASK, "stateful_map", "process_function", "transform_with_state", "transformWithState"),
    **_same(_TASK, "flatMapGroupsWithState", "mapGroupsWithState", "applyInPandasWithState"),
    **_same(_ROWS, "collect", "limit", "take", "to_pandas", "toPandas", "to_dicts", "rows"),
    **_same("app.run()", "start", "execute", "awaitTermination", "run"),
    **_same("schema.columns", "columns", "dtypes", "collect_schema"),
}

WINDOWED: Mapping[str, str] = {
    **_same("agg(n=pl.len())", "count", "len", "size"),
    **_same('agg(x=pl.col("x").sum())', "sum", "mean", "avg", "min", "max", "first", "last"),
    **_same(
        "agg(x=hr.aggregates.reduce(...)) or hr.aggregates.fold", "reduce", "fold", "aggregate", "process", "apply"
    ),
}

APP: Mapping[str, str] = {
    **_same(_INPUT, "stream", "source", "add_source", "from_source", "read", "readStream", "read_stream"),
    **_same(_INPUT, "dataframe", "from_topic", "agent", "consume", "add_input"),
    **_same('app.input("name", ...) or app.output("name")', "topic", "Topic", "channel"),
    **_same('app.output("name")', "sink", "add_sink", "writeStream", "add_output", "to"),
    **_same('app.table("name", key="key")', "Table", "GlobalTable", "global_table", "globalTable", "ktable", "state"),
    **_same("app.run()", "execute", "main", "serve", "launch"),
    **_same("app.explain()", "describe", "topology"),
}

TABLE: Mapping[str, str] = {
    **_same("hr.tables.open_table(app, table), while the app runs", "get", "scan", "lookup", "rows", "read", "items"),
    **_same("stream.send_to(table)", "put", "write", "insert", "upsert", "update", "set"),
    **_same("stream.delete_from(table)", "delete", "remove", "pop"),
    **_same("stream.join(table)", "join", "join_stream"),
}

OUTPUT: Mapping[str, str] = {
    **_same("stream.send_to(output)", "write", "send", "put", "produce", "append"),
    **_same("hr.streams.StreamReader, or `headrace stream read`", "read", "rows", "collect", "show"),
}

_BROKERS = {
    **_same(_KAFKA, "Kafka", "KafkaSource", "KafkaSink", "from_kafka", "to_kafka"),
    **_same(f"{_KAFKA}, which is how Event Hubs can be read", "eventhubs", "EventHubs", "event_hubs"),
    **{word: f"{word.capitalize()} {_BROKER}" for word in ("pulsar", "rabbitmq", "redis", "pubsub")},
}

HR: Mapping[str, str] = {
    **_BROKERS,
    **_same(_KAFKA, "kafka"),
    **_same(_KINESIS, "kinesis", "Kinesis", "KinesisSource", "KinesisSink", "from_kinesis", "to_kinesis"),
    **_same("pl.col(...), of polars", "col", "column", "expr"),
    **_same("pl.lit(...), of polars", "lit"),
    **_same("hr.count(), or pl.len() of polars", "len"),
    **_same('hr.tumbling("10s"), hr.hopping, hr.session, or one of hr.windows', "Window", "window", "over"),
    **_same('hr.tumbling("10s")', "tumble", "TumblingWindow", "tumbling_window", "TumblingWindows"),
    **_same('hr.hopping("10s", every="5s")', "hop", "HoppingWindow", "hopping_window", "HoppingWindows"),
    **_same('hr.session("10m")', "SessionWindow", "session_window", "SessionWindows"),
    **_same('hr.windows.sliding("10s")', "SlidingWindow", "sliding_window", "SlidingWindows"),
    **_same("hr.mean(...)", "avg", "average"),
    **_same('hr.App("name")', "Application", "StreamApp", "StreamsBuilder", "Dataflow", "Pipeline"),
    **_same(_INPUT, "read_stream", "readStream", "from_source", "Topic", "topic", "Source"),
    **_same('app.table("name", key="key")', "KTable", "GlobalTable"),
    **_same('app.input("name", system=hr.io.dataframe(df))', "dataframe", "DataFrame"),
    **_same("app.test()", "TestApp", "TopologyTestDriver"),
}

IO: Mapping[str, str] = {
    **_BROKERS,
    **_same(_KINESIS, "Kinesis", "KinesisSource", "KinesisSink", "from_kinesis", "to_kinesis"),
    **_same('hr.io.registry("http://localhost:8081")', "schema_registry", "SchemaRegistry", "SchemaRegistryClient"),
    **_same("hr.io.changelog(format)", "tombstones", "upsert", "upsert_kafka", "compacted"),
    **_same('hr.io.files("data/*.parquet")', "parquet", "json", "ndjson", "jsonl", "read_parquet", "read_csv"),
    **_same('hr.io.delta("lake/views")', "deltalake", "delta_lake", "write_delta", "write_deltalake", "DeltaSink"),
    **_same("hr.io.dataframe(spark.read...)", "spark", "table", "iceberg", "hive", "from_spark", "DataFrame"),
    **_same('hr.io.sql("postgresql://...", table="name", key="key")', "jdbc", "postgres", "postgresql", "sqlite"),
}

AGGREGATES: Mapping[str, str] = {
    **_same("hr.count()", "count", "len", "size"),
    **{name: f"hr.{name}(...)" for name in ("sum", "min", "max", "mean")},
    **_same("hr.mean(...)", "avg", "average"),
    **_same("hr.aggregates.n_unique(...)", "count_distinct", "countDistinct", "distinct"),
    **_same("hr.aggregates.approx_n_unique(...)", "approx_count_distinct"),
    **_same("hr.aggregates.implode(...)", "collect_list", "collect", "list"),
}

WINDOWS: Mapping[str, str] = {
    **_same('hr.tumbling("10s")', "tumbling", "tumble", "TumblingWindow"),
    **_same('hr.hopping("10s", every="5s")', "hopping", "hop", "HoppingWindow"),
    **_same('hr.session("10m")', "session", "SessionWindow"),
    **_same('hr.windows.sliding("10s")', "SlidingWindow"),
}


def missing(
    owner: str, name: str, words: Mapping[str, str], known: Iterable[str], columns: Container[str] = ()
) -> AttributeError:
    """The error for an attribute that ``owner`` doesn't have; ``known`` are those that it has."""
    text = f"{owner} has no {name!r}"
    if name.startswith("_"):
        return AttributeError(text)
    if name in columns:
        return AttributeError(f"{text}; the column is pl.col({name!r}), in filter(...), select(...) and other steps")
    if name in words:
        advice = words[name]
        return AttributeError(f"{text}: {advice}" if _BROKER in advice else f"{text}; write {advice}")
    close = difflib.get_close_matches(name, [one for one in known if not one.startswith("_")], n=1)
    return AttributeError(f"{text}; did you mean {close[0]!r}?" if close else text)


def not_a_join(*options: str) -> DeclarationError:
    """The error for ``merge(other, on="key")``, which in pandas joins."""
    what = f"it takes streams and no {options[0]}=" if options else "it takes streams only"
    advice = f"to combine messages of a key, write {_JOIN}, or join(table)"
    return DeclarationError(f"{what}, and its result has the messages of all of them, as they are", hint=advice)


def indexed(index: object) -> TypeError:
    """The error for ``stream[index]``."""
    match index:
        case str():
            advice = f"the column is pl.col({index!r}), in filter(...), select(...) and other steps"
        case list() | tuple():
            advice = f"write select({', '.join(map(repr, index))}) for some of its columns"
        case int() | slice():
            advice = "head(5) returns the first messages of a test run"
        case _:
            advice = "write filter(...) for some of its messages"
    return TypeError(f"a stream has no []; {advice}")
