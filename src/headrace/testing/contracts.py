"""Checks that an implementation keeps its contract; call them from any test framework, or from none.

``check_system`` holds a record system to the docstrings of ``headrace.systems.base``. It raises
``ContractError`` naming the check that failed. Each check makes its own streams, so one system may serve all.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.systems.base import System
from headrace.testing.system_checks import CHECKS
from headrace.testing.system_scene import ContractError, Scene

__all__ = ["ContractError", "check_system", "system_checks"]


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
