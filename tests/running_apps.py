"""Find running apps by their home folder, as commands do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.coordinator import publication as runs
from headrace.coordinator.address import Address
from headrace.life.metadata import existing_metadata


def find_all(home: Path, app: str | None = None) -> list[Address]:
    """Return every deployment that isn't certainly gone."""
    with existing_metadata(home) as metadata:
        return runs.find_all(metadata, app)


def find(home: Path, app: str) -> Address:
    """Return the running deployment of the app."""
    with existing_metadata(home) as metadata:
        return runs.find(metadata, app)


def wait_until(condition: Callable[[], Any], errors: Sequence[BaseException], looks: int) -> None:
    """Wait for something that happens in a thread without an event for others; ``errors`` are those of the app."""
    never = threading.Event()
    for _ in range(looks):
        if condition():
            return
        if errors:
            raise AssertionError("the app has failed") from errors[0]
        never.wait(0.02)
    raise AssertionError("it didn't come to that")
