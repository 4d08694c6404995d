"""Machines of simulated apps lose power: what a commit covers survives it, or nobody passes over it in silence."""

from __future__ import annotations

import pytest

from simulator.run import POWER_SHAPES, PROCESS_SHAPES, Parts, Run, simulate
from simulator.shapes import SHAPES

BARE = tuple(f"{name}+power" for name in SHAPES)


@pytest.mark.parametrize("shape", BARE)
def test_what_a_commit_covers_survives(shape: str) -> None:
    failed = [outcome for seed in range(1, 3) if (outcome := simulate(seed, (shape,))).failure]
    assert failed == []


def test_so_does_what_real_operators_keep() -> None:
    failed = [outcome for seed in range(1, 9) if (outcome := simulate(seed, POWER_SHAPES[2 * len(SHAPES) :])).failure]
    assert failed == []


def test_who_does_not_wait_for_the_disk_notices_what_is_gone() -> None:
    noticed = damaged = 0
    for seed in range(1, 17):
        story: list[str] = []
        run = Run(seed, PROCESS_SHAPES, Parts(), story)
        run.run()
        assert run.cluster.power is not None
        damaged += run.cluster.power.damaged is not None
        noticed += any("the damage was noticed" in line for line in story)
    assert noticed >= 5
    assert damaged >= 5


def test_a_task_that_starts_goes_by_no_commit_that_is_not_on_the_disk() -> None:
    """Its restore said that the commit counts. The power cut took the commit, and readers had theirs behind it."""
    assert simulate(16, ("join+power", "fanout+power", "mixed+power", "shuffle+power", "direct+power")).failure is None


@pytest.mark.parametrize("what", ["is cut", "has lost ["])
def test_the_power_fails(what: str) -> None:
    for seed in range(1, 60):
        story: list[str] = []
        simulate(seed, BARE, story=story)
        if any(what in line for line in story):
            return
    pytest.fail(f"in 60 seeds: {what}")
