"""What must come out of the app of a case: plain Python over all messages, without a line of Headrace."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from seams.factors import Case
from seams.messages import PORTIONS, Messages, Row, as_time

MS = "ms"
"""The event time of a message or a result in milliseconds. It isn't a column of a result."""
BUCKET_MS = 5_000
JOIN_MS = 2_000
SHAPES = {"tumbling": 3_000, "hopping": 4_000, "sliding": 2_000, "session": 1_000}

Step = Callable[[Case, list[Row], list[Row]], list[Row]]


def expected(messages: Messages) -> tuple[list[Row], list[int]]:
    """The results of a case, and those of the output that its second version adds."""
    case = messages.case
    orders, more = messages.all("orders"), []
    if case["move"] == "change":
        late = [row for row in messages.all("orders", *range(1, PORTIONS)) if row["n"] % 4 != 3]
        orders, more = messages.all("orders", 0) + late, [row["n"] for row in late]
    if case["move"] == "replay":
        orders = orders + messages.all("orders", 0)
    results = STEPS[case["step"]](case, orders, messages.all("facts"))
    return BEHIND[case["behind"]](case, results), more


def settled(case: Case, rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """What is promised of results, comparable: without an order, and without what depends on one."""
    rows = [{name: plain(value) for name, value in row.items() if name != MS} for row in rows]
    if case["step"] == "count-window":
        return sorted(_sizes(rows), key=repr)
    late_facts = case["step"] == "filled-table" or (case["step"] == "side-table" and case["arrival"] != "at-once")
    if late_facts and case["behind"] == "nothing":
        rows = [{**row, "f": "right or not there yet"} if row["f"] in (None, _fact(case, row)) else row for row in rows]
    found = [tuple(row[name] for name in sorted(row)) for row in rows]
    if case["step"] == "join-latest" or case["output"] == "sql-by-key":
        found = list(set(found))  # how often isn't promised
    return sorted(found, key=repr)


def _fact(case: Case, row: Row) -> int | None:
    """What the facts say of a row's key."""
    keys: Sequence[Any] = range(4) if case["key"] == "ints" else ("ann", "Jürgen Ü.", "猫", "a b,c\"d'")
    return list(keys).index(row["k"]) * 10 if row["k"] in keys else None


def _sizes(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Of windows of a number of messages, their sizes are promised, and that each message is in one."""
    sizes, totals = defaultdict(list), Counter[Any]()
    for row in rows:
        sizes[row["k"]].append(row["n"])
        totals[row["k"]] += row["total"]
    return [(key, tuple(sorted(sizes[key])), totals[key]) for key in sizes]


def plain(value: Any) -> Any:
    """A value as all outputs can be compared: numbers by what they are worth, times as texts."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, int | float | Decimal):
        return 0.0 if value == 0 else float(f"{float(value):.9g}") if math.isfinite(value) else str(value)
    raise TypeError(f"{value!r} isn't a value of a result")


# -- steps ------------------------------------------------------------------------------------------


def _passed(keep: Callable[[int], bool], w: Callable[[int], int]) -> Step:
    def step(_: Case, orders: list[Row], __: list[Row]) -> list[Row]:
        return [{**row, "w": w(row["n"])} for row in orders if keep(row["n"])]

    return step


def _flat_map(_: Case, orders: list[Row], __: list[Row]) -> list[Row]:
    return [{**row, "w": copy} for row in orders for copy in range(row["n"] % 3)]


def _by_key(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[MS]):
        found[row[key]].append(row)
    return found


def _aggregated(case: Case, rows: list[Row]) -> Row:
    values = [row["v"] for row in rows if row["v"] is not None]
    kind = case["aggregate"]
    found: Row = {"n": len(rows)}
    if kind == "count":
        found |= {"a": len(values), "c": len(rows) - len(values)}
    elif kind == "sum":
        found |= {"a": sum(values), "c": sum(row["n"] for row in rows)}
    elif kind == "mean":
        found |= {"a": float(sum(values)) / len(values) if values else None}
    elif kind == "extremes":
        found |= {"a": min(values, default=None), "c": max(values, default=None)}
    elif kind == "first-last":
        found |= {"a": rows[0]["n"], "c": rows[-1]["v"]}
    elif kind == "distinct":
        found |= {"a": len(set(values))}
    else:
        found |= {"a": max(row["n"] for row in rows)}
    return found


def _windows(shape: str, size: int, rows: list[Row]) -> list[tuple[int, int, list[Row]]]:
    """The windows of one key's rows, which are in order of time: start, end, rows."""
    if shape == "session":
        sessions: list[list[Row]] = []
        for row in rows:
            if sessions and row[MS] < sessions[-1][-1][MS] + size:
                sessions[-1].append(row)
            else:
                sessions.append([row])
        return [(some[0][MS], some[-1][MS] + size, some) for some in sessions]
    if shape == "sliding":
        ends = [moment + 1 for moment in sorted({row[MS] for row in rows})]
        bounds = [(end - size, end) for end in ends]
    else:
        every = size // 2 if shape == "hopping" else size
        starts = {row[MS] // every * every - back for row in rows for back in range(0, size, every)}
        bounds = [(start, start + size) for start in sorted(starts)]
    cut = ((start, end, [row for row in rows if start <= row[MS] < end]) for start, end in bounds)
    return [window for window in cut if window[2]]


def _window(case: Case, orders: list[Row], _: list[Row]) -> list[Row]:
    shape = case["step"]
    return [
        {"k": key, **_bounds(case, start, end), **_aggregated(case, some)}
        for key, rows in _by_key(orders, "k").items()
        for start, end, some in _windows(shape, SHAPES[shape], rows)
    ]


def _bounds(case: Case, start: int, end: int) -> Row:
    return {"window_start": as_time(case, start), "window_end": as_time(case, end), MS: end - 1}


def _count_window(_: Case, orders: list[Row], __: list[Row]) -> list[Row]:
    cut = [(k, rows[at : at + 4]) for k, rows in _by_key(orders, "k").items() for at in range(0, len(rows), 4)]
    return [{"k": key, "n": len(some), "total": sum(row["n"] for row in some)} for key, some in cut]


def _deduplicate(_: Case, orders: list[Row], __: list[Row]) -> list[Row]:
    return list({row["n"]: row for row in orders}.values())


def _join(_: Case, orders: list[Row], facts: list[Row]) -> list[Row]:
    found = []
    for row in orders:
        near = [fact["n"] for fact in facts if fact["k"] == row["k"] and abs(fact[MS] - row[MS]) <= JOIN_MS]
        found += [{**row, "g": g} for g in near or [None]]
    return found


def _join_latest(_: Case, orders: list[Row], facts: list[Row]) -> list[Row]:
    known = {fact["n"]: fact["f"] for fact in facts}
    return [
        {name: row[name] for name in ("n", "k", "v")} | {"f": known[row["n"]]} for row in orders if row["n"] in known
    ]


def _own_table(_: Case, orders: list[Row], __: list[Row]) -> list[Row]:
    return [{**row, "last": row["n"]} for row in orders if row["k"] is not None]


def _looked_up(_: Case, orders: list[Row], facts: list[Row]) -> list[Row]:
    known = {fact["k"]: fact["f"] for fact in facts}
    return [{**row, "f": known.get(row["k"])} for row in orders]


def _versions(_: Case, orders: list[Row], facts: list[Row]) -> list[Row]:
    def valid(row: Row) -> int | None:
        before = [fact for fact in facts if fact["k"] == row["k"] and fact[MS] <= row[MS]]
        return max(before, key=lambda fact: fact[MS])["n"] if before else None

    return [{**row, "version": valid(row)} for row in orders]


def _task(case: Case, orders: list[Row], _: list[Row]) -> list[Row]:
    counts = Counter((row["k"], (row[MS] // BUCKET_MS + 1) * BUCKET_MS) for row in orders if row["k"] is not None)
    return [{"k": key, "n": n, "ts": as_time(case, end), MS: end} for (key, end), n in counts.items()]


STEPS: Mapping[str, Step] = {
    "filter": _passed(lambda n: n % 3 != 0, lambda n: 2 * n),
    "map": _passed(lambda n: True, lambda n: n + 1),
    "flat-map": _flat_map,
    "map-batches": _passed(lambda n: n % 2 == 1, lambda n: -n),
    "merge": _passed(lambda n: True, lambda n: n % 2),
    **dict.fromkeys(SHAPES, _window),
    "count-window": _count_window,
    "deduplicate": _deduplicate,
    "join": _join,
    "join-latest": _join_latest,
    "own-table": _own_table,
    "filled-table": _looked_up,
    "side-table": _looked_up,
    "versions": _versions,
    "task": _task,
}

# -- what comes behind a second shuffle -------------------------------------------------------------

NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("tumbling", "hopping", "session"), ("k", "window_start")),
    "flat-map": ("w",),
    "task": ("k", "ts"),
}


def _rows(case: Case, results: list[Row]) -> list[Row]:
    kept = ("n", *NAMES.get(case["step"], ()))
    return [{"b": row["n"] % 3, **{name: row[name] for name in kept}} for row in results if row["n"] % 2 == 0]


def _behind(shape: str, size: int) -> Callable[[Case, list[Row]], list[Row]]:
    def step(case: Case, results: list[Row]) -> list[Row]:
        by_b = _by_key(({**row, "b": row["n"] % 3} for row in results), "b")
        return [
            {"b": b, **_bounds(case, start, end), "n": len(some), "m": sum(row["n"] for row in some)}
            for b, rows in by_b.items()
            for start, end, some in _windows(shape, size, rows)
        ]

    return step


BEHIND: Mapping[str, Callable[[Case, list[Row]], list[Row]]] = {
    "nothing": lambda _, results: results,
    "rows": _rows,
    "tumbling": _behind("tumbling", 7_000),
    "session": _behind("session", 4_000),
}
