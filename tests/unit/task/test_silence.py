"""Repeating silently: nothing is written, and inputs are read no further than they had been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pytest

from headrace.core.ids import SSP
from headrace.protocol.record import CommitRecord, Founding
from headrace.systems.base import BadRecord, Ended, Records, Rows
from headrace.systems.startpoints import Grant, Order, StartpointOldest
from headrace.task.inputs.consumers import up_to
from unit.task.driven_app import INTERVAL_MS, OUTPUTS, DrivenApp, Orders, orders_app

S = SSP.of("log.s", 0)


@pytest.mark.parametrize(
    ("polled", "limit", "left"),
    [
        (Records(S, [0, 10, 20], [b"a", b"b", b"c"], 30), 30, Records(S, [0, 10, 20], [b"a", b"b", b"c"], 30)),
        (Records(S, [0, 10, 20], [b"a", b"b", b"c"], 30), 20, Records(S, [0, 10], [b"a", b"b"], 20)),
        (Records(S, [20], [b"c"], 30), 10, Records(S, [], [], 10)),
        (Ended(S, 30), 31, Ended(S, 30)),
        (Ended(S, 30), 30, Records(S, [], [], 30)),
    ],
)
def test_what_is_at_the_limit_or_after_it_is_left(polled, limit, left):
    assert up_to(polled, limit) == left


def test_rows_are_counted_with_those_that_could_not_be_read():
    bad = (BadRecord(S, 101, "?", b""), BadRecord(S, 104, "?", b""))
    rows = Rows(S, pl.DataFrame({"a": [100, 102, 103, 105]}), 100, 106, bad)
    left = up_to(rows, 104)
    assert isinstance(left, Rows)
    assert (left.frame["a"].to_list(), left.next, [b.offset for b in left.bad]) == ([100, 102, 103], 104, [101])
    assert up_to(rows, 106) is rows


@pytest.fixture
def orders(tmp_path: Path):
    found = Orders(tmp_path)
    yield found
    found.close()


class SilentApp(DrivenApp):
    silent = True

    def next_generation(self, task) -> Grant:
        return msgspec.structs.replace(super().next_generation(task), silent=self.silent)


def test_a_silent_app_repeats_up_to_where_it_was_and_then_goes_on_aloud(tmp_path, orders):
    with SilentApp(orders_app(tmp_path)) as app:
        app.silent = False
        orders.write()
        container = app.start()
        app.run(6 * INTERVAL_MS)
        until = {ssp: host.positions[ssp] for host in app.hosts for ssp in host.catching_up.sources}
        app.kill(container)
        before = {output: app.rows(output) for output in OUTPUTS}
        assert before["seen"].height
        orders.write()  # nobody has read these

        app.silent = True
        for ssp in until:
            order = Order(
                stream=str(ssp.stream), partition=ssp.partition, startpoint=StartpointOldest(id="s", created_ms=1)
            )
            for host in app.plan.stages[0].tasks:
                if ssp in host.inputs:
                    app.orders.setdefault(host.name, []).append(order)
        container = silent_start(app, until)
        app.run(8 * INTERVAL_MS)
        assert all(host.catching_up.version is not None for host in app.hosts)
        assert {ssp: host.positions[ssp] for host in app.hosts for ssp in host.catching_up.sources} == until
        assert app.rows("seen").height == before["seen"].height
        assert sum(host.metrics.counters["silenced"] for host in app.hosts) == before["seen"].height

        app.silent = False
        for host in reversed(container.hosts):
            host.restart_beyond(host.generation)
        app.run(8 * INTERVAL_MS)
        wanted = pl.concat(orders.written).filter(pl.col("amount") > 0)["order"].to_list()
        assert sorted(app.rows("seen")["order"].to_list()) == sorted(wanted)


def silent_start(app: DrivenApp, until: dict[SSP, int]):
    known = {(str(ssp.stream), ssp.partition): offset for ssp, offset in until.items()}
    never = Founding(CommitRecord(generation=0, version=0, next_version=1), silent_until=known)
    stages = [replace(s, tasks=tuple(replace(task, founding=never) for task in s.tasks)) for s in app.plan.stages]
    app.plan = replace(app.plan, stages=tuple(stages))
    return app.start()
