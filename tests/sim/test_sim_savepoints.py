"""Savepoints of simulated apps: whatever goes wrong, what all tasks have kept fits together."""

from __future__ import annotations

import pytest

import simulator.savepoints
from headrace.life.folder import Misfit, misfit
from simulator.run import CUT_SHAPES, RESTORED_SHAPES, Parts, Run, simulate

ALSO_RESTORED = {shape.replace("+restores", "+cuts") for shape in RESTORED_SHAPES}


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=[pytest.mark.soak] if shape in ALSO_RESTORED else []) for shape in CUT_SHAPES]
)
def test_cuts_are_consistent_and_change_nothing(shape):
    """Of apps that are restored below, savepoints are taken there with this seed, and must be consistent, too."""
    assert simulate(1, (shape,)).failure is None


@pytest.mark.parametrize("seed", [38, 74, 143])
def test_a_task_that_ends_before_the_cut_keeps_its_state(seed):
    """The cut waited for it as long as its container had other tasks."""
    assert simulate(seed, ("app-apart-async+cuts", "app-apart+cuts")).failure is None


def test_cuts_succeed_and_are_missed_while_things_go_wrong():
    taken = missed = 0
    for seed in (23, 4, 12, 20, *range(1, 41)):  # the first are eventful
        story: list[str] = []
        run = Run(seed, ("wide+cuts", "shuffle+cuts", "app-counts+cuts"), Parts(), story)
        run.run()
        calm = next(n for n, line in enumerate(story) if line.endswith("are over"))
        taken += sum("is complete" in line for line in story[:calm])
        missed += sum("was missed by" in line for line in story)
        if taken > 8 and missed:
            return
    pytest.fail(f"{taken} cuts were taken, and {missed} missed")


def test_a_cut_that_does_not_fit_together_is_given_up(monkeypatch):
    """A task began above the cut, of which it didn't know, died, and began again below it."""
    found: list[Misfit] = []

    def noting(kept, producers):
        found.extend([wrong] if (wrong := misfit(kept, producers)) is not None else [])
        return wrong

    monkeypatch.setattr(simulator.savepoints, "misfit", noting)
    assert simulate(99, ("shuffle+cuts",)).failure is None
    assert found, "none was: look for another seed"


@pytest.mark.parametrize("shape", RESTORED_SHAPES)
def test_a_restored_app_goes_on_from_its_savepoint(shape):
    assert simulate(1, (shape,)).failure is None


@pytest.mark.parametrize("seed", range(30, 40))
def test_a_task_that_has_no_partition_any_more_keeps_nothing(seed):
    """When one partition was left, every task got all that it had kept before."""
    assert simulate(seed, ("app-panes+restores", "app-sliding+restores", "app-versions+restores")).failure is None


def test_a_task_that_had_no_partition_takes_no_event_time_back():
    """It got partitions again, and its watermark was that of the restore before: what was emitted since came again."""
    assert simulate(7002999, ("app-sliding+restores",)).failure is None


@pytest.mark.parametrize("seed", [351, 899])
def test_a_savepoint_of_tasks_that_had_ended_covers_nothing_of_later_timelines(seed):
    """Its version lay above their last one, and what another timeline had published in between was taken for theirs."""
    assert simulate(seed, ("app-outbox+restores",)).failure is None


@pytest.mark.parametrize("seed", [141])
def test_what_is_pending_in_a_savepoint_is_published_although_another_timeline_has_published_since(seed):
    """Its target had higher versions from that timeline, so what had never been published passed for old."""
    assert simulate(seed, ("app-outbox+restores",)).failure is None


def test_a_stale_copy_that_has_only_begun_finds_its_inputs_trimmed():
    """It had committed what it took over from a savepoint, and stood still until its replacement had read on."""
    assert simulate(7004746, ("app-sliding+restores",)).failure is None


def test_apps_are_restored_rescaled_and_interrupted():
    done = rescaled = twice = interrupted = 0
    for seed in range(1, 41):
        story: list[str] = []
        run = Run(seed, ("app-counts+restores", "app-inner+restores", "app-panes+restores"), Parts(), story)
        run.run()
        assert run.restorer is not None
        done += run.restorer.done
        lines = [line for line in story if "restore  " in line]
        rescaled += sum("as timeline" in line and "dealt {}" not in line for line in lines)
        twice += sum("as timeline 3" in line for line in lines)
        interrupted += sum("is interrupted" in line for line in lines)
        if done > 0.75 * max(seed, 12) and rescaled > 5 and twice and interrupted:
            return
    pytest.fail(f"{done} were restored, {rescaled} rescaled, {twice} a second time, {interrupted} interrupted")
