"""Snapshots of simulated apps in an object store: hosts are lost with their disks, and nothing else is."""

from __future__ import annotations

import pytest

from simulator.run import OBJECT_SHAPES, Parts, Run, simulate


@pytest.mark.parametrize("shape", OBJECT_SHAPES)
def test_tasks_go_on_from_snapshots_in_a_store(shape):
    assert simulate(1, (shape,)).failure is None


def test_nothing_is_published_of_a_state_that_does_not_fit():
    """It waited for a snapshot in its place, and its outboxes were at work meanwhile."""
    assert simulate(2221, OBJECT_SHAPES).failure is None


def test_hosts_are_lost_and_snapshots_are_fetched():
    fetched = lost = deleted = 0
    for seed in range(1, 60):
        story: list[str] = []
        Run(seed, ("shuffle+objects", "wide+objects", "app-counts+objects"), Parts(), story).run()
        fetched += sum("has fetched" in line for line in story)
        lost += sum("is lost" in line for line in story)
        deleted += sum("has no more" in line for line in story)
        if fetched > 5 and lost > 5 and deleted > 20:
            return
    pytest.fail(f"{fetched} snapshots were fetched, {lost} hosts were lost, {deleted} times something was deleted")
