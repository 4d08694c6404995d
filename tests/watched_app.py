"""A real app to look at while it runs, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr

VIEWS = {"n": pl.Int64, "who": pl.String}


def until(happens: Callable[[], Any]) -> Any:
    never, deadline = threading.Event(), time.monotonic() + 30
    while not (found := happens()):
        assert time.monotonic() < deadline
        never.wait(0.02)
    return found


@contextmanager
def views(home: Path, *, peek: bool) -> Iterator[hr.streams.StreamWriter]:
    """An app that maps views in two stages of two tasks, and runs until the end of the block."""
    hr.streams.create_stream("views", 2, VIEWS, home=home)
    app = hr.App("views", home=home, checkpoint_interval="100ms", peek=peek)
    shout = app.input("views", VIEWS).map(lambda row: {**row, "who": row["who"].upper()}, schema=VIEWS)
    shout.partition_by("n", id="by-n", partitions=2).filter(pl.col("n") >= 0).send_to(app.output("seen"))
    with hr.streams.StreamWriter("views", home=home) as writer:
        run = app.start(local=True, progress=False)
        try:
            until(lambda: "headrace_step_messages_total" in run.metrics()["name"].to_list())
            yield writer
        finally:
            run.stop()
