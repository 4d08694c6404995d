"""Apps from the product of inputs, steps, modes, moves and outputs do what an oracle says."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest

from seams.factors import IN_PROCESS, Case, Space, coverage, covering, written
from seams.modes import wrong

SAMPLE = 40
SPACE = Space(IN_PROCESS)
SEED = int(os.environ.get("HEADRACE_SEAMS_SEED", "1"))


@lru_cache
def sample() -> list[Case]:
    return covering(SPACE, SEED, SAMPLE)


@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_case_of_the_sample(number: int, tmp_path: Path) -> None:
    case = sample()[number]
    said = wrong(case, tmp_path)
    assert said is None, f"{said}\n  python -m seams --case '{written(case)}'"


def test_the_sample_meets_most_of_its_pairs() -> None:
    found = coverage(sample(), SPACE)
    assert found.pairs > 0.65 * found.of_pairs
