"""Kinesis: records a second, and for how long nothing comes at a split, at a merge and when a container is killed.

kinesalite, one process of Node.js on this machine, stands in for Kinesis, for both contestants. It doesn't limit
reads, as Kinesis does (5 calls and 2 MB a second for each shard); Headrace keeps the limit on calls by itself. The
other contestant is a loop over boto3: a thread for each shard, which calls GetRecords without a pause and parses each
page by one call of Polars. Processor time is that of the contestant's own process.

As a program (``python -m bench.kinesis HOME ENDPOINT STREAM MASTER``; MASTER may be ``here``) this is the driver.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from os import environ
from pathlib import Path
from signal import SIGKILL
from typing import Any

import msgspec
import polars as pl

import headrace as hr
from bench.measure import WrongResultError, percentile
from bench.turns import folder
from chaos.deployment import Deployment, until
from chaos.kinesis_server import CREDENTIALS, REGION, KinesisServer
from chaos.kinesis_stream import OwnedStream
from chaos.processes import cpu_seconds, send
from headrace.run.spark.hosting import die_with_parent

SHARDS = 4
MEMBERS = 1000
COLUMNS = {"order": pl.Int64, "member": pl.String, "euros": pl.Float64, "sent": pl.Int64}
PAGE = 10_000
CALL = 500
RATE = 200
SETTLED_S, WATCHED_S = 5.0, 15.0
LIMIT_S = 240.0
LOOK_S = 0.02
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReadCost:
    """How one contestant has read the stream, without its first page."""

    name: str
    records: int
    records_per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Standstill:
    """What a record waits for at most, and how long none came, around an event; ms."""

    event: str
    before_ms: float
    oldest_ms: float
    pause_ms: float


# -- records a second --------------------------------------------------------------------------------


def read_costs(base: Path, records: int, say: Say) -> list[ReadCost]:
    """Let both contestants read the same records."""
    with folder(base) as place, KinesisServer("kinesalite") as server:
        stream = OwnedStream("filled", server.endpoint, SHARDS)
        for first in range(0, records, CALL):
            stream.put([_entry(number) for number in range(first, min(first + CALL, records))])
        say(f"{records:,} records are in {SHARDS} shards")
        costs = [_bare_loop(stream, records), _headrace(place / "home", server, stream, records)]
    for cost in costs:
        say(f"{cost.name}: {cost.records_per_s:,.0f} records/s, {cost.cpu_us:.1f} µs of processor time a record")
    return costs


def _bare_loop(stream: OwnedStream, records: int) -> ReadCost:
    found: list[int] = []
    errors: list[BaseException] = []

    def read(shard: str) -> None:
        try:
            found.append(_read_shard(stream, shard))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=read, args=(shard["ShardId"],)) for shard in stream.shards()]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    if errors:
        raise errors[0]
    if sum(found) != records:
        raise WrongResultError(f"the loop has read {sum(found)} records of {records}")
    return ReadCost("loop over boto3", records, records / took, used / records * 1e6)


def _read_shard(stream: OwnedStream, shard: str) -> int:
    asked = {"StreamName": stream.name, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
    place = stream.client.get_shard_iterator(**asked)["ShardIterator"]
    count = 0
    while True:
        page = stream.client.get_records(ShardIterator=place, Limit=PAGE)
        if page["Records"]:
            lines = b"\n".join(record["Data"] for record in page["Records"])
            count += pl.read_ndjson(io.BytesIO(lines), schema=COLUMNS).height
        elif not page["MillisBehindLatest"]:
            return count
        place = page["NextShardIterator"]


def _headrace(home: Path, server: KinesisServer, stream: OwnedStream, records: int) -> ReadCost:
    with _driver(home, server, stream, "here") as pid:
        reader = _output(home)
        seen: list[tuple[float, float, int]] = []
        count = 0

        def all_read() -> bool:
            nonlocal count
            rows = sum(batch.height for batch in reader)
            if rows:
                count += rows
                seen.append((time.perf_counter(), cpu_seconds(pid), count))
            return count >= records

        until(all_read, f"{records:,} records are read", LIMIT_S)
    if count != records:
        raise WrongResultError(f"Headrace has read {count} records of {records}")
    (began, cpu, first), (ended, cpu_then, last) = seen[0], seen[-1]
    if last == first:
        raise WrongResultError(f"all {records} records came at once: measure more of them")
    return ReadCost("headrace", records, (last - first) / (ended - began), (cpu_then - cpu) / (last - first) * 1e6)


# -- standstills ---------------------------------------------------------------------------------------


def standstills(base: Path, say: Say) -> list[Standstill]:
    """Watch a running app at a split, at a merge, and when a container is killed."""
    with folder(base) as place, KinesisServer("kinesalite") as server:
        stream = OwnedStream("steady", server.endpoint, SHARDS)
        command = _command(place / "home", server, stream, "local[2]")
        deployment = Deployment(command, place / "home", "bench-kinesis", place / "driver", CREDENTIALS)
        with deployment, _Watch(stream, place / "home") as watch:
            deployment.wait_running(LIMIT_S)
            watch.until_steady()

            def kill() -> None:
                send(SIGKILL, [pid for c in deployment.containers()[:1] if (pid := c.pid) is not None])

            events: dict[str, Callable[[], object]] = {
                "nothing": lambda: None,
                "a split": lambda: stream.split(stream.open_shards()[0]),
                "a merge": lambda: stream.merge(*stream.open_shards()[-2:]),
                "a killed container": kill,
            }
            found = []
            for event, act in events.items():
                found.append(watch.around(event, act))
                say(f"{event}: a record waited for up to {found[-1].oldest_ms:,.0f} ms")
            watch.check()
    return found


class _Watch:
    """Writes records at a steady rate, and notes when each is committed. Two threads."""

    def __init__(self, stream: OwnedStream, home: Path) -> None:
        self._stream = stream
        self._home = home
        self._over = threading.Event()
        self._sent: dict[int, float] = {}
        self._came: dict[int, float] = {}
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._kept, args=(work,)) for work in (self._write, self._read)]

    def __enter__(self) -> _Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def until_steady(self) -> None:
        """Wait until what is sent comes, for a while."""
        until(lambda: self._raised() or len(self._came) > RATE, "records come", LIMIT_S)
        time.sleep(SETTLED_S)
        self._caught_up()

    def around(self, event: str, act: Callable[[], object]) -> Standstill:
        """Let something happen, and watch."""
        began = time.monotonic()
        time.sleep(SETTLED_S)
        happened = time.monotonic()
        act()
        time.sleep(WATCHED_S)
        ended = time.monotonic()
        self._caught_up()
        came = dict(self._came)
        ages = {order: came[order] - at for order, at in dict(self._sent).items() if order in came}
        before = [age for order, age in ages.items() if began <= self._sent[order] < happened - 1]
        after = [age for order, age in ages.items() if happened - 1 <= self._sent[order] < ended]
        times = sorted(at for at in came.values() if happened - 1 <= at < ended)
        pause = max(b - a for a, b in pairwise(times))
        return Standstill(event, percentile(before, 0.5) * 1e3, max(after) * 1e3, pause * 1e3)

    def check(self) -> None:
        """Raise unless everything has come that was sent."""
        self._over.set()
        for thread in self._threads[:1]:
            thread.join()
        reader = _output(self._home)
        found = pl.concat(list(reader))["order"]
        if found.n_unique() != found.len():
            raise WrongResultError(f"{found.len() - found.n_unique()} records came twice")

    def _caught_up(self) -> None:
        due = len(self._sent)
        until(lambda: self._raised() or len(self._came) >= due, f"{due} records have come", LIMIT_S)

    def _raised(self) -> bool:
        if self._errors:
            raise self._errors[0]
        return False

    def _kept(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - ``_raised`` raises it again
            self._errors.append(error)

    def _write(self) -> None:
        due, number, size = time.monotonic(), 0, max(1, RATE // 20)
        while not self._over.wait(max(0.0, due - time.monotonic())):
            entries = [_entry(number + n) for n in range(size)]
            at = time.monotonic()
            self._stream.put(entries)
            self._sent.update((number + n, at) for n in range(size))
            number += size
            due += size / RATE

    def _read(self) -> None:
        reader = _output(self._home)
        while not self._over.wait(LOOK_S):
            for batch in reader:
                now = time.monotonic()
                for order in batch["order"]:
                    self._came.setdefault(order, now)


# -- the app -------------------------------------------------------------------------------------------


def build(home: str, endpoint: str, stream: str) -> hr.App:
    """Declare an app that reads everything."""
    app = hr.App("bench-kinesis", home=home, checkpoint_interval="200ms")
    source = hr.io.kinesis(stream, region=REGION, endpoint_url=endpoint, slots=SHARDS)
    app.input("orders", COLUMNS, system=source).select("order").send_to(app.output("seen", partitions=SHARDS))
    return app


def _entry(number: int) -> dict[str, Any]:
    member = f"member-{number % MEMBERS}-{random.getrandbits(32)}"
    order = {"order": number, "member": member, "euros": number / 100, "sent": time.time_ns() // 1000}
    return {"PartitionKey": member, "Data": msgspec.json.encode(order)}


def _output(home: Path) -> hr.streams.StreamReader:
    return hr.streams.StreamReader("seen", home=home)


def _command(home: Path, server: KinesisServer, stream: OwnedStream, master: str) -> list[str]:
    hr.streams.create_stream("seen", partitions=SHARDS, schema={"order": pl.Int64}, home=home)
    return [sys.executable, "-m", "bench.kinesis", str(home), server.endpoint, stream.name, master]


@contextmanager
def _driver(home: Path, server: KinesisServer, stream: OwnedStream, master: str) -> Iterator[int]:
    process = subprocess.Popen(_command(home, server, stream, master), env=environ | CREDENTIALS)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait(10)


def main() -> None:
    """Run the app."""
    die_with_parent()
    home, endpoint, stream, master = sys.argv[1:]
    app = build(home, endpoint, stream)
    app.run(progress=False, local=True) if master == "here" else app.run(progress=False, master=master, containers=2)


if __name__ == "__main__":
    main()
