"""The life of an app that changes, and of its model, as they are drawn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from changing_app import COLUMNS, OPTIONAL, SHAPES, Row, Version, declared
from changing_model import Model
from hypothesis import strategies as st

from headrace.core.errors import PlanError

EPOCH_MS = 1_000_000
"""So far event time jumps at once, which closes all windows before."""

Draw = Callable[[Any, str], Any]


class Life:
    """An app and its model, which live through the same."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._first = draw(_versions(), "first version")
        self._epoch = 0
        self.model = Model(self._first)
        self.app = declared(self._first).test()

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.app.close()

    def goes_on(self) -> None:
        """More messages come, time passes, or the app is killed."""
        version = self.model.version
        for name in version.fills:
            self._feed(name, self._draw(st.lists(_rates_of(version), max_size=3), f"into {name}"))
        for name in version.inputs:
            self._feed(name, self._draw(st.lists(_messages(version, self._epoch), max_size=5), f"into {name}"))
        what = self._draw(st.sampled_from(["nothing", "kill", "kill later", "time", "tick"]), "then")
        if what == "kill":
            self.app.restart(checkpoint=version.guarantee != "exactly_once" or bool(version.fills))
        elif what == "kill later":
            self.app.restart(checkpoint=True)
        elif what == "time":
            self.app.advance("15s")
        elif what == "tick":
            self._epoch += 1
            self._tick()

    def _tick(self) -> None:
        version = self.model.version
        row = dict.fromkeys(COLUMNS, 0) | {"ts": self._epoch * EPOCH_MS} | ({"x": 0} if version.more_columns else {})
        for name in version.inputs:
            self._feed(name, [row])
        self.model.close(self._epoch * EPOCH_MS)

    def _feed(self, name: str, rows: list[Row]) -> None:
        if rows:
            self.app.feed(name, rows)
            for row in rows:
                self.model.feed(name, row)

    def changes(self) -> None:
        """The app changes, or is refused and then drops exactly what the errors name, or goes on as it was."""
        change = self._draw(st.sampled_from(CHANGES), "change")
        new, rename = change(self, self._draw)
        new = new.valid()
        if self._epoch and any(name in self.model.logs for name in set(new.inputs) - set(self.model.version.inputs)):
            return  # what is read again from its start would be late
        wanted = self.model.refused(new, rename)
        gives_in = self._draw(st.booleans(), "drops state") if wanted else False
        dropped: set[str] = set()
        while True:
            try:
                self.app.change(declared(new), drop_state=sorted(dropped), rename=rename)
                break
            except PlanError as error:
                more = set(re.findall(r"--drop-state (\S+)", error.hint or ""))
                assert more, error
                assert more <= wanted, (more, wanted, str(error))
                assert not more <= dropped, (more, dropped, str(error))
                if not gives_in:
                    self.check()
                    return
                dropped |= more
        # A stream between stages needs no consent if no message waits in it, which the model doesn't know.
        unasked = wanted - dropped
        assert all(re.fullmatch("p.?", name) for name in unasked), f"accepted without {unasked}"
        self.model.change(new, rename, wanted)
        self.check()

    def check(self) -> None:
        """The outputs hold what the model says, where everything is committed."""
        self.app.restart(checkpoint=True)
        self._compare()

    def _compare(self) -> None:
        for output in sorted(self.model.version.outputs()):
            found = Counter(self.app.read(output, committed=True).rows())
            wanted = self.model.outputs.get(output, Counter())
            assert found == wanted, f"{output}: {found - wanted} too many, {wanted - found} missing"

    def ends(self) -> None:
        """The inputs end, and so does the app."""
        self.app.end()
        assert self.app.ended
        self.model.close(1 << 60)
        self._compare()

    @property
    def first(self) -> Version:
        """The version that it began with."""
        return self._first


def _versions() -> st.SearchStrategy[Version]:
    return st.builds(
        Version,
        inputs=st.sampled_from([("a",), ("b",), ("a", "b"), ("a", "b", "c")]),
        without=st.sampled_from([None, 0]),
        raw=st.booleans(),
        front=st.booleans(),
        shuffle=st.sampled_from([True, True, True, True, False]),
        key=st.sampled_from(["k", "k", "g"]),
        partitions=st.integers(1, 3),
        window=st.sampled_from(["w", "w", None]),
        shape=st.sampled_from(sorted(SHAPES)),
        aggregates=st.sampled_from([{"n": "count"}, {"n": "count", "s": "sum"}, {"n": "count", "hi": "max"}]),
        second=st.booleans(),
        once=st.sampled_from([(), (), ("k", "g"), ("k", "g", "v")]),
        passes=st.sampled_from([False, False, True]),
        task=st.sampled_from([False, False, True]),
        fills=st.sampled_from([(), (), ("y",), ("y", "z")]),
        guarantee=st.sampled_from(["exactly_once", "exactly_once", "at_least_once"]),
        interval=st.sampled_from(["1s", "10s"]),
    ).map(Version.valid)


def _messages(version: Version, epoch: int) -> st.SearchStrategy[Row]:
    columns = {
        "k": st.integers(0, 3),
        "g": st.integers(0, 1),
        "v": st.integers(0, 5),
        "ts": st.integers(0, 42).map(lambda i: epoch * EPOCH_MS + 700 * i),
    }
    return st.fixed_dictionaries(columns | ({"x": st.just(1)} if version.more_columns else {}))


def _rates_of(version: Version) -> st.SearchStrategy[Row]:
    columns = {"k": st.integers(0, 3), "rate": st.integers(0, 9)}
    return st.fixed_dictionaries(columns | ({"more": st.integers(0, 9)} if version.more_rates else {}))


Changed = tuple[Version, dict[str, str]]


def _more_inputs(life: Life, draw: Draw) -> Changed:
    now = life.model.version
    others = [name for name in "abc" if name not in now.inputs] or ["a"]
    return replace(now, inputs=tuple(sorted({*now.inputs, draw(st.sampled_from(others), "input")}))), {}


def _fewer_inputs(life: Life, draw: Draw) -> Changed:
    now = life.model.version
    gone = draw(st.sampled_from(now.inputs), "input")
    return replace(now, inputs=tuple(name for name in now.inputs if name != gone) or now.inputs), {}


def _other_window(life: Life, draw: Draw) -> Changed:
    now = life.model.version
    names = {None: ["w"], "w": ["v", None], "v": ["w", None]}[now.window]
    new = draw(st.sampled_from(names), "window")
    renamed = now.window is not None and new is not None and draw(st.booleans(), "with rename")
    return replace(now, window=new), {str(new): str(now.window)} if renamed else {}


def _other_aggregates(life: Life, draw: Draw) -> Changed:
    now = life.model.version
    name = draw(st.sampled_from(OPTIONAL), "aggregate")
    kinds: dict[str, list[str | None]] = {"s": ["sum", "twice", None], "lo": ["min", None], "hi": ["max", None]}
    kind = draw(st.sampled_from(kinds[name]), "kind")
    others = {n: k for n, k in now.aggregates.items() if n != name}
    return replace(now, aggregates=others | ({name: kind} if kind else {})), {}


def _other(name: str, *values: object) -> Callable[[Life, Draw], Changed]:
    def change(life: Life, draw: Draw) -> Changed:
        now = life.model.version
        value = draw(st.sampled_from([v for v in values if v != getattr(now, name)]), name)
        return replace(now, **{name: value}), {}

    change.__name__ = name
    return change


CHANGES: tuple[Callable[[Life, Draw], Changed], ...] = (
    _more_inputs,
    _more_inputs,
    _fewer_inputs,
    _other_window,
    _other_window,
    _other_aggregates,
    _other_aggregates,
    _other("shape", *sorted(SHAPES)),
    _other("once", (), ("k", "g"), ("k", "g", "v")),
    _other("more_columns", False, True),
    _other("more_rates", False, True),
    _other("key", "k", "g"),
    _other("partitions", 1, 2, 3),
    _other("raw", False, True),
    _other("front", False, True),
    _other("shuffle", False, True),
    _other("second", False, True),
    _other("passes", False, True),
    _other("task", False, True),
    _other("fills", (), ("y",), ("z",), ("y", "z")),
    _other("without", None, 0, 1),
    _other("plus", 0, 1),
    _other("guarantee", "exactly_once", "at_least_once"),
    _other("interval", "1s", "10s"),
    _other("backwards", False, True),
    lambda life, draw: (life.first, {}),
)
