"""``python -m bench.order``: the cost of order where flows of one input meet again.

Each line is an app whose branches meet, beside the same branches without order: each batch goes whole into one branch
and then into the next, which gives wrong results. Rows pass through the operators of one task, without streams and
commits. Seconds are processor time of all threads, best of some rounds; so a ratio says what order costs. The first
apps have no meeting, and are there to show that they pay nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

import headrace as hr
from headrace.core.ids import TaskName
from headrace.plan.chain_plan import ChainPlan, chain_plan
from headrace.plan.order import Order
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo
from headrace.task.calls import Calls
from headrace.task.event_time import Progress
from headrace.task.metrics import TaskMetrics
from headrace.task.task import Chain

BATCH, ROUNDS = 10_000, 3
KEYS = 1_000_000, 10_000, 100
COLUMNS = {"k": pl.Int64, "v": pl.Int64, "ts": pl.Int64}
Declare = Callable[[hr.App, hr.Stream], object]

odd = pl.col("v") % 2 == 1


def windowed(app: hr.App, i: hr.Stream) -> None:
    counted = i.filter(odd).window(hr.tumbling("1s"), key="k", id="w").agg(n=pl.len())
    counted.send_to(app.output("out"))


def two_outputs(app: hr.App, i: hr.Stream) -> None:
    i.filter(odd).send_to(app.output("odd"))
    i.filter(~odd).send_to(app.output("even"))


def merged(app: hr.App, i: hr.Stream) -> None:
    i.filter(odd).merge(i.filter(~odd)).send_to(app.output("out"))


def changes(app: hr.App, i: hr.Stream) -> None:
    table = app.table("t", key="k", schema={"k": pl.Int64, "v": pl.Int64})
    i.filter(odd).select("k", "v").send_to(table)
    i.filter(~odd).delete_from(table)


def increments(app: hr.App, i: hr.Stream) -> None:
    table = app.table("t", key="k", schema={"k": pl.Int64, "n": pl.Int64})
    i.join(table, how="left", id="look-up").select("k", n=pl.col("n").fill_null(0) + 1).send_to(table)


def latest(app: hr.App, i: hr.Stream) -> None:
    i.filter(odd).join_latest(i.filter(~odd), "k", ttl="1h", id="last").send_to(app.output("out"))


def pairs(app: hr.App, i: hr.Stream) -> None:
    i.filter(odd).join(i.filter(~odd), on="k", within="20ms", id="near").send_to(app.output("out"))


APPS: tuple[Declare, ...] = (windowed, two_outputs, merged, changes, increments, latest, pairs)


class _Nowhere:
    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """See ``Port``."""


def planned(declare: Declare) -> ChainPlan:
    """The operators of an app of one stage."""
    app = hr.App("order")
    declare(app, app.input("i", COLUMNS, event_time="ts"))
    whole = plan(app.graph(), {"i": StreamInfo("i", 1)})
    return chain_plan(whole, whole.stages[0])


def seconds(operators: ChainPlan, rows: pl.DataFrame) -> float:
    """The processor time of one run."""
    chain = Chain(operators, _Nowhere(), TaskMetrics(), Calls(lambda: None))
    chain.tell_time(0)
    chain.begin(TaskName("task", 0))
    began = time.process_time()
    for batch in rows.iter_slices(BATCH):
        chain.process("i", batch)
        chain.advance({"i": Progress(int(batch["ts"][-1]))})
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.order", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="messages a run (default: 200,000)")
    parser.add_argument("--only", default="", help="apps whose names contain this")
    options = parser.parse_args(arguments)
    print(f"{'app':12} {'keys':>9}  {'in order':>12}  {'without':>12}  cost")
    for declare in APPS:
        if options.only not in declare.__name__:
            continue
        operators = planned(declare)
        order = operators.order
        loose = replace(operators, order=Order(branches=order.branches, inputs=order.inputs))
        for keys in KEYS:
            random = np.random.default_rng(1)
            numbers = np.arange(options.rows)
            rows = pl.DataFrame(
                {
                    "k": random.integers(0, keys, options.rows),
                    "v": random.integers(0, 10, options.rows),
                    "ts": numbers // 50,
                }
            )
            took = [min(seconds(chosen, rows) for _ in range(ROUNDS)) for chosen in (operators, loose)]
            ordered, without = (options.rows / each for each in took)
            print(f"{declare.__name__:12} {keys:9,}  {ordered:10,.0f}/s  {without:10,.0f}/s  {took[0] / took[1]:.2f}")


if __name__ == "__main__":
    main()
