"""How many examples Hypothesis draws for a test, and how many seeds a test has.

``make soak`` sets ``HEADRACE_EXAMPLES``, a factor, and draws many times as many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

FACTOR = float(os.environ.get("HEADRACE_EXAMPLES", "0.4"))
FEWEST = 10


def examples(count: int) -> int:
    """So many of ``count``, which is how many show most of what can go wrong."""
    return max(min(count, FEWEST), round(count * FACTOR))


def seeds(all_of_them: Sequence[int], few: int) -> list[Any]:
    """The first few for each run, the others for ``make soak``."""
    return [pytest.param(seed, marks=[pytest.mark.soak] if n >= few else []) for n, seed in enumerate(all_of_them)]
