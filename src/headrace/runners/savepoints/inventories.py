"""The inventory of an app in the metadata store: read it, and write that of a new timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.core.errors import DataError, UnavailableError
from headrace.core.records import UNREADABLE
from headrace.metadata.store import Change, Delete, Entry, MetadataStore, Put
from headrace.plan.inventory import Inventory, StageRecord
from headrace.runtime.naming import inventory_namespace

GONE = ".gone"
"""The key of the former names; no stage has such a name."""


class _Gone(msgspec.Struct, frozen=True, kw_only=True):
    format: int = 1
    names: tuple[str, ...] = ()


def encode_gone(names: Iterable[str]) -> bytes:
    """The former names in the store."""
    return msgspec.json.encode(_Gone(names=tuple(sorted(names))))


def read_inventory(entries: Mapping[str, Entry]) -> Inventory:
    """The inventory in the entries of its namespace."""
    stages = {name: StageRecord.decode(entry.value) for name, entry in entries.items() if name != GONE}
    gone: frozenset[str] = frozenset()
    if GONE in entries:
        try:
            gone = frozenset(msgspec.json.decode(entries[GONE].value, type=_Gone).names)
        except UNREADABLE as error:
            raise DataError(f"the list of the app's former names is unreadable: {error}") from error
    return Inventory(stages, gone)


def recorded(store: MetadataStore, app: str, timeline: int) -> Inventory:
    """The inventory of an app in one timeline; empty if it has never run there."""
    return read_inventory(store.scan(inventory_namespace(app, timeline)))


def replace_inventory(store: MetadataStore, app: str, timeline: int, inventory: Inventory) -> None:
    """Write the inventory of a timeline that isn't current, whatever an interrupted restore has left of it."""
    namespace = inventory_namespace(app, timeline)
    known = store.scan(namespace)
    wanted = {name: record.encode() for name, record in inventory.stages.items()}
    if inventory.gone:
        wanted[GONE] = encode_gone(inventory.gone)
    changes: list[Change] = [
        Put(key, value, known[key].version if key in known else None) for key, value in wanted.items()
    ]
    changes += [Delete(key, entry.version) for key, entry in known.items() if key not in wanted]
    if changes and store.write(namespace, changes) is None:
        raise UnavailableError(f"another command writes timeline {timeline} of app {app!r}", hint="try again")


def delete_inventory(store: MetadataStore, app: str, timeline: int) -> None:
    """Delete the inventory of a timeline."""
    replace_inventory(store, app, timeline, Inventory())
