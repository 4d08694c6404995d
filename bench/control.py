"""The cost of control messages: one round of watermarks from n tasks to n partitions, written and read.

A task writes a watermark at most every 10 ms, so there are at most a hundred rounds a second. A round uses the real
code, but no app: watermarks are encoded, appended to the embedded log, polled, decoded and reconciled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bench.measure import median
from bench.turns import folder
from headrace.core.frame import Header, Kind, Watermark, body_of, decode_control, decode_header, encode_control
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem
from headrace.task.event_time import PartitionTime, Progress

ROUNDS = 12
STREAM = StreamId("log", "between")


@dataclass(frozen=True, slots=True)
class ControlCost:
    """Medians over rounds of n x n frames. Decoding frames and reconciling watermarks are measured separately."""

    partitions: int
    frames: int
    write_us: float
    read_us: float
    reconcile_us: float

    @property
    def round_ms(self) -> float:
        """All of a round, on one core."""
        return self.frames * (self.write_us + self.read_us + self.reconcile_us) / 1000


def control_cost(base: Path, partitions: int) -> ControlCost:
    """Measure rounds of watermarks from ``partitions`` tasks to as many partitions."""
    with folder(base) as root:
        system = LogSystem(root)
        system.admin().create(STREAM.name, partitions)
        producer, consumer = system.producer(), system.consumer()
        times = {SSP(STREAM, p): PartitionTime(SSP(STREAM, p), {"upstream": partitions}) for p in range(partitions)}
        for ssp in times:
            consumer.register(ssp, Edge.OLDEST)
        taken: list[tuple[float, float, float]] = []
        for number in range(ROUNDS):
            start = time.perf_counter()
            for task in range(partitions):
                mark = Watermark(task_name=f"upstream/{task}", task_count=partitions, timestamp=number)
                for partition in range(partitions):
                    header = Header(Kind.WATERMARK, producer=task, generation=1, version=1, seq=number + 1)
                    producer.send(STREAM.name, partition, encode_control(header, mark))
                producer.flush()
            written = time.perf_counter()
            marks = []
            while polled := consumer.poll():
                for records in polled:
                    for payload in records.payloads if isinstance(records, Records) else ():
                        marks.append((records.ssp, decode_control(decode_header(payload).kind, body_of(payload))))
            read = time.perf_counter()
            for ssp, said in marks:
                assert isinstance(said, Watermark)
                times[ssp].on_watermark(said.task_name, said.task_count, said.timestamp)
            taken.append((written - start, read - written, time.perf_counter() - read))
            assert len(marks) == partitions**2 and {time.progress for time in times.values()} == {Progress(number)}
        consumer.close()
        producer.close()
    frames = partitions**2
    write, read_, reconcile = (median([one[part] for one in taken]) / frames * 1e6 for part in range(3))
    return ControlCost(partitions, frames, write, read_, reconcile)
