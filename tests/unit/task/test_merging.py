"""Runs come out complete, in order, and as early as they can, whatever pieces overlap."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import SSP, StreamId
from headrace.plan.chain_plan import BatchOrder as Order
from headrace.rows.ipc import encode_rows
from headrace.rows.pieces import TIME, Piece
from headrace.task import batch as module
from headrace.task.batch import Merging, Run

LEFT, RIGHT = SSP(StreamId("log", "left"), 0), SSP(StreamId("log", "right"), 0)
TIMES = st.integers(0, 40)
ORDERS = [Order(timed=True), Order(timed=True, between=True), Order(timed=True, between=True, watched=True)]


def piece(number: int, times: list[int]) -> Piece:
    rows = pl.DataFrame({"n": [number * 1000 + place for place in range(len(times))], TIME: sorted(times)})
    return Piece("s", 0, min(times), max(times), len(times), "w", number, encode_rows(rows))


def runs_of(order: Order, given_: list[tuple[SSP, list[int]]], enough: int) -> tuple[list[Run], list[Piece]]:
    pieces = [(ssp, piece(number, times)) for number, (ssp, times) in enumerate(given_)]
    pieces.sort(key=lambda each: (each[1].first, each[1].number))
    merging = Merging(order, {LEFT: 0, RIGHT: 1}, enough=enough)
    runs = [run for ssp, one in pieces for run in merging.add(ssp, one)]
    return [*runs, *merging.rest()], [one for _, one in pieces]


@given(
    st.sampled_from(ORDERS),
    st.lists(st.tuples(st.sampled_from([LEFT, RIGHT]), st.lists(TIMES, min_size=1, max_size=6)), max_size=9),
    st.integers(1, 12),
)
def test_every_row_comes_once_and_none_before_its_time(
    order: Order, given_: list[tuple[SSP, list[int]]], enough: int
) -> None:
    runs, pieces = runs_of(order, given_, enough)
    time_of = {n: t for one in pieces for n, t in one.frame.select("n", TIME).iter_rows()}
    came = [(run, [time_of[n] for n in run.rows["n"]]) for run in runs]
    assert sorted(n for run in runs for n in run.rows["n"]) == sorted(time_of)
    assert all(min(times) >= run.complete for run, times in came)
    assert [run.complete for run, _ in came] == sorted(run.complete for run, _ in came)
    for ssp in (LEFT, RIGHT):
        mine = [time for run, times in came if run.ssp == ssp for time in times]
        assert mine == sorted(mine)
    if order.between:
        together = [time for _, times in came for time in times]
        assert together == sorted(together)
    if order.watched:
        assert all(len(set(times)) == 1 and run.complete == times[0] for run, times in came)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=6))
def test_of_equal_times_the_lower_rank_comes_first_and_pieces_keep_their_order(times: list[list[int]]) -> None:
    given_ = [(RIGHT if number % 2 else LEFT, some) for number, some in enumerate(times)]
    runs, pieces = runs_of(ORDERS[1], given_, 1)
    place = {one.number: number for number, one in enumerate(pieces)}
    time_of = {n: t for one in pieces for n, t in one.frame.select("n", TIME).iter_rows()}
    came = [(time_of[n], run.ssp, place[n // 1000]) for run in runs for n in run.rows["n"]]
    assert came == sorted(came)


def test_little_is_held_of_pieces_that_hardly_overlap() -> None:
    merging = Merging(Order(timed=True), {LEFT: 0}, enough=10)
    held = []
    for number in range(100):
        first = number * 10
        list(merging.add(LEFT, piece(number, list(range(first, first + 12)))))
        held.append(merging.held)
    assert max(held) < 40


def test_large_runs_are_cut() -> None:
    merging = Merging(Order(timed=True), {LEFT: 0})
    assert not list(merging.add(LEFT, piece(1, list(range(module.ROWS_AT_ONCE + 5)))))
    assert [(run.rows.height, run.complete) for run in merging.rest()] == [
        (module.ROWS_AT_ONCE, 0),
        (5, module.ROWS_AT_ONCE),
    ]
