"""Places for streams (``app.input(system=)``, ``app.output(system=)``) and for snapshots (``hr.App(snapshots=)``).

Those of connectors are entry points of the group ``headrace.io``; each is imported when it is first used.
"""

from headrace.api.dataframe import dataframe
from headrace.api.descriptors import changelog, csv, files, log, memory, object_store, sql

TYPE_CHECKING = False  # type checkers take it for true, and go on to report names that don't exist
if TYPE_CHECKING:
    from headrace.connectors.delta.descriptor import delta
    from headrace.connectors.formats.descriptor import avro, debezium, json_schema, protobuf, registry
    from headrace.connectors.kafka.descriptor import kafka, kafka_log
    from headrace.connectors.kinesis.descriptor import kinesis

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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from headrace.core.plug_ins import loaded, plug_in

        if not name.startswith("_") and (maker := plug_in("headrace.io", name)) is not None:
            found = globals()[name] = loaded(maker)
            return found
        if name in __all__:
            raise AttributeError(
                f"hr.io.{name} belongs to a connector that this installation of Headrace was made without; "
                "install it with all connectors: pip install --force-reinstall headrace"
            )
        from headrace.api.other_names import IO, missing

        raise missing("hr.io", name, IO, __all__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
