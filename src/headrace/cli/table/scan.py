"""``headrace table scan``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.console import print_json, print_note
from headrace.cli.options import HOME, AsJson, Home, Metadata
from headrace.cli.table.arguments import TIMEOUT, AppOfHome, At, TableName, Timeout, key_values, next_value, time_of
from headrace.cli.table.output import print_json_lines, print_rows, print_versions


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
        str | None, typer.Option("--to", metavar="VALUE", help="Only rows whose next column is less than this.")
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
    from headrace.runners.tables.reader import open_table

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
        print_rows(reader.described, page.parts)
        print_versions(page.parts)
        if page.after is not None:
            print_note(f"for the next rows, add --after {page.after}")
