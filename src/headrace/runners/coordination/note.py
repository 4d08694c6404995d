"""What the ledger wants to be logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to the app, or to one container; the server logs it when it has released its lock."""

    level: Literal["info", "warning"]
    what: str
    container: int | None
    fields: Mapping[str, str | int]
