"""Notes of the ledger for the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Note:
    """An event of the app or of one container. The server logs it after releasing its lock."""

    level: Literal["info", "warning"]
    what: str
    container: int | None
    fields: Mapping[str, str | int]
