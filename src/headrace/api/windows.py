"""The shapes that windows come in."""

from __future__ import annotations

from headrace.api.location import Declaring
from headrace.api.specs import Tumbling
from headrace.core.duration import Duration, to_ms


def tumbling(size: Duration, offset: Duration = 0) -> Tumbling:
    """Windows of one size, side by side: every message is in exactly one of them.

    They are aligned to the epoch: ``"1h"`` begins at full hours (UTC). ``offset`` shifts all of them.

    >>> hr.tumbling("10s")
    Tumbling(size_ms=10000, offset_ms=0)
    >>> hr.tumbling("1d", offset="-2h")  # days that begin at 22:00 UTC
    Tumbling(size_ms=86400000, offset_ms=-7200000)
    """
    with Declaring("tumbling"):
        return Tumbling(to_ms(size, "size", minimum=1), to_ms(offset, "offset", minimum=None))
