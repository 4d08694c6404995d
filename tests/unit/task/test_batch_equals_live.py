"""Every operator gives in batch what it gives live: the same messages, whatever their order, have the same results.

Live, messages come one by one in order of event time. In batch they are in a random order and in random partitions. So
that a few messages are many pieces and runs, pieces are short here, and state leaves the memory often.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from both_ways import Case, Scene, as_multiset
from operator_cases import CASES

from headrace.task import batch as fed_task
from headrace.task import batch as merging
from headrace.task import batch as piece_writer

SEEDS = [1]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_writer, "PIECE_ROWS", 4)
    monkeypatch.setattr(piece_writer, "HELD_ROWS", 16)
    monkeypatch.setattr(merging, "ROWS_AT_ONCE", 5)
    monkeypatch.setattr(fed_task, "Merging", partial(merging.Merging, enough=6))
    monkeypatch.setattr(fed_task, "SPILL_ROWS", 15)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_in_batch_are_those_of_a_live_run(case: Case, seed: int, tmp_path: Path) -> None:
    scene = Scene(case, seed, tmp_path)
    live, batch = scene.live(), scene.batch()
    assert live.keys() == batch.keys()
    assert any(rows.height for rows in live.values())
    for name, rows in live.items():
        assert batch[name].schema == rows.schema, name
        assert as_multiset(case.settled(batch[name])) == as_multiset(case.settled(rows)), name
