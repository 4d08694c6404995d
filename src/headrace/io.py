"""Where a stream lives: for ``app.input(system=)`` and ``app.output(system=)``."""

from headrace.api.descriptors import files, log, memory, sql

__all__ = [
    "files",
    "log",
    "memory",
    "sql",
]
