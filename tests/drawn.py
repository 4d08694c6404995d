"""How many examples Hypothesis draws for a test.

``make soak`` sets ``HEADRACE_EXAMPLES``, a factor, and draws many times as many.
"""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("HEADRACE_EXAMPLES", "0.4"))
FEWEST = 10


def examples(count: int) -> int:
    """So many of ``count``, which is how many show most of what can go wrong."""
    return max(min(count, FEWEST), round(count * FACTOR))
