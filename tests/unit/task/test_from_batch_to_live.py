"""A batch up to a cut, and a live run from there, together give what a live run from the beginning gives.

Simulated apps say by their oracles what that is, for messages in disorder. ``test_batch_equals_live.py`` compares every
operator with a live run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from both_ways import hand_over
from test_batch_of_simulated_apps import NAMES

import headrace as hr
from headrace.api.specs import StreamSpec
from headrace.app import App
from headrace.kit.harness import TestApp
from headrace.life.folder import Shelf
from headrace.plan.inventory import Inventory
from headrace.protocol.record import SourceEntry
from headrace.run.savepoints.writing import FromBatch, save
from headrace.task.batch import Said, Seam
from headrace.task.event_time import Progress
from seams.in_process_batch import InProcess
from simulator.case import COLUMNS, AppCase, keys_in
from simulator.declared import CASES
from simulator.expected import TICK_MS, Message
from simulator.sums import summed

MESSAGES = 120
AT_ONCE = 7
VERSION = 10_000
FIRST, SEEDS = int(os.environ.get("HEADRACE_SEAMS_FROM", "0")), int(os.environ.get("HEADRACE_SEAMS", "1"))


class Scene:
    """An app and the messages of its sources, in a random order; a random part of each partition is history."""

    def __init__(self, case: AppCase, seed: int, home: Path) -> None:
        self.case = case
        self._home = home
        self._chance = random.Random(seed)
        app = App("simulated", home=home)
        case.declare(app)
        specs = app.graph().streams
        self._idles = any(spec.idle_timeout_ms is not None for spec in specs.values())
        self.sources = {name: self._messages(specs[name], count) for name, count in case.inputs.items()}
        self._cuts = {
            (name, partition): self._chance.choice([0.0, 0.3, 0.6, 0.9, 1.0, self._chance.random()])
            for name, count in case.inputs.items()
            for partition in range(count)
        }

    def _messages(self, source: StreamSpec, partitions: int) -> list[Message]:
        chance, now, messages = self._chance, 1_000, []
        for n in range(MESSAGES):
            now += chance.randrange(3) * TICK_MS
            ts = now - chance.randrange(self.case.disorder + 1) * TICK_MS
            place = n // AT_ONCE
            key = chance.choice(keys_in(source, place % partitions, partitions, 5))
            message = Message(n + 1, key, ts, place % partitions, place // partitions)
            if self.case.repeats and n % AT_ONCE and chance.random() < 0.3:
                message = messages[-1]
            messages.append(message)
        return messages

    def run(self) -> dict[str, list[dict[str, object]]]:
        """What comes out: in the batch, and then live."""
        app = App("simulated", home=self._home)
        self.case.declare(app)
        with app.test(partitions=dict(self.case.inputs)) as t:
            rest = self._feed(t, history=True)
            published = hand_over(t, self._home)
            for name, partition, some in rest:
                feed(t, name, partition, some, settle=self._chance.random() < 0.3)
            t.end()
            assert t.ended
            # A partition without history counts as idle, so what it sends after the others' history may be late.
            assert self._idles or t.counter("late") == 0
            found = {id_: rows.to_dicts() + t.read(id_).to_dicts() for id_, rows in published.items()}
            return summed(found, self.case.keys)

    def _feed(self, t: TestApp, *, history: bool) -> list[tuple[str, int, Sequence[Message]]]:
        """Feed the history, without processing it; return what comes after it."""
        rest = []
        for name, messages in self.sources.items():
            for first in range(0, MESSAGES, AT_ONCE):
                some = messages[first : first + AT_ONCE]
                partition = some[0].partition
                if history and first < MESSAGES * self._cuts[name, partition]:
                    feed(t, name, partition, some, settle=False)
                else:
                    rest.append((name, partition, some))
        return rest


def feed(t: TestApp, name: str, partition: int, some: Sequence[Message], *, settle: bool) -> None:
    rows = pl.DataFrame([[m.id, m.k, m.ts] for m in some], dict(COLUMNS), orient="row")
    t.feed(name, rows, partition=partition, settle=settle)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_what_the_oracle_says(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for seed in range(FIRST, FIRST + SEEDS):
        scene = Scene(case, seed, tmp_path / f"home{seed}")
        outputs = scene.run()
        wrong = case.wrong(scene.sources, outputs)
        assert wrong is None, f"seed {seed}: {wrong}"
        assert any(outputs.values()), f"seed {seed}: nothing came out"


def test_what_a_table_had_is_left_out_for_good(tmp_path: Path) -> None:
    """Not even a restart lets a message count that is older than the history from a table."""
    app = hr.App("simulated", home=tmp_path)
    views = app.input("views", COLUMNS, event_time="ts", lateness="1s")
    views.select("id").send_to(app.output("seen"))
    with app.test() as t:
        (ssp,) = t.plan.streams["views"].ssps()
        entry = SourceEntry(stream=str(ssp.stream), partition=0, offset=0, since_ms=5_000)
        given = {ssp: Said(progress=Progress(5_000), entry=entry)}
        (stage,) = t.plan.stages
        (task,) = stage.tasks
        job = InProcess(t.plan, {}, tmp_path / "state", 1_000_000, Seam(VERSION, str(tmp_path / "left"), given))
        job.leave(stage, task)
        what = FromBatch(plan=t.plan, before=Inventory(), timeline=1, version=VERSION, left=job.left)
        save(Shelf(tmp_path, "simulated"), "history", what)
        t.restore("history")
        assert t.watermark == 5_000
        t.feed("views", [{"id": 1, "k": 0, "ts": 4_999}, {"id": 2, "k": 0, "ts": 5_000}])
        assert t.counter("backfilled") == 1
        t.restart(checkpoint=True)
        t.feed("views", [{"id": 3, "k": 0, "ts": 4_000}, {"id": 4, "k": 0, "ts": 6_000}])
        t.restart()
        assert t.read("seen", committed=True)["id"].to_list() == [2]
        t.restart(checkpoint=True)
        assert t.read("seen", committed=True)["id"].to_list() == [2, 4]
        t.set_startpoint("views", hr.startpoints.oldest(), apply=True)
        assert t.read("seen")["id"].to_list()[-4:] == [1, 2, 3, 4], "whoever moves back wants to read all of it"
