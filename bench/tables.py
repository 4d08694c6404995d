"""``python -m bench.tables``: the cost of lookups in tables on disk, in memory, and with versions; and of moving state.

Each figure is in rows a second: the median of 30 batches of 10,000 rows with random keys. Both tables of one size hold
the same rows, and their results are compared before they are measured.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from headrace.stores.base import GONE, SINCE, Share, StateStore
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.runs import Runs
from headrace.stores.table import MemoryTable, RowTable, TableStore
from headrace.stores.versions import VERSION_COLUMNS, VersionedTable
from headrace.task.operators.joins import FOUND, look_up

ROWS = 10_000
BATCHES = 30
COLUMNS = {"k": pl.String(), "a": pl.Int64(), "b": pl.String(), "c": pl.Float64()}
STEP_MS = 10_000


def rows_of(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pl.DataFrame:
    """Return rows of these members."""
    of = pl.DataFrame({"a": ids})
    return of.select(k=pl.format("member-{}", "a"), a="a", b=pl.format("c-{}", pl.col("a") % 200), c=pl.col("a") * 0.5)


def rate(what: Callable[[], object]) -> float:
    """Return how many rows a second the function handles."""
    took = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        what()
        took.append(time.perf_counter() - began)
    return ROWS / statistics.median(took)


def commit(database: Database, *stores: StateStore) -> None:
    """Commit the stores as a task does."""
    batch = Batch()
    for store in stores:
        store.take_changes(1)
        store.persist(PartOfBatch(batch, store.id))
    database.write(batch)


def tables(columns: dict[str, pl.DataType], database: Database) -> list[RowTable]:
    """Return one table on disk and one in memory."""
    both: list[RowTable] = [TableStore(KeyValueStore("disk"), columns, ["k"]), MemoryTable("memory", columns, ["k"])]
    for table in both:
        table.store.attach(KeySpace(database, table.store.id))
    return both


def measure_look_ups(size: int, database: Database) -> None:
    """Measure lookups and puts in tables of ``size`` rows."""
    random = np.random.default_rng(1)
    both = tables(COLUMNS, database)
    for table in both:
        for start in range(0, size, 100_000):
            table.put_rows(rows_of(np.arange(start, min(size, start + 100_000))))
            commit(database, table.store)
    keys = [rows_of(random.integers(0, size + size // 10, ROWS)).select("k") for _ in range(7)]
    if not look_up(both[0], keys[0]).equals(look_up(both[1], keys[0])):
        raise SystemExit("the tables give different answers")
    found = [rate(lambda table=table: look_up(table, keys[int(random.integers(7))])) for table in both]
    news = [rows_of(random.integers(0, size, ROWS)) for _ in range(7)]
    put = [rate(lambda table=table: table.put_rows(news[int(random.integers(7))])) for table in both]
    for what, (disk, memory) in (("look-ups", found), ("puts", put)):
        print(f"{size:>9,} keys  {what:8}  disk {disk:>11,.0f}  memory {memory:>11,.0f}  ratio {memory / disk:.1f}")


def measure_versions(size: int, database: Database) -> None:
    """Measure puts of a hundred batches of versions, all kept, and lookups as of now and as of any time."""
    columns = {"k": pl.String(), "v": pl.Float64(), **VERSION_COLUMNS}
    for newest in tables(columns, database):
        random = np.random.default_rng(1)
        table = VersionedTable(f"{newest.store.id}-versions", newest, 100 * STEP_MS)
        for store in table.stores()[1:]:
            store.attach(KeySpace(database, store.id))
        table.used_by("bench")
        took = 0.0
        for step in range(100):
            batch = rows_of(random.integers(0, size, ROWS)).select("k", v="c")
            since = pl.Series(SINCE, step * STEP_MS + random.integers(0, STEP_MS, ROWS))
            batch = batch.with_columns(since, pl.lit(False).alias(GONE))
            began = time.perf_counter()
            table.put_versions(batch)
            took += time.perf_counter() - began
            table.pass_by("bench", step * STEP_MS)
            if step % 10 == 9:
                commit(database, *table.stores())
        keys = rows_of(random.integers(0, size, ROWS)).select("k")
        now, any_time = np.full(ROWS, 100 * STEP_MS), random.integers(0, 100 * STEP_MS, ROWS)
        present = rate(lambda table=table, keys=keys, now=now: table.as_of(keys, now, found=FOUND))
        past = rate(lambda table=table, keys=keys, then=any_time: table.as_of(keys, then, found=FOUND))
        print(
            f"{size:>9,} keys  {table.entries():,} versions ({newest.store.id})  "
            f"puts {100 * ROWS / took:,.0f}  as of now {present:,.0f}  as of any time {past:,.0f}"
        )


def counted(id_: str) -> Runs:
    """Return the state of a windowed count."""
    return Runs(id_, "start", lambda rows: rows.group_by("start", "k").agg(pl.col("n").sum()), ["k"])


def measure_moving(size: int, folder: Path) -> None:
    """Measure, in rows a second of processor time, how state moves: a whole store, and one of four shares of it."""
    made: dict[str, Callable[[], StateStore]] = {
        "disk": lambda: TableStore(KeyValueStore("disk"), COLUMNS, ["k"]).store,
        "memory": lambda: MemoryTable("memory", COLUMNS, ["k"]).store,
        "count": lambda: counted("count"),
    }
    donors = Database(folder / f"donors-{size}")
    for table in tables(COLUMNS, donors):
        for start in range(0, size, 100_000):
            table.put_rows(rows_of(np.arange(start, min(size, start + 100_000))))
            commit(donors, table.store)
    count = counted("count")
    count.attach(KeySpace(donors, count.id))
    for start in range(0, size, 100_000):
        ids = np.arange(start, min(size, start + 100_000))
        count.add(rows_of(ids).select("k", start=pl.lit(STEP_MS, pl.Int64), n=pl.lit(1, pl.Int64)))
        commit(donors, count)
    donors.close()
    donors = Database(donors.folder, read_only=True)
    for name, make in made.items():
        for what, share in (("whole", None), ("share", Share(1, 4, ("k",)))):
            donor = make()
            donor.attach(KeySpace(donors, donor.id))
            began = time.process_time()
            changes = list(donor.whole(share))
            given = time.process_time()
            database = Database(folder / f"{name}-{what}-{size}")
            taker = make()
            taker.attach(KeySpace(database, taker.id))
            for change in changes:
                taker.apply(change)
            commit(database, taker)
            took = time.process_time()
            print(
                f"{size:>9,} keys  {what} of {name:6}  given {size / (given - began):>11,.0f}  "
                f"taken {taker.entries() / (took - given):>11,.0f}  "
                f"({len(changes)} changes, {sum(map(len, changes)) >> 20} MiB)"
            )
            database.close()
    donors.close()


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--of-versions", type=int, default=20_000)
    parser.add_argument("--moving", action="store_true", help="measure only how state moves to other tasks")
    chosen = parser.parse_args()
    with TemporaryDirectory() as folder:
        for number, size in enumerate(chosen.keys):
            database = Database(Path(folder) / f"state-{number}")
            if not chosen.moving:
                measure_look_ups(size, database)
            database.close()
            measure_moving(size, Path(folder))
        if chosen.moving:
            return
        database = Database(Path(folder) / "versions")
        measure_versions(chosen.of_versions, database)
        database.close()


if __name__ == "__main__":
    main()
