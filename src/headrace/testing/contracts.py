"""Check that an implementation keeps its contract. Works with any test framework, or without one.

``check_system`` checks a record system against the docstrings of ``headrace.systems.base``, ``check_target`` a target.
They raise ``ContractError``, which names the check that failed. Each check creates its own streams, so all can use
one system. Each check of a target writes under its own names, so all can use one target, too.
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
    """Return the names of the checks of ``check_system``, in the order in which they run."""
    return [check.__name__ for check in CHECKS]


def check_system(
    make_system: Callable[[], System], *, only: str | None = None, wait_s: float = 5.0, trims: bool = True
) -> None:
    """Check a record system against the contracts of ``headrace.systems.base``.

    Parameters
    ----------
    make_system
        Returns the system: the same one each time, or another handle on it, as a second process would have.
    only
        Run only the check of this name.
    wait_s
        How many seconds an appended record may take to become readable.
    trims
        Whether to check ``Admin.trim``; False for a system whose retention can't be controlled.

    Raises
    ------
    ContractError
        Names the check that failed.
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
    """Return the names of the checks of ``check_target``, in the order in which they run."""
    return [check.__name__ for check in TARGET_CHECKS]


def check_target(
    make_target: Callable[[], Target], read: Callable[[], pl.DataFrame], *, only: str | None = None
) -> None:
    """Check a target, a foreign system that versions are published to, against its contract.

    Parameters
    ----------
    make_target
        Returns another handle on the same place each time, as another process would have.
    read
        Returns everything that is visible there, in any order, with the columns ``writer`` (String), ``version`` and
        ``n`` (Int64).
    only
        Run only the check of this name.

    Raises
    ------
    ContractError
        Names the check that failed.
    """
    for check in TARGET_CHECKS:
        if only not in (None, check.__name__):
            continue
        with TargetScene(make_target, read, check.__name__) as scene:
            try:
                check(scene)
            except ContractError as error:
                raise ContractError(f"{check.__name__}: {error}") from error
