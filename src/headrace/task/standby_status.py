"""How standbys are doing, as containers report it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

StandbyState = Literal["waiting", "fetching", "reading", "current"]
"""Waiting for its folder or after a failure; fetching a snapshot; reading the changelog; at the changelog's end."""


class StandbyStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A standby that a container keeps. ``behind`` is the part of the changelog that it hasn't read, in the system's
    own offsets; None if it hasn't begun. ``trouble`` says why it isn't current, if that is more than a matter of
    time."""

    task: str
    state: StandbyState
    behind: int | None = None
    trouble: str = ""


def furthest_behind(standbys: Iterable[StandbyStatus]) -> int | None:
    """Return the lag of the slowest one; None if none has begun to read."""
    return max((one.behind for one in standbys if one.behind is not None), default=None)
