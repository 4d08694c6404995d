"""A plain model of what an app that changes has to give, and of which changes it has to refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from changing_app import COLUMNS, OPTIONAL, Row, Version


@dataclass(frozen=True)
class Part:
    """What a durable part means."""

    fixed: tuple[object, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    sheds: bool = True

    def takes_over(self, old: Part) -> bool:
        """What the old part keeps fits."""
        gone = old.columns.keys() - self.columns.keys()
        common = old.columns.keys() & self.columns.keys()
        return (
            self.fixed == old.fixed
            and (self.sheds or not gone)
            and all(self.columns[name] == old.columns[name] for name in common)
        )


def parts_of(version: Version, *, combined: bool) -> dict[str, Part]:
    """What a version keeps, by id."""
    found = {name: Part(("input",)) for name in version.inputs}
    if version.front:
        found["w0"] = Part(("window",))
    if not version.shuffle:
        return found
    spread = version.key, version.partitions
    shape = version.shape if combined else None
    found["p"] = Part(("stream", *spread, shape), version.aggregates if combined else {})
    if version.window is not None:
        found[version.window] = Part(("window", version.shape, spread), version.aggregates)
    if version.second:
        found |= {"p2": Part(("stream",)), "w2": Part(("window",))}
    if version.once:
        found["d"] = Part(("once", version.once, spread))
    if version.task:
        found["t"] = Part(("task", spread))
    for name in version.fills:
        found |= {name: Part(("input",)), f"p{name}": Part(("stream", version.partitions))}
    if version.fills:
        columns = {"rate": "Int64"} | ({"more": "Int64"} if version.more_rates else {})
        found["tab"] = Part(("table", version.partitions), columns, sheds=False)
    return found


class Model:
    """What the app has to give: a piece of state for each part, and the rows of each output."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.parts = parts_of(version, combined=version.combines)
        self.combined = version.combines
        self.state: dict[str, Any] = {}
        self.active: dict[str, object] = {}
        self.outputs: dict[str, Counter[tuple[Any, ...]]] = {}
        self.logs: dict[str, list[Row]] = {}
        self._renew_aggregates({}, {})

    # -- changes

    def refused(self, new: Version, rename: Mapping[str, str]) -> set[str]:
        """The parts that the new version can't take over."""
        # A stream that carries messages never carries partial results under the same name.
        combined = new.combines and (self.combined or "p" not in self.parts)
        found = self._misfits(parts_of(new, combined=combined), rename)
        if "p" in found and combined != new.combines:
            found = self._misfits(parts_of(new, combined=new.combines), rename) | {"p"}
        return found

    def _misfits(self, parts: Mapping[str, Part], rename: Mapping[str, str]) -> set[str]:
        heirs = {rename.get(id_, id_): part for id_, part in parts.items()}
        old = {id_: part for id_, part in self.parts.items() if id_ not in heirs or not heirs[id_].takes_over(part)}
        after = {before: id_ for id_, before in rename.items()}
        return {after[id_] if id_ in after and after[id_] in parts else id_ for id_ in old}

    def change(self, new: Version, rename: Mapping[str, str], dropped: set[str]) -> list[str]:
        """Go on as another version. Returns the inputs that are read again from their start."""
        before, before_parts = self.version, self.parts
        if "p" in dropped or "p" not in before_parts or not new.shuffle:
            self.combined = new.combines
        else:
            self.combined = new.combines and self.combined
        self.version, self.parts = new, parts_of(new, combined=self.combined)
        kept = {
            id_: old
            for id_ in self.parts
            if (old := rename.get(id_, id_)) in before_parts and id_ not in dropped and old not in dropped
        }
        self.state = {id_: self.state[old] for id_, old in kept.items() if old in self.state}
        window = new.window
        self._renew_aggregates(before.aggregates if window in kept else {}, self.active)
        again = [name for name in (*new.inputs, *new.fills) if name not in before_parts and name in self.logs]
        for name in again:
            for row in self.logs[name]:
                self._process(name, row)
        return again

    def _renew_aggregates(self, before: Mapping[str, str], active: Mapping[str, object]) -> None:
        self.active = {
            name: active[name] if before.get(name) == kind else object()
            for name, kind in self.version.aggregates.items()
        }

    # -- messages

    def feed(self, name: str, row: Row) -> None:
        """A message comes."""
        self.logs.setdefault(name, []).append(row)
        self._process(name, row)

    def _emit(self, output: str, *row: object) -> None:
        if output in self.version.outputs():
            self.outputs.setdefault(output, Counter())[row] += 1

    def _of(self, id_: str, empty: Callable[[], Any]) -> Any:
        if id_ not in self.state:
            self.state[id_] = empty()
        return self.state[id_]

    def _process(self, name: str, row: Row) -> None:
        version = self.version
        if name in version.fills:
            self._of("tab", dict)[row["k"]] = row
            return
        k, g, v, ts = (row[column] or 0 for column in COLUMNS)
        if v % 3 == version.without:
            return
        v += version.plus
        self._emit("raw", k, v)
        if version.front:
            self._of("w0", list).append((k, ts))
        if version.window is not None:
            self._of(version.window, list).append((k, g, v, ts, dict(self.active)))
        if version.once:
            key = tuple({"k": k, "g": g, "v": v}[column] for column in version.once)
            seen = self._of("d", set)
            if key not in seen:
                self._emit("onces", k, g)
            seen.add(key)
        self._emit("passed", k, v)
        if version.task:
            counts = self._of("t", Counter)
            counts[k, g] += 1
            self._emit("counted", k, g, counts[k, g])
        rate = self._of("tab", dict).get(k, {}) if version.fills else {}
        self._emit("rated", k, v, rate.get("rate"), rate.get("more") if version.more_rates else -1)

    def close(self, until: int) -> None:
        """Event time has come to ``until``: all windows before are complete."""
        if self.version.front:
            groups = Counter((k, ts // 10_000 * 10_000) for k, ts in self._taken("w0", 1, until))
            for (k, start), n in groups.items():
                self._emit("fronts", k, start, n)
        if self.version.window is not None:
            for k, g, start, rows in self._windows(self._taken(self.version.window, 3, until)):
                n = self._aggregate("n", rows)
                self._emit("windows", k, g, start, n, *(self._aggregate(name, rows) for name in OPTIONAL))
                if self.version.second:
                    self._of("w2", list).append((k, start + 10_000, n))  # hops begin before what they hold
        if self.version.second:
            totals: Counter[tuple[int, int]] = Counter()
            for k, start, n in self._taken("w2", 1, until):
                totals[k, start // 100_000] += n
            for (k, _), total in totals.items():
                self._emit("totals", k, total)

    def _taken(self, id_: str, time: int, until: int) -> list[tuple[Any, ...]]:
        rows = self._of(id_, list)
        self.state[id_] = [row for row in rows if row[time] >= until]
        return [row for row in rows if row[time] < until]

    def _windows(self, rows: list[tuple[Any, ...]]) -> list[tuple[int, int, int, list[tuple[Any, ...]]]]:
        found: dict[tuple[int, int, int], list[tuple[Any, ...]]] = {}
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for row in sorted(rows, key=lambda row: int(row[3])):
            k, g, _, ts, _ = row
            start = ts // 10_000 * 10_000
            if self.version.shape == "session":
                begun, latest = last.get((k, g), (ts, ts))
                starts = [begun if ts - latest < 5_000 else ts]
                last[k, g] = starts[0], ts
            elif self.version.shape == "hops":
                starts = [start, start - 10_000]
            else:
                starts = [start if self.version.shape == "10s" else ts // 20_000 * 20_000]
            for start in starts:
                found.setdefault((k, g, start), []).append(row)
        return [(*group, rows) for group, rows in found.items()]

    def _aggregate(self, name: str, rows: list[tuple[Any, ...]]) -> int | None:
        if name not in self.version.aggregates:
            return -1
        values = [v for _, _, v, _, active in rows if active.get(name) is self.active[name]]
        match self.version.aggregates[name]:
            case "count":
                return len(values)
            case "sum":
                return sum(values)
            case "twice":
                return 2 * sum(values)
            case "min":
                return min(values, default=None)
            case _:
                return max(values, default=None)
