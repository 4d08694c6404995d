"""``headrace stream``: create, describe, read, write, repair, seal and trim streams."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.core.errors import FrameError, HeadraceError, UsageError
from headrace.operate.cli.console import (
    Exit,
    print_error,
    print_json,
    print_line,
    print_note,
    print_result,
    print_table,
)
from headrace.operate.cli.options import HOME, AsJson, Home, Metadata
from headrace.operate.words import columns_as_text, counted, format_bytes, size_as_text

if TYPE_CHECKING:
    from headrace.core.ids import SSP
    from headrace.operate.cli.stream_facts import Place
    from headrace.operate.cli.stream_rows import WrittenRows
    from headrace.run.coordinated import Interrupt
    from headrace.systems.base import Consumer, Position
    from headrace.systems.log.system import Findings

_REASONS_MAX = 10

StreamName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The stream, as NAME or SYSTEM.NAME. NAME alone means a stream of the embedded log, or with --app "
        "one of the app's own system.",
    ),
]
OfApp = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP", help="Resolve names as this app does, and look for its own streams where it keeps them."
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="COLUMNS", help='The columns and their types: "member:str,url:str,ts:datetime[ms]".'
    ),
]
Partition = Annotated[int | None, typer.Option("--partition", metavar="P", help="Only this partition.")]


def create(
    name: StreamName,
    partitions: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="The number of partitions, which can't be changed later: the largest number of tasks that should "
            "ever share the work.",
        ),
    ],
    schema: Schema = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="The columns (a,b) by which all writers choose a row's partition, as partition_by does. Apps can then "
            "keep state by this key without partition_by.",
        ),
    ] = None,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream. Succeeds if it exists already with the same partitions, columns and key."""
    from headrace.operate.cli.stream_facts import locate, shape
    from headrace.rows.dtypes import parse_columns

    place = locate(name, home, metadata, app)
    there = place.find()
    columns = None if schema is None else parse_columns(schema)
    info = place.admin().create(place.stream.name, partitions, columns, column_names(key))
    data = {"created": there is None} | shape(place, info)
    said = "created" if there is None else "exists already:"
    print_result(as_json, data, f"{said} {place.stream} with {counted(info.partitions, 'partition')}")


def add_column(
    name: StreamName,
    columns: Annotated[
        str, typer.Argument(metavar="COLUMNS", help='The new columns and their types: "note:str,at:datetime[ms]".')
    ],
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Add columns to a stream. Succeeds if it has them already.

    They are null in existing rows, and in rows of writers that don't know them. A column can't be removed.
    """
    from headrace.operate.cli.stream_facts import locate, shape
    from headrace.rows.dtypes import parse_columns

    place = locate(name, home, metadata, app)
    before = place.require().columns or {}
    info = place.admin().add_columns(place.stream.name, parse_columns(columns))
    about = shape(place, info)
    new = {column: dtype for column, dtype in about["columns"].items() if column not in before}
    added = f"added {columns_as_text(new)} to {place.stream}"
    print_result(as_json, about, added if new else f"{place.stream} has {columns} already")


def list_(home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """List the streams of the embedded log, and of other logs.

    Skips a log that doesn't answer, with a note.
    """
    from headrace.life.apps import known_systems
    from headrace.life.metadata import existing_metadata
    from headrace.operate.cli.stream_facts import list_streams

    with existing_metadata(home, metadata) as store:
        systems = known_systems(store, home)
    streams = []
    for spec in systems:
        try:
            streams += list_streams(home, spec)
        except HeadraceError as error:
            print_note(f"can't list the streams of {spec.name!r}: {error.message}")
    if as_json:
        print_json(streams)
    elif not streams:
        print_note(f"{home} has no streams")
    else:
        rows = []
        for one in streams:
            sealed, columns = "yes" if one["sealed"] else "no", columns_as_text(one["columns"])
            rows.append((one["stream"], one["partitions"], size_as_text(one), sealed, columns))
        print_table(("stream", "partitions", "size", "sealed", "columns"), rows)


def describe(
    name: StreamName,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="APP",
            help="Also show the positions of this app's readers. Those of apps in this home are always shown.",
        ),
    ] = None,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show a stream's columns, offsets and readers.

    For each partition, shows the oldest and the upcoming offset, and the position of each group of readers.
    """
    from headrace.coordinator.publication import known_apps
    from headrace.life.metadata import existing_metadata
    from headrace.operate.cli.stream_facts import facts_about, locate

    with existing_metadata(home, metadata) as store:
        groups = [*known_apps(store), *(group or ())]
    place = locate(name, home, metadata, app)
    about = facts_about(place, groups)
    if as_json:
        print_json(about)
    else:
        _print(place, about)


def _print(place: Place, about: dict[str, Any]) -> None:
    print_line(f"stream   {about['stream']}")
    print_line(f"columns  {columns_as_text(about['columns'])}")
    if about["added"]:
        print_line(f"added    {', '.join(about['added'])}: null in older rows")
    if about["key"]:
        print_line(f"key      {', '.join(about['key'])}: chooses the partition of a row")
    print_line(f"size     {size_as_text(about)} in {counted(about['partitions'], 'partition')}")
    print_line(f"sealed   {'yes: it has ended' if about['sealed'] else 'no'}")
    print_line("")
    rows = [(each["partition"], each["oldest"], each["upcoming"]) for each in about["extents"]]
    sized = [(*row, place.amount(row[2] - row[1])) for row in rows]
    print_table(("partition", "oldest", "upcoming", "size"), sized)
    if about["readers"]:
        print_line("")
        readers = [(r["group"], r["partition"], r["position"], place.amount(r["lag"])) for r in about["readers"]]
        print_table(("readers", "partition", "position", "behind"), readers)


def seal(
    name: StreamName, app: OfApp = None, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False
) -> None:
    """End a stream permanently.

    It accepts no more writes, and apps that read it end when they reach its end. It can still be read.
    """
    from headrace.operate.cli.stream_facts import locate

    place = locate(name, home, metadata, app)
    place.require()
    place.admin().seal(place.stream.name)
    print_result(as_json, {"stream": str(place.stream), "sealed": True}, f"sealed {place.stream}")


def trim(
    name: StreamName,
    before: Annotated[
        list[str],
        typer.Option(
            metavar="POSITION",
            help="Delete everything before POSITION: OFFSET, PARTITION:OFFSET, or upcoming to delete all. May be "
            "given for several partitions.",
        ),
    ],
    partition: Partition = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete. Without this option, only show what would be deleted.")
    ] = False,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Delete the beginning of a stream.

    This frees its space on the disk and can't be undone.
    """
    from headrace.operate.cli.stream_facts import locate, plan_trim

    place = locate(name, home, metadata, app)
    cuts = plan_trim(place, before, partition)
    total = sum(cut.size for cut in cuts)
    if not yes:
        raise UsageError(
            f"this would permanently delete {place.amount(total)} of {place.stream}", hint="add --yes to delete it"
        )
    admin = place.admin()
    for cut in cuts:
        admin.trim(cut.ssp, cut.before)
    oldest = [{"partition": cut.ssp.partition, "oldest": cut.before} for cut in cuts]
    data = {"stream": str(place.stream), "bytes": place.size(total), "partitions": oldest}
    print_result(as_json, data, f"deleted {place.amount(total)} of {place.stream}")


def read(
    name: StreamName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more rows until the stream is sealed or you press Ctrl-C.")
    ] = False,
    committed: Annotated[
        bool, typer.Option("--committed", help="Show a row only once its checkpoint is committed.")
    ] = False,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Start at oldest (the default), upcoming, OFFSET or PARTITION:OFFSET; may be given several times.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Start with the rows written at this time: ISO 8601 (UTC if it names no zone), or ms since the epoch.",
        ),
    ] = None,
    ago: Annotated[
        str | None, typer.Option(metavar="D", help="Start with the rows written in the last 90m, 2h or 1d.")
    ] = None,
    partition: Partition = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", help="Stop after N lines.")] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Also show control frames (watermarks, end of stream, checkpoints).")
    ] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Add @partition and @offset, as --from takes them, to each row.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a record that can't be read, instead of showing the others.")
    ] = False,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Print a stream as JSON lines.

    Reads to the present end or, with --follow, as the stream grows. The rows of one partition are in order; rows of
    different partitions are interleaved. If a record can't be read, the command says so, shows the others, and exits
    with 1.
    """
    from headrace.operate.cli.stream_facts import locate
    from headrace.operate.cli.stream_rows import Lines
    from headrace.run.coordinated import Interrupt
    from headrace.streams.reader import CommittedGate, FrameReader, OpenGate, refuse

    del as_json  # the option exists for scripts; the command prints JSON lines anyway
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: expected a number of at least 1")
    place = locate(name, home, metadata, app)
    starts = _starts(place, start or (), time, ago, partition)
    unreadable = 0

    def told(error: FrameError) -> None:
        nonlocal unreadable
        unreadable += 1
        if unreadable <= _REASONS_MAX:
            print_error(error.message, error.hint)

    damaged = refuse if strict else told
    lines = Lines(place.require().columns, control=control, offsets=offsets, limit=limit, damaged=damaged)
    gate = CommittedGate() if committed else OpenGate()
    output = sys.stdout.buffer
    with Interrupt() as interrupt:
        reader = FrameReader(
            place.system, place.stream, gate, partial(_wait, interrupt, _descriptor()), follow=follow,
            enough=lambda: interrupt.requested, damaged=damaged,
        )  # fmt: skip
        with closing(reader.read(starts)) as batches:
            for frames in batches:
                output.write(lines.of(frames))
                output.flush()
                if lines.full:
                    break
    if interrupt.requested and not follow and not lines.full:
        print_note(f"interrupted before the end of {place.stream}")
        raise typer.Exit(Exit.INTERRUPTED)
    if gate.held and not lines.full:
        print_note(f"not shown, because not committed yet: {counted(gate.held, 'frame')}")
    if unreadable:
        left_out = f"{counted(unreadable, 'record')} of {place.stream} can't be read"
        print_error(f"{left_out}; the others are shown", hint="headrace stream verify checks the files of a log")
        raise typer.Exit(Exit.FAILED)
    if not lines.rows and lines.others and not control:
        print_note(
            f"{place.stream} has no rows, but {counted(lines.others, 'control frame')}: use --control to show them"
        )


def _starts(
    place: Place, start: Sequence[str], time: str | None, ago: str | None, partition: int | None
) -> dict[SSP, Position]:
    from headrace.operate.cli.stream_facts import positions, positions_at
    from headrace.systems.base import Edge

    if time is None and ago is None:
        found = positions(place, "--from", start, partition)
        return {ssp: Edge.OLDEST if position is None else position for ssp, position in found.items()}
    if start:
        raise UsageError(
            f"--from and --{'time' if ago is None else 'ago'} both give a position", hint="leave one of them out"
        )
    return positions_at(place, time, ago, partition)


def _wait(interrupt: Interrupt, output_fd: int | None, consumer: Consumer) -> bool:
    from headrace.streams.reader import UNWATCHED_WAIT_MS, WAIT_MS

    poll = select.poll()
    poll.register(interrupt.fd, select.POLLIN)
    source = consumer.fileno()
    if source is not None:
        poll.register(source, select.POLLIN)
    if output_fd is not None:
        poll.register(output_fd, 0)  # poll reports a closed output even though no event is requested
    ready = poll.poll(UNWATCHED_WAIT_MS if source is None else WAIT_MS)
    return all(fd != output_fd for fd, _ in ready)


def _descriptor() -> int | None:
    try:
        return sys.stdout.fileno()
    except OSError:  # a buffer in a test
        return None


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Streams of a log; by default all streams of the home folder."),
    ] = None,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Check every record of streams.

    Reads their files from beginning to end. The exit code is 1 if one is damaged.
    """
    from headrace.operate.cli.stream_facts import locate
    from headrace.systems.log.system import inspect_stream
    from headrace.systems.registry import home_log, open_system

    wanted = names or open_system(home_log(home)).admin().list()
    found = []
    for name in wanted:
        place = locate(name, home, metadata, app)
        place.require()
        found.append(inspect_stream(place.log_folder(), place.stream.name))
    if as_json:
        print_json([_about(one) for one in found])
    elif not found:
        print_note(f"{home} has no streams")
    else:
        _print_repair(found)
    if any(one.damaged for one in found):
        raise typer.Exit(Exit.FAILED)


def repair(
    name: StreamName,
    yes: Annotated[
        bool, typer.Option("--yes", help="Repair. Without this option, only show what readers would skip.")
    ] = False,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Make readers skip the damaged parts of a stream.

    Keeps a copy of the damaged bytes beside the partition. Readers lose the records in them, so restore a backup
    instead if you have one.
    """
    from headrace.operate.cli.stream_facts import locate
    from headrace.systems.log.system import inspect_stream, repair_stream

    place = locate(name, home, metadata, app)
    place.require()
    found = inspect_stream(place.log_folder(), place.stream.name)
    if found.damaged and not yes:
        raise UsageError(
            f"this would make readers skip {format_bytes(found.damaged_bytes)} of {place.stream}:\n"
            + "\n".join(_problems(found)),
            hint="stop everything that writes to the stream, then add --yes",
        )
    copies = repair_stream(place.log_folder(), found)
    if as_json:
        print_json(_about(found) | {"copies": [str(copy) for copy in copies]})
    elif not found.damaged:
        print_line(f"{place.stream} isn't damaged")
    else:
        print_line(f"repaired {place.stream}: readers skip {format_bytes(found.damaged_bytes)}")
        for copy in copies:
            print_line(f"  the damaged bytes are kept in {copy}")


def _print_repair(found: list[Findings]) -> None:
    rows = []
    for one in found:
        damage = format_bytes(one.damaged_bytes) if one.damaged_bytes else "yes" if one.damaged else "no"
        records, sealed = sum(partition.records for partition in one.partitions), "yes" if one.sealed else "no"
        rows.append((one.stream, len(one.partitions), records, sealed, format_bytes(one.unfinished_bytes), damage))
    print_table(("stream", "partitions", "records", "sealed", "unfinished", "damaged"), rows)
    damaged = [one for one in found if one.damaged]
    for one in damaged:
        print_line(f"\n{one.stream} is damaged; readers stop with an error at:")
        for problem in _problems(one):
            print_line(problem)
    if damaged:
        print_line("\nRestore a backup, or let readers skip the damaged bytes: headrace stream repair NAME")


def _problems(found: Findings) -> list[str]:
    lines = []
    for one in found.partitions:
        for gap in one.damage:
            size, lost = gap.stop - gap.start, "the file lost them in a power cut"
            what = f"{counted(size, 'zero')}: {lost}" if gap.zeros else f"{counted(size, 'byte')}: {gap.reason}"
            lines.append(f"  partition {one.partition}, bytes {gap.start} to {gap.stop} ({what})")
    return [*lines, *([f"  {found.seal_fault}"] if found.seal_fault else [])]


def _about(found: Findings) -> dict[str, Any]:
    partitions = []
    for one in found.partitions:
        gaps = [
            {"start": gap.start, "stop": gap.stop, "kind": gap.kind.value, "zeros": gap.zeros, "reason": gap.reason}
            for gap in one.gaps
        ]
        about = {"partition": one.partition, "oldest": one.oldest, "end": one.end, "records": one.records}
        partitions.append(about | {"sealed": one.sealed, "gaps": gaps})
    known = {"stream": found.stream, "damaged": found.damaged, "sealFault": found.seal_fault or None}
    return known | {"partitions": partitions}


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
    from headrace.operate.cli.stream_facts import locate
    from headrace.operate.cli.stream_rows import Order, Writing
    from headrace.run.coordinated import Interrupt

    if key and partition is not None:
        raise UsageError("--key and --partition both choose the partition", hint="leave one of them out")
    order = Order(
        place=locate(name, home, metadata, app), files=files or (), keys=column_names(key), partition=partition,
        create=create, partitions=partitions, schema=schema, skip_bad=on_error is OnError.SKIP,
        drop_unknown=drop_unknown, id=id_,
    )  # fmt: skip
    if sys.stdin.isatty() and (not files or "-" in files):
        print_note("reading JSON lines from the terminal; press Ctrl-D to end")
    with Interrupt() as interrupt:
        written = Writing(order, interrupt, _progress).run()
    _report(written, as_json)
    if written.stopped_in is not None:
        raise typer.Exit(Exit.INTERRUPTED)


def _progress(written: WrittenRows) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{written.rows:,} rows, {written.bytes / 1e6:,.1f} MB\x1b[K")
        sys.stderr.flush()


def _report(written: WrittenRows, as_json: bool) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    if written.stopped_in is not None:
        print_note(
            f"interrupted in the middle of {written.stopped_in}: "
            f"repeat the command with --id {written.id} to write the rest"
        )
    if written.skipped:
        left_out = f"{counted(written.skipped, 'row')}; the first is {written.first_skipped}"
        print_note(f"left out, because they don't fit: {left_out}")
    if as_json:
        written.rows_by_partition = dict(sorted(written.rows_by_partition.items()))
        print_json(written)
    else:
        count = len(written.rows_by_partition)
        where = f" in {count} partitions" if count > 1 else ""
        print_note(f"wrote {counted(written.rows, 'row')} to {written.stream}{where}")
        if written.already:
            print_note(f"the stream already had {counted(written.already, 'row')} of write {written.id!r}")


def column_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()
