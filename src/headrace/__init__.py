"""Headrace: a stream processor for Python teams who run Spark.

What every first program uses is here, the rest is in the namespaces: ``hr.windows``, ``hr.triggers``,
``hr.aggregates``, ``hr.io``, ``hr.streams``, ``hr.tables``, ``hr.calls``, ``hr.tasks`` and ``hr.errors``. Each public
name has one home. ``headrace.testing`` has the test kit's contracts. Every other module may change.
"""

from headrace import aggregates, calls, errors, io, streams, tables, tasks, triggers, windows
from headrace.api.aggregates import count, sum
from headrace.api.handles import Output, Table
from headrace.api.stream import Stream
from headrace.api.windows import hopping, session, tumbling
from headrace.app import App
from headrace.serdes.schema import Schema

__version__ = "0.1.0"

__all__ = [
    "App",
    "Output",
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
    "session",
    "streams",
    "sum",
    "tables",
    "tasks",
    "triggers",
    "tumbling",
    "windows",
]
