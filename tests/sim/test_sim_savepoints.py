"""Savepoints of simulated apps: whatever goes wrong, what all tasks have kept fits together."""

from __future__ import annotations

import pytest

from simulator.run import CUT_SHAPES, Parts, Run, simulate


@pytest.mark.parametrize("shape", CUT_SHAPES)
def test_cuts_are_consistent_and_change_nothing(shape):
    failed = [outcome for seed in range(1, 6) if (outcome := simulate(seed, (shape,))).failure]
    assert failed == []


@pytest.mark.parametrize("seed", [38, 74, 143])
def test_a_task_that_ends_before_the_cut_keeps_its_state(seed):
    """The cut waited for it as long as its container had other tasks."""
    assert simulate(seed, ("app-apart-async+cuts", "app-apart+cuts")).failure is None


def test_cuts_succeed_and_are_missed_while_things_go_wrong():
    taken, stories = 0, []
    for seed in range(1, 21):
        story: list[str] = []
        run = Run(seed, ("wide+cuts", "shuffle+cuts", "app-counts+cuts"), Parts(), story)
        run.run()
        calm = next(n for n, line in enumerate(story) if line.endswith("are over"))
        taken += sum("is complete" in line for line in story[:calm])
        stories += story
    assert taken > 10
    for what in ("was missed by", "takes too long", "is gone with its driver"):
        assert any("savepoints" in line and what in line for line in stories), what
