"""What the simulated apps must put out: worked out from their whole input at once, in plain Python.

``Sources`` are the messages of each input by its name, ``Outputs`` the rows of each output in the order in which they
were read; a function answers what is wrong with the latter, None when nothing is. None of this knows Headrace.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TICK_MS = 50
"""The unit of event time here. State is given up in steps of a second, so a run has to take some."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """A message of an input."""

    id: int
    k: int
    ts: int
    """In ms."""
    partition: int
    frame: int
    """The number of its frame in the partition."""


Sources = Mapping[str, Sequence[Message]]
Outputs = Mapping[str, Sequence[Row]]


def differ(name: str, found: Iterable[tuple[Any, ...]], wanted: Iterable[tuple[Any, ...]]) -> str | None:
    """Compare rows, whatever their order; each as often as it should be there."""
    have, want = Counter(found), Counter(wanted)
    if have == want:
        return None
    more, less = sorted((have - want).items(), key=repr), sorted((want - have).items(), key=repr)
    return f"output {name}: too many {dict(more)}, too few {dict(less)}"


def columns(rows: Iterable[Row], *names: str) -> list[tuple[Any, ...]]:
    """These columns of the rows."""
    return [tuple(row[name] for name in names) for row in rows]


def tumbled(messages: Iterable[Message], size: int) -> dict[tuple[int, int], list[Message]]:
    """Messages by key and the start of their window of ``size`` ticks."""
    windows: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages:
        windows[message.k, start_of(message.ts, size)].append(message)
    return windows


def start_of(ts: int, size: int) -> int:
    """The start of the window of ``size`` ticks that a time is in."""
    return ts // (size * TICK_MS) * size * TICK_MS


def _ids(messages: Iterable[Message]) -> int:
    return sum(message.id for message in messages)


def counts(sources: Sources, outputs: Outputs) -> str | None:
    """Windows of 20 ticks a key, of these windows of 60 ticks a group."""
    groups: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (k, start), messages in tumbled(sources["views"], 20).items():
        groups[k % 2, start_of(start + 20 * TICK_MS - 1, 60)].append((len(messages), _ids(messages)))
    wanted = [
        (g, start, sum(n for n, _ in parts), sum(ids for _, ids in parts), max(n for n, _ in parts))
        for (g, start), parts in groups.items()
    ]
    return differ("counts", columns(outputs["counts"], "g", "window_start", "n", "ids", "most"), wanted)


def panes(sources: Sources, outputs: Outputs) -> str | None:
    """One pane on time for each window; before it panes that count up, two messages a step at least."""
    windows: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in sources["views"]:
        for start in (start_of(message.ts, 20), start_of(message.ts, 20) - 20 * TICK_MS):
            windows[message.k, start].append(message)
    rows = outputs["panes"]
    on_time = columns((row for row in rows if row["pane"] == "on_time"), "k", "window_start", "n", "ids")
    wanted = [(k, start, len(messages), _ids(messages)) for (k, start), messages in windows.items()]
    if wrong := differ("panes", on_time, wanted):
        return wrong
    by_window: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        by_window[row["k"], row["window_start"]].append(row)
    for window, found in by_window.items():
        found.sort(key=lambda row: row["pane_index"])
        if [row["pane_index"] for row in found] != list(range(len(found))):
            return f"panes of window {window}: {found}"
        sizes = [row["n"] for row in found if row["pane"] == "early"]
        if sizes != list(range(2, len(windows[window]) + 1, 2))[: len(sizes)] or found[-1]["pane"] != "on_time":
            return f"panes of window {window} of {len(windows[window])} messages: {found}"
    return None


def _sessions(messages: Iterable[Message], gap: int) -> Iterator[list[Message]]:
    current: list[Message] = []
    for message in sorted(messages, key=lambda m: (m.k, m.ts)):
        if current and (message.k != current[-1].k or message.ts >= current[-1].ts + gap * TICK_MS):
            yield current
            current = []
        current.append(message)
    if current:
        yield current


def sessions(sources: Sources, outputs: Outputs) -> str | None:
    """Sessions with gaps of 15 ticks; how many of each length there are in 80 ticks."""
    lengths: dict[tuple[int, int], list[list[Message]]] = defaultdict(list)
    for found in _sessions(sources["views"], 15):
        lengths[len(found), start_of(found[-1].ts + 15 * TICK_MS - 1, 80)].append(found)
    wanted = [(n, start, len(all_), sum(map(_ids, all_))) for (n, start), all_ in lengths.items()]
    return differ("lengths", columns(outputs["lengths"], "n", "window_start", "sessions", "ids"), wanted)


def lately(sources: Sources, outputs: Outputs) -> str | None:
    """At the time of each message what its key had in the last 12 ticks."""
    by_key: dict[int, list[Message]] = defaultdict(list)
    for message in sources["views"]:
        by_key[message.k].append(message)
    wanted = []
    for k, messages in by_key.items():
        for ts in {message.ts for message in messages}:
            near = [message for message in messages if ts - 12 * TICK_MS < message.ts <= ts]
            wanted.append((k, ts + 1, len(near), _ids(near)))
    return differ("lately", columns(outputs["lately"], "k", "window_end", "n", "ids"), wanted)


def latest(sources: Sources, outputs: Outputs) -> str | None:
    """Pairs of one key, none of them twice, as many as some order of the messages gives."""
    pairs = [(row["k"], row["id"], row["id_right"]) for row in outputs["pairs"]]
    key_of = [{message.id: message.k for message in sources[name]} for name in ("views", "orders")]
    wrong = [pair for pair in pairs if not key_of[0][pair[1]] == key_of[1][pair[2]] == pair[0]]
    twice = [pair for pair, times in Counter(pair[1:] for pair in pairs).items() if times > 1]
    if wrong or twice:
        return f"output pairs: of other keys {wrong}, twice {twice}"
    found = Counter(pair[0] for pair in pairs)
    sizes = [Counter(message.k for message in sources[name]) for name in ("views", "orders")]
    for k in sizes[0] | sizes[1]:
        views, orders = sizes[0][k], sizes[1][k]
        # The first of one side meet nobody; from then on each message meets one.
        least, most = (min(views, orders), views + orders - 1) if views and orders else (0, 0)
        if not least <= found[k] <= most:
            return f"output pairs: {found[k]} of key {k}, which has {views} views and {orders} orders"
    return None


def rated(sources: Sources, outputs: Outputs) -> str | None:
    """Each view once, with the last order of its key by then; any of those with one time."""
    orders: dict[int, list[Message]] = defaultdict(list)
    for order in sources["orders"]:
        orders[order.k].append(order)
    found = columns(outputs["rated"], "id", "rate")
    if (wrong := differ("rated", [(id_,) for id_, _ in found], [(view.id,) for view in sources["views"]])) is not None:
        return wrong
    rates = dict(found)
    for view in sources["views"]:
        before = [order for order in orders[view.k] if order.ts <= view.ts]
        last = max((order.ts for order in before), default=None)
        allowed: set[int | None] = {order.id for order in before if order.ts == last}
        allowed = allowed or {None}
        if rates[view.id] not in allowed:
            return f"output rated: {view} has {rates[view.id]}, and not one of {allowed}"
    return None


def _pairs(sources: Sources, before: int, after: int) -> list[tuple[Message, Message]]:
    orders: dict[int, list[Message]] = defaultdict(list)
    for order in sources["orders"]:
        orders[order.k].append(order)
    return [
        (view, order)
        for view in sources["views"]
        for order in orders[view.k]
        if -before * TICK_MS <= order.ts - view.ts <= after * TICK_MS
    ]


def pairs(how: str) -> Callable[[Sources, Outputs], str | None]:
    """The pairs of two flows, and for outer joins what has no partner, once."""

    def wrong(sources: Sources, outputs: Outputs) -> str | None:
        found = _pairs(sources, 15, 25)
        wanted: list[tuple[int | None, int | None]] = [(view.id, order.id) for view, order in found]
        if how in ("left", "full"):
            paired = {id(view) for view, _ in found}
            wanted += [(view.id, None) for view in sources["views"] if id(view) not in paired]
        if how == "full":
            paired = {id(order) for _, order in found}
            wanted += [(None, order.id) for order in sources["orders"] if id(order) not in paired]
        return differ("pairs", columns(outputs["pairs"], "id", "id_right"), wanted)

    return wrong


def counted_pairs(sources: Sources, outputs: Outputs) -> str | None:
    """Pairs less than 20 ticks apart, counted where the left message stands."""
    windows: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for view, order in _pairs(sources, 20, 20):
        windows[view.id % 2, start_of(view.ts, 8)].append(order)
    wanted = [(g, start, len(orders), _ids(orders)) for (g, start), orders in windows.items()]
    return differ("pairs", columns(outputs["pairs"], "g", "window_start", "n", "ids"), wanted)


def _looked_up(sources: Sources, outputs: Outputs, column: str) -> str | None:
    views = [(view.id, view.k) for view in sources["views"]]
    if wrong := differ("found", columns(outputs["found"], "id", "k"), views):
        return wrong
    known: dict[int, set[int | None]] = defaultdict(lambda: {None})
    for change in sources["changes"]:
        known[change.k].add(change.id)
    for row in outputs["found"]:
        if row[column] not in known[row["k"]]:
            return f"output found: {row}, but the table never had that for key {row['k']}"
    return None


def found(sources: Sources, outputs: Outputs) -> str | None:
    """Each view once, with something that the table may have said of its key at the time."""
    return _looked_up(sources, outputs, "profile")


def found_aside(sources: Sources, outputs: Outputs) -> str | None:
    """As ``found``, with a side input."""
    return _looked_up(sources, outputs, "id_right")


def _last(messages: Iterable[Message]) -> dict[int, set[int]]:
    """By key the last id in each partition: their order among each other is open."""
    last: dict[tuple[int, int], int] = {}
    for message in messages:
        last[message.k, message.partition] = message.id
    possible: dict[int, set[int]] = defaultdict(set)
    for (k, _), id_ in last.items():
        possible[k].add(id_)
    return possible


def profiles(sources: Sources) -> Mapping[str, dict[int, set[int]]]:
    """The table ``profiles`` at the end."""
    return {"profiles": _last(sources["changes"])}


def known(sources: Sources) -> Mapping[str, dict[int, set[int]]]:
    """The table ``known`` at the end."""
    return {"known": _last(sources["changes"])}


def together(sources: Sources, outputs: Outputs) -> str | None:
    """Windows of 30 ticks over two inputs."""
    windows = tumbled([*sources["views"], *sources["orders"]], 30)
    wanted = [(k, start, len(messages), _ids(messages)) for (k, start), messages in windows.items()]
    return differ("counts", columns(outputs["counts"], "k", "window_start", "n", "ids"), wanted)


def by_hand(sources: Sources, outputs: Outputs) -> str | None:
    """Windows of 30 ticks over two inputs, all keys together; each order with the end of its window."""
    windows: dict[int, list[Message]] = defaultdict(list)
    for message in [*sources["views"], *sources["orders"]]:
        windows[start_of(message.ts, 30)].append(message)
    wanted = [(start, len(messages), _ids(messages)) for start, messages in windows.items()]
    if wrong := differ("windows", columns(outputs["windows"], "start", "n", "ids"), wanted):
        return wrong
    orders = [(order.k, order.id, start_of(order.ts, 30) + 30 * TICK_MS - 1) for order in sources["orders"]]
    return differ("orders-out", columns(outputs["orders-out"], "k", "id", "end"), orders)


def tallied(sources: Sources, outputs: Outputs) -> str | None:
    """Each view once; those of a key are numbered. An order finds what the number may have been at the time."""
    views = sources["views"]
    if wrong := differ("tallied", columns(outputs["tallied"], "id", "k"), ((view.id, view.k) for view in views)):
        return wrong
    number = Counter(view.k for view in views)
    numbers = [(k, n + 1) for k, most in number.items() for n in range(most)]
    if wrong := differ("tallied", columns(outputs["tallied"], "k", "n"), numbers):
        return wrong
    orders = sources["orders"]
    if wrong := differ("found", columns(outputs["found"], "id"), ((order.id,) for order in orders)):
        return wrong
    odd = [(k, n) for k, n in columns(outputs["found"], "k", "n") if n is not None and not 1 <= n <= number[k]]
    return f"orders found {odd}" if odd else None


def tallies(sources: Sources) -> Mapping[str, dict[int, set[int]]]:
    """The table ``tallies`` at the end."""
    return {"tallies": {k: {n} for k, n in Counter(view.k for view in sources["views"]).items()}}


def distinct(sources: Sources, outputs: Outputs) -> str | None:
    """Each id once; counted by key."""
    ids = {message.id: message.k for message in sources["views"]}
    if wrong := differ("ids", columns(outputs["ids"], "id"), [(id_,) for id_ in ids]):
        return wrong
    return differ("counts", columns(outputs["counts"], "k", "n"), Counter(ids.values()).items())


def unpriced(id_: int) -> bool:
    """The service knows no price of this message."""
    return id_ % 7 == 3


def price(id_: int) -> int:
    """What the service says of all others."""
    return 3 * id_ + 1


def priced(sources: Sources, outputs: Outputs) -> str | None:
    """Windows of 20 ticks a key over what has a price, of these windows of 60 ticks a group; letters about the rest."""
    views = sources["views"]
    letters = ((json.loads(text)["id"], step) for text, step in columns(outputs["unpriced"], "row", "step"))
    if wrong := differ("unpriced", letters, ((view.id, "priced") for view in views if unpriced(view.id))):
        return wrong
    groups: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for (k, start), messages in tumbled((view for view in views if not unpriced(view.id)), 20).items():
        groups[k % 2, start_of(start + 20 * TICK_MS - 1, 60)] += messages
    wanted = [(g, start, len(ms), sum(price(m.id) for m in ms)) for (g, start), ms in groups.items()]
    return differ("prices", columns(outputs["prices"], "g", "window_start", "n", "prices"), wanted)


def named(k: int) -> bool:
    """The first remote table has a row of this key."""
    return k != 1


def name_of(k: int) -> int:
    """What it says then."""
    return 10 + k


def grouped(sources: Sources, outputs: Outputs) -> str | None:
    """Windows of 20 ticks a group, over what two remote tables know."""
    groups: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for (k, start), messages in tumbled((view for view in sources["views"] if named(view.k)), 20).items():
        groups[name_of(k) % 2, start_of(start + 20 * TICK_MS - 1, 20)] += messages
    wanted = [(group, start, len(messages), _ids(messages)) for (group, start), messages in groups.items()]
    return differ("groups-out", columns(outputs["groups-out"], "group", "window_start", "n", "ids"), wanted)


def written(sources: Sources, outputs: Outputs) -> str | None:
    """Windows of 20 ticks a key, in a remote table."""
    windows = tumbled(sources["views"], 20)
    wanted = [(k, start, len(messages), _ids(messages)) for (k, start), messages in windows.items()]
    return differ("per-key", columns(outputs["per-key"], "k", "start", "n", "ids"), wanted)


def reported(sources: Sources, outputs: Outputs) -> str | None:
    """All messages, and their windows of 20 ticks, in the foreign system."""
    views = sources["views"]
    if wrong := differ("seen", columns(outputs["seen"], "id", "k"), [(view.id, view.k) for view in views]):
        return wrong
    wanted = [(k, start, len(messages), _ids(messages)) for (k, start), messages in tumbled(views, 20).items()]
    return differ("report", columns(outputs["report"], "k", "window_start", "n", "ids"), wanted)
