"""Send an app to its containers: the driver pickles its plan and the user's functions.

What containers can't import (the user's own file) is pickled by value. Polars pickles functions in expressions
(``map_elements``) with a module called ``cloudpickle``, which need not be installed. PySpark has its own one, and only
that knows what to pickle by value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pyspark import cloudpickle

from headrace.api.checks import Location
from headrace.core.errors import DeclarationError
from headrace.plan.model import Plan
from headrace.run.spark.container_main import packed

_MODULE = "cloudpickle"


class Payload(Protocol):
    """What a container or a worker of a batch job gets: a plan, and the folders of the user's code."""

    @property
    def plan(self) -> Plan: ...

    @property
    def python_path(self) -> tuple[str, ...]: ...


def ship(payload: Payload) -> bytes:
    """The payload as bytes. Raises ``DeclarationError`` for the step that can't be sent."""
    with _found_by_polars():
        try:
            return packed(payload.python_path, _dumps(payload))
        except Exception as error:
            raise _unsendable(payload.plan, error) from error


def _dumps(value: object) -> bytes:
    loaded = sys.modules.get("__headrace_app__")
    if loaded is not None:
        cloudpickle.register_pickle_by_value(loaded)  # type: ignore[no-untyped-call]
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


@contextmanager
def _found_by_polars() -> Iterator[None]:
    before = sys.modules.get(_MODULE)
    sys.modules[_MODULE] = cloudpickle
    try:
        yield
    finally:
        if before is None:
            del sys.modules[_MODULE]
        else:
            sys.modules[_MODULE] = before


def _unsendable(plan: Plan, error: Exception) -> DeclarationError:
    graph = plan.graph
    parts: list[tuple[str, object, Location]] = [
        (f"step {node.id!r}", node.operator, node.location) for node in graph.nodes.values()
    ]
    parts += [(f"table {table.id!r}", table, table.location) for table in graph.tables.values()]
    for named, part, location in parts:
        try:
            _dumps(part)
        except Exception as cause:  # noqa: BLE001  # whatever it is, it is why
            return DeclarationError(
                f"the {named} can't be sent to containers: {_reason(cause)}\n  {location}: {location.text}",
                hint="a function (perhaps one in an expression) holds something that can't leave this process, such as "
                "a lock, a connection or an open file; create it inside the function, when it is first called",
            )
    return DeclarationError(f"the app can't be sent to containers: {_reason(error)}")


def _reason(error: Exception) -> str:
    text = str(error)  # Polars wraps Python's message
    begin, end = 'BindingsError: "OtherString(\\"python: ', '\\")"'
    return text.removeprefix(begin).removesuffix(end) if text.startswith(begin) else f"{type(error).__name__}: {text}"
