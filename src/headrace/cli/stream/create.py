"""``headrace stream create``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.console import counted, print_json, print_line
from headrace.cli.options import HOME, AsJson, Home, Schema, StreamName


def create(
    name: StreamName,
    partitions: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="The number of partitions: the most tasks that should ever share the work. It can't be changed later.",
            show_default=False,
        ),
    ],
    schema: Schema = None,
    home: Home = HOME,
    as_json: AsJson = False,
) -> None:
    """Create a stream. Succeeds if it exists in the same shape."""
    from headrace.cli.place import locate
    from headrace.cli.stream.about import shape
    from headrace.serdes.dtypes import parse_columns

    place = locate(name, home)
    there = place.find()
    columns = None if schema is None else parse_columns(schema)
    info = place.admin().create(place.stream.name, partitions, columns)
    if as_json:
        print_json({"created": there is None} | shape(place, info))
    else:
        said = "created" if there is None else "there already:"
        print_line(f"{said} {place.stream} with {counted(info.partitions, 'partition')}")
