"""Checks that an implementation keeps its contract; call them from any test framework, or from none.

``check_system`` holds a record system to the docstrings of ``headrace.systems.base``, ``check_target`` a target. They
raise ``ContractError`` naming the check that failed. Each check makes its own streams, so one system may serve all;
each check of a target writes under names of its own, so one target may, too.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from headrace.systems.base import System, Target
from headrace.testing.system_checks import CHECKS
from headrace.testing.system_scene import ContractError, Scene
from headrace.testing.target_checks import TARGET_CHECKS, TargetScene

__all__ = ["ContractError", "check_system", "check_target", "system_checks", "target_checks"]


def system_checks() -> list[str]:
    """The names of the checks, in the order in which they run."""
    return [check.__name__ for check in CHECKS]


def check_system(
    make_system: Callable[[], System], *, only: str | None = None, wait_s: float = 5.0, trims: bool = True
) -> None:
    """Run every check, or the one named ``only``, against systems that ``make_system`` makes.

    ``make_system`` may return the same system each time, or another handle on the same one, as a second
    process would hold. ``wait_s`` is how long an appended record may take to become readable.
    ``trims=False`` leaves out the checks of ``Admin.trim``, for a system whose retention can't be ordered.
    """
    for check in CHECKS:
        if only not in (None, check.__name__) or (not trims and "trim" in check.__name__):
            continue
        with Scene(make_system, check.__name__, wait_s) as scene:
            try:
                check(scene)
            except ContractError as error:
                raise ContractError(f"{check.__name__}: {error}") from error


def target_checks() -> list[str]:
    """The names of the checks of a target, in the order in which they run."""
    return [check.__name__ for check in TARGET_CHECKS]


def check_target(
    make_target: Callable[[], Target], read: Callable[[], pl.DataFrame], *, only: str | None = None
) -> None:
    """Run every check, or the one named ``only``, against targets that ``make_target`` makes.

    Each call makes another handle on the same place, as another process would hold. ``read`` gives everything that is
    visible there, in any order, with the columns ``writer`` (String), ``version`` and ``n`` (Int64).
    """
    for check in TARGET_CHECKS:
        if only not in (None, check.__name__):
            continue
        with TargetScene(make_target, read, check.__name__) as scene:
            try:
                check(scene)
            except ContractError as error:
                raise ContractError(f"{check.__name__}: {error}") from error
