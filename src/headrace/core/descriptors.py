"""How many files the process may have open: a container with many tasks needs more than the usual 1,024."""

from __future__ import annotations

import resource

from headrace.core.errors import InfrastructureError
from headrace.core.log import logger

_log = logger(__name__)

SHARE_MAX = 512
FULL = "Too many open files"
"""The error of the operating system and of RocksDB when descriptors run out."""


def hint() -> str:
    """Return what to do about it."""
    return (
        f"the process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files open: raise ulimit -n "
        "(LimitNOFILE= of systemd, or the container's ulimits), or share the tasks among more containers"
    )


def share() -> int:
    """Return how many files that are used rarely one part of the process may keep open: an eighth, at most 512."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return SHARE_MAX if soft == resource.RLIM_INFINITY else min(SHARE_MAX, soft // 8)


def make_room(least: int, why: str) -> None:
    """Raise the limit as far as the process may. Raise ``InfrastructureError`` if even ``least`` files are too many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems have a lower limit than the one that they state
            _log.info("can't raise the limit of open files", limit=soft, error=str(error))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < least:
        raise InfrastructureError(
            f"{why} need at least {least} open files, but this process may open only {soft}", hint=hint()
        )
