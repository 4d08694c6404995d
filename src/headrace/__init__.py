"""Headrace: a stream processor for Python teams who run Spark.

What every first program uses is here, the rest is in the namespaces: ``hr.windows``, ``hr.triggers``,
``hr.aggregates``, ``hr.io``, ``hr.streams``, ``hr.tables``, ``hr.calls``, ``hr.tasks``, ``hr.startpoints``,
``hr.spark`` and ``hr.errors``. Each public name has one home. ``headrace.testing`` has the test kit's contracts. Every
other module may change.
"""

from headrace import aggregates, calls, errors, io, spark, startpoints, streams, tables, tasks, triggers, windows
from headrace.api.aggregates import count, sum
from headrace.api.handles import Output, Table
from headrace.api.secrets import secret_env, secret_file
from headrace.api.stream import Stream
from headrace.api.windows import hopping, session, tumbling
from headrace.app import App
from headrace.runners.savepoints.access import Savepoint, read_savepoint, write_savepoint
from headrace.serdes.schema import Schema

__version__ = "0.1.0"

__all__ = [
    "App",
    "Output",
    "Savepoint",
    "Schema",
    "Stream",
    "Table",
    "__version__",
    "aggregates",
    "calls",
    "count",
    "errors",
    "hopping",
    "io",
    "read_savepoint",
    "secret_env",
    "secret_file",
    "session",
    "spark",
    "startpoints",
    "streams",
    "sum",
    "tables",
    "tasks",
    "triggers",
    "tumbling",
    "windows",
    "write_savepoint",
]

TYPE_CHECKING = False  # type checkers take it for true, and go on to report names that don't exist
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from headrace.api.other_names import HR, missing

        namespaces = (windows, triggers, aggregates, io, streams, tables, calls, tasks, startpoints, spark, errors)
        elsewhere = {
            one: f"hr.{space.__name__.rpartition('.')[2]}.{one}" for space in namespaces for one in space.__all__
        }
        raise missing("hr", name, elsewhere | dict(HR), __all__)
