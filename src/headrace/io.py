"""Where a stream lives: for ``app.input(system=)`` and ``app.output(system=)``."""

from headrace.api.descriptors import csv, files, log, memory, sql

__all__ = [
    "csv",
    "files",
    "log",
    "memory",
    "sql",
]
