"""Headrace: a stream processor for Python teams who run Spark.

Everything a user needs is here; every other module may move. Exports are written by hand.
"""

from headrace.api.aggregates import collect, count, distinct, first, fold, last, max, mean, min, reduce, sum, top
from headrace.api.calling import retry
from headrace.api.descriptors import files, log, memory, sql
from headrace.api.handles import Output, Table
from headrace.api.remote import Remote, cached, remote, sql_table
from headrace.api.shapes import CountWindow, GlobalWindow, Hopping, Session, Sliding, Trigger, Tumbling
from headrace.api.steps import Aggregate
from headrace.api.stream import Stream
from headrace.api.tasks import Out, Store, Task, TaskContext, Timer
from headrace.api.triggers import after, all_of, any_of, at_close, every, repeated, since_first, since_last
from headrace.api.windows import count_window, global_window, hopping, session, sliding, tumbling
from headrace.app import App
from headrace.core.errors import (
    DataError,
    DeclarationError,
    HeadraceError,
    InfrastructureError,
    PlanError,
    StreamNotFoundError,
    UnavailableError,
    UsageError,
    UserFunctionError,
)
from headrace.core.retry import Retry
from headrace.runners.tables.reader import TableReader, open_table
from headrace.serdes.schema import Schema
from headrace.streams import StreamReader, StreamWriter, create_stream, read_stream

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "App",
    "CountWindow",
    "DataError",
    "DeclarationError",
    "GlobalWindow",
    "HeadraceError",
    "Hopping",
    "InfrastructureError",
    "Out",
    "Output",
    "PlanError",
    "Remote",
    "Retry",
    "Schema",
    "Session",
    "Sliding",
    "Store",
    "Stream",
    "StreamNotFoundError",
    "StreamReader",
    "StreamWriter",
    "Table",
    "TableReader",
    "Task",
    "TaskContext",
    "Timer",
    "Trigger",
    "Tumbling",
    "UnavailableError",
    "UsageError",
    "UserFunctionError",
    "__version__",
    "after",
    "all_of",
    "any_of",
    "at_close",
    "cached",
    "collect",
    "count",
    "count_window",
    "create_stream",
    "distinct",
    "every",
    "files",
    "first",
    "fold",
    "global_window",
    "hopping",
    "last",
    "log",
    "max",
    "mean",
    "memory",
    "min",
    "open_table",
    "read_stream",
    "reduce",
    "remote",
    "repeated",
    "retry",
    "session",
    "since_first",
    "since_last",
    "sliding",
    "sql",
    "sql_table",
    "sum",
    "top",
    "tumbling",
]
