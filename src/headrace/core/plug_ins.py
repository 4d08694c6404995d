"""What packages bring by entry points: Headrace's own connectors and pages, and other people's plug-ins.

Headrace's own distribution is found in a millisecond. Reading all distributions takes 20 ms, so they are searched only
for what it doesn't have. A connector whose folder was left out of an installation isn't there, though the distribution
still names it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

DISTRIBUTION = "headrace"


def plug_in(group: str, name: str) -> str | None:
    """Return the ``module:attribute`` of an entry point of a group; None if no installed package has it."""
    return own_points(group).get(name) or all_points(group).get(name)


@cache
def own_points(group: str) -> dict[str, str]:
    return {name: value for its_group, name, value in _own() if its_group == group and _is_there(value)}


@cache
def _own() -> tuple[tuple[str, str, str], ...]:
    """The group, name and value of each entry point of Headrace's own, read once."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        points = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:  # a copy of the package that was never installed
        return ()
    return tuple((point.group, point.name, point.value) for point in points)


def all_points(group: str) -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group) if _is_there(point.value)}


@cache
def _is_there(value: str) -> bool:
    """Whether a package of Headrace's own has its folder; another package is believed. Imports no connector."""
    from importlib.util import find_spec

    if not value.startswith(f"{DISTRIBUTION}."):
        return True
    try:
        return find_spec(value.partition(":")[0].rpartition(".")[0]) is not None
    except ModuleNotFoundError:
        return False


def loaded(value: str) -> Any:
    module, _, attribute = value.partition(":")
    return getattr(import_module(module), attribute)
