"""Which decoder gets how many inputs next. Some decode a thousand inputs in the time that others need for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

INPUTS_A_TURN = 5000
_INPUTS_AT_FIRST = 500
_INPUTS_MAX = 1_000_000
_TURN_S = 60.0
"""How long a turn should take: a process needs seconds to start, and findings are reported when it has ended."""


class Turn(NamedTuple):
    """What one process does."""

    decoder: str
    seed: int
    inputs: int


def by_inputs(decoders: Sequence[str], seed: int, inputs: int) -> Iterator[Turn]:
    """So many inputs for each decoder."""
    for number, done in enumerate(range(0, inputs, INPUTS_A_TURN)):
        for decoder in decoders:
            yield Turn(decoder, seed + number, min(INPUTS_A_TURN, inputs - done))


def by_time(
    decoders: Sequence[str], seed: int, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[Turn]:
    """Turns until so many seconds are over. The next one is always for the decoder that has had the least time.

    A turn counts until the next one is asked for. Its number of inputs follows from how long the last one took.
    """
    until = clock() + seconds
    spent = dict.fromkeys(decoders, 0.0)
    inputs = dict.fromkeys(decoders, _INPUTS_AT_FIRST)
    while (began := clock()) < until:
        decoder = min(spent, key=spent.__getitem__)
        yield Turn(decoder, seed, inputs[decoder])
        seed += 1
        took = max(clock() - began, 0.001)
        spent[decoder] += took
        faster = min(_TURN_S / took, 4.0)  # a start takes its part, so this is approached in steps
        inputs[decoder] = min(max(int(inputs[decoder] * faster), 1), _INPUTS_MAX)
