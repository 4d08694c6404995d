"""A new operator needs its spec, its runtime class and their registration, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pytest
from typing_extensions import override

import headrace as hr
from headrace.api.checks import here
from headrace.api.operators.spec import OperatorSpec, StateMeaning
from headrace.api.specs import Node
from headrace.core.errors import PlanError
from headrace.plan.keys import partitionings
from headrace.plan.passes import unreadable
from headrace.plan.planner import plan
from headrace.plan.render import render, to_text
from headrace.rows.schema import Schema
from headrace.stores.base import StateStore
from headrace.stores.keyvalue import KeyValueStore
from headrace.systems.base import StreamInfo
from headrace.task.operators import registry
from headrace.task.operators.base import BuildContext, Operator

COLUMNS = {"member": pl.String, "url": pl.String, "ms": pl.Int64}


@dataclass(frozen=True, slots=True)
class Limit(OperatorSpec):
    """Passes on the first ``most`` messages of each task."""

    most: int
    kind = "limit"
    passes_rows = True
    hidden_state = "a limit"

    @property
    @override
    def detail(self) -> str:
        return f"the first {self.most}"

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        return {id_: StateMeaning(fixed={"kind": self.kind})}


class LimitOperator(Operator):
    """Counts the messages that it has passed on, in a store."""

    def __init__(self, node: Node, spec: Limit, context: BuildContext) -> None:
        super().__init__(node)
        self._most = spec.most
        self._store = KeyValueStore(node.id)

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._store,)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        passed = int.from_bytes(self._store.get(b"passed") or b"", "big")
        kept = rows.head(self._most - passed)
        self._store.put(b"passed", (passed + kept.height).to_bytes(8, "big"))
        self.emit(kept)


def limit(stream: hr.Stream, most: int, id_: str) -> hr.Stream:
    return stream._then("limit", Limit(most), here(), stream.schema, None, id_=id_)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> hr.App:
    monkeypatch.setitem(registry._BUILDS, Limit, LimitOperator)
    app = hr.App("limited")
    views = app.input("views", COLUMNS).filter(pl.col("url") != "/")
    by_member = limit(views.partition_by("member", id="by-member"), 3, "some").select("member", "ms")
    by_member.send_to(app.output("out"))
    return app


def test_it_runs_and_keeps_its_state_over_a_restart(limited: hr.App) -> None:
    rows = [{"member": "ann", "url": f"/{n}", "ms": n} for n in range(5)]
    with limited.test() as t:
        t.feed("views", rows[:2])
        t.restart(checkpoint=True)
        t.feed("views", rows[2:])
        assert t.read("out").get_column("ms").to_list() == [0, 1, 2]


def test_state_that_no_spec_declares_is_refused(limited: hr.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limit, "kept_state", OperatorSpec.kept_state)
    with pytest.raises(PlanError, match="keeps state in the store 'some', which no step declares"):
        limited.test()


def test_a_changed_app_is_compared_with_its_state(limited: hr.App) -> None:
    other = hr.App("limited")
    views = other.input("views", COLUMNS).filter(pl.col("url") != "/").partition_by("member", id="by-member")
    limit(views, 3, "renamed").select("member", "ms").send_to(other.output("out"))
    with limited.test() as t:
        t.feed("views", [{"member": "ann", "url": f"/{n}", "ms": n} for n in range(2)])
        with pytest.raises(PlanError, match="step 'some': it is gone"):
            t.change(other)
        t.change(other, rename={"renamed": "some"})
        t.feed("views", [{"member": "ann", "url": f"/{n}", "ms": n} for n in range(2, 5)])
        assert t.read("out").get_column("ms").to_list() == [0, 1, 2]


def test_the_planner_knows_it(limited: hr.App) -> None:
    graph = limited.graph()
    planned = plan(graph, {"views": StreamInfo("views", 2)})
    shown = [line.split() for line in to_text(render(planned)).splitlines()]
    assert any(words[:7] == ["limit", "some", "from", "by-member,", "the", "first", "3"] for words in shown)
    assert unreadable(graph) == {"some": "a limit"}
    assert planned.needed["input-by-member"] == ("member", "ms")
    partitioning = partitionings(graph)["some"]
    assert partitioning is not None
    assert partitioning.keys == (frozenset({"member"}),)
