"""``headrace table``: read the tables of a running app."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.core.errors import UsageError
from headrace.operate.cli.console import Exit, print_json, print_line, print_note, print_table
from headrace.operate.cli.options import HOME, AsJson, Home, Metadata
from headrace.operate.words import columns_as_text, counted

if TYPE_CHECKING:
    import polars as pl

    from headrace.run.table_routing import TaskRows

TASK, VERSION = "@task", "@version"
_UNBOUNDED = 100_000

AppOfHome = Annotated[str, typer.Argument(metavar="APP", help="The name of a running app.")]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table of the app.")]
Timeout = Annotated[
    str,
    typer.Option("--timeout", metavar="TIME", help="How long to wait for the answer; at most 30s.", show_default=True),
]
TIMEOUT = "5s"
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Show a table that keeps versions as of this event time: ISO 8601 (UTC by default), or ms since the "
        "epoch.",
    ),
]


def time_of(text: str | None) -> int | datetime | None:
    if text is None:
        return None
    try:
        return int(text) if text.removeprefix("-").isdecimal() else datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--at {text!r} isn't a time", hint="write 2026-01-31T12:00:00+00:00, or milliseconds since the epoch"
        ) from error


def key_values(columns: Mapping[str, pl.DataType], texts: Sequence[str], table: str) -> list[Any]:
    """Parse one text for each of the first columns of the key.

    Numbers, true and false are written as in JSON, everything else without quotes: times as ISO 8601, binary as base64.
    """

    if len(texts) > len(columns):
        shown = ", ".join(f"{name} ({dtype})" for name, dtype in columns.items())
        raise UsageError(
            f"got {len(texts)} values, but the key of table {table!r} is {shown}",
            hint="give one value for each column of the key, in quotes if it contains spaces",
        )
    return [_value(name, dtype, text, table) for (name, dtype), text in zip(columns.items(), texts, strict=False)]


def next_value(columns: Mapping[str, pl.DataType], first: Sequence[str], text: str | None, table: str) -> Any:
    return None if text is None else key_values(columns, [*first, text], table)[-1]


def _value(name: str, dtype: pl.DataType, text: str, table: str) -> Any:
    from headrace.rows.pieces import RowsUnreadable
    from headrace.rows.text import JsonRows

    token = text if _is_bare(dtype, text) else json.dumps(text)
    try:
        return JsonRows({name: dtype}).parse(f"{{{json.dumps(name)}: {token}}}".encode()).to_series()[0]
    except RowsUnreadable as error:
        raise UsageError(
            f"{text!r} isn't a value for column {name!r} of table {table!r}, whose type is {dtype}", hint=_hint(dtype)
        ) from error


def _is_bare(dtype: pl.DataType, text: str) -> bool:
    import polars as pl

    if not (dtype.is_integer() or dtype.is_float() or dtype.is_(pl.Boolean())):
        return False
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, bool) or (isinstance(value, int | float) and math.isfinite(value))


def _hint(dtype: pl.DataType) -> str | None:
    import polars as pl

    match dtype:
        case pl.Datetime():
            zone = "+00:00" if dtype.time_zone else ""
            return f"write a time such as 2026-01-31T12:00:00{zone}"
        case pl.Date():
            return "write a date such as 2026-01-31"
        case pl.Time():
            return "write a time of day such as 12:00:00"
        case pl.Duration():
            return "write a duration such as PT90S"
        case pl.Binary():
            return "write binary values as base64"
        case pl.Enum():
            return f"write one of {', '.join(dtype.categories.to_list()[:10])}"
        case pl.Boolean():
            return "write true or false"
        case _:
            return None


def print_json_lines(parts: Sequence[TaskRows]) -> None:
    import polars as pl

    from headrace.rows.text import encode_lines

    for part in parts:
        about = [pl.lit(part.task).alias(TASK), pl.lit(part.version, pl.Int64).alias(VERSION)]
        sys.stdout.write(encode_lines(part.rows.select(*about, pl.exclude(TASK, VERSION))).decode())


def print_frames(schema: Mapping[str, pl.DataType], frames: Iterable[pl.DataFrame]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headrace.rows.text import encode_lines

    lines = [json.loads(line) for rows in frames for line in encode_lines(rows).splitlines()]
    if not lines:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, dtype in schema.items():
        table.add_column(Text(name), justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for line in lines:
        values = (line[name] for name in schema)
        cells = ("-" if v is None else v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values)
        table.add_row(*map(Text, cells))
    here, out = sys.stdout.isatty(), StringIO()
    width = shutil.get_terminal_size().columns if here else _UNBOUNDED
    Console(file=out, width=width, force_terminal=here, no_color=not here, highlight=False).print(table)
    print_line("\n".join(line.rstrip() for line in out.getvalue().splitlines()))


def print_versions(parts: Sequence[TaskRows]) -> None:
    rows = sum(part.rows.height for part in parts)
    by_version: dict[int | None, list[str]] = {}
    for part in parts:
        by_version.setdefault(part.version, []).append(part.task)
    notes = []
    for version, tasks in by_version.items():
        some = tasks if len(tasks) <= 4 else [*tasks[:3], f"{len(tasks) - 3} others"]
        at = "before the first commit" if version is None else f"at version {version}"
        notes.append(f"{', '.join(some)} {at}")
    print_note(f"{counted(rows, 'row')} of {'; '.join(notes)}")


def get(
    app: AppOfHome,
    table: TableName,
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY",
            help="A value for each column of the key. If one begins with a minus, write -- before the values.",
        ),
    ],
    at: At = None,
    timeout: Timeout = TIMEOUT,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show the last committed row of a key.

    The exit code is 1 if the table has no such row. --json prints a line with the row's columns, its task (@task) and
    the task's checkpoint version (@version).
    """
    from headrace.run.tables import open_table

    url = None if metadata is None else metadata.text
    with open_table(app, table, home=home, metadata=url, timeout=timeout) as reader:
        parts = reader.parts_of([key_values(reader.key, key, table)], at=time_of(at))
        there = [part for part in parts if part.rows.height]
        if as_json:
            print_json_lines(there)
        else:
            print_frames(reader.described.schema, [part.rows for part in there])
        if not there:
            print_note(f"table {table!r} {'has' if at is None else 'had'} no row of the key {', '.join(key)}")
        if not as_json:
            print_versions(there or parts)
    if not there:
        raise typer.Exit(Exit.FAILED)


def list_tables(app: AppOfHome, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """List the tables of a running app, and the stores of its low-level tasks.

    Shows their kinds, keys and columns, the stages that keep them, their partition counts, and roughly how many rows
    they have.
    """
    from headrace.life.metadata import existing_metadata
    from headrace.operate.cli.status import ask
    from headrace.run.tables import READABLE, tables_of

    with existing_metadata(home, metadata) as store:
        tables, _ = tables_of(store, app)
        counters = {task.name: task.counters for status in ask(store, app) for task in status.tasks}
    found: list[dict[str, Any]] = []
    for facts, address in tables:
        together = max if facts.kind == "global" else sum
        rows = [counters.get(task, {}).get(f"rows_of_{facts.id}", 0) for task in facts.tasks]
        found.append(
            {
                "table": facts.id, "kind": facts.kind, "key": facts.key, "values": facts.values, "stage": facts.stage,
                "running": address is not None, "partitions": len(facts.tasks),
                "rows": None if address is None or facts.kind not in READABLE else together(rows),
                "ttlMs": facts.ttl_ms, "storage": facts.storage, "versionsMs": facts.versions_ms,
            }
        )  # fmt: skip
    if as_json:
        print_json(found)
    elif found:
        _print(found)
    else:
        print_note(f"app {app!r} has no tables")


def _print(found: list[dict[str, Any]]) -> None:
    rows = []
    for one in found:
        stage = one["stage"] if one["running"] else f"{one['stage']} (not running here)"
        key, others = columns_as_text(one["key"]), columns_as_text(one["values"]) or "none"
        rows.append((one["table"], _kind(one), key, stage, one["partitions"], one["rows"], others))
    print_table(("table", "kind", "key", "stage", "partitions", "rows", "other columns"), rows)


def _kind(one: dict[str, Any]) -> str:
    from headrace.core.clock import format_ms

    words = [one["kind"]]
    words += ["in memory"] if one["storage"] == "memory" else []
    words += [] if one["versionsMs"] is None else [f"versions {format_ms(one['versionsMs'])}"]
    words += [] if one["ttlMs"] is None else [f"ttl {format_ms(one['ttlMs'])}"]
    return ", ".join(words)


def scan(
    app: AppOfHome,
    table: TableName,
    key: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Only rows whose key begins with these values.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only rows whose next column begins with this text.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="VALUE", help="Only rows whose next column is at least this.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Only rows whose next column is less than this.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most this many rows, up to 10,000.")] = 100,
    partition: Annotated[int | None, typer.Option(metavar="P", help="Only the rows of this task.")] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Continue after an earlier page, whose last line gives this place."),
    ] = None,
    at: At = None,
    timeout: Timeout = TIMEOUT,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show the last committed rows of a table.

    Rows are grouped by task, and in the order of their keys within a task. The next column is the key column after the
    values of KEY; without KEY, it is the first. With --json, each line has a row's columns, its task (@task) and the
    task's checkpoint version (@version). If there are more rows, the last line has a place (@after) for --after.
    """
    from headrace.run.tables import open_table

    url = None if metadata is None else metadata.text
    with open_table(app, table, home=home, metadata=url, timeout=timeout) as reader:
        first = key or []
        bounds = reader.described.range(
            key_values(reader.key, first, table),
            prefix=next_value(reader.key, first, prefix, table),
            start=next_value(reader.key, first, from_, table),
            stop=next_value(reader.key, first, to, table),
        )
        page = reader.page(bounds, limit=limit, partition=partition, after=after, at=time_of(at))
        if as_json:
            print_json_lines(page.parts)
            if page.after is not None:
                print_json({"@after": page.after}, indent=None)
            return
        print_frames(reader.described.schema, [part.rows for part in page.parts])
        print_versions(page.parts)
        if page.after is not None:
            print_note(f"for the next rows, add --after {page.after}")
