"""A batch over the messages of a simulated app gives what the app's own oracle says has to come of them."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import polars as pl
import pytest

from headrace.api.specs import Role
from headrace.app import App
from headrace.core.frame import Header, Kind, encode
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.ipc import encode_rows
from headrace.run.planning import gather_facts
from headrace.systems.registry import SystemSpec
from headrace.task.connections import Connections
from seams.in_process_batch import InProcess, in_memory, rows_of
from simulator.case import COLUMNS, AppCase, keys_in
from simulator.declared import CASES
from simulator.expected import TICK_MS, Message
from simulator.sums import summed

MESSAGES = 120
ANSWERED = {"app-async", "app-ordered", "app-remote", "app-written"}
"""Their services are part of the simulated world."""
BY_ARRIVAL = {"app-changed-totals", "app-changed-pairs"}
"""The last row of a key is the one that arrived last, and a batch has messages in the order of event time."""
NAMES = [
    name
    for name, case in CASES.items()
    if not (case.slotted or case.moved or case.before or case.asks or case.repeats_work or name in ANSWERED)
]


class Scene:
    """An app whose sources hold messages, all of them, and end."""

    def __init__(self, case: AppCase, seed: int, home: Path) -> None:
        self.case = case
        self._memory = SystemSpec(f"batch-{uuid.uuid4().hex[:12]}", "memory")
        self._chance = random.Random(seed)
        self._connections = Connections()
        app = App("simulated", home=home)
        case.declare(app)
        self._graph = in_memory(app.graph(), self._memory)
        self.sources = {name: self._filled(name, partitions) for name, partitions in case.inputs.items()}
        self._connections.close()
        self.plan: Plan = plan(self._graph, gather_facts(self._graph))

    def _filled(self, name: str, partitions: int) -> list[Message]:
        admin, producer = self._connections.admin(self._memory), self._connections.record_producer(self._memory)
        admin.create(name, partitions)
        chance, now, messages = self._chance, 1_000, []
        for n in range(MESSAGES):
            now += chance.randrange(3) * TICK_MS
            ts = now - chance.randrange(self.case.disorder + 1) * TICK_MS
            partition = n // 7 % partitions
            key = chance.choice(keys_in(self._graph.streams[name], partition, partitions, 5))
            message = Message(n + 1, key, ts, partition, n // 7 // partitions)
            if self.case.repeats and n % 7 and chance.random() < 0.3:
                message = messages[-1]
            messages.append(message)
        for first in range(0, MESSAGES, 7):
            some = messages[first : first + 7]
            rows = pl.DataFrame([[m.id, m.k, m.ts] for m in some], dict(COLUMNS), orient="row")
            producer.send(name, some[0].partition, encode(Header(Kind.USER)) + encode_rows(rows))
        producer.flush()
        admin.seal(name)
        return messages

    def run(self, folder: Path) -> dict[str, list[dict[str, object]]]:
        pieces = InProcess(self.plan, {}, folder, 1_000_000).run()
        sinks = (stream.spec for stream in self.plan.streams.values() if stream.spec.role is Role.SINK)
        rows = {spec.id: rows_of(pieces[spec.id], pl.DataFrame()).to_dicts() for spec in sinks}
        return summed(rows, self.case.keys)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BY_ARRIVAL])
def test_results_are_what_the_oracle_says(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for seed in range(3):
        scene = Scene(case, seed, tmp_path / f"home{seed}")
        outputs = scene.run(tmp_path / f"state{seed}")
        wrong = case.wrong(scene.sources, outputs)
        assert wrong is None, f"seed {seed}: {wrong}"
        assert any(outputs.values()), f"seed {seed}: nothing came out"
