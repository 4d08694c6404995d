"""The inventory of a new timeline. Only intermediate streams, which begin empty, get new names. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from headrace.core.ids import TaskName
from headrace.plan.inventory import Inventory, Part, StageRecord
from headrace.plan.tasks import producer_ids


def new_streams(app: str, inventory: Inventory, timeline: int, taken: Collection[str] = ()) -> dict[str, str]:
    """Return a new name for each intermediate stream, by the old one; none is ``taken`` or was used before."""
    used = {*taken, *inventory.gone, *(part.kept_as for _, part in inventory.parts() if part.kind == "stream")}
    names: dict[str, str] = {}
    for _, part in inventory.parts():
        if part.kind == "stream" and part.kept_as not in names:
            name = f"{app}-{part.id}.{timeline}"
            while name in used:
                name += f".{timeline}"
            names[part.kept_as] = name
            used.add(name)
    return names


def renamed(inventory: Inventory, streams: Mapping[str, str], gone: Collection[str] = ()) -> Inventory:
    """Return the inventory with new names of streams. The old ones, and ``gone``, become former names."""
    stages = {name: _record(record, streams) for name, record in inventory.stages.items()}
    return Inventory(stages, frozenset({*inventory.gone, *streams, *gone}))


def for_app(app: str, inventory: Inventory) -> Inventory:
    """Return the inventory for an app of another name. Its tasks write under other ids, as both may write a stream."""
    names = [TaskName(name, n) for name, record in inventory.stages.items() for n in range(record.tasks)]
    producers = producer_ids(app, names)
    stages = {
        name: msgspec.structs.replace(
            record, producers=tuple(producers[TaskName(name, n)] for n in range(record.tasks))
        )
        for name, record in inventory.stages.items()
    }
    return Inventory(stages, inventory.gone)


def _record(record: StageRecord, streams: Mapping[str, str]) -> StageRecord:
    return msgspec.structs.replace(
        record,
        parts={id_: _part(part, streams) for id_, part in record.parts.items()},
        former=tuple(sorted(streams[name] for name in record.former if name in streams)),
    )


def _part(part: Part, streams: Mapping[str, str]) -> Part:
    return msgspec.structs.replace(part, kept_as=streams[part.kept_as]) if part.kind == "stream" else part
