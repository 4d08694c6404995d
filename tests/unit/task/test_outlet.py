"""What leaves a task: frames with their stamps, keys that keep to their partitions, control for everyone."""

import random
from collections import defaultdict
from collections.abc import Iterator

import polars as pl
import pytest

import headrace as hr
from headrace.core.frame import EndOfStream, Header, Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, StreamId
from headrace.plan.model import Plan
from headrace.rows.ipc import decode_rows
from headrace.systems.base import Edge, Records
from headrace.task.connections import Connections
from headrace.task.metrics import TaskMetrics
from headrace.task.outputs import outlet as outlet_module
from headrace.task.outputs.outlet import Outlet
from headrace.task.outputs.publisher import Publisher
from headrace.task.scope import TaskScope

ROWS = pl.DataFrame({"member": [f"m{n % 20}" for n in range(100)], "n": range(100)})


@pytest.fixture
def plan() -> Iterator[Plan]:
    """An app with an output of four partitions, in memory."""
    app = hr.App("page-views")
    app.input("views", {"member": pl.String, "n": pl.Int64}).send_to(app.output("out", partitions=4), key="member")
    with app.test() as t:
        yield t.plan


class Leaving:
    """The outlet of task n, with a stamp that counts frames per partition."""

    def __init__(self, plan: Plan, number: int = 0) -> None:
        self.connections = Connections()
        self.metrics = TaskMetrics()
        self._plan = plan
        self._seqs: dict[tuple[StreamId, int], int] = defaultdict(int)
        stage = plan.stage("views")
        scope = TaskScope.of(plan, stage, stage.tasks[0])
        publisher = Publisher(scope, self.connections, self.metrics.warnings, random.Random(1))
        self.outlet = Outlet(scope.outputs, number, self.connections, publisher, self._stamp, self.metrics)

    def _stamp(self, stream: StreamId, partition: int, kind: Kind) -> Header:
        self._seqs[stream, partition] += 1
        return Header(kind, producer=7, generation=2, version=5, seq=self._seqs[stream, partition])

    def frames(self, partition: int) -> list[tuple[Header, memoryview]]:
        """What stands in a partition of the output."""
        self.connections.flush_records()
        spec = self._plan.streams["out"].spec
        ssp = SSP(spec.stream, partition)
        consumer = self.connections.consumer(spec.system)
        consumer.register(ssp, Edge.OLDEST)
        payloads = [p for polled in consumer.poll() if isinstance(polled, Records) for p in polled.payloads]
        consumer.close()
        return [(decode_header(payload), body_of(payload)) for payload in payloads]

    def members(self, partition: int) -> list[str]:
        return [m for _, body in self.frames(partition) for m in decode_rows(body)["member"]]


def test_equal_keys_go_to_equal_partitions_whoever_writes(plan: Plan) -> None:
    one, other = Leaving(plan, 0), Leaving(plan, 1)
    one.outlet.write("out", ROWS, ["member"])
    one.connections.flush_records()
    first = [set(one.members(p)) for p in range(4)]
    other.outlet.write("out", ROWS.reverse(), ["member"])
    assert [set(other.members(p)) for p in range(4)] == first
    assert sum(map(len, first)) == 20
    assert all(first)


def test_a_partition_keeps_the_order_of_the_rows(plan: Plan) -> None:
    leaving = Leaving(plan)
    leaving.outlet.write("out", ROWS, ["member"])
    for partition in range(4):
        numbers = [n for _, body in leaving.frames(partition) for n in decode_rows(body)["n"]]
        assert numbers == sorted(numbers)


def test_without_a_key_rows_stay_in_the_tasks_own_partition(plan: Plan) -> None:
    leaving = Leaving(plan, 6)
    leaving.outlet.write("out", ROWS)
    assert [len(leaving.members(p)) for p in range(4)] == [0, 0, 100, 0]


def test_frames_are_counted_per_partition_and_control_goes_to_all(plan: Plan) -> None:
    leaving = Leaving(plan, 1)
    message = EndOfStream(task_name="views/1", task_count=2, stream_id="out")
    leaving.outlet.write("out", ROWS)
    leaving.outlet.control("out", message)
    leaving.outlet.write("out", ROWS)
    for partition in range(4):
        headers = [header for header, _ in leaving.frames(partition)]
        kinds = [Kind.USER, Kind.END_OF_STREAM, Kind.USER] if partition == 1 else [Kind.END_OF_STREAM]
        assert headers == [Header(kind, 7, 2, 5, seq + 1) for seq, kind in enumerate(kinds)]
    assert decode_control(Kind.END_OF_STREAM, leaving.frames(0)[0][1]) == message


def test_a_large_batch_leaves_in_frames_of_bounded_size(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "FRAME_ROWS_MAX", 30)
    leaving = Leaving(plan)
    leaving.outlet.write("out", ROWS)
    frames = leaving.frames(0)
    assert [decode_rows(body).height for _, body in frames] == [30, 30, 30, 10]
    assert [header.seq for header, _ in frames] == [1, 2, 3, 4]
    assert leaving.metrics.rows_out == 100
    assert leaving.metrics.bytes_out == sum(25 + len(body) for _, body in frames)
