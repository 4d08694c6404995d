"""Find running apps by their home folder, as commands do."""

from __future__ import annotations

from pathlib import Path

from headrace.metadata.opening import existing_metadata
from headrace.runners.coordination import runs
from headrace.runners.coordination.address import Address


def find_all(home: Path, app: str | None = None) -> list[Address]:
    """Return every deployment that isn't certainly gone."""
    with existing_metadata(home) as metadata:
        return runs.find_all(metadata, app)


def find(home: Path, app: str) -> Address:
    """Return the running deployment of the app."""
    with existing_metadata(home) as metadata:
        return runs.find(metadata, app)
