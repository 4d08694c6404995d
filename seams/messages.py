"""The messages of a case: two inputs, in portions and partitions, from the case's own seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any

import polars as pl

from seams.factors import Case, written

START_MS = 1_700_000_000_000
SPAN_MS = 10_000
"""The event time of a portion: its messages are in any order, and the inputs' lateness is more than this."""
APART_MS = 60_000
"""How far the portions are apart: their windows close before the next one's begin."""
PORTIONS = 3
MANY = 24
FLUSHES = -1
"""The number of a message that only moves event time on, in streams that don't end."""

Row = dict[str, Any]

KEY_TYPES: Mapping[str, pl.DataType] = {"ints": pl.Int64(), "texts": pl.String(), "nulls": pl.String()}
VALUE_TYPES: Mapping[str, pl.DataType] = {
    "ints": pl.Int64(),
    "floats": pl.Float64(),
    "decimals": pl.Decimal(20, 2),
    "texts": pl.String(),
    "times": pl.Datetime("us"),
}
TIME_TYPES: Mapping[str, pl.DataType] = {"ints": pl.Int64(), "ms": pl.Datetime("ms"), "us": pl.Datetime("us")}
_TEXTS = ("ann", "Jürgen Ü.", "猫", "a b,c\"d'", "")
_VALUES: Mapping[str, Sequence[Any]] = {
    "ints": (0, -7, 12, 2**40),
    "floats": (0.0, -1.5, 2.25, 1e9),
    "decimals": tuple(map(Decimal, ("0.00", "-1.50", "12345.67", "0.01"))),
    "texts": ("", "x", "größer", "日本"),
    "times": tuple(datetime(2024, 2, 29, 23, 59, 59, n * 1001) for n in range(4)),
}


@dataclass(frozen=True)
class Columns:
    """The schemas of the two inputs of a case."""

    case: Case

    @property
    def orders(self) -> dict[str, pl.DataType]:
        """``n`` numbers messages; of those of one number all columns are the same. ``v`` may be null."""
        value = VALUE_TYPES[self.case["value"]]
        return {"n": pl.Int64(), "k": KEY_TYPES[self.case["key"]], "v": value, "ts": TIME_TYPES[self.case["time"]]}

    @property
    def facts(self) -> dict[str, pl.DataType]:
        """``f`` depends on the key alone, which is never null."""
        return {name: dtype for name, dtype in self.orders.items() if name != "v"} | {"f": pl.Int64()}


def as_time(case: Case, ms: int) -> int | datetime:
    """A moment as a value of the case's type of event time."""
    return ms if case["time"] == "ints" else datetime(1970, 1, 1) + timedelta(milliseconds=ms)


@dataclass
class Messages:
    """What the inputs of a case have: by portion and partition, in the order in which it is written."""

    case: Case
    orders: list[list[list[Row]]] = field(default_factory=list)
    facts: list[list[list[Row]]] = field(default_factory=list)

    @classmethod
    def of(cls, case: Case) -> Messages:
        """The messages of a case: always the same."""
        chance = random.Random(int(sha256(written(case).encode()).hexdigest()[:12], 16))
        drawn = cls(case)
        number = 0
        for portion in range(PORTIONS):
            rows = {"none": 0, "one": int(portion == 0), "many": MANY}[case["rows"]]
            some = [_order(case, chance, number + n, portion) for n in range(rows)]
            some += [chance.choice(some) for _ in range(rows // 4)]  # repeated, at the same time
            facts = [_fact(case, chance, number + n, portion) for n in range(rows)]
            number += rows
            drawn.orders.append(drawn._dealt(some, portion, chance))
            drawn.facts.append(drawn._dealt(facts, portion, chance))
        return drawn

    @property
    def partitions(self) -> int:
        """How many partitions both inputs have."""
        return 1 if self.case["partitions"] == "one" else 3

    def _dealt(self, rows: list[Row], portion: int, chance: random.Random) -> list[list[Row]]:
        chance.shuffle(rows)
        silent = self.case["partitions"] == "one-empty" or (
            self.case["partitions"] == "one-falls-silent" and portion > 0
        )
        speaking = self.partitions - silent
        return [rows[p::speaking] if p < speaking else [] for p in range(self.partitions)]

    def flushes(self) -> list[list[Row]]:
        """Messages long after all others, in all partitions that speak to the end."""
        silent = self.case["partitions"].startswith("one-")
        return [[] if silent and p == self.partitions - 1 else [self._flush()] for p in range(self.partitions)]

    def _flush(self) -> Row:
        ms = START_MS + 100 * APART_MS
        key = 0 if self.case["key"] == "ints" else "flush"
        return {"n": FLUSHES, "k": key, "v": None, "ts": as_time(self.case, ms), "ms": ms, "f": 0}

    def all(self, name: str, *portions: int) -> list[Row]:
        """The messages of an input, in these portions or all."""
        kept: list[list[list[Row]]] = getattr(self, name)
        chosen = portions or range(PORTIONS)
        return [row for portion in chosen for part in kept[portion] for row in part]


def _order(case: Case, chance: random.Random, n: int, portion: int) -> Row:
    # A message each 400 ms, shuffled afterwards: no two messages have the same time.
    ms = START_MS + portion * APART_MS + n % MANY * 400 + chance.randrange(100)
    index = chance.randrange(5)
    key: int | str | None = index if case["key"] == "ints" else _TEXTS[index]
    if case["key"] == "nulls" and chance.random() < 0.2:
        key = None
    value = None if chance.random() < 0.2 else chance.choice(_VALUES[case["value"]])
    return {"n": n, "k": key, "v": value, "ts": as_time(case, ms), "ms": ms}


def _fact(case: Case, chance: random.Random, n: int, portion: int) -> Row:
    ms = START_MS + portion * APART_MS + n % MANY * 400 + 200 + chance.randrange(100)
    index = chance.randrange(4)  # one key has no fact
    key = index if case["key"] == "ints" else _TEXTS[index]
    return {"n": n * 2, "k": key, "ts": as_time(case, ms), "ms": ms, "f": index * 10}
