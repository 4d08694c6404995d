"""``headrace stream verify`` and ``repair``: find damage in a stream's files, and make readers skip it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.console import Exit, counted, format_bytes, print_json, print_line, print_note, print_table
from headrace.cli.options import HOME, AsJson, Home, Metadata, OfApp, StreamName

if TYPE_CHECKING:
    from headrace.systems.log.inspection import Findings, Gap


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
    from headrace.cli.place import locate
    from headrace.systems.home_log import home_log
    from headrace.systems.log.inspection import inspect_stream
    from headrace.systems.registry import open_system

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
        _print(found)
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
    from headrace.cli.place import locate
    from headrace.core.errors import UsageError
    from headrace.systems.log.inspection import inspect_stream, repair_stream

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


def _print(found: list[Findings]) -> None:
    print_table(
        ("stream", "partitions", "records", "sealed", "unfinished", "damaged"),
        [
            (
                one.stream,
                len(one.partitions),
                sum(partition.records for partition in one.partitions),
                "yes" if one.sealed else "no",
                format_bytes(one.unfinished_bytes),
                format_bytes(one.damaged_bytes) if one.damaged_bytes else "yes" if one.damaged else "no",
            )
            for one in found
        ],
    )
    damaged = [one for one in found if one.damaged]
    for one in damaged:
        print_line("")
        print_line(f"{one.stream} is damaged; readers stop with an error at:")
        for problem in _problems(one):
            print_line(problem)
    if damaged:
        print_line("")
        print_line("Restore a backup, or let readers skip the damaged bytes: headrace stream repair NAME")


def _problems(found: Findings) -> list[str]:
    lines = [
        f"  partition {one.partition}, bytes {gap.start} to {gap.stop} ({_what(gap)})"
        for one in found.partitions
        for gap in one.damage
    ]
    return [*lines, *([f"  {found.seal_fault}"] if found.seal_fault else [])]


def _what(gap: Gap) -> str:
    size = gap.stop - gap.start
    return (
        f"{counted(size, 'zero')}: the file lost them in a power cut"
        if gap.zeros
        else f"{counted(size, 'byte')}: {gap.reason}"
    )


def _about(found: Findings) -> dict[str, Any]:
    return {
        "stream": found.stream,
        "damaged": found.damaged,
        "sealFault": found.seal_fault or None,
        "partitions": [
            {
                "partition": one.partition,
                "oldest": one.oldest,
                "end": one.end,
                "records": one.records,
                "sealed": one.sealed,
                "gaps": [
                    {
                        "start": gap.start,
                        "stop": gap.stop,
                        "kind": gap.kind.value,
                        "zeros": gap.zeros,
                        "reason": gap.reason,
                    }
                    for gap in one.gaps
                ],
            }
            for one in found.partitions
        ],
    }
