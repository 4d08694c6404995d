"""From the name of a format to the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from headrace.core.errors import DeclarationError
from headrace.core.plug_ins import all_points, loaded, plug_in
from headrace.serdes.formats.changelog import ChangelogFormat
from headrace.serdes.formats.contract import Format, FormatSpec
from headrace.serdes.formats.json import JsonFormat
from headrace.serdes.formats.raw import RawFormat
from headrace.serdes.formats.text import TextFormat

GROUP = "headrace.formats"
"""The group of entry points of formats: each is a function that makes a ``Format`` of a ``FormatSpec``."""

_PLAIN: Mapping[str, type[Format]] = {"json": JsonFormat, "text": TextFormat, "bytes": RawFormat}


def open_format(spec: FormatSpec) -> Format:
    """Return the format that ``spec`` names; raises ``DeclarationError`` for an unknown one. Fetches nothing yet."""
    if spec.name in _PLAIN:
        return _PLAIN[spec.name]()
    if spec.name == "changelog":
        return ChangelogFormat(inner_format(spec), spec.settings["deleted"])
    opener = plug_in(GROUP, spec.name)
    if opener is None:
        known = ", ".join([*_PLAIN, "changelog", *sorted(all_points(GROUP))])
        raise DeclarationError(f"unknown format {spec.name!r} of records", hint=f"known formats: {known}")
    return cast("Callable[[FormatSpec], Format]", loaded(opener))(spec)


def inner_format(spec: FormatSpec) -> Format:
    """Return the format that another one is wrapped around."""
    return open_format(FormatSpec(**spec.settings["format"]))
