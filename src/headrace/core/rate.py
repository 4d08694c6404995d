"""A limit to how much is done a second: a token bucket. Pure: the caller has the clock and does the waiting."""

from __future__ import annotations


class TokenBucket:
    """``per_s`` tokens a second fall into a bucket that holds ``burst``; what is taken before it is there is owed.

    Whoever takes waits as long as it is told. Then in any stretch of time no more is used than falls in meanwhile, plus
    what a full bucket holds.
    """

    def __init__(self, per_s: float, burst: float | None = None) -> None:
        """By default the bucket holds what falls in within a tenth of a second, and one token at least."""
        if per_s <= 0:
            raise ValueError(f"a rate is above 0, not {per_s}")
        self._per_ms = per_s / 1000
        self._burst = max(1.0, per_s / 10) if burst is None else burst
        self._tokens = self._burst
        self._at_ms: float | None = None

    def take(self, amount: float, now_ms: float) -> float:
        """Take so many tokens; returns how long (ms) to wait until they are there."""
        if self._at_ms is not None and now_ms > self._at_ms:
            self._tokens = min(self._burst, self._tokens + (now_ms - self._at_ms) * self._per_ms)
        self._at_ms = now_ms if self._at_ms is None else max(now_ms, self._at_ms)
        self._tokens -= amount
        return max(0.0, -self._tokens / self._per_ms)
