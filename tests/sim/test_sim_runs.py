"""The simulator itself: it passes seeds of every shape, repeats itself exactly and tells a story."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from mutants import MUTANTS

from headrace.core.ids import TaskName
from simulator.__main__ import main
from simulator.cluster import RunSettings
from simulator.declared import CASES
from simulator.planned import app_shape
from simulator.run import OBJECT_SHAPES, Outcome, Parts, Run, simulate
from simulator.shapes import SHAPES, tasks_of


@pytest.mark.parametrize("shape", SHAPES)
def test_the_protocol_passes_seeds_of_every_shape(shape):
    failed = [outcome for seed in range(1, 6) if (outcome := simulate(seed, (shape,))).failure]
    assert failed == []


@pytest.mark.parametrize(
    "app", [pytest.param(app, marks=[pytest.mark.soak] if f"{app}+objects" in OBJECT_SHAPES else []) for app in CASES]
)
def test_real_operators_and_stores_pass_a_seed_of_every_app(app):
    """Tests of savepoints and of snapshots in a store run most of them with this seed, and with more that goes on."""
    assert simulate(1, (app,)).failure is None


@pytest.mark.parametrize("app", CASES)
def test_the_versions_of_an_app_may_follow_each_other(app):
    for version in app_shape(app).versions:
        version.changes.check()


def test_a_zombie_that_announces_more_than_its_replacement_makes_labels_late_by_right():
    """The replacement began at label 4 before the zombie, whose clock was ahead, began at 8; and came second."""
    assert simulate(289319, ("wide",)).failure is None


def test_a_stale_copy_of_the_version_before_is_fenced_by_state_that_it_does_not_know():
    assert simulate(50170, ("app-grown", "app-cut")).failure is None


@pytest.mark.parametrize("seed", [37, 70])
def test_a_task_does_not_fall_below_its_label_when_its_parents_become_exactly_once(seed):
    assert simulate(seed, ("app-stricter", "app-looser")).failure is None


@pytest.mark.parametrize("seed", [5451, 5577])
def test_what_was_committed_last_before_an_output_went_is_published_when_it_returns(seed):
    """Its task had died before it could say so in that output, and other generations have committed since."""
    shapes = ("app-wider", "app-narrower", "app-replaced", "app-returned", "app-stricter", "app-looser")
    assert simulate(seed, shapes).failure is None


def test_a_stale_copy_does_not_understand_the_version_after_it():
    """It holds frames of a version to come when those of its next, which is at-least-once, arrive without any."""
    assert simulate(96, ("app-stricter", "app-looser")).failure is None


def test_an_app_that_failed_too_often_is_started_again():
    """Five writes of unknown outcome in a row end an app, so a container of it would never be given tasks again."""
    assert simulate(112, ("wide",)).failure is None


@pytest.mark.parametrize("shapes", [tuple(SHAPES), tuple(CASES)])
def test_a_seed_does_the_same_again_told_or_not(shapes):
    story: list[str] = []
    told = simulate(11, shapes, story=story)
    again: list[str] = []
    assert simulate(11, shapes) == told == simulate(11, shapes, story=again)
    assert story == again
    assert len(story) > 100


def test_the_faults_happen():
    outcomes = [simulate(seed, tuple(SHAPES)) for seed in range(1, 8)]
    assert sum(outcome.rollbacks for outcome in outcomes) > 5
    assert sum(outcome.incarnations for outcome in outcomes) > 7 * 7


FAULTS = (
    "is killed before that",
    "finds its folder locked",
    "ends in half a record",
    "gave no answer",
    "its local state doesn't fit",
    "doesn't know whether its commit was written",
    "takes a snapshot",
)
OF_CALLS = (
    "FlushOutputs() has to wait",
    "Finish() has to wait",
    "the service failed",
    "no answer within",
    "is full: ",
)


@pytest.mark.parametrize(
    ("app", "faults", "eventful"),
    [
        ("app-outbox", FAULTS, (25, 16, 21, 19)),
        ("app-async", OF_CALLS, ()),
        ("app-ordered", OF_CALLS, (1, 5)),
        ("app-remote", OF_CALLS, ()),
    ],
)
def test_apps_meet_all_faults(app, faults, eventful):
    """In ``eventful`` seeds they do soon; where they don't any more, they do in others."""
    missing = set(faults)
    for seed in (*eventful, *range(1, 200)):
        story: list[str] = []
        simulate(seed, (app,), story=story)
        missing -= {fault for fault in missing if any(fault in line for line in story)}
        if not missing:
            return
    assert missing == set()


@pytest.mark.parametrize(
    ("app", "outputs"),
    [
        ("app-late", {"plain-late", "hops-late", "dropped"}),
        ("app-late-panes", {"growing-late", "apart-late"}),
        ("app-silent", {"late"}),
    ],
)
def test_messages_come_late(app, outputs):
    silent = set(outputs)
    for seed in range(1, 40):
        run = Run(seed, (app,), Parts(), None)
        run.run()
        run.cluster.close()
        silent -= {publisher.ssp.stream.name for publisher in run.publishers if publisher.target.rows}
        if not silent:
            return
    assert silent == set()


@pytest.mark.parametrize(("shape", "away", "reader"), [("merge", "t", "m"), ("join", "l", "j"), ("shuffle", "s", "w")])
@pytest.mark.parametrize("patience_ms", [40.0, math.inf])
def test_versions_are_committed_while_an_upstream_task_stays_away(monkeypatch, shape, away, reader, patience_ms):
    settings = RunSettings(faults=0, faults_until=900.0, patience_ms=patience_ms)
    monkeypatch.setattr("simulator.run._draw_settings", lambda *_: settings)
    for seed in range(1, 6):
        run = Run(seed, (shape,), Parts(), None)
        versions: list[list[int]] = []

        def kill(run=run):
            victim = next(c for c in run.cluster.current.values() if TaskName(away, 0) in c.tasks)
            victim.die()
            run.cluster.vacant[victim.seat] = 800.0

        def look(run=run, versions=versions):
            ledgers = [ledger for task, ledger in run.oracle.ledgers.items() if task.stage == reader]
            versions.append([ledger.last.version if ledger.last else -1 for ledger in ledgers])

        run.world.after(200.0, kill)
        run.world.after(400.0, look)
        run.world.after(780.0, look)
        run.run()
        run.cluster.close()
        gone_on = [after > before + 300 for before, after in zip(*versions, strict=True)]
        assert all(gone_on) if patience_ms < math.inf else not any(gone_on)


def test_a_failing_seed_is_named_and_told(monkeypatch, capsys):
    broken = MUTANTS["F2 fences are forgotten"].parts

    def simulate_broken(seed: int, shapes: tuple[str, ...] = (), story: list[str] | None = None) -> Outcome:
        return simulate(seed, shapes or tuple(SHAPES), broken, story)

    monkeypatch.setattr("simulator.__main__.simulate", simulate_broken)
    assert main(["--seeds", "20"]) == 1
    out = capsys.readouterr().out
    named = re.search(r"^seed \d+ \(.*\): SimFailure: \S+: (rolled back .{20})", out, re.MULTILINE)
    assert named is not None, out
    assert f"!! {named[1]}" in out
    assert out.endswith("1 failed\n")


def test_the_command_counts_what_passed(capsys):
    assert main(["--seeds", "3", "--stages", "direct,wide"]) == 0
    assert capsys.readouterr().out.endswith("3 passed, 0 failed\n")
    assert main(["--seed", "1", "--stages", "direct"]) == 0
    assert "seed 1 (direct, " in capsys.readouterr().out


def test_groups_of_shapes_have_names(capsys):
    assert main(["--seeds", "2", "--stages", "apps"]) == 0
    out = capsys.readouterr().out
    assert "seeds/s of processor time (apps " in out
    assert out.endswith("2 passed, 0 failed\n")
    assert main(["--seed", "1", "--stages", "bare"]) == 0
    assert f"seed 1 ({simulate(1, tuple(SHAPES)).shape}, " in capsys.readouterr().out


def test_unknown_stages_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--stages", "nowhere"])
    assert "no such stages: nowhere" in capsys.readouterr().err


def test_every_partition_has_one_reader_in_each_stage():
    for shape in SHAPES.values():
        tasks = tasks_of(shape)
        assert len({task.producer for task in tasks}) == len(tasks)
        for stage in shape.stages:
            read = [ssp for task in tasks if task.stage is stage for ssp in task.inputs]
            assert len(read) == len(set(read)) == sum(shape.streams[stream] for stream in stage.reads)


def test_an_outcome_says_whether_it_passed():
    outcome = simulate(1, ("direct",))
    assert outcome.failure is None
    assert replace(outcome, failure="x") != outcome
