"""Headrace: a stream processor for Python teams who run Spark.

This module has the names that every first program uses. The rest is in the namespaces: ``hr.windows``, ``hr.triggers``,
``hr.aggregates``, ``hr.io``, ``hr.streams``, ``hr.tables``, ``hr.calls``, ``hr.tasks``, ``hr.startpoints``,
``hr.runs``, ``hr.metrics``, ``hr.spark`` and ``hr.errors``. Each public name has one home. ``headrace.kit`` has
the contracts of the test kit. All other modules are internal and may change.

A name is imported when it is first used, so that commands import no more than they need.
"""

TYPE_CHECKING = False  # type checkers take it for true; at run time, typing needn't be imported for it
if TYPE_CHECKING:
    from headrace import (
        aggregates,
        calls,
        errors,
        io,
        metrics,
        runs,
        spark,
        startpoints,
        streams,
        tables,
        tasks,
        triggers,
        windows,
    )
    from headrace.api.aggregates import count, max, mean, min, sum
    from headrace.api.descriptors import secret_env, secret_file
    from headrace.api.draft import Output, Table
    from headrace.api.stream import Stream
    from headrace.api.windows import hopping, session, tumbling
    from headrace.app import App, sql_app
    from headrace.rows.schema import Schema
    from headrace.run.savepoints.access import Savepoint, read_savepoint, restore_savepoint, write_savepoint

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
    "max",
    "mean",
    "metrics",
    "min",
    "read_savepoint",
    "restore_savepoint",
    "runs",
    "secret_env",
    "secret_file",
    "session",
    "spark",
    "sql_app",
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

_NAMESPACES = (
    "windows", "triggers", "aggregates", "io", "streams", "tables", "calls", "tasks", "startpoints", "runs", "metrics",
    "spark", "errors",
)  # fmt: skip
_MODULES = {
    "App": "app",
    "Output": "api.draft",
    "Savepoint": "run.savepoints.access",
    "Schema": "rows.schema",
    "Stream": "api.stream",
    "Table": "api.draft",
    "count": "api.aggregates",
    "hopping": "api.windows",
    "max": "api.aggregates",
    "mean": "api.aggregates",
    "min": "api.aggregates",
    "read_savepoint": "run.savepoints.access",
    "restore_savepoint": "run.savepoints.access",
    "secret_env": "api.descriptors",
    "secret_file": "api.descriptors",
    "session": "api.windows",
    "sql_app": "app",
    "sum": "api.aggregates",
    "tumbling": "api.windows",
    "write_savepoint": "run.savepoints.access",
}
"""The modules of the names that are imported on first use. A test compares them with the imports above."""

if not TYPE_CHECKING:  # type checkers shall go on to report names that don't exist

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _NAMESPACES:
            return import_module(f"headrace.{name}")
        if name in _MODULES:
            found = globals()[name] = getattr(import_module(f"headrace.{_MODULES[name]}"), name)
            return found
        if name.startswith("__"):  # the import system looks up some of these names
            raise AttributeError(f"hr has no {name!r}")
        from headrace.api.other_names import HR, missing

        spaces = {space: import_module(f"headrace.{space}") for space in _NAMESPACES}
        elsewhere = {one: f"hr.{space}.{one}" for space, module in spaces.items() for one in module.__all__}
        raise missing("hr", name, elsewhere | dict(HR), __all__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
