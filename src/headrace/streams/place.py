"""The embedded log of a home, and the system that a name stands for."""

from __future__ import annotations

from pathlib import Path

from headrace.api.system_descriptor import SystemDescriptor, internal_system
from headrace.systems.base import System
from headrace.systems.home_log import LOG
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import SystemSpec, open_system


def open_log(home: str | Path) -> LogSystem:
    """The embedded log of a home."""
    return LogSystem(Path(home) / "streams")


def opened(system: SystemDescriptor | SystemSpec | None, home: str | Path) -> tuple[str, System]:
    """The name of a record system and the system; None: the embedded log of a home."""
    if system is None:
        return LOG, open_log(home)
    spec = internal_system(system, "streams")
    return spec.name, open_system(spec)
