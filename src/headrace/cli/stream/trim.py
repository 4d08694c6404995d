"""``headrace stream trim``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.console import format_bytes, print_json, print_line
from headrace.cli.options import HOME, AsJson, Home, Partition, StreamName


def trim(
    name: StreamName,
    before: Annotated[
        list[str],
        typer.Option(
            metavar="POSITION",
            help="Delete what is before POSITION: upcoming (that is everything), OFFSET or PARTITION:OFFSET. "
            "May be given for several partitions.",
            show_default=False,
        ),
    ],
    partition: Partition = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without this, only say what would be deleted.")] = False,
    home: Home = HOME,
    as_json: AsJson = False,
) -> None:
    """Delete the beginning of a stream.

    Frees its space on the disk. What is deleted can't be restored.
    """
    from headrace.cli.place import locate
    from headrace.cli.stream.trimming import plan_trim, run_trim
    from headrace.core.errors import UsageError

    place = locate(name, home)
    cuts = plan_trim(place, before, partition)
    total = sum(cut.size for cut in cuts)
    if not yes:
        raise UsageError(
            f"this would permanently delete {format_bytes(total)} of {place.stream}",
            hint="add --yes if that is what you want",
        )
    run_trim(place, cuts)
    if as_json:
        print_json(
            {
                "stream": str(place.stream),
                "bytes": total,
                "partitions": [{"partition": cut.ssp.partition, "oldest": cut.before} for cut in cuts],
            }
        )
    else:
        print_line(f"deleted {format_bytes(total)} of {place.stream}")
