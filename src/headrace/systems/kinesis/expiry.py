"""Whether records may have expired unread after a position. Pure.

Kinesis doesn't say what it has deleted: after a record that is gone, reading goes on with the oldest one that is left.
But it keeps every record for a day, or for as long as the stream was and is configured to. So this is what can be said:

====================================================================  ================================================
what is known                                                         what follows the position
====================================================================  ================================================
nothing was read, and the shard wasn't seen to be empty               is all there: reading begins with what is left
everything from before a moment was read, and less time has passed    is all there: it has arrived since
the record at the position is still there                             is all there: it is younger
none of these                                                         may have a gap
====================================================================  ================================================
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.systems.kinesis.shard_position import DAY_H, Position

HOUR_MS = 3_600_000
MARGIN_MS = HOUR_MS // 4
"""How much earlier than Kinesis' records count as expired, because clocks differ."""

LOOK_MS = HOUR_MS // 4
"""How old it may become when everything was last known to be read."""


class Expiry:
    """What is known of the records after the position of one shard. Moments are milliseconds since the epoch."""

    def __init__(self, position: Position) -> None:
        self.read_ms = position.tip_ms
        """Everything that arrived before was read; None: that isn't known of any moment."""
        self._kept_h = position.kept_h
        self._begun = position.sequence is not None or position.tip_ms is not None

    def whole(self, now_ms: int, kept_h: Callable[[], int]) -> bool:
        """Whether what follows is all there, even if the record at the position is gone.

        ``kept_h`` returns for how many hours the stream keeps records now. It is called only if that matters.
        """
        if self.read_ms is None:
            return not self._begun
        age_ms = now_ms - self.read_ms
        return age_ms < _kept_ms(DAY_H) or (self._kept_h > DAY_H and age_ms < _kept_ms(min(self._kept_h, kept_h())))

    def due(self, now_ms: int) -> bool:
        """Whether it is time to note that no record follows. While records arrive, it never is."""
        return self.read_ms is None or now_ms - self.read_ms >= LOOK_MS

    def read(self, before_ms: int, kept_h: int = DAY_H) -> None:
        """Note that everything from before a moment was read, when the stream kept records for at least so long."""
        self._begun = True
        if self.read_ms is None or before_ms >= self.read_ms:
            self.read_ms, self._kept_h = before_ms, kept_h


def _kept_ms(hours: int) -> int:
    return hours * HOUR_MS - MARGIN_MS
