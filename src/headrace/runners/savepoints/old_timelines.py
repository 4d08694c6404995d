"""Delete a timeline that isn't current: its changelogs, state, intermediate streams, and what its tasks began with.

Streams that aren't in the embedded log are emptied. They stay, because nothing deletes a stream there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from headrace.core.errors import HeadraceError, StorageError, UsageError
from headrace.core.ids import SSP, StreamId
from headrace.metadata.store import MetadataStore
from headrace.metadata.timelines import Timelines
from headrace.runners.app_systems import forget_systems, recorded_systems, snapshots_place
from headrace.runners.savepoints.inventories import delete_inventory, recorded
from headrace.runners.stored_snapshots import delete_stored
from headrace.runtime.naming import changelog_name, folder_name, founding_folder
from headrace.savepoints.folder import locked
from headrace.stores.objects.opening import open_objects
from headrace.stores.objects.place import ObjectPlace
from headrace.systems.home_log import home_log
from headrace.systems.log.layout import StreamFolder
from headrace.systems.registry import SystemSpec, open_system


def delete_timeline(
    home: Path, app: str, metadata: MetadataStore, number: int, snapshots: ObjectPlace | None = None
) -> None:
    """Delete a timeline. It can't be returned to after that. A command that is interrupted can be repeated.

    ``snapshots`` is the object store with its snapshots, if it isn't the recorded one. If that can't be used, nothing
    is deleted.
    """
    with locked(home / "timelines" / app, f"the timelines of app {app!r}"):
        timelines = Timelines(metadata, app)
        if number not in timelines.numbers:
            there = ", ".join(map(str, timelines.numbers))
            raise UsageError(f"app {app!r} has no timeline {number}", hint=f"it has {there}")
        if number == timelines.current:
            raise UsageError(
                f"timeline {number} of app {app!r} is the current one", hint="only older ones can be deleted"
            )
        kept = {part.kept_as for _, part in recorded(metadata, app, timelines.current).parts() if part.kind == "stream"}
        inventory = recorded(metadata, app, number)
        streams = {changelog_name(app, stage, number) for stage in inventory.stages}
        streams |= {part.kept_as for _, part in inventory.parts() if part.kind == "stream"} - kept
        systems = recorded_systems(metadata, app, number)
        own = home_log(home) if systems is None else systems.own_spec(app, home)
        folders = [home / kind / folder_name(app, number) for kind in ("state", "snapshots")]
        if own.kind == "log":
            folders += [StreamFolder(Path(own.options["root"]), stream).path for stream in sorted(streams)]
        folders.append(founding_folder(home, app, number))
        _delete_snapshots(snapshots or snapshots_place(metadata, app, number), app, number)
        for folder in folders:
            try:
                if folder.exists():
                    shutil.rmtree(folder)
            except OSError as error:
                raise StorageError(f"{folder} can't be deleted: {error}", hint="fix this, then try again") from error
        if own.kind != "log":
            _empty(own, streams)
        delete_inventory(metadata, app, number)
        forget_systems(metadata, app, number)
        timelines.forget(number)


def _delete_snapshots(place: ObjectPlace | None, app: str, number: int) -> None:
    """Delete those in an object store. Raises ``StorageError`` if that can't be used."""
    if place is None:
        return
    try:
        if place.scheme == "file" and not Path(place.url.removeprefix("file://")).is_dir():
            raise StorageError("there is no such folder on this machine")
        delete_stored(open_objects(place), app, number)
    except HeadraceError as error:
        raise StorageError(
            f"timeline {number} of app {app!r} stays, because its snapshots in {place} can't be deleted: "
            f"{error.message}",
            hint="run the command where the store can be reached, with the credentials that the app has; if "
            "the store has moved, give its new place with --snapshots",
        ) from error


def _empty(system: SystemSpec, streams: Iterable[str]) -> None:
    with closing(open_system(system).admin()) as admin:
        for name in sorted(streams):
            if admin.describe(name) is not None:
                for partition, extent in enumerate(admin.extents(name)):
                    admin.trim(SSP(StreamId(system.name, name), partition), extent.upcoming)
