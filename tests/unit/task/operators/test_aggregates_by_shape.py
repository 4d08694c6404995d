"""Every aggregate in every shape of window, with disorder and restarts, against plain Python over lists of messages.

The shapes differ in how they bring partial results together: merged in runs, looked up by key, rolled over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples

COLUMNS = {"key": pl.String, "at": pl.Int64, "name": pl.String, "value": pl.Int64}
LONG = "a name that doesn't fit into twelve bytes, "


@dataclass(frozen=True)
class Message:
    """A message and its place in the order of arrival."""

    place: int
    key: str | None
    at: int
    name: str | None
    value: int | None


Messages = list[Message]


def known(messages: Messages) -> list[int]:
    return [m.value for m in messages if m.value is not None]


def top(messages: Messages) -> list[str | None]:
    ranked = sorted((m for m in messages if m.value is not None), key=lambda m: -(m.value or 0))
    return [m.name for m in ranked[:2]]


AGGREGATES: dict[str, tuple[hr.aggregates.Aggregate, Callable[[Messages], Any]]] = {
    "rows": (hr.count(), len),
    "sum": (hr.sum("value"), lambda ms: sum(known(ms))),
    "least": (hr.min("name"), lambda ms: min((m.name for m in ms if m.name is not None), default=None)),
    "mean": (hr.mean("value"), lambda ms: sum(known(ms)) / len(known(ms)) if known(ms) else None),
    "first": (hr.aggregates.first("name"), lambda ms: min(ms, key=lambda m: (m.at, m.place)).name),
    "last": (hr.aggregates.last("name"), lambda ms: max(ms, key=lambda m: (m.at, m.place)).name),
    "top": (hr.aggregates.top_k("name", 2, by="value"), top),
    "best": (hr.aggregates.top_k("name", 1, by="value"), lambda ms: top(ms)[:1]),
    "different": (hr.aggregates.n_unique("name"), lambda ms: len({m.name for m in ms} - {None})),
    "about": (hr.aggregates.approx_n_unique("name"), lambda ms: len({m.name for m in ms} - {None})),
    "all": (hr.aggregates.implode("name"), lambda ms: [m.name for m in ms]),
    "doubled": (hr.sum(pl.col("value") * 2), lambda ms: 2 * sum(known(ms))),
    "joined": (
        hr.aggregates.fold("", lambda so_far, row: so_far + (row["name"] or "-"), lambda a, b: a + b, dtype=pl.String),
        lambda ms: "".join(m.name or "-" for m in ms),
    ),
    "listed": (
        hr.aggregates.fold(
            list, lambda so_far, value: [*so_far, value], lambda a, b: a + b, dtype=pl.List(pl.Int64), column="value"
        ),
        lambda ms: [m.value for m in ms],
    ),
    "largest": (hr.aggregates.reduce(max, "value"), lambda ms: max(known(ms), default=None)),
}

Windows = Iterator[tuple[Any, Messages]]


def tumbling(messages: Messages) -> Windows:
    for start in {m.at // 10 * 10 for m in messages}:
        yield start, [m for m in messages if start <= m.at < start + 10]


def hopping(messages: Messages) -> Windows:
    for start in range(-60, 120, 4):
        held = [m for m in messages if start <= m.at < start + 10]
        if held:
            yield start, held


def in_pieces(messages: Messages) -> Windows:
    """Like ``hopping``, merged from pieces, within which no window starts or ends."""
    for start, held in hopping(messages):
        yield start, sorted(held, key=lambda m: (m.at // 2, m.place))


def sliding(messages: Messages) -> Windows:
    for at in {m.at for m in messages}:
        yield at - 9, sorted((m for m in messages if at - 10 < m.at <= at), key=lambda m: (m.at, m.place))


def sessions(messages: Messages) -> Windows:
    ordered = sorted(messages, key=lambda m: m.at)
    while ordered:
        held = [ordered.pop(0)]
        while ordered and ordered[0].at - held[-1].at < 10:
            held.append(ordered.pop(0))
        yield held[0].at, sorted(held, key=lambda m: m.place)


def counts(messages: Messages) -> Windows:
    for end in range(2, len(messages) + 2, 2):
        yield end, messages[max(0, end - 5) : end]


SHAPES: dict[str, tuple[Any, dict[str, Any], Callable[[Messages], Windows]]] = {
    "tumbling": (hr.tumbling("10ms"), {}, tumbling),
    "tumbling with panes": (hr.tumbling("10ms"), {"early": hr.triggers.every(2), "allowed_lateness": "5ms"}, tumbling),
    "hopping": (hr.hopping("10ms", every="4ms"), {}, hopping),
    "hopping with panes": (hr.hopping("10ms", every="4ms"), {"early": hr.triggers.every("3ms")}, hopping),
    "sliding": (hr.windows.sliding("10ms"), {}, sliding),
    "sessions": (hr.session("10ms"), {}, sessions),
    "counts": (hr.windows.count(5, every=2), {}, counts),
}

names = st.sampled_from(["x", "yy", "", None, LONG + "1", LONG + "2"])
values = st.one_of(st.none(), st.integers(0, 3))
batches = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "a", None]), st.integers(-40, 60), names, values), min_size=1, max_size=7),
    max_size=5,
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("built_in", [True, False])
@settings(max_examples=examples(12), deadline=None)
@given(batches, st.booleans())
def test_every_aggregate(shape: str, built_in: bool, fed: list[list[Any]], restarted: bool) -> None:
    window, options, oracle = SHAPES[shape]
    if shape == "hopping" and built_in:
        oracle = in_pieces
    chosen = {name: agg for name, agg in AGGREGATES.items() if not built_in or agg[0].function is None}
    app = hr.App("windows")
    rows = app.input("rows", COLUMNS, event_time="at", lateness="1s")
    agg = {name: aggregate for name, (aggregate, _) in chosen.items()}
    rows.window(window, key="key", id="w", **options).agg(**agg).send_to(app.output("out"))
    messages: Messages = []
    with app.test() as t:
        for batch in fed:
            t.feed("rows", pl.DataFrame(batch, COLUMNS, orient="row"))
            messages += [Message(len(messages) + n, *row) for n, row in enumerate(batch)]
            if restarted:
                t.restart(checkpoint=True)
        t.end()
        out = t.read("out", committed=True)
    expected = [
        (key, {name: of(held) for name, (_, of) in chosen.items()})
        for key in {m.key for m in messages}
        for _, held in oracle([m for m in messages if m.key == key])
    ]
    final = out.filter(pl.col("pane") == "on_time") if "pane" in out.columns else out
    found = [(row["key"], {name: row[name] for name in chosen}) for row in final.to_dicts()]
    if shape == "sessions":  # where two sessions are merged, the messages of the earlier one come first
        found, expected = unordered(found), unordered(expected)
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def unordered(results: list[Any]) -> list[Any]:
    """The results that don't depend on the order of arrival."""
    plain = []
    for key, row in results:
        kept = {name: value for name, value in row.items() if name not in ("all", "joined", "listed", "top", "best")}
        plain.append((key, kept | {"all": sorted(map(repr, row["all"]))}))
    return plain
