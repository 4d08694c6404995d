"""What a snapshot in an object store costs: bytes that are sent when little has changed, and obstore beside Arrow.

``python -m bench.objects [--megabytes 1000] [--changed 64] [--file 256]``. State is in RocksDB as a task has it; what
would be sent is counted and thrown away. Throughput is that of moto's S3 on this machine: Amazon's
is far faster.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import pyarrow.fs as pafs
from typing_extensions import override

from headrace.stores.database import Database
from headrace.stores.snapshots import Chunks, ObjectStore, object_place
from headrace.stores.transfer import PIECE_BYTES, Calls, Sender, open_objects
from headrace.task.state.disk import Disk

VALUE_BYTES = 1000
BATCH = 10_000


class Counting(ObjectStore):
    """Has everything, and keeps nothing."""

    def __init__(self) -> None:
        self.sent = self.copied = self.objects = 0

    @override
    def create(self, name: str, data: bytes) -> bool:
        return True

    @override
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        self.sent += sum(len(chunk) for chunk in chunks())
        self.objects += 1

    @override
    def get(self, name: str) -> bytes | None:
        return None

    @override
    def read(self, name: str, start: int, length: int) -> bytes | None:
        return None

    @override
    def list(self, prefix: str) -> dict[str, int]:
        return {}

    @override
    def copy(self, source: str, target: str) -> bool:
        self.copied += 1
        return True

    @override
    def delete(self, names: Collection[str]) -> None:
        return


def write(database: Database, keys: Collection[int], chance: random.Random) -> None:
    """Set these keys to values that can't be compressed."""
    for first in range(0, len(keys), BATCH):
        batch = database.batch()
        for key in list(keys)[first : first + BATCH]:
            batch.put(b"%012d" % key, chance.randbytes(VALUE_BYTES))
        database.write(batch)


def incremental(folder: Path, megabytes: int, changed: int) -> None:
    """How much is sent at first, after changes, and by the next generation."""
    chance, store = random.Random(1), Counting()
    sender = Sender(Calls(store, sys.stdout.write, chance), "task/")
    database = Database(folder / "state")
    keys = megabytes * 1_000_000 // VALUE_BYTES
    some = changed * 1_000_000 // VALUE_BYTES
    rounds = [
        ("all of it", 1, range(keys)),
        ("scattered changes", 1, chance.sample(range(keys), some)),
        ("changes side by side", 1, range(keys // 2, keys // 2 + some)),
        ("nothing changed", 1, ()),
        ("the next generation", 2, ()),
    ]
    for number, (what, generation, touched) in enumerate(rounds):
        write(database, touched, chance)
        snapshot = folder / f"{number:020}-{generation}-{number}"
        began = time.perf_counter()
        database.snapshot(snapshot)
        taken = time.perf_counter()
        store.sent = store.copied = store.objects = 0
        files = Disk().snapshot_files(snapshot)
        for _ in sender.send(number, generation, number, files, lambda manifest: None):
            pass
        said = f"{what:22} {store.sent / 1e6:8.1f} MB in {store.objects} objects, {store.copied} copied"
        sys.stdout.write(f"{said}; taken in {taken - began:.2f} s, read in {time.perf_counter() - taken:.2f} s\n")
    database.close()


def throughput(folder: Path, megabytes: int) -> None:
    """Write and read one file in S3, by obstore and by Arrow."""
    from servers.moto import ENVIRONMENT, MotoServer
    from servers.s3_buckets import bucket_on

    os.environ |= ENVIRONMENT
    path, size = folder / "file", megabytes * 1_000_000
    path.write_bytes(random.Random(1).randbytes(size))

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                yield piece

    with MotoServer() as server:
        bucket = bucket_on(server)
        store = open_objects(object_place(f"s3://{bucket}", endpoint=server.endpoint, region=server.region))
        arrow = pafs.S3FileSystem(endpoint_override=server.endpoint, region=server.region)

        def write_by_arrow() -> None:
            with arrow.open_output_stream(f"{bucket}/b") as target:
                for piece in pieces():
                    target.write(piece)

        def read_by_arrow() -> None:
            with arrow.open_input_stream(f"{bucket}/b") as source:
                while source.read(8 << 20):
                    pass

        def read_by_obstore() -> None:
            for start in range(0, size, PIECE_BYTES):
                store.read("a", start, PIECE_BYTES)

        for what, call in (
            ("obstore writes", partial(store.put, "a", size, pieces)),
            ("Arrow writes", write_by_arrow),
            ("obstore reads", read_by_obstore),
            ("Arrow reads", read_by_arrow),
        ):
            began, used = time.perf_counter(), time.process_time()
            call()
            wall, own = time.perf_counter() - began, time.process_time() - used
            sys.stdout.write(
                f"{what:22} {megabytes / wall:8.0f} MB/s, {own / size * 1e9:.2f} s of processor for a GB\n"
            )


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(prog="python -m bench.objects", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--changed", type=int, default=64)
    parser.add_argument("--file", type=int, default=256)
    options = parser.parse_args()
    sys.path.insert(0, "tests")
    with tempfile.TemporaryDirectory() as folder:
        incremental(Path(folder), options.megabytes, options.changed)
        throughput(Path(folder), options.file)


if __name__ == "__main__":
    main()
