"""A key that was changed is noticed when the app starts, whatever keeps the rows, and before any message is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr

CHANGES = {"a": pl.String, "b": pl.String, "ts": pl.Int64}
Declared = Callable[..., hr.App]


def table_app(home: Path, key: Any, **kind: Any) -> hr.App:
    app = hr.App("kept", home=str(home), checkpoint_interval=f"{INTERVAL_MS}ms")
    table = app.table("rows", key, CHANGES, **kind)
    app.input("changes", CHANGES, event_time="ts").send_to(table)
    return app


def task_app(home: Path, key: Any) -> hr.App:
    names = (key,) if isinstance(key, str) else key

    class OfKey(hr.tasks.Task):
        kept = hr.tasks.Store(key=dict.fromkeys(names, pl.String), value={"n": pl.Int64})

        def process(self, message: Any, out: hr.tasks.Out) -> None:
            self.kept.put(message["a"] if len(names) == 1 else ("x",) * len(names), {"n": 1})

    app = hr.App("kept", home=str(home), checkpoint_interval=f"{INTERVAL_MS}ms")
    app.input("changes", CHANGES, event_time="ts").process(OfKey(), id="task")
    return app


KINDS: dict[str, Declared] = {
    "disk": table_app,
    "memory": lambda home, key: table_app(home, key, storage="memory"),
    "versions": lambda home, key: table_app(home, key, versions="1h"),
    "versions in memory": lambda home, key: table_app(home, key, versions="1h", storage="memory"),
    "store": task_app,
}


def write(home: Path, rows: list[tuple[str, str, int]]) -> None:
    with hr.streams.StreamWriter("changes", home=home) as writer:
        writer.write(pl.DataFrame(rows, CHANGES, orient="row"))


def run(app: hr.App) -> None:
    with DrivenApp(app) as driven:
        container = driven.start()
        driven.run(4 * INTERVAL_MS)
        driven.drain(container)


@pytest.mark.parametrize("from_changelog", [False, True], ids=["from local state", "from the changelog"])
@pytest.mark.parametrize(
    ("before", "after"), [("a", "b"), ("a", ("a", "b")), (("a", "b"), "a"), (("a", "b"), ("b", "a"))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_key_is_refused_at_the_start(
    tmp_path: Path, kind: str, before: Any, after: Any, from_changelog: bool
) -> None:
    hr.streams.create_stream("changes", 1, CHANGES, home=tmp_path)
    # Rows that are put, replaced and, of what is kept elsewhere, taken out: each form of a change is replayed.
    write(tmp_path, [("lamp", "x", 1), ("desk", "y", 2)])
    run(KINDS[kind](tmp_path, before))
    write(tmp_path, [("lamp", "x", 3)])
    run(KINDS[kind](tmp_path, before))
    if from_changelog:
        shutil.rmtree(tmp_path / "state")
        shutil.rmtree(tmp_path / "snapshots", ignore_errors=True)
    first = before if isinstance(before, str) else before[0]
    with (
        DrivenApp(KINDS[kind](tmp_path, after)) as driven,
        pytest.raises(hr.errors.DeclarationError, match=f"has the key {first}: String.*, but is now declared with"),
    ):
        driven.start()


@pytest.mark.parametrize("kind", KINDS)
def test_other_changes_of_the_columns_are_none_of_the_key(tmp_path: Path, kind: str) -> None:
    hr.streams.create_stream("changes", 1, CHANGES, home=tmp_path)
    write(tmp_path, [("lamp", "x", 1)])
    run(KINDS[kind](tmp_path, "a"))
    run(KINDS[kind](tmp_path, "a"))
    shutil.rmtree(tmp_path / "state")
    run(KINDS[kind](tmp_path, "a"))
