"""Running aggregates on the real log, in tasks that are killed again and again: nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr
from drawn import seeds
from headrace.rows.changes import CHANGE, KIND, added_up

BIDS = {"bidder": pl.Int64, "price": pl.Int64}


def standings(home: Path) -> hr.App:
    """How many bidders have made a number of bids, and the dearest and the last of theirs."""
    app = hr.App("standings", home=str(home), intermediate_partitions=2, checkpoint_interval=f"{INTERVAL_MS}ms")
    bids = app.input("bids", BIDS).partition_by("bidder", id="by-bidder")
    counts = bids.group_by(id="counts").agg(n=pl.len(), dearest=pl.col("price").max(), last=hr.aggregates.last("price"))
    by_number = counts.partition_by("n", id="by-number").group_by(id="numbers")
    results = by_number.agg(
        bidders=pl.len(),
        prices=pl.col("dearest").sum(),
        dearest=pl.col("dearest").max(),
        different=hr.aggregates.n_unique("last"),
    )
    results.as_rows().send_to(app.output("out", partitions=2))
    return app


def wanted(bids: pl.DataFrame) -> pl.DataFrame:
    counts = bids.group_by("bidder").agg(n=pl.len(), dearest=pl.col("price").max(), last=pl.col("price").last())
    return counts.group_by(pl.col("n").cast(pl.Int64)).agg(
        bidders=pl.len().cast(pl.Int64),
        prices=pl.col("dearest").sum(),
        dearest=pl.col("dearest").max(),
        different=pl.col("last").n_unique().cast(pl.Int64),
    )


@pytest.mark.parametrize("seed", seeds([1, 2, 3], 1))
def test_results_add_up_however_often_tasks_are_killed(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    hr.streams.create_stream("bids", 1, BIDS, home=tmp_path)
    written: list[pl.DataFrame] = []
    with hr.streams.StreamWriter("bids", home=tmp_path) as bids, DrivenApp(standings(tmp_path)) as app:
        container = app.start()
        for turn in range(10):
            batch = pl.DataFrame({"bidder": random.integers(0, 60, 80), "price": random.integers(0, 50, 80)})
            bids.write(batch)
            written.append(batch)
            app.run(int(random.integers(0, 3 * INTERVAL_MS)))
            if turn % 3:
                app.kill(container)
                container = app.start()
        bids.seal()
        app.finish()
        found = app.rows("out")
    changes = found.select(*wanted(written[0]).columns, pl.col("change").cast(KIND).alias(CHANGE))
    assert added_up(changes).rows() == wanted(pl.concat(written)).sort(pl.all()).rows()
