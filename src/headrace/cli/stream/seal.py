"""``headrace stream seal``."""

from __future__ import annotations

from headrace.cli.console import print_json, print_line
from headrace.cli.options import HOME, AsJson, Home, StreamName


def seal(name: StreamName, home: Home = HOME, as_json: AsJson = False) -> None:
    """End a stream permanently.

    It takes no more writes, and apps that read it come to an end. It can still be read.
    """
    from headrace.cli.place import locate

    place = locate(name, home)
    place.require()
    place.admin().seal(place.stream.name)
    if as_json:
        print_json({"stream": str(place.stream), "sealed": True})
    else:
        print_line(f"sealed {place.stream}")
