"""Headrace: a stream processor for Python teams who run Spark.

Everything a user needs is here; every other module may move. Exports are written by hand.
"""

from headrace.api.aggregates import collect, count, max, mean, min, sum
from headrace.api.descriptors import files, log, memory, sql
from headrace.api.handles import Output, Table
from headrace.api.specs import Aggregate, Tumbling
from headrace.api.stream import Stream
from headrace.api.windows import tumbling
from headrace.app import App
from headrace.core.errors import (
    DataError,
    DeclarationError,
    HeadraceError,
    PlanError,
    StreamNotFoundError,
    SurroundingsError,
    UsageError,
    UserFunctionError,
)
from headrace.serdes.schema import Schema
from headrace.streams import StreamReader, StreamWriter, create_stream, read_stream

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "App",
    "DataError",
    "DeclarationError",
    "HeadraceError",
    "Output",
    "PlanError",
    "Schema",
    "Stream",
    "StreamNotFoundError",
    "StreamReader",
    "StreamWriter",
    "SurroundingsError",
    "Table",
    "Tumbling",
    "UsageError",
    "UserFunctionError",
    "__version__",
    "collect",
    "count",
    "create_stream",
    "files",
    "log",
    "max",
    "mean",
    "memory",
    "min",
    "read_stream",
    "sql",
    "sum",
    "tumbling",
]
