"""Registries of schemas answer at once here, unless the machine is busy."""

from __future__ import annotations

import pytest

from headrace.connectors.formats import registry as schemas


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an answer as long as it takes: records that come before one would be asked for again."""
    monkeypatch.setattr(schemas, "WAIT_MS", 30_000.0)
