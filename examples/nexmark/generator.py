"""The events of Nexmark: people register, open auctions, and bid. Written as Parquet files.

    python examples/nexmark/generator.py --events 100000 --seed 7 --out nexmark-data

Of every 50 events, one is a person, three are auctions and 46 are bids. Half of the bids go to one hot auction of the
last hundred, three quarters of the bids come from one hot bidder of the last hundred people, and three quarters of the
auctions from one hot seller. Event number n happens at n / rate; it arrives up to ``--disorder`` milliseconds later,
and the files hold events in the order of arrival. Nobody bids on an auction before it is opened, but a bid may arrive
before its auction. The same seed gives the same events, however many files they are spread over.

Unlike in other generators, no event refers to a person or an auction of the future, and an auction lasts ten seconds at
most. Times are integers, as the benchmark has them: milliseconds since the epoch. Prices are cents.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

START_MS = 1_750_000_000_000
PER_ROUND = 50
"""Events of a round: a person, three auctions, 46 bids."""
AUCTIONS = 3
FIRST_ID = 1000
CATEGORIES = np.arange(10, 15)
HOT_EVERY = 100
"""Every hundredth person, or auction, is hot until the next one of these comes."""
ACTIVE_PEOPLE = 1000
OPEN_AUCTIONS = 100
LIFETIME_MAX_MS = 10_000
ROUNDS_AT_ONCE = 20_000

_FIRST = ["Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "John", "Kathleen", "Ken", "Margaret", "Niklaus"]
_LAST = ["Allen", "Backus", "Booth", "Dijkstra", "Hamilton", "Hopper", "Liskov", "Lovelace", "Thompson", "Turing"]
_PLACES = {
    "Phoenix": "AZ",
    "Los Angeles": "CA",
    "San Francisco": "CA",
    "Boise": "ID",
    "Bend": "OR",
    "Portland": "OR",
    "Kent": "WA",
    "Redmond": "WA",
    "Seattle": "WA",
    "Cheyenne": "WY",
}
_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]

_Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Events:
    """Consecutive rounds of events, each kind in the order of arrival; ``__round`` says which round a row is of."""

    persons: pl.DataFrame
    auctions: pl.DataFrame
    bids: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Settings:
    """``rate`` is in events a second of event time."""

    events: int
    seed: int = 7
    rate: int = 10_000
    disorder_ms: int = 0


def generate(settings: Settings) -> Iterator[Events]:
    """All events, a piece of time after the other; whole rounds only."""
    rounds = settings.events // PER_ROUND
    for number, start in enumerate(range(0, rounds, ROUNDS_AT_ONCE)):
        these = np.arange(start, min(rounds, start + ROUNDS_AT_ONCE), dtype=np.int64)
        yield _Piece(settings, np.random.default_rng([settings.seed, number]), these).events()


class _Piece:
    """Some rounds of events, and the chance that makes them."""

    def __init__(self, settings: Settings, random: np.random.Generator, rounds: _Ints) -> None:
        self._settings = settings
        self._random = random
        self._rounds = rounds

    def events(self) -> Events:
        return Events(self._persons(), self._auctions(), self._bids())

    def _persons(self) -> pl.DataFrame:
        rounds, time = self._times(0, 1)
        count = len(rounds)
        first, last = self._chosen(_FIRST, count), self._chosen(_LAST, count)
        city = self._chosen(list(_PLACES), count)
        rows = pl.DataFrame(
            {
                "id": FIRST_ID + rounds,
                "name": first + " " + last,
                "email": first.str.to_lowercase() + "@" + last.str.to_lowercase() + ".example",
                "credit_card": pl.Series(self._random.integers(10**15, 10**16, count)).cast(pl.String),
                "city": city,
                "state": city.replace_strict(_PLACES, return_dtype=pl.String),
                "ts": time,
                "extra": self._padding(count, 90),
            }
        )
        return self._arrived(rows, rounds)

    def _auctions(self) -> pl.DataFrame:
        rounds, time = self._times(1, AUCTIONS)
        count = len(rounds)
        place = np.tile(np.arange(AUCTIONS, dtype=np.int64), len(self._rounds))
        initial = self._prices(count)
        open_ms = OPEN_AUCTIONS * PER_ROUND * 1000 // (AUCTIONS * self._settings.rate)
        lifetime = 1 + self._random.integers(0, max(1, min(2 * open_ms, LIFETIME_MAX_MS)), count)
        rows = pl.DataFrame(
            {
                "id": FIRST_ID + AUCTIONS * rounds + place,
                "item": self._padding(count, 16),
                "description": self._padding(count, 100),
                "initial_bid": initial,
                "reserve": initial + self._prices(count),
                "ts": time,
                "expires": time + lifetime,
                "seller": FIRST_ID + self._one_of(rounds, ACTIVE_PEOPLE, hot=0.75),
                "category": self._random.choice(CATEGORIES, count),
                "extra": self._padding(count, 280),
            }
        )
        return self._arrived(rows, rounds)

    def _bids(self) -> pl.DataFrame:
        rounds, time = self._times(1 + AUCTIONS, PER_ROUND - 1 - AUCTIONS)
        count = len(rounds)
        newest = AUCTIONS * rounds + AUCTIONS - 1
        number = pl.Series(self._random.integers(0, 10_000, count)).cast(pl.String)
        channel = self._chosen(_CHANNELS, count)
        other = pl.Series(self._random.random(count) < 0.5)
        rows = pl.DataFrame(
            {
                "auction": FIRST_ID + self._one_of(newest, OPEN_AUCTIONS, hot=0.5),
                "bidder": FIRST_ID + self._one_of(rounds, ACTIVE_PEOPLE, hot=0.75),
                "price": self._prices(count),
                "channel": ("channel-" + number).zip_with(other, channel),
                "url": "www.nexmark.example/auctions/item.htm?query=1&channel=" + number,
                "ts": time,
                "extra": self._padding(count, 30),
            }
        )
        return self._arrived(rows, rounds)

    def _times(self, first: int, each: int) -> tuple[_Ints, _Ints]:
        """Of so many events of each round, the first in place ``first``: the round, and when it happens."""
        rounds = np.repeat(self._rounds, each)
        number = rounds * PER_ROUND + np.tile(np.arange(first, first + each, dtype=np.int64), len(self._rounds))
        return rounds, START_MS + number * 1000 // self._settings.rate

    def _arrived(self, rows: pl.DataFrame, rounds: _Ints) -> pl.DataFrame:
        """In the order of arrival; of those that arrive together, as they happened."""
        rows = rows.with_columns(pl.Series("__round", rounds))
        if not self._settings.disorder_ms:
            return rows
        delay = self._random.integers(0, self._settings.disorder_ms + 1, rows.height)
        return rows[np.argsort(rows["ts"].to_numpy() + delay, kind="stable")]

    def _one_of(self, newest: _Ints, among: int, hot: float) -> _Ints:
        """The hot one of the newest hundred with a probability of ``hot``, or any of the newest ``among``."""
        anyone = newest - (self._random.random(len(newest)) * np.minimum(newest + 1, among)).astype(np.int64)
        return np.where(self._random.random(len(newest)) < hot, newest // HOT_EVERY * HOT_EVERY, anyone)

    def _prices(self, count: int) -> _Ints:
        """From one to a million, small ones as often as ten times larger ones; in cents."""
        return np.round(100 * 10 ** (6 * self._random.random(count))).astype(np.int64)

    def _chosen(self, words: list[str], count: int) -> pl.Series:
        return pl.Series(words)[self._random.integers(0, len(words), count)]

    def _padding(self, count: int, most: int) -> pl.Series:
        """Letters without a meaning, of half to all of that length, 500 of a kind."""
        letters = self._random.integers(ord("a"), ord("z") + 1, (500, most), dtype=np.uint8)
        lengths = self._random.integers(most // 2, most + 1, 500)
        words = [bytes(line[:length]).decode() for line, length in zip(letters, lengths, strict=True)]
        return self._chosen(words, count)


def write(settings: Settings, folder: Path, files: int = 1) -> None:
    """Write ``persons-*``, ``auctions-*`` and ``bids-*.parquet``, so many of each; rounds are dealt out to them.

    All files of a kind run through the same time side by side: so they are read, a partition each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writers: dict[tuple[str, int], pq.ParquetWriter] = {}
    try:
        for events in generate(settings):
            for kind in ("persons", "auctions", "bids"):
                rows: pl.DataFrame = getattr(events, kind)
                for file in range(files):
                    part = rows.filter(pl.col("__round") % files == file).drop("__round")
                    table = part.to_arrow(compat_level=pl.CompatLevel.oldest())
                    if (kind, file) not in writers:
                        writers[kind, file] = pq.ParquetWriter(folder / f"{kind}-{file:03}.parquet", table.schema)
                    writers[kind, file].write_table(table, row_group_size=1 << 17)
    finally:
        for writer in writers.values():
            writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="how many, of all kinds together")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rate", type=int, default=10_000, help="events a second of event time")
    parser.add_argument("--disorder", type=int, default=0, metavar="MS", help="how late events may arrive")
    parser.add_argument("--files", type=int, default=1, help="files, and so partitions, of each kind")
    parser.add_argument("--out", type=Path, default=Path("nexmark-data"), help="the folder to write to")
    given = parser.parse_args()
    if min(given.events // PER_ROUND, given.rate, given.files) < 1 or given.disorder < 0:
        parser.error(f"there must be {PER_ROUND} events or more, a rate and a file; disorder can't be negative")
    write(Settings(given.events, given.seed, given.rate, given.disorder), given.out, given.files)
    rounds = given.events // PER_ROUND
    print(f"wrote {rounds} persons, {AUCTIONS * rounds} auctions and {46 * rounds} bids to {given.out}")


if __name__ == "__main__":
    main()
