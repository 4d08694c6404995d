"""A function that takes single messages is called for each of a batch: it hangs only if it stays with one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.task.operators.functions import in_debugger, line_now
from headrace.task.scope import AtWork, Movement, Work


def test_a_call_has_moved_when_it_goes_on_to_another_message() -> None:
    done = [0]
    work, movement = Work("t/0", "step", "", 100.0, done=lambda: done[0]), Movement()
    assert movement.moved_ms(work, 200.0) == 100.0
    assert movement.moved_ms(work, 300.0) == 100.0
    done[0] = 5
    assert movement.moved_ms(work, 400.0) == 400.0
    assert movement.moved_ms(work, 500.0) == 400.0
    assert movement.moved_ms(Work("t/0", "step", "", 600.0), 700.0) == 600.0


class _Counting(hr.tasks.Task):
    def __init__(self, call: Any) -> None:
        self._call = call

    def process(self, message: Any, out: Any) -> None:
        self._call(message)


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "process"])
def test_each_message_of_a_batch_counts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread reads that; here it is the function itself."""
    begun: list[Work] = []
    seen: list[int] = []
    original = AtWork.call

    @contextmanager
    def call(self: AtWork, *args: Any) -> Iterator[None]:
        with original(self, *args):
            if self.now is not None:
                begun.append(self.now)
            yield

    monkeypatch.setattr(AtWork, "call", call)

    def look(row: Any) -> Any:
        seen.append(begun[-1].done())
        return {"flat_map": [row], "filter": True}.get(kind, row)

    app = hr.App("counted")
    rows = app.input("in", {"n": pl.Int64})
    columns = {"n": pl.Int64}
    match kind:
        case "map":
            rows.map(look, schema=columns).send_to(app.output("out"))
        case "filter":
            rows.filter(look).send_to(app.output("out"))
        case "flat_map":
            rows.flat_map(look, schema=columns).send_to(app.output("out"))
        case _:
            rows.process(_Counting(look), {}, id="looks")
    with app.test() as t:
        t.feed("in", pl.DataFrame({"n": range(1, 6)}))
    assert len(seen) == len(set(seen)) == 5


def test_where_a_thread_is() -> None:
    assert line_now(threading.get_ident()) is None  # nothing of Headrace has called this test
    assert not in_debugger(threading.get_ident())
    found: list[bool] = []
    module: dict[str, Any] = {"__name__": "pdb", "look": lambda: found.append(in_debugger(threading.get_ident()))}
    exec("def interaction(): look()", module)
    module["interaction"]()
    assert found == [True]
