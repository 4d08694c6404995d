"""Export a savepoint to a folder or one file, and import it under another app, name or home.

Both are complete or not there. The manifest, which has a checksum of each file, is the last one in an archive, so one
that was cut short shows.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import uuid
from pathlib import Path

import msgspec

from headrace.core.durable import writing
from headrace.core.errors import DataError, UsageError
from headrace.core.private_folder import make_private, make_private_folder, open_private
from headrace.savepoints.folder import Progress, Shelf, copy_tree, read_manifest, sync_tree, verify, write_manifest
from headrace.savepoints.manifest import FILE, Manifest

ARCHIVE = ".tar"


def export(shelf: Shelf, name: str, target: Path, progress: Progress) -> Manifest:
    """Copy a savepoint to a new folder, or into a new file if the name ends with ``.tar``."""
    folder, manifest = shelf.path(name), shelf.manifest(name)
    if target.exists():
        raise UsageError(f"{target} exists already", hint="give the name of a new folder, or of a new .tar file")
    verify(folder, manifest, progress)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    progress(f"writing {target}")
    try:
        with writing(target):
            make_private_folder(target.parent)
            if target.suffix == ARCHIVE:
                _pack(folder, draft)
            else:
                copy_tree(folder, draft, link=False)
                sync_tree(draft)
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True) if draft.is_dir() else draft.unlink(missing_ok=True)
    return manifest


def import_(shelf: Shelf, app: str, name: str, source: Path, from_app: str | None, progress: Progress) -> Manifest:
    """Make what ``export`` wrote a savepoint of an app; ``from_app`` accepts that it was taken of another one."""
    if not source.exists():
        raise UsageError(f"{source} doesn't exist", hint="give the exported folder or .tar file")
    shelf.check_free(name)
    with shelf.locked(), shelf.draft(name) as draft:
        progress(f"reading {source}")
        if source.is_dir():
            read_manifest(source)  # it is written last
            shutil.rmtree(draft)
            copy_tree(source, draft, link=False)
        else:
            _unpack(source, draft)
        manifest = read_manifest(draft)
        if manifest.app not in (app, from_app):
            raise UsageError(
                f"{source} is a savepoint of app {manifest.app!r}, not of {app!r}",
                hint=f"to import it for {app!r} nevertheless, add --from {manifest.app}",
            )
        verify(draft, manifest, progress)
        renamed = msgspec.structs.replace(manifest, name=name)
        write_manifest(draft, renamed)
    return renamed


def _pack(folder: Path, draft: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files.sort(key=lambda path: path.name == FILE and path.parent == folder)
    with open(draft, "wb", opener=open_private) as made, tarfile.open(fileobj=made, mode="w") as archive:
        for path in files:
            archive.add(path, str(path.relative_to(folder)))
    with draft.open("rb") as file:
        os.fsync(file.fileno())


def _unpack(source: Path, draft: Path) -> None:
    try:
        with tarfile.open(source, "r:") as archive:
            archive.extractall(draft, filter="data")
        make_private(draft)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{source} isn't an export of a savepoint, or was cut short: {error}", hint="export the savepoint again"
        ) from error
    if not (draft / FILE).exists():
        raise DataError(
            f"{source} was cut short, or isn't an export of a savepoint: it has no {FILE}",
            hint="export the savepoint again",
        )
