"""When to try again what failed, and when to give up. Pure: the caller has the clock and draws the chance."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Retry:
    """At most ``attempts`` in all (None: for ever), with pauses that double from ``first_ms`` to ``longest_ms``."""

    attempts: int | None
    first_ms: float
    longest_ms: float

    def pause_ms(self, failures: int, chance: float) -> float | None:
        """How long to wait after so many failures in a row (from 1 on); None: give up.

        ``chance`` is drawn evenly from [0, 1). Half of each pause is left to it: those who lost a server together must
        not come back together.
        """
        if self.attempts is not None and failures >= self.attempts:
            return None
        full = min(self.longest_ms, self.first_ms * 2.0 ** min(failures - 1, 60))
        return full * (0.5 + chance / 2)

    @override
    def __str__(self) -> str:
        match self.attempts:
            case None:
                return "tried for ever"
            case 1:
                return "tried once"
            case attempts:
                return f"tried up to {attempts} times"
