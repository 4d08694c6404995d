"""Delete a timeline that isn't current: its changelogs, state, intermediate streams, and what its tasks began with."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.core.errors import StorageError, UsageError
from headrace.metadata.store import MetadataStore
from headrace.metadata.timelines import Timelines
from headrace.runners.savepoints.inventories import delete_inventory, recorded
from headrace.runtime.naming import changelog_name, folder_name, founding_folder
from headrace.savepoints.folder import locked
from headrace.systems.log.layout import StreamFolder


def delete_timeline(home: Path, app: str, metadata: MetadataStore, number: int) -> None:
    """Delete a timeline. It can't be returned to after that. A command that is interrupted can be repeated."""
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
        folders = [StreamFolder(home / "streams", stream).path for stream in sorted(streams)]
        folders += [home / kind / folder_name(app, number) for kind in ("state", "snapshots")]
        folders.append(founding_folder(home, app, number))
        for folder in folders:
            try:
                if folder.exists():
                    shutil.rmtree(folder)
            except OSError as error:
                raise StorageError(f"{folder} can't be deleted: {error}", hint="fix that, then try again") from error
        delete_inventory(metadata, app, number)
        timelines.forget(number)
