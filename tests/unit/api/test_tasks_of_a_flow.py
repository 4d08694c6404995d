"""Stream.process adds the same step as app.task with one input."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.task import TaskStep

VIEWS = {"member": pl.String, "ts": pl.Int64}


class Counted(hr.tasks.Task):
    seen = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        if message["ts"] < 0:
            raise ValueError("before time")
        count = (self.seen.get(message["member"]) or {"n": 0})["n"] + 1
        self.seen.put(message["member"], {"n": count})
        out.send("counts", {"member": message["member"], "n": count, "input": out.input, "ts": message["ts"]})


COUNTS = {"member": pl.String, "n": pl.Int64, "input": pl.String, "ts": pl.Int64}


def views_of(app: hr.App) -> hr.Stream:
    return app.input("views", VIEWS, event_time="ts")


def test_it_is_the_step_that_app_task_makes() -> None:
    def shape(app: hr.App, flows: dict[str, hr.Stream]) -> list[tuple[Any, ...]]:
        flows["counts"].send_to(app.output("counts"))
        found = []
        for node in app.graph().nodes.values():
            step = node.operator
            what = (
                (step.inputs, step.outputs, step.stores, step.timed, step.on_error)
                if isinstance(step, TaskStep)
                else step
            )
            found.append((node.id, node.inputs, what, node.schema, node.event_time))
        return found

    one, other = hr.App("one"), hr.App("one")
    letters: dict[str, Any] = {"on_error": "dead_letter", "event_time": "ts", "id": "counted"}
    by_stream = views_of(one).process(Counted(), {"counts": COUNTS}, dead_letter=one.output("odd"), **letters)
    by_app = other.task(
        Counted(), {"messages": views_of(other)}, {"counts": COUNTS}, dead_letter=other.output("odd"), **letters
    )
    assert shape(one, by_stream) == shape(other, by_app)


def test_it_runs_and_keeps_its_state() -> None:
    app = hr.App("counted")
    by_member = views_of(app).partition_by("member", id="by-member")
    flows = by_member.process(Counted(), {"counts": COUNTS}, on_error="skip", id="counted")
    flows["counts"].filter(pl.col("n") > 1).send_to(app.output("counts"))
    with app.test() as t:
        t.feed("views", [{"member": "ann", "ts": 1}, {"member": "ann", "ts": -1}])
        t.restart()
        t.feed("views", [{"member": "ann", "ts": 2}])
        assert t.read("counts").rows() == [("ann", 2, "messages", 2)]


def test_without_outputs_it_is_an_end() -> None:
    app = hr.App("counted")
    assert views_of(app).process(Counted(), id="counted") == {}
    assert "counted" in app.graph().nodes


def test_mistakes_name_the_line_and_the_method_of_the_user() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="not the class Counted") as caught:
        views_of(hr.App("other")).process(Counted, id="counted")  # type: ignore[arg-type]
    assert "test_tasks_of_a_flow.py" in caught.value.message
