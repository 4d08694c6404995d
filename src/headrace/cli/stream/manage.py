"""``headrace stream create``, ``add-column``, ``list``, ``describe``, ``seal`` and ``trim``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.console import counted, print_json, print_line, print_note, print_table
from headrace.cli.options import HOME, AsJson, Home, Metadata, OfApp, Partition, Schema, StreamName, column_names

if TYPE_CHECKING:
    from headrace.cli.place import Place


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
    from headrace.cli.place import locate
    from headrace.cli.stream.about import shape
    from headrace.serdes.dtypes import parse_columns

    place = locate(name, home, metadata, app)
    there = place.find()
    columns = None if schema is None else parse_columns(schema)
    info = place.admin().create(place.stream.name, partitions, columns, column_names(key))
    if as_json:
        print_json({"created": there is None} | shape(place, info))
    else:
        said = "created" if there is None else "exists already:"
        print_line(f"{said} {place.stream} with {counted(info.partitions, 'partition')}")


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
    from headrace.cli.place import locate
    from headrace.cli.stream.about import columns_as_text, shape
    from headrace.serdes.dtypes import parse_columns

    place = locate(name, home, metadata, app)
    before = place.require().columns or {}
    info = place.admin().add_columns(place.stream.name, parse_columns(columns))
    about = shape(place, info)
    if as_json:
        print_json(about)
    else:
        new = {column: dtype for column, dtype in about["columns"].items() if column not in before}
        if new:
            print_line(f"added {columns_as_text(new)} to {place.stream}")
        else:
            print_line(f"{place.stream} has {columns} already")


def list_(home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """List the streams of the embedded log, and of other logs.

    Skips a log that doesn't answer, with a note.
    """
    from headrace.cli.stream.about import columns_as_text, list_streams, size_as_text
    from headrace.core.errors import HeadraceError
    from headrace.metadata.opening import existing_metadata
    from headrace.runners.app_systems import known_systems

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
        print_table(
            ("stream", "partitions", "size", "sealed", "columns"),
            [
                (
                    one["stream"],
                    one["partitions"],
                    size_as_text(one),
                    "yes" if one["sealed"] else "no",
                    columns_as_text(one["columns"]),
                )
                for one in streams
            ],
        )


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
    from headrace.cli.place import locate
    from headrace.cli.stream.about import describe as describe_stream
    from headrace.metadata.opening import existing_metadata
    from headrace.runners.coordination.runs import known_apps

    with existing_metadata(home, metadata) as store:
        groups = [*known_apps(store), *(group or ())]
    place = locate(name, home, metadata, app)
    about = describe_stream(place, groups)
    if as_json:
        print_json(about)
    else:
        _print(place, about)


def _print(place: Place, about: dict[str, Any]) -> None:
    from headrace.cli.stream.about import columns_as_text, size_as_text

    print_line(f"stream   {about['stream']}")
    print_line(f"columns  {columns_as_text(about['columns'])}")
    if about["added"]:
        print_line(f"added    {', '.join(about['added'])}: null in older rows")
    if about["key"]:
        print_line(f"key      {', '.join(about['key'])}: chooses the partition of a row")
    print_line(f"size     {size_as_text(about)} in {counted(about['partitions'], 'partition')}")
    print_line(f"sealed   {'yes: it has ended' if about['sealed'] else 'no'}")
    print_line("")
    print_table(
        ("partition", "oldest", "upcoming", "size"),
        [
            (one["partition"], one["oldest"], one["upcoming"], place.amount(one["upcoming"] - one["oldest"]))
            for one in about["extents"]
        ],
    )
    if about["readers"]:
        print_line("")
        print_table(
            ("readers", "partition", "position", "behind"),
            [(one["group"], one["partition"], one["position"], place.amount(one["lag"])) for one in about["readers"]],
        )


def seal(
    name: StreamName, app: OfApp = None, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False
) -> None:
    """End a stream permanently.

    It accepts no more writes, and apps that read it end when they reach its end. It can still be read.
    """
    from headrace.cli.place import locate

    place = locate(name, home, metadata, app)
    place.require()
    place.admin().seal(place.stream.name)
    if as_json:
        print_json({"stream": str(place.stream), "sealed": True})
    else:
        print_line(f"sealed {place.stream}")


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
    from headrace.cli.place import locate
    from headrace.cli.stream.trimming import plan_trim, run_trim
    from headrace.core.errors import UsageError

    place = locate(name, home, metadata, app)
    cuts = plan_trim(place, before, partition)
    total = sum(cut.size for cut in cuts)
    if not yes:
        raise UsageError(
            f"this would permanently delete {place.amount(total)} of {place.stream}",
            hint="add --yes to delete it",
        )
    run_trim(place, cuts)
    if as_json:
        print_json(
            {
                "stream": str(place.stream),
                "bytes": place.size(total),
                "partitions": [{"partition": cut.ssp.partition, "oldest": cut.before} for cut in cuts],
            }
        )
    else:
        print_line(f"deleted {place.amount(total)} of {place.stream}")
