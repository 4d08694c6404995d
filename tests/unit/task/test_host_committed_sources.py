"""An app that reads what another exactly-once app commits, with both of them failing in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, check, expected, orders_app
from polars.testing import assert_frame_equal

import headrace as hr
from drawn import seeds
from headrace.task.scope import run


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def reader_app(home: Path) -> hr.App:
    """Copies what it reads, and counts it per member in a stage of its own."""
    app = hr.App("reader", home=str(home), intermediate_partitions=2, checkpoint_interval=f"{INTERVAL_MS}ms")
    columns = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64}
    seen = app.input("seen", columns)
    seen.send_to(app.output("copied", partitions=2))
    seen.partition_by("member", id="again").send_to(app.output("dealt", partitions=2))
    return app


def started(tmp_path: Path) -> tuple[DrivenApp, DrivenApp]:
    writer = DrivenApp(orders_app(tmp_path))
    return writer, DrivenApp(reader_app(tmp_path), writer.clock)


def both(writer: DrivenApp, reader: DrivenApp, ms: int) -> None:
    for _ in range(ms // 20):
        for container in [*writer.living, *reader.living]:
            container.turn()
        writer.clock.advance(20)


def compare(reader: DrivenApp, orders: Orders) -> None:
    wanted = expected(pl.concat(orders.written))["seen"]
    for output in ("copied", "dealt"):
        assert_frame_equal(reader.rows(output), wanted, check_row_order=False)


def test_what_the_other_app_takes_back_is_never_read(tmp_path: Path, orders: Orders) -> None:
    writer, reader = started(tmp_path)
    with writer, reader:
        first = writer.start()
        reader.start()
        orders.write()
        both(writer, reader, 4 * INTERVAL_MS)
        both(writer, reader, 40)  # away from the clock's boundary, where everything is committed at once
        orders.write()
        for _ in range(50):
            both(writer, reader, 20)
            if writer.rows("seen", committed=False).height > writer.rows("seen").height:
                break
        else:
            raise AssertionError("nothing was ever written and not committed")
        writer.kill(first)
        both(writer, reader, 4 * INTERVAL_MS)
        # Committed is what is read, even in what is written and not yet committed.
        assert reader.rows("copied", committed=False).height == writer.rows("seen").height
        writer.start()
        both(writer, reader, 6 * INTERVAL_MS)
        compare(reader, orders)


@pytest.mark.parametrize("seed", seeds(range(3), 1))
def test_both_fail_at_any_moment(tmp_path: Path, orders: Orders, seed: int) -> None:
    chance = random.Random(seed)
    writer, reader = started(tmp_path)
    with writer, reader:
        for _ in range(12):
            for app in (writer, reader):
                if not app.living:
                    app.start()
            orders.write(chance.randrange(1, 60))
            both(writer, reader, chance.randrange(20, 3 * INTERVAL_MS))
            for app in (writer, reader):
                if chance.random() < 0.5:
                    app.kill(app.living[0])
        for app in (writer, reader):
            if not app.living:
                app.start()
        orders.end()
        both(writer, reader, 12 * INTERVAL_MS)
        assert all(host.finished for host in writer.hosts)
        check(writer, orders)
        compare(reader, orders)


def test_a_reader_that_starts_upcoming_begins_in_mid_stream(tmp_path: Path, orders: Orders) -> None:
    writer, _ = started(tmp_path)
    app = hr.App("late", home=str(tmp_path), checkpoint_interval=f"{INTERVAL_MS}ms")
    app.input("seen", {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64}, start="upcoming").send_to(
        app.output("tail", partitions=2)
    )
    late = DrivenApp(app, writer.clock)
    with writer, late:
        container = writer.start()
        orders.write()
        both(writer, late, 4 * INTERVAL_MS)
        before = writer.rows("seen").height
        late.start()
        both(writer, late, 2 * INTERVAL_MS)
        orders.write()
        both(writer, late, 60)
        writer.kill(container)
        writer.start()
        late.kill(late.living[0])
        late.start()
        both(writer, late, 6 * INTERVAL_MS)
        wanted = expected(pl.concat(orders.written))["seen"].filter(pl.col("order") >= orders.written[0].height)
        assert before > 0
        assert_frame_equal(late.rows("tail"), wanted, check_row_order=False)


def test_what_plain_writers_add_to_a_committed_stream_counts_once(tmp_path: Path, orders: Orders) -> None:
    """The reader goes back to the first frame that it held, and comes by theirs a second time."""
    writer, reader = started(tmp_path)
    with writer, reader, hr.streams.StreamWriter("seen", home=tmp_path) as plain:
        writer.start()
        both(writer, reader, 4 * INTERVAL_MS + 40)
        added = 0
        for _ in range(8):
            copier = reader.start()
            orders.write()
            for _ in range(4):
                both(writer, reader, 20)
                added += 1
                plain.write([{"order": -added, "member": added, "amount": 1}])
            both(writer, reader, 20)
            for host in copier.hosts:
                host.ask_for_commit()
                run(host.performing())
            both(writer, reader, 60)
            reader.kill(copier)
        reader.start()
        both(writer, reader, 6 * INTERVAL_MS)
        for output in ("copied", "dealt"):
            once = reader.rows(output).filter(pl.col("order") < 0).get_column("order").sort(descending=True)
            assert once.to_list() == [-number for number in range(1, added + 1)]


def copying_app(home: Path, name: str) -> hr.App:
    app = hr.App(name, home=str(home), checkpoint_interval=f"{INTERVAL_MS}ms")
    app.input("orders", {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}).with_columns(
        member=pl.lit(1 if name == "one" else 2)
    ).select("order", "member").send_to(app.output("all", partitions=2))
    return app


def test_apps_that_write_one_stream_are_told_apart(tmp_path: Path, orders: Orders) -> None:
    """They are alike but for their names, as one that was started under another name to begin anew."""
    one = DrivenApp(copying_app(tmp_path, "one"))
    with one, DrivenApp(copying_app(tmp_path, "another"), one.clock) as another:
        one.start()
        another.start()
        for _ in range(3):
            orders.write()
            both(one, another, 2 * INTERVAL_MS)
        wanted = sorted(pl.concat(orders.written).get_column("order").to_list() * 2)
        assert sorted(one.rows("all").get_column("order").to_list()) == wanted
