"""Every window and trigger, with disorder, lateness, skewed keys and restarts, against plain Python."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from window_oracle import FOREVER, Key, Message, Oracle, Result

import headrace as hr
from drawn import examples
from headrace.core.clock import to_ms

COLUMNS = {"key": pl.String, "at": pl.Int64, "value": pl.Int64}
AGG = {"n": hr.count(), "values": hr.aggregates.implode("value")}


@dataclass(frozen=True)
class Case:
    """A window and its input: batches, or True for a restart."""

    shape: Any
    options: dict[str, Any]
    lateness: int
    keyed: bool
    steps: list[list[Message] | bool]


messages = st.tuples(st.sampled_from(["a", "a", "a", "b", None]), st.integers(-40, 60), st.integers(0, 99))
batches = st.lists(messages, min_size=1, max_size=8)
steps = st.lists(st.one_of(batches, batches, batches, st.just(True)), max_size=7)

sizes = st.integers(1, 25)
tumblings = st.builds(lambda size, offset: hr.tumbling(f"{size}ms", f"{offset}ms"), sizes, st.integers(-30, 30))
hoppings = st.builds(
    lambda every, more, offset: hr.hopping(f"{every + more}ms", f"{every}ms", f"{offset}ms"),
    sizes,
    sizes,
    st.integers(-9, 9),
)
sessions = st.builds(lambda gap: hr.session(f"{gap}ms"), st.integers(1, 15))
shapes = st.one_of(tumblings, hoppings, sessions, st.just(hr.windows.global_()))

ms = st.integers(1, 20).map("{}ms".format)
leaves = st.one_of(
    st.builds(hr.triggers.every, st.integers(1, 4)),
    st.builds(hr.triggers.after, st.integers(1, 4)),
    st.builds(hr.triggers.every, ms),
    st.builds(hr.triggers.since_first, ms),
    st.builds(hr.triggers.since_last, ms),
)
triggers = st.one_of(
    leaves,
    st.builds(hr.triggers.repeated, leaves),
    st.builds(hr.triggers.any_of, leaves, leaves),
    st.builds(hr.triggers.all_of, leaves, leaves),
    st.builds(lambda a, b: hr.triggers.repeated(hr.triggers.all_of(a, b)), leaves, leaves),
)


@st.composite
def options(draw: st.DrawFn, shape: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if draw(st.booleans()):
        chosen["early"] = draw(triggers)
    if not isinstance(shape, hr.windows.GlobalWindow) and draw(st.booleans()):
        chosen["allowed_lateness"] = f"{draw(st.integers(1, 40))}ms"
        if draw(st.booleans()):
            chosen["late"] = draw(st.one_of(triggers, st.just(hr.triggers.at_close())))
    if chosen and draw(st.booleans()):
        chosen["panes"] = "discarding"
    return chosen


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = draw(shapes)
    return Case(shape, draw(options(shape)), draw(st.integers(0, 30)), draw(st.booleans()), draw(steps))


def found(case: Case) -> tuple[Counter[Result], Counter[Message], int]:
    """What the app yields: results, messages that were too late, and how many of those it counted."""
    app = hr.App("windows")
    rows = app.input("rows", COLUMNS, event_time="at", lateness=f"{case.lateness}ms")
    late = None if isinstance(case.shape, hr.windows.GlobalWindow) else app.output("late")
    key = "key" if case.keyed else None
    result = rows.window(case.shape, key=key, id="w", late_to=late, **case.options).agg(**AGG)
    result.send_to(app.output("out"))
    with app.test() as t:
        for step in case.steps:
            if isinstance(step, list):
                t.feed("rows", pl.DataFrame(step, COLUMNS, orient="row"))
            else:
                t.restart(checkpoint=True)
        t.end()
        left = t.read("late", committed=True).rows() if late else []
        out = [as_result(row) for row in t.read("out", committed=True).to_dicts()]
        return Counter(out), Counter(left), t.counter("late")


def as_result(row: dict[str, Any]) -> Result:
    values = row["values"]
    return (
        row.get("key"),
        row.get("window_start", 0),
        row.get("window_end", FOREVER),
        row.get("pane", "on_time"),
        row.get("pane_index", 0),
        row["n"],
        tuple(sorted(values)),
    )


def expected(case: Case) -> Oracle:
    chosen = case.options
    allowed = to_ms(chosen.get("allowed_lateness", "0s"))
    late = chosen.get("late", hr.triggers.every(1)) if allowed else None
    accumulating = chosen.get("panes") != "discarding"
    oracle = Oracle(case.shape, chosen.get("early"), late, allowed, accumulating=accumulating)
    highest = None
    for step in case.steps:
        if not isinstance(step, list):
            continue
        oracle.batch([(key if case.keyed else None, at, value) for key, at, value in step])
        highest = max(at for _, at, _ in step) if highest is None else max(highest, *(at for _, at, _ in step))
        oracle.advance(highest - case.lateness)
    oracle.advance(FOREVER)
    return oracle


@settings(max_examples=examples(120), deadline=None)
@given(cases())
def test_windows_are_those_of_plain_python(case: Case) -> None:
    out, late, counted = found(case)
    oracle = expected(case)
    assert out == Counter(oracle.results)
    too_late = sum(1 for _ in oracle.too_late)
    if not isinstance(case.shape, hr.windows.GlobalWindow):
        told = late if case.keyed else Counter((None, at, value) for _, at, value in late.elements())
        assert told == Counter(oracle.too_late)
    if True not in case.steps:  # counters restart with a process
        assert counted == too_late


# -- restarts without a checkpoint: batches may be cut differently then, so nothing may depend on that


@st.composite
def orderly(draw: st.DrawFn) -> Case:
    """Nothing is late, and no trigger uses time: then it doesn't matter how batches are cut."""
    shape = draw(shapes)
    chosen: dict[str, Any] = {}
    if not isinstance(shape, hr.windows.Session) and draw(st.booleans()):
        chosen = {"early": draw(st.builds(hr.triggers.every, st.integers(1, 4)))}
        chosen |= {"panes": "discarding"} if draw(st.booleans()) else {}
    fed = draw(st.lists(st.one_of(batches, st.sampled_from([True, False])), max_size=8))
    return Case(shape, chosen, 200, draw(st.booleans()), fed)


@settings(max_examples=examples(80), deadline=None)
@given(orderly())
def test_any_restart_leaves_results_as_they_are(case: Case) -> None:
    app = hr.App("windows")
    rows = app.input("rows", COLUMNS, event_time="at", lateness=f"{case.lateness}ms")
    key = "key" if case.keyed else None
    rows.window(case.shape, key=key, id="w", **case.options).agg(**AGG).send_to(app.output("out"))
    with app.test() as t:
        for step in case.steps:
            if isinstance(step, list):
                t.feed("rows", pl.DataFrame(step, COLUMNS, orient="row"))
            else:
                t.restart(checkpoint=step)
        t.end()
        out = Counter(as_result(row) for row in t.read("out", committed=True).to_dicts())
    assert out == Counter(expected(case).results)


# -- sliding windows


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), st.booleans(), steps)
def test_sliding_windows_are_those_of_plain_python(
    size: int, lateness: int, keyed: bool, fed: list[list[Message] | bool]
) -> None:
    out, late, _ = found(Case(hr.windows.sliding(f"{size}ms"), {}, lateness, keyed, fed))
    results: Counter[Result] = Counter()
    seen: list[Message] = []
    dropped: Counter[Message] = Counter()
    own: set[tuple[Key, int]] = set()
    time = None

    def fire(bound: float) -> None:
        for key, at in [pair for pair in own if pair[1] < bound]:
            values = tuple(sorted(v for k, t, v in seen if k == key and at - size < t <= at))
            results[key, at + 1 - size, at + 1, "on_time", 0, len(values), values] += 1
            own.discard((key, at))

    for step in fed:
        if not isinstance(step, list):
            continue
        for original, at, value in step:
            key = original if keyed else None
            if time is not None and at + size <= time:
                dropped[original, at, value] += 1
                continue
            seen.append((key, at, value))
            if time is None or at >= time:
                own.add((key, at))
        highest = max(at for _, at, _ in step) - lateness
        time = highest if time is None else max(time, highest)
        fire(time)
    fire(float("inf"))
    assert (out, late) == (results, dropped)


# -- count windows


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 6), st.integers(0, 5), st.booleans(), st.lists(st.one_of(batches, st.booleans()), max_size=8))
def test_count_windows_are_those_of_plain_python(
    every: int, more: int, keyed: bool, fed: list[list[Message] | bool]
) -> None:
    size = every + more
    app = hr.App("windows")
    rows = app.input("rows", COLUMNS)
    window = rows.window(hr.windows.count(size, every), key="key" if keyed else None, id="w").agg(**AGG)
    window.send_to(app.output("out"))
    with app.test() as t:
        for step in fed:
            if isinstance(step, list):
                t.feed("rows", pl.DataFrame(step, COLUMNS, orient="row"))
            else:
                t.restart(checkpoint=step)
        t.end()
        out = Counter((row.get("key"), tuple(row["values"])) for row in t.read("out", committed=True).to_dicts())
    by_key: dict[Key, list[int]] = {}
    for step in fed:
        for key, _, value in step if isinstance(step, list) else []:
            by_key.setdefault(key if keyed else None, []).append(value)
    results = [
        (key, tuple(values[max(0, end - size) : end]))
        for key, values in by_key.items()
        for end in range(every, len(values) + every, every)
    ]
    assert out == Counter(results)
