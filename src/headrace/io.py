"""Places for streams (``app.input(system=)``, ``app.output(system=)``) and for snapshots (``hr.App(snapshots=)``)."""

from headrace.api.dataframe import dataframe
from headrace.api.delta import delta
from headrace.api.descriptors import csv, files, log, memory, sql
from headrace.api.formats import changelog
from headrace.api.kafka import kafka
from headrace.api.kafka_log import kafka_log
from headrace.api.kinesis import kinesis
from headrace.api.object_store import object_store
from headrace.api.registered_formats import avro, debezium, json_schema, protobuf, registry

__all__ = [
    "avro",
    "changelog",
    "csv",
    "dataframe",
    "debezium",
    "delta",
    "files",
    "json_schema",
    "kafka",
    "kafka_log",
    "kinesis",
    "log",
    "memory",
    "object_store",
    "protobuf",
    "registry",
    "sql",
]

TYPE_CHECKING = False  # type checkers take it for true, and go on to report names that don't exist
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from headrace.api.other_names import IO, missing

        raise missing("hr.io", name, IO, __all__)
