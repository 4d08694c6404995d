"""Kinesis in the simulator: everything that can happen to shards does, and seeds in which it went wrong pass."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.declared import CASES
from simulator.run import Parts, Run, simulate

SHAPES = tuple(name for name, case in CASES.items() if case.slotted)


def test_shards_are_read_moved_and_forgotten():
    counts: Counter[str] = Counter()
    for seed in range(9, 40):
        run = Run(seed, SHAPES, Parts(), None)
        run.run()
        run.cluster.close()
        for stream in run.cluster.slotted:
            counts += stream.judge.counts
        if all(counts[what] > 10 for what in ("done", "forgotten", "expected", "released", "moved")):
            return
    pytest.fail(f"what happened: {counts}")


FAULTS = {
    "splits into",
    "merge into",
    "is gone",
    "iterators expire",
    "is throttled",
    "ms late",
    "RELEASE",
    "can't deal",
}


def test_streams_meet_all_faults():
    missing = set(FAULTS)
    for seed in range(1, 60):
        story: list[str] = []
        simulate(seed, SHAPES, story=story)
        missing -= {fault for fault in missing if any(fault in line for line in story)}
        if not missing:
            return
    assert missing == set()


def test_savepoints_of_slots_are_consistent():
    failed = [out for seed in range(1, 4) if (out := simulate(seed, tuple(f"{name}+cuts" for name in SHAPES))).failure]
    assert failed == []


@pytest.mark.parametrize("seed", [9202727, 9202932])
def test_a_task_that_was_idle_says_after_a_restart_that_it_waits_for_a_shard(seed):
    assert simulate(seed, SHAPES).failure is None
