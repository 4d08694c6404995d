"""A few moves by commands on real Spark, with kills. ``python -m chaos --moves`` makes all of them, and more."""

from __future__ import annotations

import pytest

from chaos.moves import MovesPlan, run


@pytest.mark.slow
@pytest.mark.soak  # test_startpoints_on_spark.py and tests/local rewind apps, and test_chaos.py kills containers
def test_an_app_is_rewound_and_upgraded_while_its_containers_are_killed() -> None:
    lines: list[str] = []
    assert run(MovesPlan(seed=3, turn=("rewind", "upgrade")), lines.append), "\n".join(lines)
