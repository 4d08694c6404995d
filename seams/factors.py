"""The factors of a case and their values, which of them exclude each other, and lists of cases that cover each pair.

Pure: everything follows from the tables and a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from typing_extensions import override

Case = Mapping[str, str]
"""A value for each factor."""

Chosen = frozenset[tuple[str, str]]
"""Two or three factors of a case, with their values."""

WINDOWS = ("tumbling", "hopping", "sliding", "session")
ROW_STEPS = ("filter", "map", "flat-map", "map-batches", "merge")
"""Steps without state, before any shuffle."""

FACTORS: Mapping[str, Sequence[str]] = {
    "step": (
        *ROW_STEPS,
        *WINDOWS,
        "count-window",
        "deduplicate",
        "join",
        "join-latest",
        "own-table",
        "filled-table",
        "side-table",
        "versions",
        "task",
    ),
    "mode": ("kit", "local", "containers", "batch", "backfill", "spark", "spark-batch", "spark-backfill"),
    "move": ("none", "restart", "kill", "replay", "startpoint", "savepoint", "rescale", "change"),
    "output": ("log", "keyed-log", "parquet", "jsonl", "sql", "sql-by-key", "delta"),
    "aggregate": ("none", "count", "sum", "mean", "extremes", "first-last", "distinct", "top"),
    "value": ("ints", "floats", "decimals", "texts", "times"),
    "input": ("fed", "log", "parquet", "jsonl"),
    "partitions": ("one", "three", "one-empty", "one-falls-silent"),
    "behind": ("nothing", "rows", "tumbling", "session"),
    "rows": ("many", "one", "none"),
    "arrival": ("at-once", "portions", "pauses"),
    "key": ("ints", "texts", "nulls"),
    "time": ("ints", "ms", "us"),
    "end": ("sealed", "open"),
    "idle": ("no-timeout", "timeout"),
}

LIVE = ("kit", "local", "containers", "spark")
ON_SPARK = ("spark", "spark-batch", "spark-backfill")
BY_RUNS = ("local", "spark")
"""Modes that go through ``App.run``: startpoints and savepoints are those of commands."""

BACKFILLS = ("backfill", "spark-backfill")
BATCHES = ("batch", "spark-batch")
UNSHUFFLED = (*ROW_STEPS, "side-table")
FROM_FILES = ("parquet", "jsonl")
TIMELESS = ("count-window", "join-latest")
"""Steps whose results have no event time."""


CANDIDATES = 3
"""How many cases are drawn for one that is chosen."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Two or three factors, and which of their values can't meet, and why."""

    factors: tuple[str, ...]
    excludes: Callable[..., bool]
    why: str


def _both(one: str, values: Collection[str], other: str, excluded: Collection[str], why: str) -> Rule:
    return Rule((one, other), lambda a, b: a in values and b in excluded, why)


def _only(one: str, values: Collection[str], other: str, wanted: Collection[str], why: str) -> Rule:
    return Rule((one, other), lambda a, b: a in values and b not in wanted, why)


RULES: Sequence[Rule] = (
    Rule(("input", "mode"), lambda a, b: (a == "fed") != (b == "kit"), "only the test kit is fed, and nothing else"),
    _only("mode", ["kit"], "output", ["log", "keyed-log"], "the test kit has all streams in memory"),
    _both("mode", [*BATCHES, *BACKFILLS], "move", FACTORS["move"][1:], "a batch has no containers to move"),
    _both("mode", BATCHES, "arrival", ["portions", "pauses"], "a batch reads what is there when it begins"),
    _both("mode", BACKFILLS, "arrival", ["pauses"], "history doesn't pause"),
    _both("mode", ["containers"], "move", ["startpoint", "savepoint", "rescale"], "these are moves of whole runs"),
    _both("mode", ["kit"], "move", ["startpoint", "savepoint", "rescale"], "these are moves of whole runs"),
    _both("mode", ["containers"], "move", ["replay", "change"], "runs and the test kit deploy versions"),
    _both("mode", ["spark"], "move", ["kill"], "chaos kills the processes of Spark"),
    _only("move", ["replay"], "step", ROW_STEPS, "state that has seen a message counts it again, or it is late"),
    _only("move", ["replay"], "behind", ["nothing"], "state that has seen a message counts it again, or it is late"),
    _both("move", ["rescale"], "step", UNSHUFFLED, "there is no shuffle whose partitions could change"),
    _both("move", ["rescale"], "arrival", ["at-once"], "an app that may have ended keeps its counts"),
    _both("move", ["replay", "change"], "arrival", ["at-once"], "they change what happens to what comes later"),
    _both("move", ["change"], "end", ["open"], "one end of the input is enough to see the change"),
    _both("input", FROM_FILES, "arrival", ["portions", "pauses"], "the files of an input that ends are all there"),
    _both("input", FROM_FILES, "end", ["open"], "the files of an input that ends are all there"),
    Rule(("step", "aggregate"), lambda a, b: (a in WINDOWS) != (b != "none"), "windows aggregate, and only they"),
    Rule(
        ("aggregate", "value"),
        lambda a, b: a in ("sum", "mean") and b in ("texts", "times"),
        "texts and times have no sum",
    ),
    _both("step", TIMELESS, "behind", ["tumbling", "session"], "the results have no event time"),
    _both("step", ["count-window"], "behind", ["rows"], "which messages share a window depends on arrival"),
    _both("step", ["count-window"], "end", ["open"], "only an end emits an incomplete window"),
    _both("output", ["sql-by-key"], "key", ["nulls"], "a key of a SQL table isn't null"),
    _both("output", ["sql-by-key"], "step", ["count-window", "sliding", "join"], "nothing names a result"),
    _both("output", ["sql-by-key"], "move", ["replay"], "a row that is written again isn't seen"),
    Rule(
        ("end", "partitions", "idle"),
        lambda a, b, c: a == "open" and b.startswith("one-") and c == "no-timeout",
        "a silent partition holds windows back forever",
    ),
    _only("arrival", ["pauses"], "idle", ["timeout"], "pauses matter if there is a timeout"),
    _both("partitions", ["one-falls-silent"], "arrival", ["at-once"], "silence comes after a portion"),
    _both("rows", ["none", "one"], "arrival", ["portions", "pauses"], "there are too few rows for two portions"),
)


def broken(case: Case) -> Rule | None:
    """The first rule that a case, complete or not, breaks."""
    for rule in RULES:
        values = [case.get(factor) for factor in rule.factors]
        if None not in values and rule.excludes(*values):
            return rule
    return None


def subsets(case: Case, size: int) -> Iterator[Chosen]:
    """All choices of so many factors, with their values."""
    return (frozenset(chosen) for chosen in combinations(sorted(case.items()), size))


class Space:
    """The cases that may be drawn: all that no rule excludes, with these values of some factors."""

    def __init__(self, only: Mapping[str, Collection[str]] | None = None) -> None:
        only = only or {}
        self.factors = {
            name: tuple(value for value in values if name not in only or value in only[name])
            for name, values in FACTORS.items()
        }
        self._touching = {name: [rule for rule in RULES if name in rule.factors] for name in FACTORS}

    def pairs(self) -> set[Chosen]:
        """Every pair of values that some case can have."""
        return set(self._pairs)

    @cached_property
    def _pairs(self) -> frozenset[Chosen]:
        found: set[Chosen] = set()
        for one, other in combinations(self.factors, 2):
            for a in self.factors[one]:
                for b in self.factors[other]:
                    pair = frozenset({(one, a), (other, b)})
                    if pair not in found and (case := self.completed({one: a, other: b})) is not None:
                        found.update(subsets(case, 2))
        return frozenset(found)

    def completed(self, chosen: Case, score: Callable[[dict[str, str], str, str], float] | None = None) -> Case | None:
        """A case with these values; of several the one that ``score`` prefers, factor by factor. None if none has."""
        return None if broken(chosen) else self._fill(dict(chosen), score or (lambda *_: 0.0))

    def _fill(self, chosen: dict[str, str], score: Callable[[dict[str, str], str, str], float]) -> Case | None:
        left = [name for name in self.factors if name not in chosen]
        if not left:
            return chosen
        free = {name: [value for value in self.factors[name] if self._fits(chosen, name, value)] for name in left}
        name = min(left, key=lambda name: len(free[name]))  # what has the fewest values left is decided first
        for value in sorted(free[name], key=lambda value: -score(chosen, name, value)):
            if (found := self._fill({**chosen, name: value}, score)) is not None:
                return found
        return None

    def _fits(self, chosen: Case, name: str, value: str) -> bool:
        case = {**chosen, name: value}
        for rule in self._touching[name]:
            values = [case.get(factor) for factor in rule.factors]
            if None not in values and rule.excludes(*values):
                return False
        return True


def covering(space: Space, seed: int = 1, most: int | None = None) -> list[Case]:
    """Cases that have every pair of values that can meet, or the first so many: each adds as many as it can."""
    chance = random.Random(seed)
    left = space.pairs()
    order = sorted(left, key=sorted)
    chance.shuffle(order)
    cases: list[Case] = []
    while left and (most is None or len(cases) < most):
        order = [pair for pair in order if pair in left]
        candidates = [_drawn(space, pair, left, chance) for pair in order[:CANDIDATES]]
        best = max(candidates, key=lambda case: len(left.intersection(subsets(case, 2))))
        left.difference_update(subsets(best, 2))
        cases.append(best)
    return cases


def _drawn(space: Space, pair: Chosen, left: set[Chosen], chance: random.Random) -> Case:
    """A case with a pair, and with as many of those that are left as fit."""

    def score(chosen: dict[str, str], name: str, value: str) -> float:
        new = sum(frozenset({(name, value), pair}) in left for pair in chosen.items())
        return new + chance.random() / 2

    case = space.completed(dict(pair), score)
    assert case is not None, f"{pair} is no pair that can meet"
    return {name: case[name] for name in FACTORS}


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a list of cases covers."""

    cases: int
    pairs: int
    of_pairs: int
    triples: int

    @override
    def __str__(self) -> str:
        values = sum(map(len, FACTORS.values()))
        return (
            f"{len(FACTORS)} factors with {values} values; {self.cases:,} cases met {self.pairs:,} of "
            f"{self.of_pairs:,} pairs that can meet, and {self.triples:,} triples"
        )


def coverage(cases: Iterable[Case], space: Space) -> Coverage:
    """Count the pairs and triples that cases have."""
    cases = list(cases)
    pairs = {pair for case in cases for pair in subsets(case, 2)}
    triples = {triple for case in cases for triple in subsets(case, 3)}
    can = space.pairs()
    return Coverage(len(cases), len(pairs & can), len(can), len(triples))


def written(case: Case) -> str:
    """A case as one word."""
    return ",".join(f"{name}={case[name]}" for name in FACTORS)


def read(text: str) -> Case:
    """The case that ``written`` has made a word of. Raises ``ValueError`` if it is none, or can't be."""
    case = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    wrong = [name for name in FACTORS if case.get(name) not in FACTORS[name]] + sorted(case.keys() - FACTORS)
    if wrong:
        raise ValueError(f"{text!r} isn't a case: {', '.join(wrong)}")
    if (rule := broken(case)) is not None:
        raise ValueError(f"there is no such case: {rule.why}")
    return case


IN_PROCESS: Mapping[str, Collection[str]] = {"mode": ("kit", "local", "containers", "batch", "backfill")}
"""Modes that need no Spark. Of these only the kill of a run starts a process."""
