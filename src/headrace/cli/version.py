"""``headrace version``."""

from __future__ import annotations

from headrace.cli.console import print_json, print_line
from headrace.cli.options import AsJson


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    from headrace import __version__

    if as_json:
        print_json({"version": __version__})
    else:
        print_line(f"headrace {__version__}")
