"""The verdict finds each row that is lost, doubled or made up, and each that waits for its commit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from chaos.committed import committed_rows
from chaos.load import Messages, Written
from chaos.oracle import expected
from chaos.verdict import compare, judge_database
from chaos.workload import GAP_MS
from headrace.core.frame import Checkpoint, Header, Kind, Restore, encode, encode_control
from headrace.rows.ipc import encode_rows
from headrace.systems.log.system import LogSystem

DUE = pl.DataFrame({"order": [1, 2, 2, 3], "name": ["a", "b", "b", None]})


def test_rows_in_any_order_are_equal() -> None:
    verdict = compare("out", DUE.reverse().select("name", "order"), DUE)
    assert verdict.equal
    assert verdict.describe() == "out: 4 rows, as expected"


@pytest.mark.parametrize(
    ("got", "missing", "surplus"),
    [
        (DUE.filter(pl.col("order") != 1), [(1, "a", 1)], []),
        (DUE.unique(), [(2, "b", 1)], []),
        (pl.concat([DUE, DUE]), [], [(1, "a", 1), (2, "b", 2), (3, None, 1)]),
        (DUE.with_columns(pl.col("order").replace(3, 4)), [(3, None, 1)], [(4, None, 1)]),
    ],
)
def test_differences_are_reported(got: pl.DataFrame, missing: list[object], surplus: list[object]) -> None:
    verdict = compare("out", got, DUE)
    assert not verdict.equal
    assert (verdict.missing.rows(), verdict.surplus.rows()) == (missing, surplus)
    for name, rows in (("missing", missing), ("surplus", surplus)):
        assert verdict.describe().count(f"  {name}: ") == len(rows)


def test_frames_that_were_never_committed_are_a_difference() -> None:
    assert not compare("out", DUE, DUE, held=1).equal


def test_only_committed_rows_are_read(tmp_path: Path) -> None:
    hr.streams.create_stream("out", 1, {"n": pl.Int64}, home=tmp_path)
    producer = LogSystem(tmp_path / "streams").producer()

    def user(generation: int, seq: int, number: int) -> bytes:
        rows = pl.DataFrame({"n": [number]})
        return encode(Header(Kind.USER, 9, generation, 1, seq), encode_rows(rows))

    def restore(generation: int, seq: int, committed: int) -> bytes:
        message = Restore(task_name="a/0", task_count=1, seq=committed, next_version=1, committed_by=generation - 1)
        return encode_control(Header(Kind.RESTORE, 9, generation, 1, seq), message)

    def checkpoint(generation: int, seq: int) -> bytes:
        message = Checkpoint(task_name="a/0", task_count=1, next_version=2)
        return encode_control(Header(Kind.CHECKPOINT, 9, generation, 1, seq), message)

    frames = [
        restore(1, 1, committed=0),
        user(1, 2, 10),
        checkpoint(1, 3),
        user(1, 4, 20),
        restore(2, 4, committed=3),
        user(2, 5, 21),
    ]
    for frame in frames:
        producer.send("out", 0, frame)
    producer.flush()
    producer.close()
    rows, held = committed_rows(tmp_path, "out")
    assert rows["n"].to_list() == [10]
    assert held == 1


def test_messages_are_made_again_from_their_seed_except_their_times() -> None:
    one, other = Messages(3), Messages(3)
    first, again = [one.batch(50), one.batch(50)], [other.batch(50), other.batch(50)]
    for ours, theirs, times in zip(zip(*first, strict=True), zip(*again, strict=True), ("ts", "at"), strict=True):
        assert pl.concat(ours).drop(times).equals(pl.concat(theirs).drop(times))
    orders = pl.concat(orders for orders, _ in first)
    assert orders["order"].unique(maintain_order=True).to_list() == list(range(100))
    assert orders.height > 100, "some occur twice"


def test_the_oracle_by_hand() -> None:
    orders = pl.DataFrame(
        {"order": [0, 1, 2, 3, 0], "member": [1, 1, 8, 1, 1], "amount": [5, 7, 1, -3, 5], "ts": [0, 149, 4000, 10, 0]}
    )
    payments = pl.DataFrame({"order": [0, 1, 3], "paid": [5, 7, -3], "at": [600, 750, 11]})
    due = expected(Written(orders, payments))
    assert sorted(due["seen"].rows()) == [(0, 1, 5), (1, 1, 7), (2, 8, 1)]
    assert sorted(due["paid"].rows()) == [(0, 5, 5), (1, 7, None), (2, 1, None)]
    assert sorted(due["sessions"].rows()) == [(1, 0, 299, 2, 12), (8, 4000, 4150, 1, 1)]
    assert sorted(due["member-seconds"].select("member", "window_start", "orders", "amount").rows()) == [
        (1, 0, 2, 12),
        (8, 4000, 1, 1),
    ]
    columns = ["region", "name", "window_start", "window_end", "orders", "doubled", "members"]
    assert due["region-totals"].select(columns).rows() == [(1, "region-1", 0, 5000, 3, 26, 2)]


def test_a_session_ends_where_the_gap_has_passed() -> None:
    orders = pl.DataFrame({"order": [0, 1], "member": [1, 1], "amount": [5, 7], "ts": [0, GAP_MS]})
    assert expected(Written(orders, orders.head(0).select("order", paid="amount", at="ts")))["sessions"].height == 2


def test_a_database_is_compared_row_by_row(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "results.db")) as connection, connection:
        connection.execute('CREATE TABLE report ("order" INTEGER, name TEXT)')
        connection.executemany("INSERT INTO report VALUES (?, ?)", DUE.rows())
    assert judge_database(tmp_path / "results.db", "report", DUE).equal
    assert judge_database(tmp_path / "results.db", "report", DUE.head(3)).surplus.rows() == [(3, None, 1)]
