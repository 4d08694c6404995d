"""Print rows of a table: aligned in columns, or as JSON lines with their task and version."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from headrace.cli.console import counted, print_line, print_note

if TYPE_CHECKING:
    from headrace.runners.tables.routing import TableColumns, TaskRows

TASK, VERSION = "@task", "@version"
_UNBOUNDED = 100_000


def print_json_lines(parts: Sequence[TaskRows]) -> None:
    """Print one line per row, as ``headrace stream read`` does, with the row's task and version."""
    import polars as pl

    from headrace.serdes.json_lines import encode_lines

    for part in parts:
        about = [pl.lit(part.task).alias(TASK), pl.lit(part.version, pl.Int64).alias(VERSION)]
        sys.stdout.write(encode_lines(part.rows.select(*about, pl.exclude(TASK, VERSION))).decode())


def print_rows(columns: TableColumns, parts: Sequence[TaskRows]) -> None:
    """Print the rows below their column names, no wider than the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headrace.serdes.json_lines import encode_lines

    lines = [json.loads(line) for part in parts for line in encode_lines(part.rows).splitlines()]
    if not lines:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, dtype in columns.schema.items():
        table.add_column(Text(name), justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(_cell(line[name])) for name in columns.schema))
    here = sys.stdout.isatty()
    out = StringIO()
    console = Console(
        file=out,
        width=shutil.get_terminal_size().columns if here else _UNBOUNDED,
        force_terminal=here,
        no_color=not here,
        highlight=False,
    )
    console.print(table)
    print_line("\n".join(line.rstrip() for line in out.getvalue().splitlines()))


def print_versions(parts: Sequence[TaskRows]) -> None:
    """Print a note to stderr with the number of rows and the version of each task."""
    rows = sum(part.rows.height for part in parts)
    by_version: dict[int | None, list[str]] = {}
    for part in parts:
        by_version.setdefault(part.version, []).append(part.task)
    notes = [f"{', '.join(_some(tasks))} {_at(version)}" for version, tasks in by_version.items()]
    print_note(f"{counted(rows, 'row')} of {'; '.join(notes)}")


def _some(tasks: Sequence[str]) -> list[str]:
    return [*tasks] if len(tasks) <= 4 else [*tasks[:3], f"{len(tasks) - 3} others"]


def _at(version: int | None) -> str:
    return "before the first commit" if version is None else f"at version {version}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
