"""A short run of moves by commands on real Spark, with kills. ``python -m chaos --moves`` is longer."""

from __future__ import annotations

import pytest

from chaos.moves import MovesPlan, run


@pytest.mark.slow
def test_an_app_is_rewound_upgraded_restored_and_rescaled_while_its_containers_are_killed() -> None:
    lines: list[str] = []
    assert run(MovesPlan(seed=3), lines.append), "\n".join(lines)
