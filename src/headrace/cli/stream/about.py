"""Facts about streams, as plain data for ``list`` and ``describe`` to print.

Offsets of the embedded log are byte positions, so their differences are sizes. Offsets of other logs count frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.console import counted, format_bytes
from headrace.cli.place import Place, place_in
from headrace.serdes.dtypes import columns_to_json
from headrace.systems.base import StreamInfo
from headrace.systems.registry import SystemSpec, open_system


def shape(place: Place, info: StreamInfo) -> dict[str, Any]:
    """Return a stream's name, partition count, columns and key, and which columns were added later."""
    columns = None if info.columns is None else columns_to_json(info.columns)
    added = [name for name in columns or () if name in info.added]
    about = {"stream": str(place.stream), "partitions": info.partitions, "columns": columns}
    return about | {"added": added, "key": list(info.key)}


def describe(place: Place, groups: Sequence[str] = ()) -> dict[str, Any]:
    """Return everything about one stream: its shape, each partition's offsets, and its readers' positions.

    The ``groups`` are the names of the apps that read the stream. Either ``bytes`` or ``frames`` is known.
    """
    info = place.require()
    admin = place.admin()
    extents = admin.extents(place.stream.name)
    readers = []
    for group in sorted(set(groups)):
        for partition, position in admin.reported_positions(place.stream.name, group).items():
            lag = max(0, extents[partition].upcoming - position)
            readers.append({"group": group, "partition": partition, "position": position, "lag": lag})
    total = sum(extent.upcoming - extent.oldest for extent in extents)
    return shape(place, info) | {
        "sealed": all(extent.sealed for extent in extents),
        "bytes": place.size(total),
        "frames": total if place.size(total) is None else None,
        "extents": [
            {
                "partition": number,
                "oldest": extent.oldest,
                "upcoming": extent.upcoming,
                "bytes": place.size(extent.upcoming - extent.oldest),
                "sealed": extent.sealed,
            }
            for number, extent in enumerate(extents)
        ],
        "readers": readers,
    }


def list_streams(home: Path, spec: SystemSpec) -> list[dict[str, Any]]:
    """Return all streams of a system, by name."""
    found = []
    for name in open_system(spec).admin().list():
        about = describe(place_in(spec, name, home))
        found.append({key: about[key] for key in ("stream", "partitions", "bytes", "frames", "sealed", "columns")})
    return found


def size_as_text(about: Mapping[str, Any]) -> str:
    """Return the size of a stream."""
    return counted(about["frames"], "frame") if about["bytes"] is None else format_bytes(about["bytes"])


def columns_as_text(columns: dict[str, Any] | None) -> str:
    """Return the columns on one line."""
    if columns is None:
        return "not declared"
    return ", ".join(f"{name}: {_type_as_text(dtype)}" for name, dtype in columns.items())


def _type_as_text(dtype: Any) -> str:
    """Return a type of the durable form as users write it: ``List[Int64]``."""
    match dtype:
        case str():
            return dtype
        case {"List": inner}:
            return f"List[{_type_as_text(inner)}]"
        case {"Datetime": {"unit": unit, "zone": zone}}:
            return f"Datetime[{unit}{',' + zone if zone else ''}]"
        case {"Duration": {"unit": unit}}:
            return f"Duration[{unit}]"
        case {"Decimal": {"precision": precision, "scale": scale}}:
            return f"Decimal[{precision},{scale}]"
        case _:
            return str(next(iter(dtype)))
