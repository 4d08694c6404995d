"""A short chaos run on real Spark: no message is lost or doubled. ``make chaos`` is the long one."""

from __future__ import annotations

import pytest

from chaos.run import ChaosPlan, run


@pytest.mark.slow
def test_containers_executors_and_drivers_may_die_and_come_back_as_zombies() -> None:
    lines: list[str] = []
    kinds = ("kill again", "zombie executor", "zombie driver")
    assert run(ChaosPlan(seed=5, seconds=0, kinds=kinds, rate=5_000), lines.append), "\n".join(lines)
