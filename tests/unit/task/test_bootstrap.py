"""How far side inputs have been read, and what the status says of it."""

from __future__ import annotations

import polars as pl

import headrace as hr
from headrace.coordinator.messages import AppStatus
from headrace.core.ids import SSP, StreamId
from headrace.operate.cli.status_view import held_up
from headrace.run.container import task_status
from headrace.task.inputs.chooser import Chooser
from headrace.task.inputs.consumers import Bootstrap

A, B = (SSP(StreamId("log", "prices"), partition) for partition in range(2))


def test_all_waits_until_each_has_been_read() -> None:
    chooser = Chooser([A, B], [A, B])
    bootstrap = Bootstrap(chooser)
    positions = {A: 100, B: 40}
    bootstrap.begin(positions, {A: 200, B: 140})
    found = [bootstrap.percent(positions)]
    for ssp, position in ((A, 150), (A, 210), (B, 139), (B, 140)):
        positions[ssp] = position
        bootstrap.note(ssp, position)
        found.append(bootstrap.percent(positions))
    assert found == [0, 25, 50, 99, None]
    assert not chooser._bootstrap


def test_what_ended_or_held_nothing_has_been_read() -> None:
    chooser = Chooser([A, B], [A, B])
    bootstrap = Bootstrap(chooser)
    bootstrap.begin({A: 7, B: 0}, {A: 7, B: 10})
    assert list(chooser._bootstrap) == [B]
    bootstrap.note(B, 5, ended=True)
    assert bootstrap.percent({A: 7, B: 5}) is None


def test_the_status_says_how_far_a_task_is() -> None:
    app = hr.App("shop")
    prices = app.input("prices", {"article": pl.String, "price": pl.Int64})
    sales = app.input("sales", {"article": pl.String})
    sales.join(app.table("now", key="article", side_inputs=[prices])).send_to(app.output("priced"))
    with app.test() as t:
        t.feed("prices", [{"article": "a", "price": 1}])
        t.feed("prices", [{"article": "b", "price": 1}])
        (host,) = t._container.hosts
        assert task_status(host, 0).side_inputs_percent is None
        # As it would be if there were more of them to read.
        host.attempt.bootstrap.begin(dict.fromkeys(host.task.side_inputs, 0), dict.fromkeys(host.task.side_inputs, 5))
        task = task_status(host, 0)
    assert task.side_inputs_percent == 40
    status = AppStatus(
        app="shop", state="running", started_at=0, guarantee="exactly_once", stages=[], tasks=[task], containers=[]
    )
    assert ["reading its side inputs: 40 % are read" in one for one in held_up(status, 0)] == [True]
