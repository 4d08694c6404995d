"""Opening the store of a place, and checking at an app's start that it can be used."""

from __future__ import annotations

import uuid

from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.core.extras import needing
from headrace.core.plug_ins import loaded, plug_in
from headrace.stores.objects.contract import ObjectStore
from headrace.stores.objects.place import ObjectPlace

GROUP = "headrace.object_stores"
"""The group of the entry point of the client of object stores."""


def open_objects(place: ObjectPlace) -> ObjectStore:
    """The store of a place. Nothing is asked of it yet."""
    with needing(
        "obstore", f"the store of snapshots {place}", "objects", "wherever drivers, containers and commands run"
    ):
        opener = plug_in(GROUP, "objects")
        if opener is None:
            raise ImportError("no package with a client of object stores is installed")
        store: ObjectStore = loaded(opener)(place)  # obstore must not be loaded before a process forks
    return store


def check_objects(place: ObjectPlace | None) -> None:
    """Write an object, read it and delete it. Raises ``InfrastructureError`` if the place can't be used."""
    if place is None:
        return
    store = open_objects(place)
    name, data = f"checks/{uuid.uuid4().hex}", b"headrace"
    try:
        store.create(name, data)
        found = store.get(name) == data and name in store.list("checks/")
        store.delete([name])
    except HeadraceError as error:
        raise InfrastructureError(
            f"the app can't keep its snapshots in {place}: {error.message}",
            hint="check that the store answers, that the bucket or folder exists, and that the credentials in the "
            "environment allow listing, reading, writing and deleting objects in it",
        ) from error
    if not found:
        raise InfrastructureError(
            f"the app can't keep its snapshots in {place}: an object can't be read right after it was written",
            hint="use a store with read-after-write consistency",
        )
