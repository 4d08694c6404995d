"""Snapshots of a task's database in folders, each named after the commit that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.checkpoint.record import LocalCheckpoint
from headrace.runtime.state.disk import Disk


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's folder, named after the commit that it holds."""

    folder: Path
    local: LocalCheckpoint

    @staticmethod
    def name(local: LocalCheckpoint) -> str:
        """Folder names sort by offset. Manifests in an object store have the same names."""
        return f"{local.offset:020}-{local.generation}-{local.version}"

    @classmethod
    def at(cls, path: Path) -> Snapshot:
        """The snapshot in this folder."""
        offset, generation, version = path.name.split("-", 2)
        return cls(path, LocalCheckpoint(int(offset), int(generation), int(version)))

    @classmethod
    def all(cls, folder: Path) -> list[Snapshot]:
        """The snapshots in a folder, oldest first."""
        return [cls.at(path) for path in Disk().snapshots(folder)]
