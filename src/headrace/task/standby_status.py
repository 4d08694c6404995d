"""How standbys are doing, as containers report it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

StandbyState = Literal["waiting", "fetching", "reading", "current"]
"""Waiting for its folder or after a failure; fetching a snapshot; reading the changelog; at the changelog's end."""


class StandbyStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``behind`` is what it hasn't read, in the system's own offsets; None if it hasn't begun."""

    task: str
    state: StandbyState
    behind: int | None = None
    trouble: str = ""


def furthest_behind(standbys: Iterable[StandbyStatus]) -> int | None:
    return max((one.behind for one in standbys if one.behind is not None), default=None)
