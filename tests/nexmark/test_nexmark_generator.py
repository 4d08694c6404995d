"""The generator of Nexmark: a seed always gives the same data, in the benchmark's proportions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from nexmark_files import load

GENERATOR = load("generator")
KINDS = ("persons", "auctions", "bids")

START = 1_750_000_000_000
URL = "www.nexmark.example/auctions/item.htm?query=1&channel="
GOLDEN_PERSONS = [
    (1000, "Niklaus Liskov", "niklaus@liskov.example", "3026864709915327", "Portland", "OR", START),
    (1001, "John Thompson", "john@thompson.example", "3701496564201029", "Redmond", "WA", START + 5),
]
GOLDEN_AUCTIONS = [
    (1000, "yycrxmsunpazn", 42504862, 42512103, START, START + 79, 1000, 12),
    (1001, "tyedhbtzchny", 4036674, 7372486, START, START + 31, 1000, 14),
]
GOLDEN_BIDS = [
    (1001, 1000, 7481067, "Google", URL + "7285", START),
    (1002, 1000, 3923, "Baidu", URL + "9431", START),
    (1000, 1000, 3190131, "channel-900", URL + "900", START),
]
GOLDEN_PADDING = [137, 1313, 1986]


def events(**settings: Any) -> dict[str, pl.DataFrame]:
    pieces = list(GENERATOR.generate(GENERATOR.Settings(**settings)))
    return {kind: pl.concat([getattr(piece, kind) for piece in pieces]).drop("__round") for kind in KINDS}


@pytest.fixture(scope="module")
def some() -> dict[str, pl.DataFrame]:
    return events(events=200_000, seed=7, disorder_ms=300)


def test_golden_events() -> None:
    made = events(events=100, seed=7)
    assert made["persons"].drop("extra").rows() == GOLDEN_PERSONS
    assert made["auctions"].drop("description", "extra").head(2).rows() == GOLDEN_AUCTIONS
    assert made["bids"].drop("extra").head(3).rows() == GOLDEN_BIDS
    assert [made[kind]["extra"].str.len_bytes().sum() for kind in KINDS] == GOLDEN_PADDING


def test_proportions(some: dict[str, pl.DataFrame]) -> None:
    assert [some[kind].height for kind in KINDS] == [4_000, 12_000, 184_000]


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    assert events(events=5_000, seed=3)["bids"].equals(events(events=5_000, seed=3)["bids"])
    assert not events(events=5_000, seed=3)["bids"].equals(events(events=5_000, seed=4)["bids"])


def test_what_comes_first_doesnt_depend_on_what_follows() -> None:
    assert events(events=5_000, seed=3)["persons"]["id"].to_list() == list(range(1000, 1100))
    many = events(events=GENERATOR.PER_ROUND * (GENERATOR.ROUNDS_AT_ONCE + 10), seed=3)
    assert many["persons"]["id"].to_list() == list(range(1000, 1000 + GENERATOR.ROUNDS_AT_ONCE + 10))
    one_piece = events(events=GENERATOR.PER_ROUND * GENERATOR.ROUNDS_AT_ONCE, seed=3)
    assert many["auctions"].head(one_piece["auctions"].height).equals(one_piece["auctions"])


@pytest.mark.parametrize(
    ("kind", "column", "share", "hot"),
    [
        ("bids", "auction", 0.5, lambda: (pl.col("auction") - 1000) % 100 == 0),
        ("bids", "bidder", 0.75, lambda: (pl.col("bidder") - 1000) % 100 == 0),
        ("auctions", "seller", 0.75, lambda: (pl.col("seller") - 1000) % 100 == 0),
    ],
)
def test_some_are_hot(
    some: dict[str, pl.DataFrame], kind: str, column: str, share: float, hot: Callable[[], pl.Expr]
) -> None:
    assert some[kind].select(hot().mean()).item() == pytest.approx(share, abs=0.03), column


def test_time_runs_at_the_rate_and_arrival_is_late_by_the_disorder_at_most(some: dict[str, pl.DataFrame]) -> None:
    for kind in KINDS:
        time = some[kind]["ts"]
        assert time.min() >= GENERATOR.START_MS and time.max() < GENERATOR.START_MS + 20_000
        delay = (time.cum_max() - time).max()
        assert 250 < delay <= 300, kind
        assert events(events=5_000)[kind]["ts"].is_sorted()


def test_nothing_refers_to_what_isnt_there_yet(some: dict[str, pl.DataFrame]) -> None:
    born = some["persons"].select("id", born="ts")
    sellers = some["auctions"].join(born, left_on="seller", right_on="id", how="left")
    bidders = some["bids"].join(born, left_on="bidder", right_on="id", how="left")
    items = some["bids"].join(some["auctions"].select("id", born="ts"), left_on="auction", right_on="id", how="left")
    for rows in (sellers, bidders, items):
        assert rows["born"].null_count() == 0
        assert rows.select((pl.col("born") <= pl.col("ts")).all()).item()


def test_auctions_end_after_they_began_and_within_ten_seconds(some: dict[str, pl.DataFrame]) -> None:
    slow = events(events=5_000, rate=10)
    for made in (some, slow):
        lasted = made["auctions"]["expires"] - made["auctions"]["ts"]
        assert lasted.min() >= 1 and lasted.max() <= 10_000
    assert slow["auctions"].select((pl.col("expires") - pl.col("ts")).max()).item() > 9_000


def test_files_hold_the_same_events_in_order(tmp_path: Path) -> None:
    settings = GENERATOR.Settings(20_000, 7, disorder_ms=300)
    GENERATOR.write(settings, tmp_path / "one", files=1)
    GENERATOR.write(settings, tmp_path / "three", files=3)
    assert len(list((tmp_path / "three").iterdir())) == 9
    for kind in KINDS:
        one = pl.read_parquet(tmp_path / "one" / f"{kind}-*.parquet")
        three = pl.read_parquet(tmp_path / "three" / f"{kind}-*.parquet")
        assert one.sort(one.columns).equals(three.sort(one.columns))
        assert one.equals(events(events=20_000, disorder_ms=300)[kind])
