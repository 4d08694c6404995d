"""Every known way to break the protocol is found by the simulator, and the unbroken one passes the same seeds."""

from __future__ import annotations

from functools import cache

import pytest
from mutants import MUTANTS, mutants_of_the_host

from simulator.declared import CASES
from simulator.run import Outcome, simulate
from simulator.shapes import SHAPES

SEEDS = 400
"""How many seeds a mutant may survive at most. Most die within ten."""


@cache
def without_mutants(seed: int, shapes: tuple[str, ...]) -> Outcome:
    """What many mutants are compared with."""
    return simulate(seed, shapes)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name):
    mutant = MUTANTS[name]
    shapes = mutant.shapes or tuple(SHAPES)
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS):
        with mutant.applied():
            outcome = simulate(seed, shapes, mutant.parts)
        if outcome.failure:
            break
    else:
        pytest.fail(f"{name} ({mutant.says}) survived {SEEDS} seeds")
    sound = without_mutants(seed, tuple(shapes))
    assert sound.failure is None, f"seed {seed} fails without the mutant, too: {sound.failure}"


def test_there_is_a_mutant_for_each_counterexample():
    numbers = {int(name.split()[0][1:]) for name in MUTANTS if name[0] == "F" and name[1].isdigit()}
    assert numbers == set(range(1, 16))
    assert len(MUTANTS) >= 15 + 10


def test_there_are_mutants_of_the_host():
    known = vars(mutants_of_the_host)
    hosts = [mutant for mutant in MUTANTS.values() if mutant.parts.host in known.values() or mutant.patches]
    assert len(hosts) >= 10


def test_there_are_mutants_of_operators_and_stores():
    assert sum(bool(set(mutant.shapes) & set(CASES)) for mutant in MUTANTS.values()) >= 12
