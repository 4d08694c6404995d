"""Bytewax in the benchmark: it does the jobs that bench/peer.py sends, in an environment without Headrace.

A process with one worker for each core: with two workers in one process, the interpreter's lock lets only one of them
run Python. Recovery is on, with the default epoch of 10 s: each epoch copies the state of all keys that had items.
Items are record batches, so Arrow filters and projects, and counts a batch by window and key before Bytewax adds the
counts up; sessions and the running count need an item for each message. Windows wait for a day of system time, so
nothing is late whichever file is read faster, and close at the end. They don't wake up by themselves, as the messages
are of long ago.
"""

import os
import socket
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import bytewax.operators as op
import bytewax.operators.windowing as win
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bytewax._bytewax import cluster_main
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from jobs import do_jobs

PROCESSES = len(os.sched_getaffinity(0))
EPOCH = timedelta(seconds=10)
ROWS = 1 << 17
DAY = timedelta(days=1)
ZERO = datetime(1970, 1, 1, tzinfo=UTC)
WINDOW_MS = 10_000
GAP, MS = timedelta(milliseconds=300), timedelta(milliseconds=1)


class _Rows(StatefulSourcePartition):
    def __init__(self, path, done):
        self._number = 0
        self._batches = pq.ParquetFile(path).iter_batches(ROWS)
        while self._number < (done or 0):
            self.next_batch()

    def next_batch(self):
        self._number += 1
        return [next(self._batches)]

    def snapshot(self):
        return self._number


class _Files(FixedPartitionedSource):
    def __init__(self, folder):
        self._folder = Path(folder)

    def list_parts(self):
        return sorted(path.name for path in self._folder.glob("*.parquet"))

    def build_part(self, step_id, for_part, resume_state):
        return _Rows(self._folder / for_part, resume_state)


class _Part(StatelessSinkPartition):
    def __init__(self, path, names):
        self._path, self._names, self._writer, self._rows = path, names, None, []

    def write_batch(self, items):
        if isinstance(items[0], pa.RecordBatch):
            self._write(pa.Table.from_batches(items))
            return
        self._rows += items
        if len(self._rows) >= 1 << 16:
            self._flush()

    def _flush(self):
        self._write(pa.table(list(zip(*self._rows, strict=True)), names=self._names))
        self._rows = []

    def _write(self, table):
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self):
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()


class _Parquet(DynamicSink):
    def __init__(self, folder, names=()):
        self._folder, self._names = Path(folder), names

    def build(self, step_id, worker_index, worker_count):
        return _Part(self._folder / f"{worker_index}.parquet", self._names)


def _kept(batch):
    return batch.filter(pc.not_equal(batch["url"], "/health"))


def _projected(batch):
    kept = _kept(batch)
    return pa.record_batch([kept["member"], pc.divide(kept["ts"], 1000)], names=["member", "s"])


def _counted(batch):
    kept = _kept(batch)
    start = pc.multiply(pc.divide(kept["ts"], WINDOW_MS), WINDOW_MS)
    rows = (
        pa.table({"member": kept["member"], "start": start})
        .group_by(["member", "start"])
        .aggregate([([], "count_all")])
    )
    times = rows["start"].cast(pa.timestamp("ms", "UTC")).to_pylist()
    return zip(rows["member"].to_pylist(), zip(times, rows["count_all"].to_pylist(), strict=True), strict=True)


def _never(_):
    return None


def _timed(batch):
    kept = _kept(batch)
    times = kept["ts"].cast(pa.timestamp("ms", "UTC")).to_pylist()
    return zip(kept["member"].to_pylist(), times, strict=True)


def _longer(session, time):
    return _joined(session, (time, time, 1))


def _joined(one, other):
    if not (one and other):
        return one or other
    return min(one[0], other[0]), max(one[1], other[1]), one[2] + other[2]


def _session(found):
    member, (_, (first, last, views)) = found
    return member, (first - ZERO) // MS, (last + GAP - ZERO) // MS, views


def _count(n, _):
    n = (n or 0) + 1
    return n, n


def _clock(time_of):
    return win.EventClock(ts_getter=time_of, wait_for_system_duration=DAY, to_system_utc=_never)


def flow_of(work, source, target):
    """The dataflow of a job."""
    flow = Dataflow("bench")
    views = op.input("views", flow, _Files(source))
    if work == "filter":
        op.output("out", op.map("project", views, _projected), _Parquet(target))
    elif work == "count":
        windower = win.TumblingWindower(length=timedelta(milliseconds=WINDOW_MS), align_to=ZERO)
        counted = op.flat_map("counted", views, _counted)
        sums = win.fold_window(
            "sum",
            counted,
            _clock(lambda one: one[0]),
            windower,
            int,
            lambda n, one: n + one[1],
            int.__add__,
            ordered=False,
        )
        rows = op.map("rows", sums.down, lambda one: (one[1][0] * WINDOW_MS, one[0], one[1][1]))
        op.output("out", rows, _Parquet(target, ("start", "member", "views")))
    elif work == "sessions":
        timed, windower = op.flat_map("timed", views, _timed), win.SessionWindower(gap=GAP)
        found = win.fold_window(
            "sessions", timed, _clock(lambda time: time), windower, tuple, _longer, _joined, ordered=False
        )
        rows = op.map("rows", found.down, _session)
        op.output("out", rows, _Parquet(target, ("member", "start", "end", "views")))
    else:
        keyed = op.flat_map("keyed", views, lambda batch: [(key, None) for key in _kept(batch)["member"].to_pylist()])
        op.output("out", op.stateful_map("running", keyed, _count), _Parquet(target, ("member", "n")))
    return flow


def run(work, source, target):
    """Run a job in forked processes until its end."""
    out, recovery = Path(target, "rows"), Path(target, "recovery")
    out.mkdir()
    recovery.mkdir()
    init_db_dir(recovery, PROCESSES)
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(PROCESSES)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in listening]
    for one in listening:
        one.close()
    children = []
    for number in range(PROCESSES):
        if (child := os.fork()) == 0:
            flow, kept = flow_of(work, source, out), RecoveryConfig(recovery)
            cluster_main(flow, addresses, number, epoch_interval=EPOCH, recovery_config=kept)
            os._exit(0)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    if any(states):
        raise RuntimeError("a worker has failed")


do_jobs(f"Bytewax {version('bytewax')}", run)
