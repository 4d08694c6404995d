"""The options of a Kinesis stream, as a ``SystemSpec`` has them: JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from headrace.core.errors import UsageError
from headrace.serdes.formats import FormatSpec
from headrace.systems.option_names import check_option_names

LeaseAhead = Literal["stop", "continue", "repeat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the app says of the stream. ``start`` may be milliseconds since the epoch; ``key`` is an output's.

    ``lost`` says what happens where records may have expired unread: ``"stop"`` or ``"skip"``. ``lease_ahead`` says
    what happens if another application has continued in the lease table since the last commits.

    ``memo`` is the file in which an app remembers an input, ``remembered`` what it has remembered: the contents.
    """

    stream: str
    region: str | None = None
    endpoint_url: str | None = None
    format: FormatSpec = field(default_factory=FormatSpec)
    start: str | int = "oldest"
    slots: int | None = None
    record_columns: Mapping[str, str] = field(default_factory=dict)
    lease_table: str | None = None
    lost: str = "stop"
    lease_ahead: LeaseAhead = "stop"
    memo: str | None = None
    remembered: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Options:
        """The options of the system ``name``. Raises ``DeclarationError`` for unknown ones."""
        check_option_names(name, "kinesis", options, (one.name for one in fields(cls)), "stream")
        given = dict(options)
        given["format"] = FormatSpec(**given.get("format", {}))
        return cls(**given)

    def memo_path(self) -> Path:
        """Where the app remembers the stream. Raises ``UsageError`` if no app reads it."""
        if self.memo is None:
            raise UsageError(
                f"the Kinesis stream {self.stream!r} isn't an input of an app here, so its slots aren't known",
                hint='declare it as an input: app.input("orders", ..., system=hr.io.kinesis("orders"))',
            )
        return Path(self.memo)
