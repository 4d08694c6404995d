"""``headrace stream list``."""

from __future__ import annotations

from headrace.cli.console import format_bytes, print_json, print_note, print_table
from headrace.cli.options import HOME, AsJson, Home


def list_(home: Home = HOME, as_json: AsJson = False) -> None:
    """List the streams of the embedded log."""
    from headrace.cli.stream.about import columns_as_text, list_streams

    streams = list_streams(home)
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
                    format_bytes(one["bytes"]),
                    "yes" if one["sealed"] else "no",
                    columns_as_text(one["columns"]),
                )
                for one in streams
            ],
        )
