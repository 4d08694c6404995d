"""A token bucket, which limits how much is done per second. Pure: the caller has the clock and does the waiting."""

from __future__ import annotations


class TokenBucket:
    """A bucket of at most ``burst`` tokens that gains ``per_s`` tokens per second. It may be overdrawn.

    If every caller waits for as long as ``take`` says, then in any period no more tokens are used than the bucket gains
    in it, plus ``burst``.
    """

    def __init__(self, per_s: float, burst: float | None = None) -> None:
        """By default ``burst`` is what the bucket gains in a tenth of a second, but at least one token."""
        if per_s <= 0:
            raise ValueError(f"a rate must be above 0, not {per_s}")
        self._per_ms = per_s / 1000
        self._burst = max(1.0, per_s / 10) if burst is None else burst
        self._tokens = self._burst
        self._at_ms: float | None = None

    def take(self, amount: float, now_ms: float) -> float:
        """Take ``amount`` tokens; return how long (ms) to wait before using them."""
        if self._at_ms is not None and now_ms > self._at_ms:
            self._tokens = min(self._burst, self._tokens + (now_ms - self._at_ms) * self._per_ms)
        self._at_ms = now_ms if self._at_ms is None else max(now_ms, self._at_ms)
        self._tokens -= amount
        return max(0.0, -self._tokens / self._per_ms)
