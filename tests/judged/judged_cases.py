"""Cases of other engines, as data: their queries, input rows and what they give.

A ``.cases`` file has inputs and cases. A line ``@input name`` begins an input: its columns, rows before a restart and,
after ``@restart``, the rows behind it; with ``changes``, each row begins with its kind. ``@case name of input, ...``
begins a case: a query, and a verdict with rows:

- ``@same``: what the other engine gives, and Headrace, too;
- ``@differs reason``: what Headrace gives, and after ``@theirs`` what the other engine gives;
- ``@refused what is missing | words of the error``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from headrace.rows.changes import CHANGE, KIND, added_up

HERE = Path(__file__).parent
KINDS = {"+I": "insert", "-U": "update_before", "+U": "update_after", "-D": "delete"}


@dataclass
class Input:
    """A table of a case, with its rows before and after the restart."""

    name: str
    columns: str
    changes: bool
    rows: tuple[list[list[Any]], list[list[Any]]]


@dataclass
class Case:
    """A query of another engine, and how Headrace's answer compares."""

    engine: str
    name: str
    inputs: list[Input]
    query: str
    verdict: str
    reason: str
    result: list[list[Any]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{self.engine}-{self.name}"


def cases() -> list[Case]:
    """All cases of all files."""
    return [case for path in sorted(HERE.glob("*.cases")) for case in _read(path)]


def _rows(text: str) -> list[list[Any]]:
    found, at, decoder = [], 0, json.JSONDecoder()
    while (at := text.find("[", at)) >= 0:
        row, at = decoder.raw_decode(text, at)
        found.append(row)
    return found


def _read(path: Path) -> Iterator[Case]:
    inputs: dict[str, Input] = {}
    engine = path.stem.partition("_")[0]
    for block in re.split(r"\n(?=@(?:input|case) )", "\n" + path.read_text())[1:]:
        head, _, body = block.partition("\n")
        kind, name, *more = head.split(maxsplit=2)
        if kind == "@input":
            before, _, after = body.partition("@restart")
            columns, _, rows = before.partition("\n\n") if "\n\n" in before.rstrip() else (before, "", "")
            flags = more[0].split() if more else []
            table = next((flag for flag in flags if flag != "changes"), name)
            inputs[name] = Input(table, columns.strip(), "changes" in flags, (_rows(rows), _rows(after)))
            continue
        query, verdict, result = re.split(r"^@(same|differs|refused)", body, maxsplit=1, flags=re.M)
        reason, _, rows = result.partition("\n")
        ours = rows.partition("@theirs")[0]
        used = [inputs[one.strip()] for one in more[0].removeprefix("of ").split(",")] if more else []
        yield Case(engine, name, used, query.strip(), verdict, reason.strip(), _rows(ours))


def declared(case: Case) -> hr.App:
    """The app of a case: its tables and its query."""
    app = hr.App(re.sub(r"[^a-z0-9-]+", "-", case.id.lower()).strip("-")[:60])
    for one in case.inputs:
        if not one.changes:
            app.sql(f"CREATE TABLE {one.name} ({one.columns})")
            continue
        columns = pl.DataFrame(schema=_schema(one)).schema
        app.input(one.name, dict(columns) | {CHANGE: KIND})
    app.sql(case.query if case.query.startswith("CREATE") else f"INSERT INTO judged {case.query}")
    return app


def answered(case: Case) -> Counter[tuple[Any, ...]]:
    """What Headrace's answer adds up to, over a restart in the middle."""
    app = declared(case)
    used = {spec.id for spec in app.graph().streams.values()}
    with app.test() as t:
        for number in (0, 1):
            for one in case.inputs:
                if one.name in used and one.rows[number]:
                    rows = _frame(one, one.rows[number])
                    for start in range(rows.height) if "WATERMARK" in one.columns.upper() else [None]:
                        t.feed(one.name, rows if start is None else rows.slice(start, 1))
            if number == 0:
                t.restart(checkpoint=True)
        t.end()
        found = t.read("judged")
    total = added_up(found) if CHANGE in found.columns else found
    return counted([list(row) for row in total.rows()])


def counted(rows: list[list[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(_plain(value) for value in row) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        return round(float(value), 4)
    if isinstance(value, datetime | date):
        return re.sub(r"\.(\d*?)0+$", r".\1", str(value))
    if isinstance(value, list):
        return tuple(_plain(one) for one in value)
    return tuple(_plain(one) for one in value.values()) if isinstance(value, dict) else value


def _schema(one: Input) -> dict[str, pl.DataType]:
    app = hr.App("types")
    app.sql(f"CREATE TABLE {one.name} ({one.columns})")
    stream = app.sql(f"SELECT * FROM {one.name}")
    assert stream is not None
    return dict(stream.schema.columns)


def _frame(one: Input, rows: list[list[Any]]) -> pl.DataFrame:
    columns = _schema(one)
    kinds = [KINDS[row[0]] for row in rows] if one.changes else []
    values = [row[1:] for row in rows] if one.changes else rows
    found = {}
    for number, (name, dtype) in enumerate(list(columns.items())[: len(values[0])]):
        given = pl.Series(name, [row[number] for row in values], strict=False)
        if isinstance(dtype, pl.Datetime) and given.dtype == pl.String:
            given = given.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit=dtype.time_unit)
        found[name] = given.cast(dtype)
    frame = pl.DataFrame(found)
    return frame.with_columns(pl.Series(CHANGE, kinds, KIND)) if one.changes else frame
