"""``headrace stream describe``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.console import counted, format_bytes, print_json, print_line, print_table
from headrace.cli.options import HOME, AsJson, Home, StreamName


def describe(
    name: StreamName,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="APP",
            help="Show where the readers of this app are too; those of the apps on this home are shown anyway.",
            show_default=False,
        ),
    ] = None,
    home: Home = HOME,
    as_json: AsJson = False,
) -> None:
    """Show a stream's columns, offsets and readers.

    For each partition the oldest offset kept and the upcoming one, and how far each group of readers is.
    """
    from headrace.cli.place import locate
    from headrace.cli.stream.about import describe as describe_stream

    about = describe_stream(locate(name, home), group or ())
    if as_json:
        print_json(about)
    else:
        _print(about)


def _print(about: dict[str, Any]) -> None:
    from headrace.cli.stream.about import columns_as_text

    print_line(f"stream   {about['stream']}")
    print_line(f"columns  {columns_as_text(about['columns'])}")
    print_line(f"size     {format_bytes(about['bytes'])} in {counted(about['partitions'], 'partition')}")
    print_line(f"sealed   {'yes: it has ended' if about['sealed'] else 'no'}")
    print_line("")
    print_table(
        ("partition", "oldest", "upcoming", "size"),
        [(one["partition"], one["oldest"], one["upcoming"], format_bytes(one["bytes"])) for one in about["extents"]],
    )
    if about["readers"]:
        print_line("")
        print_table(
            ("readers", "partition", "position", "behind"),
            [(one["group"], one["partition"], one["position"], format_bytes(one["lag"])) for one in about["readers"]],
        )
