"""Startpoints in a test of an app: in memory, with restarts, in every kind of input."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pytest

import headrace as hr

SCHEMA = {"member": pl.String, "ts": pl.Int64}


def rows(*times):
    return [{"member": "a", "ts": ts} for ts in times]


def seen(t):
    return sorted(t.read("seen")["ts"].to_list())


def make(**settings):
    app = hr.App("views", **settings)
    app.input("views", SCHEMA, event_time="ts").send_to(app.output("seen"))
    return app


def test_it_counts_at_the_next_restart():
    with make().test(partitions=2) as t:
        t.feed("views", rows(1, 2))
        t.feed("views", rows(3), partition=1)
        t.restart(checkpoint=True)
        assert seen(t) == [1, 2, 3]
        t.set_startpoint("views", hr.startpoints.oldest(), partition=0)
        assert [state.state for state in t.startpoints()] == ["pending"]
        t.restart()
        assert seen(t) == [1, 1, 2, 2, 3]
        assert [(state.state, state.offset) for state in t.startpoints()] == [("applied", 0)]
        t.restart()  # nothing has covered it, so it is applied again
        assert [(state.state, state.offset, state.generation) for state in t.startpoints()] == [("applied", 0, 4)]
        t.restart(checkpoint=True)
        assert t.startpoints() == []
        assert [state.state for state in t.startpoints(done=True)] == ["released"]
        assert sorted(t.read("seen", committed=True)["ts"].to_list()) == [1, 1, 2, 2, 3]


def test_apply_counts_at_once():
    with make().test() as t:
        t.feed("views", rows(1, 2))
        t.restart(checkpoint=True)
        t.set_startpoint("views", hr.startpoints.oldest(), apply=True)
        t.restart(checkpoint=True)
        assert seen(t) == [1, 1, 2, 2]
        assert t.startpoints() == []


@dataclass(frozen=True)
class From(hr.startpoints.CustomStartpoint):
    kind = "from"
    record: int

    def offset(self, partition):
        assert (partition.stream, partition.partition) == ("views", 0)
        return partition.oldest + self.record


def test_a_kind_of_the_apps_own():
    with make(startpoints=[From]).test() as t:
        for n in range(4):
            t.feed("views", rows(n))
        t.restart(checkpoint=True)
        t.set_startpoint("views", From(2))
        t.restart()
        assert seen(t) == [0, 1, 2, 2, 3, 3]


def test_windows_that_have_closed_stay_closed():
    app = hr.App("views")
    views = app.input("views", SCHEMA, event_time="ts").partition_by("member", id="by-member", partitions=1)
    views.window(hr.tumbling("10s"), key="member", id="per-10s").agg(views=hr.count()).send_to(app.output("counts"))
    with app.test() as t:
        t.feed("views", rows(1_000, 2_000, 15_000))
        t.restart(checkpoint=True)
        before = t.read("counts").height
        assert before == 1
        t.set_startpoint("views", hr.startpoints.oldest(), apply=True)
        assert t.counter("late") == 2
        t.restart(checkpoint=True)
        assert t.read("counts").height == before


def test_wrong_requests():
    with make().test() as t:
        with pytest.raises(hr.errors.UsageError, match="no input 'clicks'"):
            t.set_startpoint("clicks", hr.startpoints.oldest())
        with pytest.raises(hr.errors.UsageError, match="'oldest' isn't a startpoint"):
            t.set_startpoint("views", "oldest")
        t.close()
        with pytest.raises(hr.errors.UsageError, match="is closed"):
            t.startpoints()
