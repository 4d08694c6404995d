"""Apps of one task whose state grows with the number of keys, and the messages that make it grow."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

import headrace as hr

Shape = Literal["table", "tumbling", "session", "counted", "deduplicate", "join"]

SCHEMA = {"key": pl.Int64, "value": pl.Float64, "ts": pl.Int64}
START_MS = 1_700_006_400_000
"""The beginning of a day, so that all messages of a few hours are in one window of a day."""
_FRAME_ROWS = 1 << 16


def state_app(shape: Shape, home: Path) -> hr.App:
    """An app that reads the stream ``changes``. What it knows of a key is a number or two."""
    app = hr.App(f"bench-{shape}", home=str(home))
    changes = app.input("changes", SCHEMA, event_time="ts", lateness="1s")
    agg = {"n": hr.count(), "total": hr.sum("value")}
    match shape:
        case "table":
            changes.send_to(app.table("last", key="key", schema=SCHEMA))
        case "tumbling":
            changes.window(hr.tumbling("1d"), key="key", id="w").agg(**agg).send_to(app.output("results"))
        case "session":
            changes.window(hr.session("1h"), key="key", id="w").agg(**agg).send_to(app.output("results"))
        case "counted":
            changes.window(hr.windows.count(100), key="key", id="w").agg(**agg).send_to(app.output("results"))
        case "deduplicate":
            changes.deduplicate("key", within="1d", id="w").send_to(app.output("results"))
        case "join":
            others = app.input("others", SCHEMA, event_time="ts", lateness="1s")
            changes.join(others, on="key", within="1h", id="w").send_to(app.output("results"))
    return app


def inputs_of(shape: Shape) -> tuple[str, ...]:
    """The names of the streams that the app reads."""
    return ("changes", "others") if shape == "join" else ("changes",)


def create_inputs(shape: Shape, home: Path) -> None:
    """The streams that the app reads."""
    for name in inputs_of(shape):
        hr.streams.create_stream(name, partitions=1, schema=SCHEMA, home=home)


def write(stream: str, home: Path, first: int, number: int) -> None:
    """A message each for the keys from ``first`` on, a microsecond of event time apart, in no order of keys."""
    with hr.streams.StreamWriter(stream, home=home) as writer:
        for start in range(first, first + number, _FRAME_ROWS):
            index = pl.int_range(start, min(start + _FRAME_ROWS, first + number), eager=True)
            # An odd factor permutes the numbers below a power of two: scattered keys, each of them once.
            key = (index * 0x9E3779B1) % (1 << 32)
            writer.write(pl.DataFrame({"key": key, "value": index.cast(pl.Float64), "ts": START_MS + index // 1000}))


def seal(shape: Shape, home: Path) -> None:
    """Nothing more will come."""
    for name in inputs_of(shape):
        with hr.streams.StreamWriter(name, home=home) as writer:
            writer.seal()
