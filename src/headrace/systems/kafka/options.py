"""The options of a topic, as a ``SystemSpec`` has them: JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from headrace.core.errors import DeclarationError
from headrace.core.ids import Offset
from headrace.serdes.formats import FormatSpec
from headrace.systems.kafka.settings import SETTINGS, KafkaSettings
from headrace.systems.option_names import check_option_names

Lost = Literal["stop", "skip"]
"""What happens if records were deleted before the app has read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a bounded input ends: at the first record of this time or later, or at an offset of each partition."""

    time_ms: int | None = None
    offsets: Mapping[int, Offset] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The end as JSON."""
        if self.time_ms is not None:
            return {"time": self.time_ms}
        return {"offsets": {str(partition): offset for partition, offset in self.offsets.items()}}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> End:
        """The end of ``options()``."""
        offsets = {int(partition): offset for partition, offset in options.get("offsets", {}).items()}
        return cls(time_ms=options.get("time"), offsets=offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the app says of the topic. ``start`` may be milliseconds since the epoch.

    ``key_format`` is of the records' keys; ``uncommitted``: records of open and aborted transactions are read, too.
    """

    topic: str
    settings: KafkaSettings
    format: FormatSpec = field(default_factory=FormatSpec)
    key_format: FormatSpec = field(default_factory=lambda: FormatSpec("bytes"))
    record_columns: Mapping[str, str] = field(default_factory=dict)
    start: str | int = "oldest"
    end: End | None = None
    uncommitted: bool = False
    lost: Lost = "stop"

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Options:
        """The options of the system ``name``. Raises ``DeclarationError`` for unknown ones."""
        known = [one.name for one in fields(cls) if one.name != "settings"] + list(SETTINGS)
        check_option_names(name, "kafka", options, known, "topic", "brokers")
        given = {one: value for one, value in options.items() if one not in SETTINGS}
        for one in ("format", "key_format"):
            if one in given:
                given[one] = FormatSpec(**given[one])
        if "end" in given:
            given["end"] = End.of(given["end"])
        if given.get("lost", "stop") not in get_args(Lost):
            raise DeclarationError(f"system {name!r} (kafka): lost={given['lost']!r}", hint='use "stop" or "skip"')
        return cls(settings=KafkaSettings.of(options), **given)
