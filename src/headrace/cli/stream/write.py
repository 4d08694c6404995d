"""``headrace stream write``."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.console import Exit, counted, print_json, print_note
from headrace.cli.options import HOME, AsJson, Home, Metadata, OfApp, Schema, StreamName, column_names

if TYPE_CHECKING:
    from headrace.cli.stream.writing import Written


class OnError(StrEnum):
    """What to do with a row that doesn't fit."""

    FAIL = "fail"
    SKIP = "skip"


def write(
    name: StreamName,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES", help="JSON lines, .csv or .parquet files; - or no file reads JSON lines from stdin."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Choose each row's partition by these columns (a,b), as partition_by does. By default the key "
            "with which the stream was created; without one the partitions take turns. With --create it is recorded.",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option(metavar="P", help="Write everything to this partition.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the stream if it doesn't exist.")] = False,
    partitions: Annotated[int | None, typer.Option(metavar="N", help="With --create: its partition count.")] = None,
    schema: Schema = None,
    on_error: Annotated[
        OnError, typer.Option(help="What to do with a row that doesn't fit: stop, or leave it out and count it.")
    ] = OnError.FAIL,
    drop_unknown: Annotated[
        bool, typer.Option("--drop-unknown", help="Leave out fields for which the stream has no column.")
    ] = False,
    id_: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="A name for this write. If you repeat the command with the same name, options and input, it leaves "
            "out rows that the stream has already. A write that fails prints the name that continues it.",
        ),
    ] = None,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Write rows from files or a pipe.

    A pipe is read as it fills: tail -f app.log | headrace stream write events. In JSON, a missing field is null,
    binary values are base64 and times ISO 8601. A write that was cut short can be continued (--id).
    """
    from headrace.cli.place import locate
    from headrace.cli.stream.writing import Order, Writing
    from headrace.core.errors import UsageError
    from headrace.runners.interrupts import Interrupt

    if key and partition is not None:
        raise UsageError("--key and --partition both choose the partition", hint="leave one of them out")
    order = Order(
        place=locate(name, home, metadata, app),
        files=files or (),
        keys=column_names(key),
        partition=partition,
        create=create,
        partitions=partitions,
        schema=schema,
        skip_bad=on_error is OnError.SKIP,
        drop_unknown=drop_unknown,
        id=id_,
    )
    if sys.stdin.isatty() and (not files or "-" in files):
        print_note("reading JSON lines from the terminal; press Ctrl-D to end")
    with Interrupt() as interrupt:
        written = Writing(order, interrupt, _progress if sys.stderr.isatty() else _silence).run()
    _report(written, as_json)
    if written.stopped_in is not None:
        raise typer.Exit(Exit.INTERRUPTED)


def _silence(written: Written) -> None:
    """Show no progress."""


def _progress(written: Written) -> None:
    sys.stderr.write(f"\r{written.rows:,} rows, {written.bytes / 1e6:,.1f} MB\x1b[K")
    sys.stderr.flush()


def _report(written: Written, as_json: bool) -> None:
    import msgspec

    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    if written.stopped_in is not None:
        print_note(
            f"interrupted in the middle of {written.stopped_in}: "
            f"repeat the command with --id {written.id} to write the rest"
        )
    if written.skipped:
        print_note(
            f"left out, because they don't fit: {counted(written.skipped, 'row')}; the first is {written.first_skipped}"
        )
    if as_json:
        written.rows_by_partition = dict(sorted(written.rows_by_partition.items()))
        print_json(msgspec.to_builtins(written, str_keys=True))
    else:
        count = len(written.rows_by_partition)
        where = f" in {count} partitions" if count > 1 else ""
        print_note(f"wrote {counted(written.rows, 'row')} to {written.stream}{where}")
        if written.already:
            print_note(f"the stream already had {counted(written.already, 'row')} of write {written.id!r}")
