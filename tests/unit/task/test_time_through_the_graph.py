"""Event time and ends pass through the operators of a task: each hears only of what comes before it."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.specs import Role
from headrace.core.errors import DeploymentError, UserFunctionError
from headrace.core.frame import Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP
from headrace.kit.harness import TestApp, records
from headrace.protocol.read_committed import ReadCommitted
from headrace.task.event_time import UNHEARD
from headrace.task.outputs.outlet import Announcer

ROW = {"k": pl.Int64, "ts": pl.Int64}
PLACE = {"k": pl.Int64, "name": pl.String}


def counted(stream: hr.Stream, output: hr.Output, id_: str = "counts") -> None:
    stream.window(hr.tumbling("10ms"), key="k", id=id_).agg(n=pl.len()).send_to(output)


def starts(t: TestApp, output: str = "out", *, committed: bool = False) -> list[int]:
    return sorted(t.read(output, committed=committed)["window_start"].to_list())


def rows(*times: int) -> list[dict[str, int]]:
    return [{"k": 1, "ts": ts} for ts in times]


def beside_a_table(how: str) -> hr.App:
    """A window behind a left join with a table that an input without event time fills."""
    app = hr.App("beside", checkpoint_interval="50ms")
    views = app.input("views", ROW, event_time="ts").partition_by("k", id="by-k", partitions=2)
    places = app.input("places", PLACE)
    table = app.table("names", key="k", schema=PLACE, kind="global" if how == "broadcast" else "local")
    if how == "broadcast":
        places = places.broadcast(id="all-places")
    else:
        places = places.partition_by("k", id="places-by-k", partitions=2)
    if how == "async":
        places = places.map_async(_same, PLACE)
    places.send_to(table)
    counted(views.join(table, how="left"), app.output("out"))
    return app


async def _same(row: dict[str, object]) -> dict[str, object]:
    return row


@pytest.mark.parametrize("how", ["partition_by", "broadcast", "async"])
def test_what_fills_a_table_holds_back_no_window(how: str) -> None:
    with beside_a_table(how).test() as t:
        t.feed("places", [{"k": 1, "name": "here"}])
        t.feed("views", rows(1, 5, 25))
        assert starts(t) == [0]


def test_what_fills_a_table_in_the_same_stage_holds_back_no_window() -> None:
    app = hr.App("beside", checkpoint_interval="50ms")
    table = app.table("names", key="k", schema=PLACE)
    app.input("places", PLACE).send_to(table)
    counted(app.input("views", ROW, event_time="ts").join(table, how="left"), app.output("out"))
    with app.test() as t:
        t.feed("views", rows(1, 5, 25))
        assert starts(t) == [0]
        assert t.watermark == 25


def test_what_fills_a_table_holds_back_no_interval_join() -> None:
    app = hr.App("beside", checkpoint_interval="50ms")
    table = app.table("names", key="k", schema=PLACE)
    app.input("places", PLACE).partition_by("k", id="places-by-k", partitions=1).send_to(table)
    views = app.input("views", ROW, event_time="ts").partition_by("k", id="views-by-k", partitions=1)
    orders = app.input("orders", ROW, event_time="ts").partition_by("k", id="orders-by-k", partitions=1)
    joined = views.join(table, how="left").join(orders, on="k", how="left", within="5ms", id="paired")
    joined.select("k", "ts").send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", rows(1))
        t.feed("views", rows(50))
        t.feed("orders", rows(50))
        assert sorted(t.read("out")["ts"].to_list()) == [1, 50]


def two_outputs() -> hr.App:
    """``p1`` hears of ``s1`` alone, ``p2`` of ``s1`` and ``s2``; one stage writes both."""
    app = hr.App("outputs", checkpoint_interval="50ms")
    s1, s2 = (app.input(name, ROW, event_time="ts") for name in ("s1", "s2"))
    counted(s1.partition_by("k", id="p1", partitions=2), app.output("one"), "in-one")
    counted(s1.merge(s2).partition_by("k", id="p2", partitions=2), app.output("both"), "in-both")
    return app


def test_an_output_hears_the_time_of_what_feeds_it() -> None:
    with two_outputs().test() as t:
        t.feed("s1", rows(1, 25))
        assert (starts(t, "one"), starts(t, "both")) == ([0], [])
        t.feed("s2", rows(11))
        assert starts(t, "both") == [0]


def test_an_output_hears_the_end_of_what_feeds_it() -> None:
    with two_outputs().test() as t:
        t.feed("s1", rows(1, 25))
        t.end("s1")
        assert (starts(t, "one"), starts(t, "both")) == ([0, 20], [])
        t.feed("s2", rows(2, 31))
        assert (starts(t, "one"), starts(t, "both"), t.ended) == ([0, 20], [0, 20], False)
        t.end("s2")
        assert (starts(t, "one"), starts(t, "both"), t.ended) == ([0, 20], [0, 20, 30], True)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_end_is_written_once_whatever_a_restart_takes_back(checkpoint: bool) -> None:
    with two_outputs().test() as t:
        t.feed("s1", rows(1, 25))
        t.end("s1")
        for _ in range(3):
            t.restart(checkpoint=checkpoint)
        assert (ends(t, "p1"), ends(t, "p2")) == ([0, 1] if checkpoint else [], [])
        t.feed("s2", rows(2, 31))
        t.end("s2")
        assert t.ended
        assert ends(t, "p1") == ends(t, "p2") == [0, 1]
        assert (starts(t, "one", committed=True), starts(t, "both", committed=True)) == ([0, 20], [0, 20, 30])


def ends(t: TestApp, stream: str) -> list[int]:
    """The partitions of the committed ends in a stream, one for each end."""
    found = []
    readers: dict[SSP, ReadCommitted[int]] = {}
    for some in records(t._connections, t._spec(stream, Role.INTERMEDIATE)):
        reader = readers.setdefault(some.ssp, ReadCommitted(whole=True))
        for offset, payload in zip(some.offsets, some.payloads, strict=True):
            header = decode_header(payload)
            control = None if header.kind is Kind.USER else decode_control(header.kind, body_of(payload))
            released = reader.receive(offset, offset + 1, header, control, some.ssp.partition)
            found += [held.frame for held in released if held.header.kind is Kind.END_OF_STREAM]
    return found


def test_a_step_ends_with_its_input_while_other_inputs_of_the_task_go_on() -> None:
    app = hr.App("beside", checkpoint_interval="50ms")
    table = app.table("seen", key="k", schema=PLACE)
    app.input("places", PLACE).send_to(table)
    for name in ("s1", "s2"):
        joined = app.input(name, ROW, event_time="ts").join(table, how="left")
        counted(joined, app.output(f"of-{name}"), f"in-{name}")
    with app.test() as t:
        t.feed("s1", rows(1))
        t.feed("s2", rows(2))
        t.end("s1")
        assert (starts(t, "of-s1"), starts(t, "of-s2"), t.ended) == ([0], [], False)
        t.restart(checkpoint=True)
        assert (starts(t, "of-s1"), starts(t, "of-s2"), t.ended) == ([0], [], False)
        t.end("s2", "places")
        assert (starts(t, "of-s1"), starts(t, "of-s2"), t.ended) == ([0], [0], True)


def test_a_task_without_a_partition_of_an_input_hears_its_end() -> None:
    """Two tasks read ``s2``, and only the first one of them ``s1``."""
    with two_outputs().test(partitions={"s1": 1, "s2": 2}) as t:
        t.feed("s1", rows(1, 25))
        assert starts(t, "one") == [0]
        t.end("s1")
        assert (starts(t, "one"), starts(t, "both")) == ([0, 20], [])
        t.end("s2")
        assert (starts(t, "both"), t.ended) == ([0, 20], True)


def test_a_silent_input_silences_only_what_it_feeds() -> None:
    app = hr.App("outputs", checkpoint_interval="50ms")
    s1 = app.input("s1", ROW, event_time="ts")
    s2 = app.input("s2", ROW, event_time="ts", idle_timeout="100ms")
    counted(s1.partition_by("k", id="p1", partitions=1), app.output("one"), "in-one")
    counted(s2.partition_by("k", id="p2", partitions=1), app.output("two"), "in-two")
    both = s1.merge(s2).partition_by("k", id="p3", partitions=1)
    counted(both, app.output("both"), "in-both")
    with app.test() as t:
        t.feed("s2", rows(1))
        t.advance("200ms")
        t.feed("s1", rows(2, 15))
        assert (starts(t, "one"), starts(t, "two"), starts(t, "both")) == ([0], [], [0])
        silent = {
            str(status.ssp.stream.name): status.progress.idle
            for host in t._container.hosts
            for status in host.task.times.partitions.values()
        }
        assert silent == {"s1": False, "s2": True, "p1": False, "p2": True, "p3": False}


def test_what_was_said_to_be_silent_is_so_again_after_messages_came() -> None:
    """A task can be busy for longer than the timeout: it notices the silence before it has announced the messages."""
    app = hr.App("outputs", checkpoint_interval="50ms")
    s1 = app.input("s1", ROW, event_time="ts", idle_timeout="5ms")
    s2 = app.input("s2", ROW, event_time="ts")
    p1, p2 = (s.partition_by("k", id=f"p{n}", partitions=1) for n, s in ((1, s1), (2, s2)))
    counted(p1.merge(p2), app.output("out"))
    with app.test() as t:
        t.feed("s1", rows(1))
        t.advance("200ms")
        t.feed("s1", rows(1), settle=False)
        host = next(host for host in t._container.hosts if host.name.stage == "s1")
        host.poll()
        assert host.step(t.clock.monotonic_ms())
        t.clock.advance(100)
        t.settle()
        t.feed("s2", rows(2, 15))
        assert starts(t) == [0]


def test_a_stream_that_has_ended_is_not_fed_again() -> None:
    """The app has changed since: more could come in a stream whose readers know that nothing will."""
    with two_outputs().test() as t:
        t.feed("s1", rows(1, 25))
        t.end("s1")
        t.restart(checkpoint=True)
        host = next(host for host in t._container.hosts if host.name.stage == "s1")
        ended = host.attempt.save().ended_streams
        assert [name.rpartition(".")[2] for name in ended] == ["p1"]
        again = Announcer(host.scope, host.attempt.outlet, 0.0)
        with pytest.raises(DeploymentError, match="has written the end of stream 'p1', and this version"):
            again.resume(ended, {"p1": UNHEARD, "p2": UNHEARD})
        again.resume(ended, host.task.outputs)
        assert again.ended == ended
        assert again.news({"p2": UNHEARD}), "an earlier generation may have said that it was idle"


def test_a_source_that_is_gone_after_a_change_is_not_waited_for() -> None:
    """The first version merges a source that is silent; the second one doesn't read it any more."""

    def version(*sources: str) -> hr.App:
        app = hr.App("changed", checkpoint_interval="50ms")
        first, *others = (app.input(name, ROW, event_time="ts").filter(pl.col("k") > 0) for name in sources)
        merged = first.merge(*others) if others else first
        counted(merged.partition_by("k", id="p", partitions=1), app.output("out"))
        return app

    with version("s1", "s2").test() as t:
        t.feed("s1", rows(1, 25))
        assert starts(t) == []
        t.change(version("s1"), drop_state=["s2"])
        t.feed("s1", rows(26))
        assert starts(t) == [0]
        t.end()
        assert (starts(t), t.ended) == ([0, 20], True)


class Timing(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> None:
        out.set_timer("later", message["ts"] + 10)

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        pass


def test_a_timer_that_would_never_fire_is_refused() -> None:
    app = hr.App("timers")
    merged = app.input("s1", ROW, event_time="ts").merge(app.input("s2", ROW))
    app.task(Timing(), {"both": merged}, {}, id="timing")
    with app.test() as t, pytest.raises(UserFunctionError, match="an event-time timer would never fire"):
        t.feed("s1", rows(1))
