"""Startpoints in the simulator: everything that can happen to one does, and seeds in which it went wrong pass."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.run import Parts, Run, simulate
from simulator.shapes import MOVED

SHAPES = tuple(MOVED)
EVENTFUL = (40, 22, 31, 26, 34)
"""Seeds in which what is rare happens. Where they don't do any more, others do."""


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_move_exactly_once_in_every_shape(shape):
    failed = [outcome for seed in range(1, 5) if (outcome := simulate(seed, (shape,))).failure]
    assert failed == []


@pytest.mark.parametrize("seed", [24, 27, 29, 65, 84])
def test_a_system_that_does_not_answer_is_no_reason_to_give_a_startpoint_up(seed):
    """Nobody could say how far the source goes at the moment, and the task held that against the startpoint."""
    assert simulate(seed, SHAPES).failure is None


def test_everything_happens_to_startpoints():
    counts: Counter[str] = Counter()
    rare = {"applied again", "replaced", "passed over", "failed", "deleted", "overtaken"}
    rare |= {"detours", "detours on detours", "commits on detours", "commits behind detours"}
    for seed in (*EVENTFUL, *range(1, 61)):
        run = Run(seed, SHAPES, Parts(), None)
        run.run()
        run.cluster.close()
        assert run.oracle.moves is not None
        counts += run.oracle.moves.counts
        released = counts["released"] >= counts["covered"] > 20  # more often, since an answer may be lost
        if released and all(counts[one] > 0 for one in rare):
            return
    pytest.fail(f"what happened: {counts}")


def test_the_committed_history_shows_the_moves():
    """Some message of a source was read by two commits of one task."""
    assert any(_reads_again(seed) for seed in range(4, 31))


def _reads_again(seed: int) -> bool:
    run = Run(seed, ("moved-wide",), Parts(), None)
    run.run()
    run.cluster.close()
    moves = run.oracle.moves
    assert moves is not None
    consumed = [message for ledger in run.oracle.ledgers.values() for message in ledger.consumed]
    read = [message for message in consumed if moves.is_source(message)]
    return len(read) > len(set(read))
