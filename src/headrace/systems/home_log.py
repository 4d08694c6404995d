"""The embedded log of a home folder: where an app keeps its streams unless it says otherwise."""

from __future__ import annotations

from pathlib import Path

from headrace.systems.registry import SystemSpec

LOG = "log"
"""What it is called in ids of streams."""


def home_log(home: str | Path) -> SystemSpec:
    """The embedded log of a home."""
    return SystemSpec(LOG, "log", {"root": f"{home}/streams"})
