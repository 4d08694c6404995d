"""Which systems there are, and how a description becomes one.

A ``SystemSpec`` is frozen data: it travels in plans, to containers and into messages. ``open_system``
turns it into a working system in the process that needs it; implementations are imported only then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, cast

from headrace.core.errors import UsageError
from headrace.systems.base import System

GROUP = "headrace.systems"

_BUILT_IN = {
    "log": "headrace.systems.log.system:open_log",
    "memory": "headrace.systems.memory:open_memory",
    "files": "headrace.systems.files:open_files",
}


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A system as the app names it: its name in stream ids, its kind, and the options of that kind."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def __reduce__(self) -> tuple[type[SystemSpec], tuple[str, str, dict[str, Any]]]:
        return SystemSpec, (self.name, self.kind, dict(self.options))


def kinds() -> dict[str, str]:
    """Every kind that can be opened here, with where its implementation is."""
    return _BUILT_IN | {point.name: point.value for point in entry_points(group=GROUP)}


def open_system(spec: SystemSpec) -> System:
    """The system that ``spec`` describes; raises ``UsageError`` for a kind that isn't installed."""
    where = kinds().get(spec.kind)
    if where is None:
        raise UsageError(
            f"system {spec.name!r} is of kind {spec.kind!r}, which isn't installed here",
            hint=f"installed: {', '.join(sorted(kinds()))}; other kinds come with an extra or a plug-in",
        )
    module, _, attribute = where.partition(":")
    factory = cast("Callable[[str, Mapping[str, Any]], System]", getattr(import_module(module), attribute))
    return factory(spec.name, spec.options)
