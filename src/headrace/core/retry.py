"""Decide when to repeat a failed call and when to stop. Pure: the caller has the clock and draws the random number."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Retry:
    """At most ``attempts`` attempts (None: no limit), with pauses that double from ``first_ms`` to ``longest_ms``."""

    attempts: int | None
    first_ms: float
    longest_ms: float

    def pause_ms(self, failures: int, chance: float) -> float | None:
        """Return how long to wait after this many failures in a row (1 or more); None to stop.

        ``chance`` is a random number from [0, 1). It decides about half of each pause, so that clients that lost a
        server together don't return together.
        """
        if self.attempts is not None and failures >= self.attempts:
            return None
        full = min(self.longest_ms, self.first_ms * 2.0 ** min(failures - 1, 60))
        return full * (0.5 + chance / 2)

    @override
    def __str__(self) -> str:
        match self.attempts:
            case None:
                return "tried forever"
            case 1:
                return "tried once"
            case attempts:
                return f"tried up to {attempts} times"
