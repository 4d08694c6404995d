"""Tasks without operators, for the real host, which can't tell them from others.

A frame is one message of a few bytes. A processor (``processors``) decides what to do with it, differently at
each attempt. These tasks simulate the protocol and its host; the apps simulate operators and tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from typing_extensions import override

from headrace.api.checks import Location
from headrace.api.specs import Graph, Role, Settings, StreamSpec
from headrace.core.errors import DataError
from headrace.core.frame import body_of, encode
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.plan.chain_plan import chain_plan
from headrace.plan.model import Plan, StagePlan, StreamPlan
from headrace.stores.base import StateStore
from headrace.systems.registry import SystemSpec
from headrace.task.calls import Calls
from headrace.task.connections import Connections
from headrace.task.event_time import UNHEARD, Progress, TimesCheckpoint, combined
from headrace.task.inputs.intake import Intakes
from headrace.task.metrics import TaskMetrics
from headrace.task.scope import TaskScope
from headrace.task.task import Chain, Task
from simulator.bare_store import STORE, BareStore
from simulator.journal import Journal, WatchedMachine
from simulator.message import decode_message, encode_message
from simulator.processors import PROCESSORS
from simulator.shapes import Shape, TaskShape
from simulator.world import World

LATENESS = 5
_SYSTEM = SystemSpec("sim", "log")
_HERE = Location(__file__, 1)


class BareTask(Task):
    """A task whose only operator is a processor."""

    def __init__(
        self,
        scope: TaskScope,
        metrics: TaskMetrics,
        journal: Journal,
        machine: WatchedMachine,
        connections: Connections,
    ) -> None:
        super().__init__(scope, _no_operators(), metrics)
        self.world: World = journal.world
        self.store = BareStore()
        self._journal = journal
        self._machine = machine
        self._producer = connections.record_producer(_SYSTEM)
        self._reached = UNHEARD
        self._processor = PROCESSORS[journal.shape.stage.does](self)

    @property
    @override
    def progress(self) -> Progress:
        return self._reached

    @property
    @override
    def outputs(self) -> Mapping[str, Progress]:
        return dict.fromkeys(self.scope.outputs, self._reached)

    def message(self, ssp: SSP, payload: bytes) -> None:
        """Process a frame."""
        message, key, time = decode_message(body_of(payload))
        self.metrics.rows_in += 1
        times = self.times[ssp]
        if self.specs[ssp].role is Role.SOURCE:
            times.advance(time - LATENESS)
            time = max(time, self._reached.watermark)
        elif (times.progress.ended or time < times.progress.watermark) and self.scope.machine.exactly_once:
            raise DataError(f"message {message} at {time} is older than the watermark of {ssp}")
        self._processor.message(ssp.stream.name, key, time)

    @override
    def advance(self) -> bool:
        news = None if self.finished else self.times.news()
        if news is not None:
            before, self._reached = self._reached, combined(news.values(), self._reached.watermark)
            if self._reached.watermark > before.watermark and not self._reached.ended:
                self._processor.watermark(self._reached.watermark)
            if self._reached.ended and not before.ended:
                self._processor.end()
        return news is not None

    @override
    def finish(self) -> bool:
        self.advance()
        self.finished = True
        return True

    @override
    def save(self) -> TimesCheckpoint:
        ended = ["processor"] if self._reached.ended else []
        watermark = self._reached.watermark
        return TimesCheckpoint(
            watermark=watermark, partitions=self.times.save(self.scope.position_name), ended_operators=ended
        )

    @override
    def load(self, times: TimesCheckpoint) -> None:
        self.times.load(times.partitions, self.scope.position_name)
        self._reached = Progress(times.watermark, ended=bool(times.ended_operators))

    @override
    def stores(self) -> dict[str, StateStore]:
        return {STORE: self.store}

    # -- what a processor may ask for

    def get(self, key: str) -> int:
        """See ``Port``."""
        return self.store.get(key)

    def put(self, key: str, value: int | None) -> None:
        """See ``Port``."""
        self.store.put(key, value)

    def names(self) -> list[str]:
        """See ``Port``."""
        return sorted(self.store.values())

    def emit(self, key: int, time: int) -> None:
        """See ``Port``."""
        chance, outputs = self.world.chance, list(self.scope.outputs.values())
        output = outputs[int(chance.random() * len(outputs))]
        stream, partition = output.spec.stream, int(chance.random() * output.partitions)
        header = self._machine.stamp(stream, partition)
        body = encode_message(self._journal.container.cluster.new_message(), key, time)
        self._producer.send(stream.name, partition, encode(header, body))


class BareIntakes(Intakes):
    """What comes in isn't decoded into rows."""

    def __init__(self, task: Task, journal: Journal) -> None:
        assert isinstance(task, BareTask)
        self._bare = task
        self._journal = journal

    @override
    def frames(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes], after: Offset) -> None:
        self._journal.consume(ssp, offsets, payloads)
        for payload in payloads:
            self._bare.message(ssp, payload)


def bare_scopes(shape: Shape, tasks: Sequence[TaskShape], settings: Settings) -> dict[TaskName, TaskScope]:
    """The tasks of a shape as their hosts see them."""
    names = {task.producer: task.name for task in tasks}
    read = [stream for stage in shape.stages for stream in stage.reads]

    def spec(stream: StreamId, role: Role) -> StreamSpec:
        # A stream with several readers is never trimmed, as one that is broadcast isn't.
        several = read.count(stream.name) > 1
        return StreamSpec(id=stream.name, role=role, stream=stream, system=_SYSTEM, location=_HERE, broadcast=several)

    def role(stream: StreamId) -> Role:
        return Role.INTERMEDIATE if stream.name in read else Role.SINK

    return {
        task.name: TaskScope(
            app="bare",
            name=task.name,
            producer=task.producer,
            task_count=task.stage.tasks,
            settings=settings,
            inputs={ssp: spec(ssp.stream, Role.INTERMEDIATE) for ssp in task.inputs}
            | {ssp: spec(ssp.stream, Role.SOURCE) for ssp in task.sources},
            writers=task.writers,
            producers={ssp: {p: names[p] for p in producers} for ssp, producers in task.inputs.items()},
            outputs={
                stream.name: StreamPlan(spec=spec(stream, role(stream)), partitions=count, writers=(), readers=())
                for stream, count in task.outputs.items()
            },
        )
        for task in tasks
    }


@cache
def _no_operators() -> Chain:
    settings: Mapping[str, Any] = {}
    graph = Graph(app="bare", nodes={}, streams={}, tables={}, settings=Settings(**settings), location=_HERE)
    stage = StagePlan(name="bare", nodes=(), inputs=(), side_inputs=(), outputs=(), tables=(), tasks=())
    plan = Plan(graph=graph, streams={}, stages=(stage,))
    nowhere: Callable[[], None] = lambda: None  # noqa: E731
    return Chain(chain_plan(plan, stage), _Nowhere(), TaskMetrics(), Calls(nowhere))


class _Nowhere:
    """A port that nothing is written to."""

    def write(self, stream: str, rows: object, keys: Sequence[str] = ()) -> None:
        """See ``Port``."""
        raise AssertionError(f"nobody writes to {stream}")
