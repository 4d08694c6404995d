"""``headrace table get``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.console import Exit, print_note
from headrace.cli.options import HOME, AsJson, Home, Metadata
from headrace.cli.table.arguments import TIMEOUT, AppOfHome, At, TableName, Timeout, key_values, time_of
from headrace.cli.table.output import print_json_lines, print_rows, print_versions


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
    from headrace.runners.tables.reader import open_table

    url = None if metadata is None else metadata.text

    with open_table(app, table, home=home, metadata=url, timeout=timeout) as reader:
        parts = reader.parts_of([key_values(reader.key, key, table)], at=time_of(at))
        there = [part for part in parts if part.rows.height]
        if as_json:
            print_json_lines(there)
        else:
            print_rows(reader.described, there)
        if not there:
            print_note(f"table {table!r} {'has' if at is None else 'had'} no row of the key {', '.join(key)}")
        if not as_json:
            print_versions(there or parts)
    if not there:
        raise typer.Exit(Exit.FAILED)
