"""Every operator gives in batch what it gives live: the same messages, whatever their order, have the same results.

Live, messages come one by one in order of event time. In batch they are in a random order and in random partitions. So
that a few messages are many pieces and runs, pieces are short here, and state leaves the memory often. A batch up to a
cut, and a live run from there, together give it, too.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from both_ways import Case, Outputs, Scene, as_multiset
from operator_cases import CASES

from headrace.task import batch as fed_task
from headrace.task import batch as merging
from headrace.task import batch as piece_writer

FIRST, SEEDS = int(os.environ.get("HEADRACE_SEAMS_FROM", "0")), int(os.environ.get("HEADRACE_SEAMS", "1"))


def in_short_pieces(scene: Scene) -> Outputs:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_writer, "PIECE_ROWS", 4)
        patch.setattr(piece_writer, "HELD_ROWS", 16)
        patch.setattr(merging, "ROWS_AT_ONCE", 5)
        patch.setattr(fed_task, "Merging", partial(merging.Merging, enough=6))
        patch.setattr(fed_task, "SPILL_ROWS", 15)
        return scene.batch()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_in_batch_and_after_one_are_those_of_a_live_run(case: Case, tmp_path: Path) -> None:
    for seed in range(FIRST, FIRST + (SEEDS + 1) // 2):
        scene = Scene(case, seed, tmp_path / f"{seed}")
        live, batch = scene.live(), in_short_pieces(scene)
        both = Scene(case, seed, tmp_path / f"{seed}-handed-over").handed_over()
        assert live.keys() == batch.keys()
        assert any(rows.height for rows in live.values())
        for name, rows in live.items():
            assert batch[name].schema == rows.schema, (seed, name)
            wanted = as_multiset(case.settled(rows))
            assert as_multiset(case.settled(batch[name])) == wanted, (seed, name)
            assert as_multiset(case.settled(both[name])) == wanted, (seed, name)
