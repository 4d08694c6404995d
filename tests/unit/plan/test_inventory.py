"""What an app keeps, as it is recorded and compared: names that additions can't change, stages deployed apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest

import headrace as hr
from headrace.api.specs import Role
from headrace.core.errors import DataError, PlanError, UnavailableError
from headrace.life.metadata import MemoryMetadata
from headrace.operate.page.plan_page import plan_html
from headrace.plan.changes import Changes, Verdict, compare
from headrace.plan.inventory import NOTHING, Consent, Dealing, Heritage, Inventory, Part, StageRecord, inventory_of
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.plan.render import render, to_text
from headrace.run.planning import Deployment, Planned
from headrace.systems.base import StreamInfo

VIEWS = {"member": pl.String, "ts": pl.Int64}


def planned(app: hr.App, before: Inventory = NOTHING, consent: Consent | None = None, **counts: int) -> Plan:
    heritage = Heritage(before, consent or Consent())
    graph = heritage.adopt(app.graph())
    there = {id_ for id_, spec in graph.streams.items() if spec.role in (Role.SOURCE, Role.SIDE_INPUT)}
    facts = {id_: StreamInfo(id_, counts.get(id_, 1)) for id_ in sorted(there | counts.keys())}
    return plan(graph, facts, 1, heritage)


def app(*inputs: str, window: bool = True, alone: Sequence[str] = ()) -> hr.App:
    """Some inputs are merged, repartitioned and counted; others are repartitioned into the same stage, each alone."""
    app = hr.App("app")
    streams = [app.input(name, VIEWS, event_time="ts") for name in inputs]
    merged = streams[0].merge(*streams[1:]) if len(streams) > 1 else streams[0]
    shuffled = merged.partition_by("member", id="p")
    others = [
        app.input(name, VIEWS, event_time="ts").partition_by("member", id=f"p-{name}", partitions=1) for name in alone
    ]
    all_ = shuffled.merge(*others) if others else shuffled
    if window:
        all_ = all_.window(hr.tumbling("10s"), key="member", id="w").agg(n=pl.len())
    all_.send_to(app.output("out"))
    return app


def names(plan: Plan) -> list[str]:
    return sorted(stage.name for stage in plan.stages)


def test_a_record_has_these_bytes() -> None:
    part = Part(
        kind="step",
        id="w",
        owner="w",
        kept_as="w~2",
        fixed={"shape": "tumbling 10s"},
        columns={"n": "count"},
        dealing=Dealing(by=("member",)),
    )
    record = StageRecord(stage="p", producers=(7,), active=1, parts={"w": part}, former=("app-q",), dropped=("w",))
    data = (
        b'{"format":2,"stage":"p","producers":[7],"active":1,"parts":{"w":{"kind":"step","id":"w","owner":"w",'
        b'"keptAs":"w~2","fixed":{"shape":"tumbling 10s"},"columns":{"n":"count"},"sheds":false,"reads":false,'
        b'"writers":{},"dealing":{"by":["member"]}}},'
        b'"former":["app-q"],"dropped":["w"]}'
    )
    assert record.encode() == data
    assert StageRecord.decode(data) == record
    with pytest.raises(DataError, match="of format 1; this version of Headrace reads 2"):
        StageRecord.decode(data.replace(b'"format":2', b'"format":1'))
    with pytest.raises(DataError, match="unreadable"):
        StageRecord.decode(b"{}")


def test_what_is_added_changes_no_name() -> None:
    before = planned(app("m"))
    assert names(before) == ["m", "p"]
    after = planned(app("m", "a"), inventory_of(before))
    assert names(after) == ["m", "p"]
    assert names(planned(app("m", "a"))) == ["a", "p"]
    producers = {task.name: task.producer for stage in before.stages for task in stage.tasks}
    assert producers == {task.name: task.producer for stage in after.stages for task in stage.tasks}


def test_a_stage_never_has_fewer_tasks() -> None:
    wide = planned(app("m", "a", window=False), m=3)
    assert [len(stage.tasks) for stage in wide.stages] == [3, 3]
    after = planned(app("a", window=False), inventory_of(wide), Consent(frozenset(["m"])), p=3)
    assert [(len(stage.tasks), stage.tasks[2].inputs) for stage in after.stages if stage.inputs == ("a",)] == [(3, ())]


def test_a_stage_that_is_gone_is_kept_to_end_in_what_is_still_read() -> None:
    before = planned(app("m", alone=["b"]))
    assert names(before) == ["b", "m", "p"]
    moved = hr.App("app")
    shuffled = moved.input("m", VIEWS, event_time="ts").partition_by("member", id="p")
    other = moved.input("b", VIEWS, event_time="ts")
    other.send_to(moved.output("copy"))
    merged = shuffled.merge(moved.input("c", VIEWS, event_time="ts").partition_by("member", id="p-b", partitions=1))
    merged.window(hr.tumbling("10s"), key="member", id="w").agg(n=pl.len()).send_to(moved.output("out"))
    after = planned(moved, inventory_of(before))
    stage = after.stage("b")
    assert (stage.outputs, stage.former) == (("copy", "p-b"), ("app-p-b",))
    assert after.streams["p-b"].writers == ("b", "c")
    verdicts = {c.id: c.verdict for c in compare(inventory_of(after), Heritage(inventory_of(before))).parts}
    assert verdicts["w"] is Verdict.KEPT
    assert verdicts["c"] is Verdict.NEW
    # Once it has ended there, it can't write the stream again.
    back = planned(app("m", alone=["b"]), inventory_of(after), Consent(frozenset(["c"])))
    changes = compare(inventory_of(back), Heritage(inventory_of(after), Consent(frozenset(["c"]))))
    with pytest.raises(PlanError, match="stage 'b' has ended in it, and would write it again"):
        changes.check()


def test_an_empty_stage_says_in_the_plan_why_it_is_there() -> None:
    before = planned(app("m", alone=["b"]))
    left = hr.App("app")
    shuffled = left.input("m", VIEWS, event_time="ts").partition_by("member", id="p")
    other = left.input("c", VIEWS, event_time="ts").partition_by("member", id="p-b", partitions=1)
    merged = shuffled.merge(other).window(hr.tumbling("10s"), key="member", id="w")
    merged.agg(n=pl.len()).send_to(left.output("out"))
    after = planned(left, inventory_of(before), Consent(frozenset(["b"])))
    assert after.stage("b").nodes == ()
    text = to_text(render(after))
    assert "stage b: 1 task\n  gone; tells the readers of p-b that it has ended\n" in text
    assert "tells the readers of p-b" in plan_html(render(after))


def test_dropped_state_and_streams_get_names_that_were_never_used() -> None:
    first = inventory_of(planned(app("m")))
    drop = Consent(frozenset(["w", "p"]))
    second = planned(app("m"), first, drop)
    assert second.stage("p").kept_as["w"] == "w~2"
    assert second.graph.streams["p"].stream.name == "app-p-2"
    assert second.stage("p").dropped == ("w",)
    third = planned(app("m"), inventory_of(second), drop)
    assert third.stage("p").kept_as["w"] == "w~3"
    assert third.stage("p").dropped == ("w", "w~2")
    gone = replace(NOTHING, gone=frozenset(["app-p", "p"]))
    assert (names(planned(app("m"), gone)), planned(app("m"), gone).graph.streams["p"].stream.name) == (
        ["m", "p-2"],
        "app-p-2",
    )


def test_a_stage_that_runs_elsewhere_has_to_know_the_writers_of_its_streams() -> None:
    before = inventory_of(planned(app("m", window=False)))
    wider = planned(app("m", window=False), before, m=2, p=1)
    heritage = Heritage(before)
    compare(inventory_of(wider), heritage).check()
    with pytest.raises(
        PlanError, match="stage 'p' reads it, and runs a version that doesn't know m: start stage 'p' first"
    ):
        compare(inventory_of(wider), heritage, ["m"]).check()
    compare(inventory_of(wider), heritage, ["p"]).check()
    known = Inventory({**before.stages, "p": inventory_of(wider).stages["p"]})
    compare(inventory_of(wider), Heritage(known), ["m"]).check()


def test_a_new_table_of_a_known_side_input_is_filled_from_its_start() -> None:
    def joined(*tables: str) -> hr.App:
        app = hr.App("app")
        rates = app.input("rates", {"member": pl.String, "rate": pl.Int64})
        flow = app.input("m", VIEWS, event_time="ts")
        for name in tables:
            table = app.table(name, key="member", side_inputs=rates, schema={"member": pl.String, "rate": pl.Int64})
            flow = flow.join(table, how="left").drop("rate")
        flow.send_to(app.output("out"))
        return app

    before = inventory_of(planned(joined("a")))
    after = planned(joined("a", "b"), before)
    assert after.stage("m").kept_as["rates"] == "log.rates~2"
    changes = {c.id: c for c in compare(inventory_of(after), Heritage(before)).parts}
    assert changes["rates"].why == "it is read again from its start, to fill its tables"
    assert changes["a"].verdict is Verdict.KEPT
    again = planned(joined("a", "b"), inventory_of(after))
    assert again.stage("m").kept_as["rates"] == "log.rates~2"


def test_nothing_is_recorded_under_the_name_of_another_start() -> None:
    metadata = MemoryMetadata()
    first, second = (Deployment(app("m").graph(), metadata, Consent()) for _ in range(2))
    known = planned(app("m"))
    first.record(Planned(known, Changes(())))
    with pytest.raises(UnavailableError, match="another start of app 'app'"):
        second.record(Planned(known, Changes(())))
