"""An app that has every kind of step, behind an input that skips what doesn't fit: no message may end it."""

from __future__ import annotations

from typing import Any

import polars as pl
from typing_extensions import override

import headrace as hr
from fuzz.samples import ROWS
from headrace.core.frame import Header, Kind, encode
from headrace.kit.harness import TestApp
from headrace.rows.ipc import encode_rows

_KEYS = ("text", "n", "real", "flag", "raw", "at", "zoned", "day", "wait", "price", "level")
_COLUMNS = {name: dtype for name, dtype in ROWS.schema.items() if name != "nothing"}
_STORED = {"n": pl.Int64, "at": _COLUMNS["at"], "wait": _COLUMNS["wait"], "nested": _COLUMNS["nested"]}
_MESSAGES_MAX = 500
"""After so many an app is replaced by a new one, so that its state stays small."""


class _Latest(hr.tasks.Task):
    """A low-level task that keeps the last message of each key, and asks for a timer."""

    latest = hr.tasks.Store(key={"text": pl.String}, value=_STORED)

    @override
    def process(self, message: Any, out: Any) -> None:
        """Store it, and send what was there."""
        before = self.latest.get(message["text"])
        self.latest.put(message["text"], {name: message[name] for name in _STORED})
        out.send("changes", before or {name: message[name] for name in _STORED})


def app_of_all_steps() -> hr.App:
    """The app. Whatever could fail because of a value is the input's business."""
    app = hr.App("all-steps")
    rows = app.input("in", _COLUMNS, event_time="at", on_error="skip", lateness="30d")
    rows.map(lambda row: row, schema=_COLUMNS).send_to(app.output("mapped"))
    rows.filter(lambda row: row["n"] is not None).send_to(app.output("filtered"))
    rows.flat_map(lambda row: [row, row], schema=_COLUMNS).send_to(app.output("doubled"))
    rows.map_batches(lambda batch: batch.reverse(), schema=_COLUMNS).send_to(app.output("reversed"))
    rows.filter(pl.col("real") > 0).select("n", "real", "at").send_to(app.output("chosen"))
    for name in _KEYS:
        rows.partition_by(name, id=f"by-{name}").send_to(app.output(f"spread-{name}"))
    by_text = rows.partition_by("text", id="of-one-text")
    by_text.window(hr.tumbling("1h"), key="text", id="per-hour").agg(
        messages=pl.len(), real=pl.col("real").sum(), price=pl.col("price").max(), day=pl.col("day").min()
    ).send_to(app.output("hours"))
    by_text.window(hr.session("10m"), key="text", id="per-session").agg(
        kinds=hr.aggregates.n_unique(pl.col("level")), n=pl.col("n").min(), raw=hr.aggregates.last(pl.col("raw"))
    ).send_to(app.output("sessions"))
    by_text.deduplicate(["text", "n"], within="1h", id="first-only").send_to(app.output("once"))
    by_text.process(_Latest(), {"changes": _STORED}, id="latest-of-text")["changes"].send_to(app.output("changes"))
    table = app.table("texts", key="text", schema={"text": pl.String, "day": pl.Date, "list": pl.List(pl.Int64)})
    by_text.filter(pl.col("text").is_not_null()).select("text", "day", "list").send_to(table)
    by_text.select("text", "n").join(table, how="left").send_to(app.output("joined"))
    return app


class Steps:
    """Feeds frames to the app, and commits now and then."""

    def __init__(self) -> None:
        self._app: TestApp | None = None
        self._fed = 0

    def run(self, body: bytes) -> None:
        """Feed a frame with this body. The app goes on, whatever is in it."""
        if self._app is None:
            self._app = app_of_all_steps().test().__enter__()
            self._fed = 0
        try:
            self._app.feed_bytes("in", encode(Header(Kind.USER), body))
            self._fed += 1
            if self._fed % 50 == 0:
                self._app.restart(checkpoint=True)
            if self._fed % _MESSAGES_MAX == 0:
                self._app.end()
        except BaseException:
            self._leave()
            raise
        if self._fed % _MESSAGES_MAX == 0:
            self._leave()

    def _leave(self) -> None:
        app, self._app = self._app, None
        if app is not None:
            app.__exit__(None, None, None)


def samples() -> list[bytes]:
    """Arrow bodies with the app's columns: ordinary rows, many of them, and rows of the ends of each type."""
    plain = ROWS.select(list(_COLUMNS))
    large = pl.concat([plain] * 20)
    ends = [plain[:1].with_columns(_end(name, dtype, place)) for name, dtype in _COLUMNS.items() for place in range(4)]
    return [encode_rows(plain), encode_rows(plain[:1]), encode_rows(large), *map(encode_rows, ends)]


def _end(name: str, dtype: pl.DataType, place: int) -> pl.Series:
    """A column with one of the smallest or largest values of its type."""
    number = (-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1)[place]
    match dtype:
        case pl.Datetime() | pl.Duration():
            return pl.Series(name, [number], pl.Int64).cast(dtype)
        case pl.Date():
            return pl.Series(name, [number >> 32], pl.Int32).cast(dtype)
        case pl.Int64():
            return pl.Series(name, [number], dtype)
        case pl.Float64():
            return pl.Series(name, [(float("-inf"), -0.0, 5e-324, float("inf"))[place]], dtype)
        case pl.String():
            return pl.Series(name, ["\0", "\U0010ffff" * 40, "", "\r\n"][place : place + 1], dtype)
        case pl.Decimal():
            return pl.Series(name, [(-(10**9), 10**8, 0, 99_999_999)[place]], pl.Int64).cast(dtype, strict=False)
        case _:
            return ROWS.get_column(name)[:1]
