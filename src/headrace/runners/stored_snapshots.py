"""The snapshots that an app has in an object store, for commands: whether the app runs or not."""

from __future__ import annotations

from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.runtime.naming import remote_folder, remote_timeline
from headrace.stores.objects.contract import ObjectStore
from headrace.stores.objects.layout import Manifest, manifest_names, read_manifest, snapshot_of

_DELETED_AT_ONCE = 500
_log = logger(__name__)


def stored_snapshots(store: ObjectStore, app: str, task: TaskName, timeline: int) -> list[Manifest]:
    """The complete snapshots of a task, oldest first."""
    folder = remote_folder(app, task, timeline)
    listing = {name.removeprefix(folder): size for name, size in store.list(folder).items()}
    complete = []
    for name in reversed(manifest_names(listing)):
        data = store.get(folder + name)
        if data is None:
            continue
        manifest = read_manifest(data)
        if manifest is None:
            _log.warning("a snapshot in the store is damaged", folder=folder, snapshot=snapshot_of(name))
        elif manifest.whole(listing):
            complete.append(manifest)
    return complete


def delete_stored(store: ObjectStore, app: str, timeline: int) -> None:
    """Delete all snapshots of a timeline. May be repeated if it is interrupted."""
    names = list(store.list(remote_timeline(app, timeline)))
    for first in range(0, len(names), _DELETED_AT_ONCE):
        store.delete(names[first : first + _DELETED_AT_ONCE])
    _log.info("deleted the snapshots of a timeline", app=app, timeline=timeline, objects=len(names))
